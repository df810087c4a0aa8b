"""Reduced-precision ONNX files: FP16 and BF16 through ModelOpt AutoCast, INT8 through ModelOpt PTQ.

A converted model is accepted only after it was checked and run once at batch 1 and 2. The same input gives the same
bytes, in any process.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

from ladder import graph
from ladder.errors import StepError
from ladder.files import replacing, sha256
from ladder.graph import Observed

DEFAULTS = {"calibration_method": "max", "data_max": 512, "exclude_nodes": [], "exclude_ops": []}


def convert(
    source: Path, calibration: Path, precision: str, options: Mapping[str, Any], observed: Observed, destination: Path
) -> dict[str, Any]:
    """Write ``source`` in ``precision`` (fp16, bf16, int8, int8-fp16) to ``destination`` and return its identity.

    ``calibration`` is an .npz, [samples, ...] by input name; ``observed`` is ``ladder.graph.observe`` of the source on
    it. ``options`` go over ``DEFAULTS``. Inputs and outputs keep their types. In ``int8-fp16`` ModelOpt puts every node
    that it does not quantise in FP16, whatever its range and whether or not ``exclude_nodes`` names it.

    Raises StepError where the model cannot be converted, or its conversion does not run or gives NaN or infinity.
    """
    chosen = {**DEFAULTS, **options}
    model = onnx.load(source)
    _check_exclusions(model, chosen)
    with contextlib.redirect_stdout(sys.stderr):  # ModelOpt logs and prints a lot
        facts: dict[str, Any] = {}
        if precision in ("fp16", "bf16"):
            converted = _autocast(source, precision, chosen, observed)
        else:
            converted = _quantise(source, calibration, precision, chosen)
            if chosen["calibration_method"] == "entropy":
                # ModelOpt 0.47 hands ONNX Runtime a histogram of as many bins as quantised bins: one candidate is left
                as_max = _quantise(source, calibration, precision, chosen | {"calibration_method": "max"})
                facts["entropy_differs_from_max"] = scales(as_max) != scales(converted)
    with replacing(destination) as temporary:
        onnx.save(converted, temporary)
        runtime = _accept(temporary, precision, graph.samples_of(calibration), observed)
    return {
        "status": "ok",
        "precision": precision,
        "sha256": sha256(destination),
        "source_sha256": sha256(source),
        "calibration_sha256": sha256(calibration),
        "options": chosen,
        "versions": {name: version(name) for name in ("nvidia-modelopt", "onnx", "onnxruntime")},
        "opset": next(o.version for o in converted.opset_import if o.domain in ("", "ai.onnx")),
        "ran_in": runtime,
        **facts,
    }


def scales(model: ModelProto) -> dict[str, dict[str, Any]]:
    """What quantises each tensor, read from the graph's Q and DQ nodes: ``scale``, ``zero_point``, ``axis``.

    ``scale`` and ``zero_point`` are lists, one entry a channel of ``axis``; ``axis`` is None for one scale a tensor.
    """
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = onnx.helper.get_node_attr_value(node, "value")
    quantised = {name for node in model.graph.node if node.op_type == "QuantizeLinear" for name in node.output}
    found = {}
    for node in model.graph.node:
        is_quantise = node.op_type == "QuantizeLinear"
        if not is_quantise and (node.op_type != "DequantizeLinear" or node.input[0] in quantised):
            continue
        scale = np.atleast_1d(constants[node.input[1]]).astype(np.float64)
        zero = constants[node.input[2]] if len(node.input) > 2 else np.zeros(1, np.int8)
        axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
        found[node.input[0]] = {
            "scale": scale.tolist(),
            "zero_point": np.atleast_1d(zero).astype(int).tolist(),
            "axis": (axes or [1])[0] if scale.size > 1 else None,
        }
    return found


def _check_exclusions(model: ModelProto, options: Mapping[str, Any]) -> None:
    """An exclusion that fits nothing is a mistake in the configuration, not something to pass over."""
    names, ops = ({getattr(node, key) for node in model.graph.node} for key in ("name", "op_type"))
    for key, known in (("exclude_nodes", names), ("exclude_ops", ops)):
        if unknown := sorted(set(options[key]) - known):
            raise StepError(f"conversion.{key}: the FP32 graph has no {', '.join(unknown)}", permanent=True)


def _exactly(names: list[str]) -> list[str]:
    """ModelOpt takes regular expressions that match from the start of a node's name."""
    return [f"{re.escape(name)}$" for name in names]


def _autocast(source: Path, precision: str, options: Mapping[str, Any], observed: Observed) -> ModelProto:
    """AutoCast with its own range rule, given ranges that were measured one sample at a time.

    Its ``calibration_data`` would hold every tensor of every sample at once: 0.36 GB each for YOLO11n at 640×640.
    """
    from modelopt.onnx.autocast import convert_to_mixed_precision
    from modelopt.onnx.autocast.nodeclassifier import IORangeRule
    from modelopt.onnx.autocast.referencerunner import TensorStats

    ranges = {
        name: TensorStats(absmax=largest, min_val=-largest, max_val=largest, shape=observed.shapes[name])
        for name, largest in observed.ranges.items()
    }
    converted = convert_to_mixed_precision(
        str(source),
        low_precision_type=precision,
        nodes_to_exclude=_exactly(options["exclude_nodes"]),
        op_types_to_exclude=options["exclude_ops"],
        keep_io_types=True,
        data_max=np.inf,  # else AutoCast measures ranges itself
        custom_rule=IORangeRule(options["data_max"], ranges, defaultdict(list)),
        providers=["cpu"],
    )
    return _without_inner_types(converted)


def _quantise(source: Path, calibration: Path, precision: str, options: Mapping[str, Any]) -> ModelProto:
    from modelopt.onnx.quantization import quantize

    with tempfile.TemporaryDirectory() as folder, np.load(calibration) as arrays:  # it writes beside its input
        copy, result = Path(folder) / "fp32.onnx", Path(folder) / "quantised.onnx"
        shutil.copyfile(source, copy)
        quantize(
            str(copy),
            quantize_mode="int8",
            calibration_data={name: arrays[name] for name in arrays.files},
            calibration_method=options["calibration_method"],
            calibration_eps=["cpu"],
            op_types_to_exclude=list(options["exclude_ops"]),
            op_types_to_exclude_fp16=list(options["exclude_ops"]),
            nodes_to_exclude=_exactly(options["exclude_nodes"]),
            high_precision_dtype="fp16" if precision == "int8-fp16" else "fp32",
            output_path=str(result),
        )
        if not result.is_file():
            raise StepError(f"ModelOpt wrote no {precision} model; its log says why")
        converted = _without_inner_types(onnx.load(result))
    if not scales(converted):
        raise StepError(f"ModelOpt quantised no node: the model would be {precision} by name only", permanent=True)
    return converted


def _without_inner_types(model: ModelProto) -> ModelProto:
    """The model without value_info: ModelOpt's gives different sizes one name, and its order changes by process."""
    del model.graph.value_info[:]
    return model


def _accept(path: Path, precision: str, samples: list[dict[str, np.ndarray]], observed: Observed) -> str:
    """Check the model and run it at batch 1 and 2; return the runtime that did. Raises StepError."""
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise StepError(f"the {precision} model is no valid ONNX: {error}", permanent=True) from error
    pair = {name: np.concatenate([samples[0][name], samples[-1][name]]) for name in samples[0]}
    # ONNX Runtime has no BF16 convolution on the CPU
    run, runtime = (_run_in_openvino, "openvino") if precision == "bf16" else (_run_in_onnxruntime, "onnxruntime")
    for batch, feed in ((1, samples[0]), (2, pair)):
        try:
            outputs = run(path, feed)
        except ImportError as error:
            raise StepError(f"a {precision} model is tried out in {runtime}, which is missing: install it") from error
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            reason = f"the {precision} model does not run in {runtime} at batch {batch}: {error}"
            raise StepError(reason, permanent=True) from error
        for name, output in outputs.items():
            if not np.isfinite(output).all():
                raise _overflow(f"output '{name}' of the {precision} model at batch {batch}")
    if precision != "bf16":  # whose range is FP32's
        # on the CPU, ONNX Runtime computes FP16 nodes in FP32 and hides what would overflow, unless it is looked at
        for name, largest in graph.observe(path, samples[:1]).ranges.items():
            if np.isinf(largest) and np.isfinite(observed.ranges.get(name, np.inf)):
                raise _overflow(f"tensor '{name}' of the {precision} model")
    return f"{runtime} {version(runtime)}"


def _overflow(what: str) -> StepError:
    advice = "keep nodes in FP32 with conversion.exclude_nodes, or lower conversion.data_max"
    return StepError(f"{what} holds NaN or infinity; {advice}", permanent=True)


def _run_in_onnxruntime(path: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def _run_in_openvino(path: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU")
    return {output.any_name: value for output, value in compiled(feed).items()}
