"""Counting precision from graphs: the known figure of YOLO11n, names that lie, reasons, arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import small_onnx
from onnx import TensorProto, helper, numpy_helper

from ladder import graph, inputs, models, precision, utilisation
from ladder.graph import Observed

NOTHING = Observed({}, {})


@pytest.fixture(scope="module")
def yolo(tmp_path_factory, weights_of) -> tuple[Path, Observed, Path]:
    """YOLO11n with the weights of seed 0, what running it on two pictures shows, and the pictures."""
    folder = tmp_path_factory.mktemp("yolo")
    spec = {"name": "yolo11n", "source": "ultralytics", "architecture": "yolo11n.yaml", "weights": {"seeded": 0}}
    spec |= {"input": [640, 640], "opset": 17, "axes": {"batch": "batch"}, "task": "detection"}
    path, pictures = folder / "yolo11n.onnx", folder / "pictures.npz"
    models.export(spec, None, models.load(spec, weights_of(spec)), path)
    np.savez(pictures, **inputs.make({"pictures": "ultralytics"}, models.input_specs(spec), 2)[0])
    return path, graph.observe(path, graph.samples_of(pictures)), pictures


def test_autocast_of_yolo11n_converts_395_of_419_nodes(yolo, tmp_path):
    path, observed, pictures = yolo
    identity = precision.convert(path, pictures, "fp16", {}, observed, tmp_path / "fp16.onnx")
    found = graph.describe(onnx.load(path), onnx.load(tmp_path / "fp16.onnx"), "fp16", observed, identity["options"])
    assert (found["nodes"], found["at_precision"]) == (419, 395)
    assert round(found["at_precision_pct"], 2) == 94.27
    assert found["kept"] == {"range": 18, "op": 6, "exclusion": 0, "other": 0}
    assert (found["float_nodes"], found["float_nodes_at_precision"]) == (355, 351)
    by_reason = {r: {d["type"] for d in found["detail"] if d["reason"] == r} for r in ("range", "op")}
    assert by_reason["op"] == {"Range"} and "Concat" in by_reason["range"]
    # ultralytics says 6.5 GFLOPs
    assert found["flops"]["total"] == pytest.approx(6.5e9, rel=0.02) and found["flops"]["at_precision_pct"] == 100
    moved = found["elements"]["activations"]
    assert moved["fp16"] > 30 * moved["fp32"] and found["elements"]["weights"]["fp16"] > 2_600_000
    fp32 = graph.describe(onnx.load(path), onnx.load(path), "fp32", observed)["elements"]
    assert round(utilisation.least_bytes(fp32, "fp32", 1) / 1e6) == 18  # MB, as docs/method.md has it
    assert round(utilisation.unfused_bytes(fp32, 1) / 1e6) == 637


def test_fp32_tensors_under_an_fp16_name_are_no_percent(yolo, tmp_path):
    path, observed, _ = yolo
    fake = tmp_path / "yolo11n.fp16.onnx"
    fake.write_bytes(path.read_bytes())
    found = graph.write(path, fake, tmp_path / "graph.json", "fp16", observed, {"data_max": 512})
    assert found["at_precision_pct"] == 0 and found["float_nodes_at_precision"] == 0
    assert found["flops"]["at_precision_pct"] == 0
    assert sum(found["kept"].values()) == 419


def model(nodes, inputs=(), initializers=(), outputs=("y",), kind=TensorProto.FLOAT, opset=17) -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            list(nodes),
            "g",
            [helper.make_tensor_value_info(name, kind, [1, 3, 4, 4]) for name in (inputs or ["x"])],
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in dict(initializers).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )


def test_inserted_casts_are_in_no_count():
    relu, sigmoid = helper.make_node("Relu", ["x"], ["a"], "relu"), helper.make_node("Sigmoid", ["a"], ["y"], "sigmoid")
    original = model([relu, sigmoid])
    converted = model(
        [
            helper.make_node("Cast", ["x"], ["x16"], "down", to=TensorProto.FLOAT16),
            helper.make_node("Relu", ["x16"], ["a"], "relu"),
            helper.make_node("Cast", ["a"], ["a32"], "up", to=TensorProto.FLOAT),
            helper.make_node("Sigmoid", ["a32"], ["y"], "sigmoid"),
        ]
    )
    found = graph.describe(original, converted, "fp16", NOTHING)
    assert (found["nodes"], found["at_precision"]) == (2, 1)
    assert found["precisions"] == {"fp16": 1, "fp32": 1}


def test_a_node_is_fp16_only_if_all_its_float_outputs_are():
    split = helper.make_node("Split", ["x", "sizes"], ["a", "y"], "split", axis=1)
    sizes = {"sizes": np.array([1, 2])}
    half = model([split], kind=TensorProto.FLOAT16, initializers=sizes)
    assert graph.describe(model([split], initializers=sizes), half, "fp16", NOTHING)["at_precision"] == 1
    uneven = model(
        [helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"], "norm")],
        kind=TensorProto.FLOAT16,
        initializers={"s": np.ones(4, np.float16)},
    )  # its mean is FP32 whatever its input is
    original = model(
        [helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"], "norm")],
        initializers={"s": np.ones(4, np.float32)},
    )
    found = graph.describe(original, uneven, "fp16", NOTHING)
    assert found["at_precision"] == 0 and found["precisions"] == {"mixed": 1}


def test_types_that_a_file_claims_are_not_believed():
    claimed = model([helper.make_node("Relu", ["x"], ["a"], "relu"), helper.make_node("Relu", ["a"], ["y"], "relu2")])
    claimed.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT16, [1, 3, 4, 4]))
    assert graph.describe(claimed, claimed, "fp16", NOTHING)["at_precision"] == 0


def test_nodes_without_names_are_found_by_their_outputs():
    original = model([helper.make_node("Relu", ["x"], ["y"])])
    converted = model([helper.make_node("Relu", ["x"], ["y"], "Relu_0")], kind=TensorProto.FLOAT16)
    found = graph.describe(original, converted, "fp16", NOTHING)
    assert found["at_precision"] == 1 and found["detail"][0]["name"] == "y"


def quantised(weights_too: bool) -> onnx.ModelProto:
    """Relu, then a convolution between Q and DQ nodes, its weights quantised or not, then another Relu."""
    pair = [
        helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["aq"], "a_Q"),
        helper.make_node("DequantizeLinear", ["aq", "scale", "zero"], ["ad"], "a_DQ"),
        helper.make_node("DequantizeLinear", ["wq", "scale", "zero"], ["wd"], "w_DQ"),
    ]
    return model(
        [
            helper.make_node("Relu", ["x"], ["a"], "relu"),
            *pair,
            helper.make_node("Conv", ["ad", "wd" if weights_too else "w"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["y"], "relu2"),
        ],
        initializers={
            "scale": np.array(0.1, np.float32),
            "zero": np.array(0, np.int8),
            "wq": np.ones((2, 3, 1, 1), np.int8),
            "w": np.ones((2, 3, 1, 1), np.float32),
        },
    )


@pytest.mark.parametrize("weights_too", [True, False])
def test_int8_needs_quantised_inputs_and_weights(weights_too):
    original = model(
        [
            helper.make_node("Relu", ["x"], ["a"], "relu"),
            helper.make_node("Conv", ["a", "w"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["y"], "relu2"),
        ],
        initializers={"w": np.ones((2, 3, 1, 1), np.float32)},
    )
    found = graph.describe(original, quantised(weights_too), "int8", NOTHING)
    assert (found["nodes"], found["at_precision"]) == (3, int(weights_too))
    assert found["kept"] == {"range": 0, "op": 2, "exclusion": 0, "other": int(not weights_too)}


def test_why_a_node_stayed(tmp_path):
    path = small_onnx.convnet(tmp_path / "fp32.onnx", scale=1e4)
    observed = graph.observe(path, graph.samples_of(small_onnx.data(tmp_path / "data.npz")))
    options = {"data_max": 512, "exclude_nodes": ["/conv1/Conv"], "exclude_ops": ["Gemm"]}
    original = onnx.load(path)
    found = graph.describe(original, original, "fp16", observed, options)
    reasons = {each["name"]: each["reason"] for each in found["detail"]}
    assert reasons["/conv1/Conv"] == reasons["/fc/Gemm"] == "exclusion"
    assert reasons["/wide/Mul"] == reasons["/wide/Mul_1"] == "range"
    assert reasons["/conv2/Conv"] == "other"


def test_observing_covers_all_samples_and_every_tensor(tmp_path):
    path = small_onnx.convnet(tmp_path / "fp32.onnx")
    archive = tmp_path / "data.npz"
    np.savez(archive, x=np.stack([np.full((3, 16, 16), value, np.float32) for value in (1, -7, 2)]))
    observed = graph.observe(path, graph.samples_of(archive))
    assert observed.ranges["x"] == 7 and observed.shapes["x"] == (1, 3, 16, 16)
    produced = {name for node in onnx.load(path).graph.node for name in node.output}
    assert produced <= observed.ranges.keys() and observed.shapes["c1"] == (1, 16, 16, 16)


def test_what_is_not_finite_is_beyond_every_range(tmp_path):
    path = small_onnx.convnet(tmp_path / "fp32.onnx")
    np.savez(tmp_path / "data.npz", x=np.full((1, 3, 16, 16), np.nan, np.float32))
    observed = graph.observe(path, graph.samples_of(tmp_path / "data.npz"))
    assert observed.ranges["x"] == observed.ranges["c1"] == np.inf
    original = onnx.load(path)
    found = graph.describe(original, original, "fp16", observed, {"data_max": 512})
    assert next(each for each in found["detail"] if each["name"] == "/conv1/Conv")["reason"] == "range"


def test_flops_agree_with_torch():
    import torch
    from torch.nn import functional as f
    from torch.utils.flop_counter import FlopCounterMode

    def of_torch(run) -> int:
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    def of_graph(node, **shapes) -> int | None:
        return graph.flops(node, {name: tuple(shape) for name, shape in shapes.items()})

    x, w, t = torch.ones(2, 4, 9, 9), torch.ones(6, 2, 3, 3), torch.ones(4, 3, 2, 2)
    y = f.conv2d(x, w, stride=2, groups=2)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], group=2, strides=[2, 2])
    assert of_graph(conv, x=x.shape, w=w.shape, y=y.shape) == of_torch(lambda: f.conv2d(x, w, stride=2, groups=2))
    y = f.conv_transpose2d(x, t, stride=2)
    transposed = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    wanted = of_torch(lambda: f.conv_transpose2d(x, t, stride=2))
    assert of_graph(transposed, x=x.shape, w=t.shape, y=y.shape) == wanted
    a, b = torch.ones(5, 3, 7), torch.ones(5, 7, 2)
    matmul = helper.make_node("MatMul", ["a", "b"], ["y"])
    assert of_graph(matmul, a=a.shape, b=b.shape, y=(5, 3, 2)) == of_torch(lambda: torch.bmm(a, b))
    gemm = helper.make_node("Gemm", ["a", "b"], ["y"], transA=1)
    assert of_graph(gemm, a=(7, 3), b=(7, 2), y=(3, 2)) == of_torch(lambda: a[0].new_ones(3, 7) @ b[0])
    assert of_graph(helper.make_node("Relu", ["x"], ["y"]), x=(1,), y=(1,)) is None
