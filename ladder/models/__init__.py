"""What is benchmarked: one module a source, behind one small protocol.

A source gives a model as a PyTorch module (where it has one), as an ONNX file, and says what goes in.
Everything is decided by the model's section of the configuration (``spec``) and its weights file.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ladder.errors import StepError
from ladder.weights import label as weights_label

if TYPE_CHECKING:
    import torch

__all__ = ["InputSpec", "axes", "export", "input_names", "input_specs", "load", "output_names", "weights_label"]

Spec = dict[str, Any]
Axes = dict[str, int | str]


@dataclass(frozen=True)
class InputSpec:
    """One input of a model. ``shape`` is that of one sample: the batch axis is before it."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[int, ...]
    kind: str  # picture (3 × height × width, RGB, 0 to 1) | tokens | any
    mean: tuple[float, ...] | None = None  # a picture is (value - mean) / std, a channel each
    std: tuple[float, ...] | None = None


class Source(Protocol):
    """What a module of this package defines. All raise StepError."""

    def draw(self, spec: Spec) -> torch.nn.Module: ...  # as its seed gives it, not fused; the source onnx has none

    def load(self, spec: Spec, weights: Path | None) -> torch.nn.Module: ...

    def input_specs(self, spec: Spec, weights: Path | None) -> list[InputSpec]: ...

    def output_names(self, spec: Spec, weights: Path | None) -> list[str]: ...

    def axes(self, spec: Spec, weights: Path | None) -> Axes: ...

    def export(self, spec: Spec, weights: Path | None, module: torch.nn.Module | None, destination: Path) -> None: ...


def _source(spec: Spec) -> Source:
    """The source's module, imported by name so that a step depends on its own model's source and no other."""
    return cast(Source, importlib.import_module(f"ladder.models.{spec['source']}"))


def has_module(spec: Spec) -> bool:
    """Whether PyTorch can run the model; one that exists as ONNX only has no module."""
    return spec["source"] != "onnx"


def load(spec: Spec, weights: Path | None) -> torch.nn.Module:
    """The model on the CPU in FP32, read from its weights file: eval, without gradients, batch norms fused.

    ``forward`` takes the inputs by position in the order of ``input_names`` and returns a tensor or a
    tuple of them in the order of ``output_names``. The decode head of a detector is inside. Leaves the
    process as it was: threads, seeds, environment.
    """
    return _source(spec).load(spec, weights).requires_grad_(False).eval()


def input_specs(spec: Spec, weights: Path | None = None) -> list[InputSpec]:
    """The inputs in order; an ONNX model needs its file for that."""
    return _source(spec).input_specs(spec, weights)


def input_names(spec: Spec, weights: Path | None = None) -> list[str]:
    return [each.name for each in input_specs(spec, weights)]


def output_names(spec: Spec, weights: Path | None = None) -> list[str]:
    """The outputs in order. A model of ultralytics may have fewer: it then has the first of these."""
    return _source(spec).output_names(spec, weights)


def axes(spec: Spec, weights: Path | None = None) -> Axes:
    """The value of every dynamic axis of the exported ONNX file's inputs, by name; "batch" for a batch axis."""
    return _source(spec).axes(spec, weights)


def export(spec: Spec, weights: Path | None, module: torch.nn.Module | None, destination: Path) -> None:
    """Write the model as one ONNX file with its dynamic axes named as in ``axes``.

    ``module`` is what ``load`` gave (None for a model that exists as ONNX only); it may be changed.
    """
    _source(spec).export(spec, weights, module, destination)


def dtype_of(spec: Spec, value: Any) -> str:
    """numpy's name for the type of an ONNX graph's input or output. Raises StepError where it holds no numbers."""
    import onnx

    held = value.type.tensor_type.elem_type  # UNDEFINED where the value is a sequence, a map or optional
    if held in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        kind = "holds strings" if held else f"is a {(value.type.WhichOneof('value') or 'value').removesuffix('_type')}"
        raise StepError(
            f"'{value.name}' of model {spec['name']} {kind}, which is not supported: inputs and outputs must be "
            "tensors of numbers or of true and false",
            permanent=True,
        )
    return onnx.helper.tensor_dtype_to_np_dtype(held).name


def check_axes(spec: Spec, known: Axes) -> Axes:
    """``known``, once the axes written in ``spec`` are among them. Raises StepError naming the valid ones."""
    for name, value in (spec.get("axes") or {}).items():
        if name not in known:
            raise StepError(
                f"model {spec['name']} has no axis '{name}'; its dynamic axes are {', '.join(known)}", permanent=True
            )
        if value != known[name]:
            raise StepError(
                f"axis '{name}' of model {spec['name']} must be {known[name]!r}, not {value!r}", permanent=True
            )
    return known
