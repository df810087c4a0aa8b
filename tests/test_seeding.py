"""Seeded weights: a picture reaches the outputs, nothing leaves FP16's range, and every host gets the same ones."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from ladder import export, graph, inputs, models, parity, precision, weights
from ladder.files import sha256, write_json
from ladder.models import InputSpec, seeding

YOLO = {
    "name": "yolo11n",
    "source": "ultralytics",
    "architecture": "yolo11n.yaml",
    "weights": {"seeded": 0},
    "input": [320, 320],
    "opset": 17,
    "axes": {"batch": "batch"},
    "task": "detection",
}
RESNET = YOLO | {
    "name": "resnet18",
    "source": "torchvision",
    "architecture": "resnet18",
    "input": [224, 224],
    "task": "generic",
}
Weights = Callable[[dict], Path]
BOTH = pytest.mark.parametrize("spec", [YOLO, RESNET], ids=lambda spec: spec["name"])
PICTURE = InputSpec("x", "float32", (3, 40, 40), "picture")


def pictures(spec: dict) -> np.ndarray:
    """Two photographs and black, as the model takes them."""
    (given,) = models.input_specs(spec)
    found = inputs.make({"pictures": "ultralytics"}, [given], 2)[0][given.name]
    black = -np.divide(given.mean or (0, 0, 0), given.std or (1, 1, 1)).reshape(1, 3, 1, 1)
    return np.concatenate([found, np.broadcast_to(black, (1, *given.shape))]).astype(np.float32)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values.astype(np.float64)).mean()))


@BOTH
def test_outputs_depend_on_the_picture(spec: dict, weights_of: Weights) -> None:
    with torch.inference_mode():
        found = models.load(spec, weights_of(spec))(torch.from_numpy(pictures(spec))).numpy()
    parts = [found[:, :4], found[:, 4:]] if spec is YOLO else [found]
    for part, least in zip(parts, (0.02, 0.5) if spec is YOLO else (0.3,), strict=True):
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert rms(part[one] - part[other]) > least * rms(part[[one, other]])


@pytest.mark.parametrize(
    ("architecture", "side"),  # as drawn: beyond FP16's range, three times at about 0
    [("resnet101", 128), ("mobilenet_v3_large", 128), ("efficientnet_b0", 128), ("vit_b_16", 224)],
)
def test_other_classifiers_depend_on_the_picture(architecture: str, side: int, weights_of: Weights) -> None:
    spec = RESNET | {"architecture": architecture, "input": [side, side]}
    with torch.inference_mode():
        found = models.load(spec, weights_of(spec))(torch.from_numpy(pictures(spec))).numpy()
    assert 0.1 < rms(found) < 100
    assert min(rms(found[0] - found[other]) / rms(found) for other in (1, 2)) > 0.15


@BOTH
def test_values_stay_within_fp16(spec: dict, weights_of: Weights) -> None:
    module, seen = models.load(spec, weights_of(spec)), []

    def look(_: nn.Module, __: tuple, output: torch.Tensor) -> None:  # at once: ReLU may work in place
        zero = float((output.half() == 0).float().mean())
        seen.append((rms(output.numpy()), float(output.abs().max()), zero))

    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.register_forward_hook(look)
    with torch.inference_mode():
        module(torch.from_numpy(pictures(spec)[:2]))
    assert len(seen) > 20
    for size, largest, zero in seen:
        assert 0.1 < size < 20 and largest < 1000 and zero < 0.001


@BOTH
def test_any_process_and_number_of_threads_gives_the_same_weights(
    spec: dict, weights_of: Weights, tmp_path: Path
) -> None:
    code = (
        "import sys, torch; torch.set_num_threads(int(sys.argv[1])); from pathlib import Path; "
        "from ladder import weights; made, pins = map(Path, sys.argv[3:]); "
        "print(weights.obtain(eval(sys.argv[2]), made, pins)['sha256'])"
    )
    root = Path(models.__file__).parents[2]
    found = {sha256(weights_of(spec))}
    files = [tmp_path / "weights.bin", tmp_path / "pins.json"]
    for threads in ("1", "16"):
        command = [sys.executable, "-c", code, threads, repr(spec | {"input": [64, 64]}), *files]  # whatever the input
        found.add(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip())
    assert len(found) == 1


def test_weights_are_multiplied_by_powers_of_two_that_no_rounding_changes() -> None:
    import torchvision

    factors = []
    for noise in (0, 1e-6):  # far more than sums in another order make
        torch.manual_seed(0)
        module = torchvision.models.resnet18().eval()
        drawn = {
            name: part.weight.detach().clone() for name, part in module.named_modules() if isinstance(part, nn.Conv2d)
        }
        with torch.no_grad():
            for weight in drawn.values():
                weight.mul_(1 + noise * torch.rand(weight.shape))
            for name in drawn:
                module.get_submodule(name).weight.copy_(drawn[name])
        seeding.settle(module, PICTURE, 0, [module.fc])
        factors.append([module.get_submodule(name).weight.detach() / weight for name, weight in drawn.items()])
    for one, other in zip(*factors, strict=True):
        assert len(one.unique()) == 1 and one.unique() == other.unique()
        assert math.frexp(float(one.max()))[0] == 0.5
    assert len({float(each.max()) for each in factors[0]}) > 1


class Net(nn.Module):
    """One layer twice, one that is a constant, one of zeros at the end, one that does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.zeros = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.fixed, self.idle = nn.Conv2d(3, 3, 1).requires_grad_(False), nn.Linear(3, 3)
        nn.init.zeros_(self.zeros.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.zeros(self.fixed(self.twice(self.twice(x))))


def test_each_layer_is_settled_once_and_constants_never() -> None:
    torch.manual_seed(0)
    net, seen = Net().eval(), {}
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    seeding.settle(net, PICTURE, 0, [net.zeros])
    assert torch.equal(torch.get_rng_state(), state)
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"twice.weight", "zeros.weight", "zeros.bias"}
    assert all(value.dtype == torch.float32 for value in net.state_dict().values())
    assert not any(part._forward_hooks for part in net.modules())

    def look(part: nn.Conv2d, _: tuple, output: torch.Tensor) -> None:
        seen.setdefault(part, rms((output - part.bias.reshape(-1, 1, 1)).numpy()))

    for name in ("twice", "zeros"):
        part = net.get_submodule(name)
        part.register_forward_hook(look)
    with torch.inference_mode():
        net(torch.rand(2, 3, 40, 40))
    assert all(seeding.RMS / 3 < size < seeding.RMS * 3 for size in seen.values())


def test_a_last_layer_without_bias_is_only_scaled() -> None:  # torchvision's MaxViT has one
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False)).eval()
    drawn = net[0].weight.detach().clone()
    seeding.settle(net, PICTURE, 0, [net[0]])
    assert math.frexp(float((net[0].weight / drawn).detach().max()))[0] == 0.5


def answers(path: Path, given: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    runs = [session.run(None, {session.get_inputs()[0].name: each[None]}) for each in given]
    return {session.get_outputs()[0].name: np.concatenate([outputs[0] for outputs in runs])}


def without_stem(path: Path) -> Path:
    """A copy whose first convolution has lost its weights: no picture reaches what is behind."""
    model = onnx.load(path)
    stem = next(node for node in model.graph.node if node.op_type == "Conv").input[1]
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == stem)
    weights.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(weights)), stem))
    onnx.save(model, path.with_name("without.onnx"))
    return path.with_name("without.onnx")


def test_as_drawn_a_model_without_its_backbone_would_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, fp32, path = pictures(YOLO)[:2], tmp_path / "fp32.onnx", tmp_path / "weights.bin"
    verdicts = []
    for drawn in (False, True):
        if drawn:
            monkeypatch.setattr(seeding, "settle", lambda *_: None)
        write_json(tmp_path / "weights.id.json", weights.obtain(YOLO, path, tmp_path / "pins.json"))
        models.export(YOLO, path, models.load(YOLO, path), fp32)
        figures = parity.compare(answers(without_stem(fp32), given), answers(fp32, given), "detection")
        verdicts.append(parity.judge(figures, parity.DEFAULT_THRESHOLDS["fp32"], seeded=True)[0])
    assert verdicts == ["exclude", "pass"]


@BOTH
def test_parity_tells_a_converted_model_from_a_broken_one(spec: dict, tmp_path: Path, weights_of: Weights) -> None:
    given, fp32, samples = pictures(spec)[:2], tmp_path / "fp32.onnx", tmp_path / "inputs.npz"
    (name,) = models.input_names(spec)
    np.savez(samples, **{name: given})
    export.export(spec, weights_of(spec), {name: given}, fp32, tmp_path / "reference.npz")
    with np.load(tmp_path / "reference.npz") as arrays:
        reference = dict(arrays)

    def judged(outputs: dict[str, np.ndarray], kind: str) -> tuple[dict, str]:
        figures = parity.compare(outputs, reference, spec["task"])
        return figures, parity.judge(figures, parity.DEFAULT_THRESHOLDS[kind], seeded=True)[0]

    observed = graph.observe(fp32, graph.samples_of(samples))
    for kind, error in (("fp16", 1e-5), ("int8", 1e-2)):
        precision.convert(fp32, samples, kind, {}, observed, tmp_path / f"{kind}.onnx")
        figures, verdict = judged(answers(tmp_path / f"{kind}.onnx", given), kind)
        assert verdict == "pass" and error / 1e5 < 1 - figures["cosine"] < 5 * error

    broken = answers(without_stem(fp32), given)
    swapped = {output: values[::-1] for output, values in reference.items()}
    for outputs in (broken, swapped):
        for kind in parity.DEFAULT_THRESHOLDS:
            assert judged(outputs, kind)[1] == "exclude"
