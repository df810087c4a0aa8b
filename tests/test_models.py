"""Models: same seeds give same weights, PyTorch runs what the exporter exports, nothing unsafe is loaded."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import load_file, save_file

from ladder import models, weights
from ladder.errors import StepError
from ladder.files import sha256, write_json
from ladder.models import InputSpec, seeding

YOLO = {
    "name": "yolo11n",
    "source": "ultralytics",
    "architecture": "yolo11n.yaml",
    "weights": {"seeded": 0},
    "input": [64, 64],
    "opset": 17,
    "axes": {"batch": "batch"},
    "task": "detection",
}
RESNET = YOLO | {"name": "resnet", "source": "torchvision", "architecture": "resnet18", "task": "generic"}
BERT = RESNET | {
    "name": "bert",
    "source": "transformers",
    "architecture": "bert-tiny",
    "input": None,
    "axes": {"batch": "batch", "sequence": 16},
}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Weights = Callable[[dict], Path]
TORCH_MODELS = pytest.mark.parametrize("spec", [YOLO, RESNET, BERT], ids=lambda spec: spec["name"])


def example(spec: dict, batch: int) -> list[torch.Tensor]:
    """A batch of zeros and ones that every model takes."""
    shapes = [(batch, *each.shape) for each in models.input_specs(spec)]
    return [torch.ones(shape, dtype=torch.int64 if spec is BERT else torch.float32) for shape in shapes]


def save_onnx(path: Path, inputs: list, nodes: list | None = None) -> dict:
    """An ONNX file that passes its first input on, and the section that names it."""
    first = inputs[0]
    output = helper.make_tensor_value_info("y", first.type.tensor_type.elem_type, None)
    nodes = nodes or [helper.make_node("Identity", [first.name], ["y"])]
    graph = helper.make_graph(nodes, "g", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return {"name": "own", "source": "onnx", "architecture": None, "weights": {"path": str(path)}, "input": None}


@TORCH_MODELS
def test_a_seed_says_the_weights(spec: dict, tmp_path: Path) -> None:
    def drawn(seed: int) -> str:
        path, plain = tmp_path / "weights.bin", tmp_path / "plain"
        plain.touch()
        identity = weights.obtain(spec | {"weights": {"seeded": seed}}, path, tmp_path / "pins.json")
        assert (identity["sha256"], identity["label"]) == (sha256(path), f"seeded({seed})")
        assert path.stat().st_mode == plain.stat().st_mode  # others of a team read it too
        return identity["sha256"]

    first = drawn(0)
    torch.manual_seed(123)
    assert drawn(0) == first != drawn(1)


@TORCH_MODELS
def test_drawing_and_loading_leave_the_process_as_it_was(spec: dict, tmp_path: Path) -> None:
    torch.manual_seed(5)
    state, threads, environment = torch.get_rng_state(), torch.get_num_threads(), dict(os.environ)

    def check() -> None:
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.get_num_threads() == threads
        assert dict(os.environ) == environment

    path = tmp_path / "weights.bin"
    write_json(tmp_path / "weights.id.json", weights.obtain(spec, path, tmp_path / "pins.json"))
    check()
    module = models.load(spec, path)
    check()
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


@TORCH_MODELS
def test_loading_draws_and_settles_nothing(spec: dict, weights_of: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    path = weights_of(spec)
    source = importlib.import_module(f"ladder.models.{spec['source']}")
    monkeypatch.setattr(seeding, "settle", lambda *_: pytest.fail("settled in loading"))
    monkeypatch.setattr(source, "draw", lambda *_: pytest.fail("drawn in loading"))
    models.load(spec, path)


@TORCH_MODELS
def test_seeded_weights_are_read_only_as_they_were_made(spec: dict, tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    with pytest.raises(StepError, match=f"model {spec['name']} needs its weights file, {path} is not there"):
        models.load(spec, path)
    identity = weights.obtain(spec, path, tmp_path / "pins.json")
    with pytest.raises(StepError, match="has no weights.id.json beside it that says its sha256: delete it"):
        models.load(spec, path)
    write_json(tmp_path / "weights.id.json", identity)
    models.load(spec, path)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StepError, match=f"expected {identity['sha256']}: delete it to have it made again"):
        models.load(spec, path)


@TORCH_MODELS
def test_forward_gives_the_named_outputs_for_any_batch(spec: dict, weights_of: Weights) -> None:
    module = models.load(spec, weights_of(spec))
    for batch in (1, 3):
        with torch.inference_mode():
            found = module(*example(spec, batch))
        outputs = [found] if isinstance(found, torch.Tensor) else list(found)
        assert len(outputs) <= len(models.output_names(spec))
        assert all(len(output) == batch for output in outputs)


@pytest.mark.parametrize("spec", [YOLO, RESNET], ids=lambda spec: spec["name"])
def test_batch_norms_are_fused(spec: dict, weights_of: Weights) -> None:
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in models.load(spec, weights_of(spec)).modules())


def test_fusing_changes_no_result(weights_of: Weights) -> None:
    import torchvision

    torch.manual_seed(0)
    plain = torchvision.models.resnet18(weights=None).eval()
    seeding.settle(plain, InputSpec("x", "float32", (3, 128, 128), "picture", *IMAGENET), 0, [plain.fc])
    with torch.inference_mode():
        picture = torch.rand(1, 3, 64, 64)
        found = models.load(RESNET, weights_of(RESNET))(picture)
        torch.testing.assert_close(found, plain(picture), rtol=1e-4, atol=1e-5)


def test_the_decode_head_follows_the_input_size(weights_of: Weights) -> None:
    module = models.load(YOLO, weights_of(YOLO))
    with torch.inference_mode():
        assert module(torch.zeros(1, 3, 64, 64)).shape == (1, 84, 84)
        assert module(torch.zeros(1, 3, 96, 64)).shape == (1, 84, 126)


def test_the_mask_is_applied_in_eager_mode_too(weights_of: Weights) -> None:
    module = models.load(BERT, weights_of(BERT))
    tokens, mask = torch.arange(16)[None], torch.ones(1, 16, dtype=torch.int64)
    with torch.inference_mode():
        whole = module(tokens, mask, torch.zeros_like(tokens))[0]
        mask[:, 8:] = 0
        half = module(tokens, mask, torch.zeros_like(tokens))[0]
        other = module(tokens.where(mask == 1, 0), mask, torch.zeros_like(tokens))[0]
    assert not torch.allclose(whole[:, :8], half[:, :8])
    torch.testing.assert_close(half[:, :8], other[:, :8])


def test_the_module_is_the_one_ultralytics_exports(
    tmp_path: Path, weights_of: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = weights_of(YOLO)
    models.export(YOLO, path, models.load(YOLO, path), tmp_path / "ours.onnx")
    from ultralytics import YOLO as Yolo

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", ""))
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yolo = Yolo("yolo11n.yaml")
        head = yolo.model.model[-1]
        ends = [branch[-1] for branch in (*head.cv2, *head.cv3)]
        seeding.settle(yolo.model.eval(), InputSpec("x", "float32", (3, 192, 192), "picture"), 0, ends)
        path = yolo.export(format="onnx", dynamic=True, opset=17, imgsz=64)
    torch.set_num_threads(threads)
    ours, theirs = onnx.load("ours.onnx").graph, onnx.load(path).graph
    assert len(ours.node) == 419
    assert Counter(node.op_type for node in ours.node) == Counter(node.op_type for node in theirs.node)
    weights = [{t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer} for graph in (ours, theirs)]
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(array, weights[1][name]) for name, array in weights[0].items())


def test_a_checkpoint_needs_its_hash_before_it_is_read(tmp_path: Path, weights_of: Weights) -> None:
    models.load(YOLO, weights_of(YOLO))  # imports ultralytics contained
    from ultralytics import YOLO as Yolo

    torch.manual_seed(3)
    path = tmp_path / "weights.bin"
    Yolo("yolo11n.yaml").save(tmp_path / "own.pt")
    (tmp_path / "own.pt").rename(path)
    spec = YOLO | {"architecture": None, "weights": {"path": "own.pt", "sha256": sha256(path)}}
    assert models.load(spec, path)(torch.zeros(1, 3, 64, 64)).shape == (1, 84, 84)
    with pytest.raises(StepError, match="pickle, which runs code") as refused:
        models.load(spec | {"weights": {"path": "own.pt"}}, path)
    assert refused.value.permanent
    with pytest.raises(StepError, match="expected 0000"):
        models.load(spec | {"weights": {"path": "own.pt", "sha256": "0" * 64}}, path)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(StepError, match="no checkpoint that ultralytics can load"):
        models.load(spec | {"weights": {"path": "own.pt", "sha256": sha256(path)}}, path)


@pytest.mark.parametrize("save", [save_file, torch.save], ids=["safetensors", "torch"])
def test_bert_takes_a_state_file(tmp_path: Path, weights_of: Weights, save: Callable) -> None:
    seeded = BERT | {"weights": {"seeded": 7}}
    expected = load_file(weights_of(seeded))
    path = tmp_path / "weights.bin"
    save({f"bert.{name}": tensor for name, tensor in expected.items()}, path)
    spec = BERT | {"weights": {"path": "bert.safetensors", "sha256": sha256(path)}}
    found = models.load(spec, path).state_dict()
    assert found.keys() == {f"model.{name}" for name in expected}
    assert all(torch.equal(found[f"model.{name}"], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (YOLO | {"architecture": "yolo99.yaml"}, "no architecture 'yolo99.yaml'"),
        (YOLO | {"input": [100, 64]}, "multiples of its stride, 32"),
        (RESNET | {"architecture": "resnet19"}, "try resnet"),
        (BERT | {"architecture": "bert-huge"}, "known are bert-tiny"),
        (BERT | {"axes": {"batch": "batch"}}, "needs the axis 'sequence'"),
        (YOLO | {"architecture": None, "weights": {"path": "x.pt", "sha256": "0" * 64}}, "needs its weights file"),
    ],
)
def test_what_cannot_be_loaded_is_named(spec: dict, message: str, tmp_path: Path, weights_of: Weights) -> None:
    with pytest.raises(StepError, match=message):
        models.axes(spec)
        models.load(spec, weights_of(spec) if "seeded" in spec["weights"] else tmp_path / "weights.bin")


def test_axes_of_the_torch_models() -> None:
    assert models.axes(YOLO | {"input": [96, 64]}) == {"batch": "batch", "height": 96, "width": 64}
    assert models.axes(RESNET) == {"batch": "batch"}
    assert models.axes(BERT) == {"batch": "batch", "sequence": 16}
    with pytest.raises(StepError, match="no axis 'depth'; its dynamic axes are batch, height, width"):
        models.axes(YOLO | {"axes": {"batch": "batch", "depth": 3}})
    with pytest.raises(StepError, match="'height' of model yolo11n must be 64, not 32"):
        models.axes(YOLO | {"axes": {"batch": "batch", "height": 32}})


def test_an_onnx_model_has_inputs_but_no_module(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", "length"]),
        helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["N", 3, 8, None]),
    ]
    spec = save_onnx(path, inputs) | {"axes": {"N": "batch", "length": 5, "picture_dim_3": 6}}
    tokens, picture = models.input_specs(spec, path)
    assert (tokens.name, tokens.dtype, tokens.shape, tokens.kind) == ("tokens", "int64", (5,), "any")
    assert (picture.name, picture.dtype, picture.shape, picture.kind) == ("picture", "float32", (3, 8, 6), "picture")
    assert models.input_names(spec, path) == ["tokens", "picture"]
    assert models.output_names(spec, path) == ["y"]
    with pytest.raises(StepError, match="exists as ONNX only"):
        models.load(spec, path)
    models.export(spec, path, None, tmp_path / "copy.onnx")
    dims = onnx.load(tmp_path / "copy.onnx").graph.input[1].type.tensor_type.shape.dim
    assert dims[3].dim_param == "picture_dim_3"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"N": "batch"}, "needs a value for the axis length; its dynamic axes are N, length"),
        ({"N": "batch", "length": 5, "width": 3}, "does not have the axis width; its dynamic axes are N, length"),
        (
            {"M": "batch", "length": 5},
            "does not have the axis M and needs a value for the axis N; its dynamic axes are N, length",
        ),
        (
            {"N": 1, "length": "batch"},
            "first dimension of input 'tokens' of model own is N, expected a dynamic axis with the value 'batch': "
            "say N: batch under axes",
        ),
    ],
)
def test_wrong_axes_are_named_with_the_valid_ones(tmp_path: Path, axes: dict, message: str) -> None:
    path = tmp_path / "own.onnx"
    spec = save_onnx(path, [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", "length"])])
    with pytest.raises(StepError, match=message):
        models.input_specs(spec | {"axes": axes}, path)


def test_a_batch_that_the_file_fixes_needs_another_export(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    spec = save_onnx(path, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])]) | {"axes": {}}
    with pytest.raises(StepError, match="of model own is 1, expected .*: export it with a dynamic batch axis"):
        models.input_specs(spec, path)


def test_an_onnx_file_must_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    spec = save_onnx(path, [value]) | {"axes": {"batch": "batch"}}
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4096, np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(StepError, match="weights in files beside it"):
        models.input_specs(spec, path)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(StepError, match="is no ONNX file"):
        models.input_specs(spec, path)


def test_planning_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'onnx', 'onnxruntime', 'ultralytics', 'transformers', 'torchvision'}"
    code = f"import sys, ladder.models, ladder.inputs, ladder.weights, ladder.export; print({heavy} & set(sys.modules))"
    root = Path(models.__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
