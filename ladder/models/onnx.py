"""Any ONNX file: as it is, with every dynamic axis given by name, and every node with a name of its own."""

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
            named = bool(dims) and isinstance(dims[0], str)
            raise StepError(
                f"the first dimension of input '{value.name}' of model {spec['name']} is "
                f"{dims[0] if dims else 'none'}, expected a dynamic axis with the value 'batch': "
                + (f"say {dims[0]}: batch under axes" if named else "export it with a dynamic batch axis"),
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
    """Copy the file; the copy differs only where names are missing.

    A dynamic axis without a name gets the one from ``axes``. A node without one, or with one that another node has,
    gets its first output's: by its name a runtime says where its own nodes come from, and the audit finds their FLOPs.
    """
    import onnx

    model = _read(spec, weights)
    changed = _name_nodes(model)
    for value in _inputs(model):
        for dim, name in zip(value.type.tensor_type.shape.dim, _dims(value), strict=True):
            if isinstance(name, str) and dim.dim_param != name:
                dim.dim_param, changed = name, True
    if changed:
        onnx.save(model, destination)
    else:
        shutil.copyfile(verify(spec, weights), destination)


def _name_nodes(model: Any) -> bool:
    """Give every node of the graph a name of its own; whether any had none."""
    taken: set[str] = set()
    unnamed = []
    for node in model.graph.node:
        if not node.name or node.name in taken:
            unnamed.append(node)
        taken.add(node.name)
    for node in unnamed:
        name = next(filter(None, node.output), node.op_type)
        while name in taken:
            name += "_"
        taken.add(name)
        node.name = name
    return bool(unnamed)


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
    lists = {
        "does not have the axis": [name for name in given if name not in names],
        "needs a value for the axis": [name for name in names if name not in given],
    }
    if faults := [f"{fault} {', '.join(faulty)}" for fault, faulty in lists.items() if faulty]:
        raise StepError(
            f"model {spec['name']} {' and '.join(faults)}; its dynamic axes are {', '.join(names) or 'none'}",
            permanent=True,
        )
    return dict(given)
