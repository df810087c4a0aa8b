"""From a model to the one FP32 ONNX file that feeds every stack, proved equal to its reference."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ladder import models
from ladder.errors import StepError
from ladder.files import replacing, sha256, write_npz

Arrays = dict[str, np.ndarray]

TOLERANCE = 1e-3  # largest error over the root mean square of the reference, at FP32
SCORE_FLOOR = 1e-6  # a score lies in 0 to 1, and ONNX Runtime's sigmoid is exact to about 3e-8 absolute, not relative
SCORE_TOLERANCE = 1e-4  # of the highest score: nearly all are near 0, and rounding moves the few high ones by 1e-5
_EXPORTERS = ("torch", "torchvision", "ultralytics", "transformers", "onnx", "onnxslim", "onnxruntime")


def export(
    spec: dict[str, Any], weights: Path, inputs: Arrays, destination: Path, reference: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the ONNX file and the reference outputs; return the identity and the figures of the build.

    The file is accepted when onnx.checker takes it, its opset is the one asked for, and ONNX Runtime without
    optimisations gives, at batch 1 and at batch 2, what the reference gives. The reference is PyTorch, or
    ONNX Runtime itself for a model that exists as ONNX only. Raises StepError.
    """
    started = time.monotonic()
    inputs = _ordered(spec, weights, inputs)
    module = models.load(spec, weights) if models.has_module(spec) else None
    weights_sha256 = sha256(weights)
    with replacing(destination) as temporary, replacing(reference) as temporary_reference:
        if module is None:
            models.export(spec, weights, None, temporary)
            model = _checked(spec, temporary)
            names = [value.name for value in model.graph.output]
            run = _onnxruntime(temporary)
            expected = _samples(run, inputs, names)
        else:
            names = models.output_names(spec, weights)
            expected = _samples(_pytorch(module), inputs, names)
            models.export(spec, weights, module, temporary)
            model = _checked(spec, temporary)
            run = _onnxruntime(temporary)
        exported = time.monotonic()
        figures = _compare(spec, run, inputs, expected)
        write_npz(temporary_reference, expected)
    identity = {
        "status": "ok",
        "sha256": sha256(destination),
        "opset": _opset(model),
        "ir_version": model.ir_version,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "nodes": len(model.graph.node),
        "exporters": _versions(),
        "inputs": [_described(spec, value) for value in model.graph.input],
        "outputs": [_described(spec, value) for value in model.graph.output],
        "axes": models.axes(spec, weights),
        "reference": "onnxruntime" if module is None else "pytorch",
        "reference_sha256": sha256(reference),
        "weights": models.weights_label(spec, {"sha256": weights_sha256}),
        "weights_sha256": weights_sha256,
    }
    build = {
        "export_seconds": exported - started,
        "seconds": time.monotonic() - started,
        "tolerance": TOLERANCE,
        "parity": figures,
    }
    return identity, build


def _ordered(spec: dict[str, Any], weights: Path | None, inputs: Arrays) -> Arrays:
    names = models.input_names(spec, weights)
    if set(names) != set(inputs):
        raise StepError(f"the inputs are {', '.join(inputs)}; model {spec['name']} takes {', '.join(names)}")
    return {name: inputs[name] for name in names}


def _checked(spec: dict[str, Any], path: Path) -> Any:
    """The ONNX model, once the checker takes it and its opset is the one asked for."""
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise StepError(f"onnx.checker refuses the file of model {spec['name']}: {error}", permanent=True) from error
    model = onnx.load(path)
    for value in model.graph.output:
        models.dtype_of(spec, value)
    if models.has_module(spec) and _opset(model) != spec["opset"]:
        raise StepError(
            f"the exporter wrote opset {_opset(model)} for model {spec['name']}, asked was {spec['opset']}",
            permanent=True,
        )
    return model


def _opset(model: Any) -> int:
    return next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))


def _described(spec: dict[str, Any], value: Any) -> dict[str, Any]:
    """Name, numpy type and shape of a graph's input or output; a dynamic dimension by its name, unknown None."""
    dims = value.type.tensor_type.shape.dim
    return {
        "name": value.name,
        "dtype": models.dtype_of(spec, value),
        "shape": [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims],
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _EXPORTERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _pytorch(module: Any) -> Callable[[Arrays], list[np.ndarray]]:
    import torch

    def run(inputs: Arrays) -> list[np.ndarray]:
        with torch.inference_mode():
            found = module(*(torch.from_numpy(array) for array in inputs.values()))
        return [tensor.numpy() for tensor in ([found] if isinstance(found, torch.Tensor) else found)]

    return run


def _onnxruntime(path: Path) -> Callable[[Arrays], list[np.ndarray]]:
    """Run the file without optimisations. Raises StepError with ONNX Runtime's own reason."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class of their own in common
        raise StepError(f"ONNX Runtime cannot open the exported file: {error}", permanent=True) from error

    def run(inputs: Arrays) -> list[np.ndarray]:
        try:
            return session.run(None, inputs)
        except Exception as error:
            batch = len(next(iter(inputs.values())))
            raise StepError(f"the exported file does not run at batch {batch}: {error}", permanent=True) from error

    return run


def _outputs(run: Callable[[Arrays], list[np.ndarray]], inputs: Arrays, names: Iterable[str]) -> list[np.ndarray]:
    """The outputs of one run, each with a row an image. Raises StepError naming one that has no batch axis."""
    batch, found = len(next(iter(inputs.values()))), run(inputs)
    for name, array in zip(names, found, strict=False):
        if array.ndim == 0 or len(array) != batch:
            raise StepError(
                f"output '{name}' has no batch axis: at batch {batch} its shape is {list(array.shape)}, expected "
                f"[{batch}, ...]; every output must have the batch as its first axis",
                permanent=True,
            )
    return found


def _samples(run: Callable[[Arrays], list[np.ndarray]], inputs: Arrays, names: list[str]) -> Arrays:
    """Outputs by name, ``[samples, ...]``: one run of batch 1 a sample."""
    count = len(next(iter(inputs.values())))
    runs = [_outputs(run, {name: array[i : i + 1] for name, array in inputs.items()}, names) for i in range(count)]
    outputs = {name: np.concatenate(arrays) for name, arrays in zip(names, zip(*runs, strict=True), strict=False)}
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise StepError(f"output '{name}' of the reference has values that are not finite", permanent=True)
    return outputs


def _compare(
    spec: dict[str, Any], run: Callable[[Arrays], list[np.ndarray]], inputs: Arrays, expected: Arrays
) -> dict[str, Any]:
    """Errors of the file at batch 1 (every sample) and batch 2 (the first two, or one twice) against the reference."""
    figures: dict[str, Any] = {}
    count = len(next(iter(inputs.values())))
    for batch, rows in ((1, [[i] for i in range(count)]), (2, [[0, 1 % count]])):
        runs = [_outputs(run, {name: array[row] for name, array in inputs.items()}, expected) for row in rows]
        wanted = [i for row in rows for i in row]
        for name, arrays in zip(expected, zip(*runs, strict=True), strict=True):
            for part, found, right in _parts(spec, name, np.concatenate(arrays), expected[name][wanted]):
                figures[f"{part} batch {batch}"] = _error(spec, part, batch, found, right)
    return figures


def _parts(spec: dict[str, Any], name: str, found: np.ndarray, right: np.ndarray) -> list[tuple[str, Any, Any]]:
    """A detector's boxes and scores are judged apart: the boxes' size, pixels, would hide the scores."""
    if spec["task"] == "detection" and right.ndim == 3 and found.shape == right.shape:
        if right.shape[2] == 6:  # [batch, detections, x y w h score class], best first: equal scores come in any order
            found = np.stack([_aligned(rows, wanted) for rows, wanted in zip(found, right, strict=True)])
            found, right = found.transpose(0, 2, 1), right.transpose(0, 2, 1)
        return [(f"{name} boxes", found[:, :4], right[:, :4]), (f"{name} scores", found[:, 4:], right[:, 4:])]
    return [(name, found, right)]


def _aligned(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``rows`` in the order in which they fit ``wanted`` best."""
    from scipy.optimize import linear_sum_assignment

    distances = np.abs(wanted[:, None] - rows[None]).max(axis=2)
    return rows[linear_sum_assignment(distances)[1]]


def _error(spec: dict[str, Any], part: str, batch: int, found: np.ndarray, right: np.ndarray) -> dict[str, float]:
    where = f"{part} of model {spec['name']} at batch {batch}"
    if found.shape != right.shape:
        raise StepError(f"{where}: ONNX gives the shape {found.shape}, the reference {right.shape}", permanent=True)
    difference = np.abs(found.astype(np.float64) - right.astype(np.float64))
    largest = float(difference.max(initial=0))
    rms = float(np.sqrt(np.mean(np.square(right.astype(np.float64))))) if right.size else 0.0
    relative = largest / rms if rms else largest
    accepted = relative <= TOLERANCE
    if part.endswith(" scores"):
        accepted |= largest <= max(SCORE_FLOOR, SCORE_TOLERANCE * float(right.max(initial=0)))
    if not accepted:  # also where the error is NaN
        raise StepError(
            f"{where}: ONNX differs from the reference by {largest:.3g}, {relative:.3g} of its root mean square "
            f"{rms:.3g}; allowed is {TOLERANCE:g}",
            permanent=True,
        )
    return {"max_abs": largest, "relative": relative, "rms": rms}
