"""Export: the ONNX file is what was asked for, equals its reference, and a failure leaves its reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ladder import export, models, weights
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.step import UpstreamFailed, attempts_path, id_path_of, read_id, step

SCRIPTS = Path(__file__).parents[1] / "scripts"
RESNET = {
    "name": "resnet",
    "source": "torchvision",
    "architecture": "resnet18",
    "weights": {"seeded": 0},
    "input": [64, 64],
    "opset": 13,
    "axes": {"batch": "batch"},
    "task": "generic",
}
BERT = RESNET | {
    "name": "bert",
    "source": "transformers",
    "architecture": "bert-tiny",
    "input": None,
    "opset": 17,
    "axes": {"batch": "batch", "sequence": 16},
}
YOLO = RESNET | {"name": "yolo", "source": "ultralytics", "architecture": "yolo11n.yaml", "task": "detection"}


Weights = Callable[[dict], Path]


def make_inputs(spec: dict, weights: Path | None = None, samples: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        each.name: random.integers(0, 2, (samples, *each.shape)).astype(each.dtype)
        for each in models.input_specs(spec, weights)
    }


def run(spec: dict, folder: Path, weights: Path, samples: int = 3) -> tuple[dict, dict]:
    inputs = make_inputs(spec, weights, samples)
    return export.export(spec, weights, inputs, folder / "fp32.onnx", folder / "reference.npz")


@pytest.mark.parametrize(
    ("spec", "nodes", "outputs"),
    [(RESNET, 49, [["batch", 1000]]), (BERT, 114, [["batch", "sequence", 128], ["batch", 128]])],
    ids=["resnet", "bert"],
)
def test_torch_models(tmp_path: Path, spec: dict, nodes: int, outputs: list, weights_of: Weights) -> None:
    identity, build = run(spec, tmp_path, weights_of(spec))
    assert identity["nodes"] == nodes
    assert identity["opset"] == spec["opset"]
    assert [each["shape"] for each in identity["outputs"]] == outputs
    assert [each["name"] for each in identity["inputs"]] == models.input_names(spec)
    assert identity["axes"] == spec["axes"]
    assert (identity["reference"], identity["weights"]) == ("pytorch", "seeded(0)")
    assert identity["sha256"] == sha256(tmp_path / "fp32.onnx")
    assert identity["reference_sha256"] == sha256(tmp_path / "reference.npz")
    assert identity["weights_sha256"] == sha256(weights_of(spec))
    assert all(figures["relative"] < 1e-5 for figures in build["parity"].values())
    with np.load(tmp_path / "reference.npz") as reference:
        assert [each["name"] for each in identity["outputs"]] == reference.files
        assert all(len(reference[name]) == 3 for name in reference.files)
    assert not list(tmp_path.glob(".*"))


def export_command(spec: dict, folder: Path, weights: Path) -> list:
    """The script's command for inputs that stand in ``folder`` already."""
    write_json(folder / "spec.json", spec)
    files = {"onnx": "fp32.onnx", "id": "fp32.id.json", "build": "fp32.build.json", "graph": "fp32.graph.json"}
    files["reference"] = "reference.npz"
    outputs = [part for key, name in files.items() for part in (f"--output-{key}", folder / name)]
    given = ["--inputs", folder / "inputs.npz", "--inputs-id", folder / "inputs.id.json"]
    given += ["--weights", weights, "--weights-id", id_path_of(weights)]
    return [sys.executable, SCRIPTS / "export.py", "--spec", folder / "spec.json", *given, *outputs]


def test_yolo11n_as_the_default_ladder_runs_it(tmp_path: Path, weights_of: Weights) -> None:
    spec = YOLO | {"input": [640, 640], "opset": 17}
    write_json(tmp_path / "spec.json", spec)
    write_json(tmp_path / "data.json", {"pictures": "ultralytics"})
    arrays = ["--output-npz", tmp_path / "inputs.npz", "--output-id", tmp_path / "inputs.id.json"]
    told = ["--spec", tmp_path / "spec.json", "--data", tmp_path / "data.json"]
    subprocess.run([sys.executable, SCRIPTS / "inputs.py", *told, *arrays], check=True)
    hashes = set()
    for seed in ("1", "2"):  # of Python's hashes: no set's order may show in the file
        command = export_command(spec, tmp_path, weights_of(spec))
        done = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        assert done.stdout == b""
        hashes.add(sha256(tmp_path / "fp32.onnx"))
    identity = read_json(tmp_path / "fp32.id.json")
    assert identity["status"] == "ok", identity
    assert (identity["nodes"], identity["opset"]) == (419, 17)
    assert identity["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 3, "height", "width"]}]
    assert identity["axes"] == {"batch": "batch", "height": 640, "width": 640}
    assert len(hashes) == 1
    assert read_json(tmp_path / "fp32.graph.json")["nodes"] == 419
    parity = read_json(tmp_path / "fp32.build.json")["parity"]
    assert set(parity) == {f"output0 {part} batch {batch}" for part in ("boxes", "scores") for batch in (1, 2)}
    assert str(tmp_path).encode() not in (tmp_path / "fp32.onnx").read_bytes()


def own_onnx(path: Path, axes: tuple = ("N", "length"), nodes: list | None = None) -> dict:
    """An ONNX file of two inputs, ids and scale, whose output is their product, and the section that names it."""
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, list(axes)),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, [axes[0], 1]),
    ]
    nodes = nodes or [
        helper.make_node("Cast", ["ids"], ["cast"], "to float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["cast", "scale"], ["product"], "scaled"),
    ]
    output = helper.make_tensor_value_info("product", TensorProto.FLOAT, list(axes))
    graph = helper.make_graph(nodes, "own", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    onnx.save(model, path)
    spec = {"name": "own", "source": "onnx", "architecture": None, "input": None, "opset": 17, "task": "generic"}
    return spec | {"weights": {"path": str(path)}, "axes": {"N": "batch", "length": 4}}


@pytest.mark.parametrize("samples", [1, 3])
def test_an_onnx_file_is_taken_as_it_is(tmp_path: Path, samples: int) -> None:
    path = tmp_path / "own.onnx"
    identity, _ = run(own_onnx(path), tmp_path, path, samples)
    assert (identity["reference"], identity["opset"], identity["nodes"]) == ("onnxruntime", 15, 2)
    assert identity["sha256"] == identity["weights_sha256"] == sha256(path)
    assert identity["weights"] == f"file sha256:{sha256(path)[:8]}"
    inputs = make_inputs(own_onnx(path), path, samples)
    with np.load(tmp_path / "reference.npz") as reference:
        assert np.array_equal(reference["product"], inputs["ids"] * inputs["scale"])


def test_nodes_without_a_name_of_their_own_get_one(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    spec = own_onnx(path)
    model = onnx.load(path)
    kept, lost = model.graph.node
    kept.name, lost.name = "product", ""
    onnx.save(model, path)
    identity, _ = run(spec, tmp_path, path, 2)
    assert [node.name for node in onnx.load(tmp_path / "fp32.onnx").graph.node] == ["product", "product_"]
    assert identity["sha256"] != identity["weights_sha256"] == sha256(path)
    kept.name = lost.name = "twice"
    onnx.save(model, path)
    run(spec, tmp_path, path, 2)
    assert [node.name for node in onnx.load(tmp_path / "fp32.onnx").graph.node] == ["twice", "product"]


def test_an_onnx_file_that_is_wrong_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    spec = own_onnx(path, nodes=[helper.make_node("NoSuchOperator", ["ids", "scale"], ["product"])])
    with pytest.raises(StepError, match="onnx.checker refuses the file of model own") as failure:
        run(spec, tmp_path, path)
    assert failure.value.permanent
    assert not (tmp_path / "fp32.onnx").exists() and not (tmp_path / "reference.npz").exists()


def test_a_batch_that_is_dynamic_in_name_only_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 4])
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=shape),
        helper.make_node("Reshape", ["ids", "shape"], ["fixed"]),
        helper.make_node("Cast", ["fixed"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["cast", "scale"], ["product"]),
    ]
    with pytest.raises(StepError, match="does not run at batch 2"):
        run(own_onnx(path, nodes=nodes), tmp_path, path)


def one_node(path: Path, node: onnx.NodeProto, output: onnx.ValueInfoProto) -> dict:
    """A model of one node from ``x`` [batch, 4]; every name in it may be chosen."""
    value = helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, ["N", 4])
    model = helper.make_model(
        helper.make_graph([node], "one", [value], [output]),
        opset_imports=[helper.make_opsetid("", 15)],
        ir_version=8,
    )
    onnx.save(model, path)
    return own_onnx(path.with_name("other.onnx")) | {"weights": {"path": str(path)}, "axes": {"N": "batch"}}


@pytest.mark.parametrize(("axes", "keepdims", "shape"), [([0], 0, [4]), ([0], 1, [1, 4]), ([0, 1], 0, [])])
@pytest.mark.parametrize("samples", [1, 3])
def test_an_output_without_a_batch_axis_is_named(
    tmp_path: Path, axes: list, keepdims: int, shape: list, samples: int
) -> None:
    path = tmp_path / "mean.onnx"
    node = helper.make_node("ReduceMean", ["x"], ["mean"], axes=axes, keepdims=keepdims)
    spec = one_node(path, node, helper.make_tensor_value_info("mean", TensorProto.FLOAT, shape))
    with pytest.raises(StepError, match="output 'mean' has no batch axis: .*; every output must have the batch") as e:
        export.export(spec, path, {"x": np.ones((samples, 4), np.float32)}, tmp_path / "a.onnx", tmp_path / "a.npz")
    assert e.value.permanent and not (tmp_path / "a.npz").exists()


@pytest.mark.parametrize("names", [("file", "y"), ("x", "file"), ("file", "out/file:0")])
def test_inputs_and_outputs_may_be_called_file(tmp_path: Path, names: tuple) -> None:
    path = tmp_path / "relu.onnx"
    node = helper.make_node("Relu", [names[0]], [names[1]])
    spec = one_node(path, node, helper.make_tensor_value_info(names[1], TensorProto.FLOAT, ["N", 4]))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    export.export(spec, path, {names[0]: x}, tmp_path / "fp32.onnx", tmp_path / "reference.npz")
    with np.load(tmp_path / "reference.npz") as reference:
        assert reference.files == [names[1]] and np.array_equal(reference[names[1]], x)


def test_strings_and_sequences_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    x = {"x": np.ones((2, 4), np.float32)}
    text = helper.make_tensor_value_info("text", TensorProto.STRING, ["N", 4])
    spec = one_node(path, helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING), text)
    with pytest.raises(StepError, match="'text' of model own holds strings, which is not supported") as error:
        export.export(spec, path, x, tmp_path / "fp32.onnx", tmp_path / "reference.npz")
    assert error.value.permanent
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    spec = one_node(path, helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1), parts)
    with pytest.raises(StepError, match="'parts' of model own is a sequence, which is not supported"):
        export.export(spec, path, x, tmp_path / "fp32.onnx", tmp_path / "reference.npz")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    onnx.save(model, path)
    with pytest.raises(StepError, match="'x' of model own holds strings"):
        models.input_specs(spec, path)


def test_an_output_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    spec = own_onnx(path)
    inputs = make_inputs(spec, path)
    inputs["scale"][:] = np.inf
    inputs["ids"][:] = 1
    with pytest.raises(StepError, match="output 'product' of the reference has values that are not finite"):
        export.export(spec, path, inputs, tmp_path / "fp32.onnx", tmp_path / "reference.npz")


def test_a_file_that_differs_from_pytorch_is_refused(
    tmp_path: Path, weights_of: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = models.export

    def perturbing(spec: dict, weights: Path | None, module: object, destination: Path) -> None:
        exporter(spec, weights, module, destination)
        model = onnx.load(destination)
        bias = next(tensor for tensor in model.graph.initializer if tensor.name == "fc.bias")
        bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(0.5), "fc.bias"))
        onnx.save(model, destination)

    monkeypatch.setattr(models, "export", perturbing)
    with pytest.raises(StepError, match="logits of model resnet at batch 1: ONNX differs .* by 0.5, .* is 0.001") as e:
        run(RESNET, tmp_path, weights_of(RESNET))
    assert e.value.permanent
    assert not (tmp_path / "fp32.onnx").exists()


def test_an_operator_that_the_opset_lacks_is_an_error(tmp_path: Path, weights_of: Weights) -> None:
    with pytest.raises(StepError, match="torch cannot export this model at opset 13: .*scaled_dot_product") as failure:
        run(BERT | {"opset": 13}, tmp_path, weights_of(BERT))
    assert failure.value.permanent


def test_another_opset_than_asked_is_an_error(
    tmp_path: Path, weights_of: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = models.export
    monkeypatch.setattr(models, "export", lambda spec, *rest: exporter(spec | {"opset": 15}, *rest))
    with pytest.raises(StepError, match="the exporter wrote opset 15 for model resnet, asked was 13"):
        run(RESNET, tmp_path, weights_of(RESNET))


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="the inputs are x; model resnet takes input"):
        export.export(
            RESNET, tmp_path / "weights.bin", {"x": np.zeros(1)}, tmp_path / "fp32.onnx", tmp_path / "reference.npz"
        )


def test_detections_of_equal_score_may_change_places() -> None:
    right = np.random.default_rng(0).random((2, 5, 6)).astype(np.float32)
    shuffled = right[:, [1, 0, 2, 4, 3]]
    parts = export._parts({"task": "detection"}, "output0", shuffled, right)
    assert [name for name, _, _ in parts] == ["output0 boxes", "output0 scores"]
    assert all(np.array_equal(found, wanted) for _, found, wanted in parts)


def test_the_script_passes_an_earlier_failure_on(tmp_path: Path, weights_of: Weights) -> None:
    record = {"status": "failed", "stage": "inputs", "reason": "no pictures", "permanent": False, "log": "a.log"}
    write_json(tmp_path / "inputs.id.json", record)
    (tmp_path / "inputs.npz").touch()
    command = export_command(RESNET, tmp_path, weights_of(RESNET))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "export: no result: inputs failed: no pictures" in done.stderr
    assert read_json(tmp_path / "fp32.id.json") == record
    assert not attempts_path(tmp_path / "fp32.id.json").exists()
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("fp32.*") if path.name != "fp32.id.json")
    assert (tmp_path / "reference.npz").read_bytes() == b""


def test_damaged_weights_are_not_exported_and_made_anew_by_the_next_call(tmp_path: Path) -> None:
    """The workflow makes weights again where their id has another number of attempts."""
    path = tmp_path / "weights.bin"
    write_json(tmp_path / "weights.id.json", weights.obtain(BERT, path, tmp_path / "pins.json"))
    made = path.read_bytes()
    path.write_bytes(made[:-1])
    subprocess.run(export_command(BERT, tmp_path, path), capture_output=True, check=True)
    record = read_json(tmp_path / "fp32.id.json")
    assert (record["status"], record["permanent"]) == ("failed", False)
    assert "was changed or cut short; the next call makes it anew" in record["reason"]
    assert len(attempts_path(tmp_path / "weights.id.json").read_text().splitlines()) == 1
    weights.obtain(BERT, path, tmp_path / "pins.json")
    assert path.read_bytes() == made


class TestStep:
    """The record that every script leaves."""

    def test_a_good_end_changes_nothing(self, tmp_path: Path) -> None:
        with step("engine", tmp_path / "id.json", [tmp_path / "engine"]):
            (tmp_path / "engine").write_text("engine")
            write_json(tmp_path / "id.json", {"status": "ok"})
        assert read_id(tmp_path / "id.json") == {"status": "ok"}
        assert {path.name for path in tmp_path.iterdir()} == {"engine", "id.json"}

    @pytest.mark.parametrize(
        ("error", "reason", "permanent"),
        [
            (StepError("not supported", permanent=True), "not supported", True),
            (StepError("device\nlost"), "device\nlost", False),
            (KeyError("x"), "KeyError: 'x'", False),
        ],
    )
    def test_a_failure_is_recorded(self, tmp_path: Path, error: Exception, reason: str, permanent: bool) -> None:
        for _ in range(2):
            (tmp_path / "engine").write_text("stale")
            with step("engine", tmp_path / "id.json", [tmp_path / "engine"], Path("logs/engine.log")):
                raise error
        expected = {"status": "failed", "stage": "engine", "reason": reason, "permanent": permanent}
        assert read_json(tmp_path / "id.json") == expected | {"log": "logs/engine.log"}
        assert (tmp_path / "engine").read_bytes() == b""
        attempts = attempts_path(tmp_path / "id.json")
        assert (len(attempts.read_text().splitlines()) if attempts.exists() else 0) == (0 if permanent else 2)
        with pytest.raises(UpstreamFailed) as failure:
            read_id(tmp_path / "id.json")
        assert failure.value.permanent == permanent

    def test_forgetting_an_output_is_a_failure(self, tmp_path: Path) -> None:
        with step("engine", tmp_path / "id.json", [tmp_path / "engine"]):
            write_json(tmp_path / "id.json", {"status": "ok"})
        assert "ended without writing" in read_json(tmp_path / "id.json")["reason"]

    def test_an_interrupt_leaves_no_id(self, tmp_path: Path) -> None:
        write_json(tmp_path / "id.json", {"status": "ok"})
        with pytest.raises(KeyboardInterrupt), step("engine", tmp_path / "id.json"):
            raise KeyboardInterrupt
        assert not (tmp_path / "id.json").exists()


@pytest.mark.parametrize(
    ("scores", "error", "accepted"),
    [
        ([0.5, *[0.0] * 999], 4e-5, True),  # 1e-4 of the highest score
        ([0.5, *[0.0] * 999], 6e-5, False),
        ([1e-5, *[0.0] * 999], 9e-7, True),  # the floor
        ([1e-5, *[0.0] * 999], 1.1e-6, False),  # low scores are no licence
        ([0.5, *[0.0] * 999], float("nan"), False),
    ],
)
def test_a_detectors_scores_may_differ_by_a_share_of_the_highest(scores, error, accepted) -> None:
    right = np.array(scores)
    found = right + np.eye(1, len(scores), 1)[0] * error
    with nullcontext() if accepted else pytest.raises(StepError, match="ONNX differs"):
        export._error({"name": "m"}, "output0 scores", 1, found, right)
