"""Models of ultralytics: a .pt file, or an architecture with seeded weights."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder.errors import StepError
from ladder.models import Axes, InputSpec, Spec, check_axes, seeding, tracing
from ladder.weights import verify

if TYPE_CHECKING:
    import torch

_SETTLING = 192  # pixels, least side of the pictures that seeded weights are settled on


def draw(spec: Spec) -> torch.nn.Module:
    import torch

    with _contained(), torch.random.fork_rng(devices=[]):
        from ultralytics.nn.modules import Detect, RTDETRDecoder

        seed = spec["weights"]["seeded"]
        torch.manual_seed(seed)
        model = _without_nms(_architecture(spec))
        head = model.model[-1]
        # RT-DETR goes on with its best candidates: settled, which they are hung on FP32's last bits
        if not isinstance(head, RTDETRDecoder):
            ends = [branch[-1] for branch in (*head.cv2, *head.cv3)] if isinstance(head, Detect) else []
            stride = _stride(model)
            side = math.ceil(_SETTLING / stride) * stride  # whatever the input: a seed says the weights
            seeding.settle(model, InputSpec("images", "float32", (3, side, side), "picture"), seed, ends)
    return model


def load(spec: Spec, weights: Path | None) -> torch.nn.Module:
    """The module as ultralytics' own ONNX exporter would trace it (``engine/exporter.py``), with its decode head.

    The grid of anchor points is computed once a shape, as in stock PyTorch; ``export`` makes it part of the graph.
    """
    import torch
    from safetensors.torch import load_file

    path = verify(spec, weights)
    with _contained(), torch.random.fork_rng(devices=[]):
        from ultralytics.nn.modules import C2f

        if spec["weights"].get("seeded") is not None:
            model = _architecture(spec)
            model.load_state_dict(load_file(path))
        else:
            model = _checkpoint(spec, path)
        stride = _stride(model)
        if any(side % stride for side in spec["input"]):
            raise StepError(
                f"input {spec['input']} of model {spec['name']} must be multiples of its stride, {stride}",
                permanent=True,
            )
        model = _without_nms(model).fuse(verbose=False)
        for module in model.modules():
            if hasattr(module, "export"):
                module.export, module.format = True, "onnx"
            elif isinstance(module, C2f):
                module.forward = module.forward_split
    return model


def input_specs(spec: Spec, weights: Path | None) -> list[InputSpec]:
    return [InputSpec("images", "float32", (3, *spec["input"]), "picture")]


def output_names(spec: Spec, weights: Path | None) -> list[str]:
    return ["output0", "output1", "output2", "output3"]


def axes(spec: Spec, weights: Path | None) -> Axes:
    height, width = spec["input"]
    return check_axes(spec, {"batch": "batch", "height": height, "width": width})


def export(spec: Spec, weights: Path | None, module: torch.nn.Module | None, destination: Path) -> None:
    assert module is not None
    for part in module.modules():
        if hasattr(part, "dynamic"):
            part.dynamic, part.shape = True, None  # the anchor grid follows the input's height and width
    names = output_names(spec, weights)
    dynamic = {"images": {0: "batch", 2: "height", 3: "width"}, **{name: {0: "batch"} for name in names}}
    with _contained():
        tracing.to_onnx(module, input_specs(spec, weights), names, dynamic, spec["opset"], destination)


def _architecture(spec: Spec) -> Any:
    from ultralytics import RTDETR, YOLO

    family = RTDETR if "rtdetr" in Path(spec["architecture"]).stem else YOLO
    try:
        return family(spec["architecture"]).model
    except FileNotFoundError as error:
        raise StepError(
            f"ultralytics has no architecture '{spec['architecture']}'; it should look like yolo11n.yaml",
            permanent=True,
        ) from error


def _without_nms(model: Any) -> Any:
    """The model in eval and FP32; NMS stays outside, the exporter's default, as the timed part asks."""
    if hasattr(model, "end2end"):
        model.end2end = False
    return model.eval().float()


def _stride(model: Any) -> int:
    return int(max(model.stride))


def _checkpoint(spec: Spec, weights: Path) -> Any:
    from ultralytics import YOLO

    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, f"{spec['name']}.pt")  # ultralytics goes by the suffix
        link.symlink_to(weights.resolve())
        try:
            return YOLO(str(link)).model
        except Exception as error:
            raise StepError(
                f"the weights of model {spec['name']} are no checkpoint that ultralytics can load: "
                f"{type(error).__name__}: {error}",
                permanent=True,
            ) from error


@contextmanager
def _contained() -> Iterator[None]:
    """Keep ultralytics to itself: no network, no pip, nothing on stdout or in the home folder.

    Importing and building change the thread count, OMP_NUM_THREADS and CUBLAS_WORKSPACE_CONFIG, which
    would change what is measured later: all are put back.
    """
    import torch

    threads, environment = torch.get_num_threads(), dict(os.environ)
    if "ultralytics" not in sys.modules:  # it reads these once, at import
        folder = tempfile.mkdtemp(prefix="ultralytics-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ.update(YOLO_CONFIG_DIR=folder, YOLO_OFFLINE="1", YOLO_AUTOINSTALL="false", YOLO_VERBOSE="false")
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(environment)
