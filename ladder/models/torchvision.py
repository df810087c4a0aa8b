"""Classifiers of torchvision, seeded or with its own pretrained weights."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ladder.errors import StepError
from ladder.models import Axes, InputSpec, Spec, check_axes, seeding, tracing
from ladder.weights import verify

if TYPE_CHECKING:
    import torch

# ImageNet's, as in every classification preset of torchvision (torchvision.transforms._presets).
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_SETTLING = 128  # pixels, least side of the pictures that seeded weights are settled on


def pretrained(spec: Spec) -> tuple[str, str]:
    """Address of torchvision's best weights of the architecture, and the start of its sha256 (in its name)."""
    import torchvision

    _check(spec)
    url = torchvision.models.get_model_weights(spec["architecture"]).DEFAULT.url
    match = re.search(r"-([0-9a-f]{8,})\.pth$", url)
    if match is None:
        raise StepError(f"{url} has no hash in its name to check it by: give it as url with its sha256", permanent=True)
    return url, match[1]


def draw(spec: Spec) -> torch.nn.Module:
    import torch
    import torchvision

    _check(spec)
    seed = spec["weights"]["seeded"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = torchvision.models.get_model(spec["architecture"], weights=None).eval()
    least = torchvision.models.get_model_weights(spec["architecture"]).DEFAULT.meta["min_size"]
    layers = [part for part in module.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Linear)]
    sides = [max(_SETTLING, side) for side in least]  # whatever the input: a seed says the weights
    seeding.settle(module, InputSpec("input", "float32", (3, *sides), "picture", _MEAN, _STD), seed, [layers[-1]])
    return module


def load(spec: Spec, weights: Path | None) -> torch.nn.Module:
    import torch
    import torchvision
    from safetensors.torch import load_file
    from torch.fx.experimental import optimization

    _check(spec)
    path, seeded = verify(spec, weights), spec["weights"].get("seeded") is not None
    with torch.random.fork_rng(devices=[]):
        module = torchvision.models.get_model(spec["architecture"], weights=None).eval()
    module.load_state_dict(load_file(path) if seeded else torch.load(path, map_location="cpu", weights_only=True))
    return optimization.fuse(module)


def input_specs(spec: Spec, weights: Path | None) -> list[InputSpec]:
    return [InputSpec("input", "float32", (3, *spec["input"]), "picture", _MEAN, _STD)]


def output_names(spec: Spec, weights: Path | None) -> list[str]:
    return ["logits"]


def axes(spec: Spec, weights: Path | None) -> Axes:
    return check_axes(spec, {"batch": "batch"})


def export(spec: Spec, weights: Path | None, module: torch.nn.Module | None, destination: Path) -> None:
    assert module is not None
    dynamic = {"input": {0: "batch"}, "logits": {0: "batch"}}
    tracing.to_onnx(module, input_specs(spec, weights), ["logits"], dynamic, spec["opset"], destination)


def _check(spec: Spec) -> None:
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if spec["architecture"] not in known:
        near = difflib.get_close_matches(str(spec["architecture"]), known, n=3) or ["resnet18", "resnet50", "resnet101"]
        raise StepError(
            f"torchvision has no classifier '{spec['architecture']}'; try {', '.join(near)}", permanent=True
        )
