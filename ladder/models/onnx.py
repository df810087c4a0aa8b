"""Any ONNX file: as it is, with every dynamic axis given by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ladder.errors import StepError
from ladder.models import Axes, InputSpec, Spec, dtype_of
from ladder.weights import verify

if TYPE_CHECKING:
    import torch


def load(spec: Spec, weights: Path | None) -> NoReturn:
    raise StepError(f"model {spec['name']} exists as ONNX only: PyTorch cannot run it", permanent=True)


def input_specs(spec: Spec, weights: Path | None) -> list[InputSpec]:
    model = _read(spec, weights)
    values = _checked(spec, model)
    found = []
    for value in _inputs(model):
        dims = _dims(value)
        if not dims or values.get(str(dims[0])) != "batch":
            raise StepError(
                f"the first dimension of input '{value.name}' of model {spec['name']} is "
                f"{dims[0] if dims else 'none'}, expected a dynamic axis with the value 'batch'",
                permanent=True,
            )
        dtype = dtype_of(spec, value)
        shape = tuple(dim if isinstance(dim, int) else int(values[dim]) for dim in dims[1:])
        is_picture = dtype == "float32" and len(shape) == 3 and shape[0] == 3
        found.append(InputSpec(value.name, dtype, shape, "picture" if is_picture else "any"))
    return found


def output_names(spec: Spec, weights: Path | None) -> list[str]:
    return [value.name for value in _read(spec, weights).graph.output]


def axes(spec: Spec, weights: Path | None) -> Axes:
    return _checked(spec, _read(spec, weights))


def export(spec: Spec, weights: Path | None, module: torch.nn.Module | None, destination: Path) -> None:
    """Copy the file; only where a dynamic axis has no name does the copy differ: it gets the one from ``axes``."""
    import onnx

    model = _read(spec, weights)
    unnamed = False
    for value in _inputs(model):
        for dim, name in zip(value.type.tensor_type.shape.dim, _dims(value), strict=True):
            if isinstance(name, str) and dim.dim_param != name:
                dim.dim_param, unnamed = name, True
    if unnamed:
        onnx.save(model, destination)
    else:
        shutil.copyfile(verify(spec, weights), destination)


def _read(spec: Spec, weights: Path | None) -> Any:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx.external_data_helper import uses_external_data

    path = verify(spec, weights)
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise StepError(f"the file of model {spec['name']} is no ONNX file: {error}", permanent=True) from error
    if any(uses_external_data(tensor) for tensor in model.graph.initializer):
        raise StepError(
            f"model {spec['name']} keeps its weights in files beside it; make it one file: "
            "onnx.save(onnx.load('model.onnx'), 'whole.onnx')",
            permanent=True,
        )
    if not _inputs(model):
        raise StepError(f"model {spec['name']} has no inputs", permanent=True)
    return model


def _inputs(model: Any) -> list[Any]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _dims(value: Any) -> list[int | str]:
    """Sizes and axis names of an input; an axis without a name is called ``<input>_dim_<index>``."""
    return [
        dim.dim_value if dim.dim_value > 0 else dim.dim_param or f"{value.name}_dim_{index}"
        for index, dim in enumerate(value.type.tensor_type.shape.dim)
    ]


def _checked(spec: Spec, model: Any) -> Axes:
    given = spec.get("axes") or {}
    names = list(dict.fromkeys(dim for value in _inputs(model) for dim in _dims(value) if isinstance(dim, str)))
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    for fault, faulty in (("needs a value for", missing), ("does not have", unknown)):
        if faulty:
            raise StepError(
                f"model {spec['name']} {fault} the axis {', '.join(faulty)}; "
                f"its dynamic axes are {', '.join(names) or 'none'}",
                permanent=True,
            )
    return dict(given)
