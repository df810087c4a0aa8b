"""What an ONNX graph says of its own precision: nodes, reasons, arithmetic. Counted from graphs, not from a tool's log.

How nodes are counted
    The denominator is the nodes of the FP32 graph; each is looked up in the converted graph by its name, else by its
    first output. Nodes that a conversion inserted (Cast, QuantizeLinear, DequantizeLinear) are in no count.

    FP16, BF16: a node with a float input and a float output is at the precision if all its float outputs are. A node
    without one of them (shape arithmetic on integers, constants made from integers) does no floating-point work and
    has no precision of its own: it counts as converted unless the conversion kept it back (see below), and only in a
    graph that has converted nodes which do. ``float_nodes`` are the figures without such nodes.

    INT8: a node with a float output is at the precision if all its float inputs that are no constants come from a
    DequantizeLinear, and the weights of a convolution or matrix product as well. Other nodes are not.

Why a node stayed, the first that holds
    ``exclusion``: the configuration names it or its operator.
    ``range``: a float constant of it is beyond FP16's largest number, or, running the FP32 graph on the calibration
    data, one of its inputs or outputs (integers too) is beyond ``data_max``. These are AutoCast's own rules.
    ``op``: the ONNX standard gives the operator no FP16 (BF16) form in the graph's opset, or ModelOpt does not quantise
    the operator to INT8.
    ``other``: none of these, so the graph does not tell.

Nodes inside the bodies of If, Loop and Scan are not counted.

How elements are counted
    ``elements`` says how much a launch reads and writes, by type and for one sample: ``weights``, the constants that
    nodes take; ``inputs_outputs`` of the graph; ``activations``, what the nodes take and give, each for itself, as if
    none were fused with another. Nodes that only give another view of their input, and those made of constants alone,
    move nothing. Shapes are those that ONNX Runtime saw, types those of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto

from ladder.files import write_json

FLOATS = {
    TensorProto.FLOAT: "fp32",
    TensorProto.FLOAT16: "fp16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.DOUBLE: "fp64",
}
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # their second input is quantised too
# Source: ModelOpt 0.47, modelopt.onnx.quantization.int8.quantize, "Quantization of … op types are supported"
QUANTISED_BY_MODELOPT = frozenset(
    ("Add", "AveragePool", "BatchNormalization", "Clip", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "MatMul")
    + ("MaxPool", "Mul")
)
REASONS = ("range", "op", "exclusion", "other")
KEEPING_SHAPE = ("Cast", "QuantizeLinear", "DequantizeLinear")  # nodes that conversions insert
VIEWS = ("Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Observed:
    """What running a graph showed of its tensors, by name."""

    ranges: dict[str, float]  # largest |value| over all samples; infinite where one was infinite or NaN
    shapes: dict[str, tuple[int, ...]]  # for one sample


def samples_of(archive: Path) -> list[dict[str, np.ndarray]]:
    """The samples of an .npz ([samples, ...] by input name), each as a batch of one."""
    with np.load(archive) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    return [{name: array[i : i + 1] for name, array in held.items()} for i in range(min(map(len, held.values())))]


def observe(path: Path, samples: list[dict[str, np.ndarray]]) -> Observed:
    """Run the graph on each sample in ONNX Runtime, without optimisations, and look at every tensor on the way.

    Holds the tensors of one sample at a time.
    """
    model = onnx.load(path)
    known = {value.name for value in model.graph.output}
    produced = [name for node in model.graph.node for name in node.output if name]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in produced if name not in known)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    ranges: dict[str, float] = {}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for sample in samples:
        tensors = zip(names, session.run(names, sample), strict=True)
        for name, value in [*sample.items(), *tensors]:
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
                continue  # sequences, strings
            shapes.setdefault(name, value.shape)
            largest = float(np.abs(value.astype(np.float64, copy=False)).max()) if value.size else 0.0
            ranges[name] = max(ranges.get(name, 0.0), np.inf if np.isnan(largest) else largest)
    return Observed(ranges, shapes)


def without_value_info(model: ModelProto) -> ModelProto:
    """A copy without the inferred types of inner tensors, which converters leave stale."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    return copy


def element_types(model: ModelProto) -> dict[str, int]:
    """Element type of every tensor of the main graph (TensorProto.DataType), inferred anew; unknown ones missing."""
    inferred = onnx.shape_inference.infer_shapes(without_value_info(model)).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.input, *inferred.output, *inferred.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in inferred.initializer}
    return {name: kind for name, kind in types.items() if kind != TensorProto.UNDEFINED}


def identity(node: NodeProto) -> str:
    """A node's name; where it has none, its first output's."""
    return node.name or node.output[0]


def flops(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Floating-point operations of a convolution or matrix product, two a multiply-accumulate; None for other nodes.

    Source: the ONNX operator definitions. Bias and activation are left out, as is customary.
    """
    if node.op_type not in WEIGHTED or any(name not in shapes for name in (*node.input[:2], node.output[0])):
        return None
    first, second, out = (shapes[name] for name in (*node.input[:2], node.output[0]))
    if node.op_type == "Conv":
        return 2 * prod(out) * prod(second[1:])  # weights: out channels, in channels / group, kernel
    if node.op_type == "ConvTranspose":
        return 2 * prod(first) * prod(second[1:])  # weights: in channels, out channels / group, kernel
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return 2 * prod(out) * first[0 if transposed else -1]


def describe(
    original: ModelProto,
    converted: ModelProto,
    precision: str,
    observed: Observed,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Precision of each node of the FP32 graph ``original`` in ``converted``, and the sums.

    ``observed`` is the FP32 graph's run on the calibration data, ``options`` are those of the conversion.

    Returns ``nodes``, ``at_precision``, ``at_precision_pct``; ``float_nodes`` and ``float_nodes_at_precision``;
    ``kept``, how many stayed for which reason; ``precisions``, how many nodes by precision (none: no float output);
    ``flops`` (``of``, ``total`` for one sample, ``at_precision``, ``at_precision_pct``, None without any);
    ``elements`` of ``converted`` by type (see above), None where a shape or type is not known;
    and ``detail``, of each node: ``name``, ``output`` (the first), ``type``, ``precision``, ``at_precision``,
    ``reason``, ``flops``.
    """
    view = _View(original, converted, precision, observed, dict(options or {}))
    detail = list(view.rows())
    total = sum(row["flops"] or 0 for row in detail)
    converted_flops = sum(row["flops"] or 0 for row in detail if row["at_precision"])
    at = [row for row in detail if row["at_precision"]]
    floats = [row for row, node in zip(detail, original.graph.node, strict=True) if view.computes(node)]
    kept = Counter(row["reason"] for row in detail if not row["at_precision"])
    return {
        "precision": precision,
        "nodes": len(detail),
        "at_precision": len(at),
        "at_precision_pct": 100 * len(at) / len(detail) if detail else None,
        "float_nodes": len(floats),
        "float_nodes_at_precision": sum(row["at_precision"] for row in floats),
        "kept": {reason: kept[reason] for reason in REASONS},
        "precisions": dict(sorted(Counter(row["precision"] for row in detail).items())),
        "flops": {
            "of": "convolutions and matrix products",
            "total": total,
            "at_precision": converted_flops,
            "at_precision_pct": 100 * converted_flops / total if total else None,
        },
        "elements": view.elements(),
        "detail": detail,
    }


def write(
    fp32_onnx: Path,
    onnx_file: Path,
    destination: Path,
    precision: str,
    observed: Observed,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write ``describe`` of two files as JSON, for the audit to read where there is no onnx; return it.

    For the exported file itself: ``write(fp32, fp32, destination, "fp32", observe(fp32, samples_of(inputs)[:1]))``.
    """
    original, converted = onnx.load(fp32_onnx), onnx.load(onnx_file)
    described = describe(original, converted, precision, observed, options)
    write_json(destination, described)
    return described


class _View:
    """Both graphs, indexed."""

    def __init__(
        self, original: ModelProto, converted: ModelProto, precision: str, observed: Observed, options: dict[str, Any]
    ):
        self.original, self.converted, self.precision, self.observed = original, converted, precision, observed
        self.kind = "int8" if precision.startswith("int8") else precision
        self.options = {"exclude_nodes": [], "exclude_ops": [], "data_max": None} | options
        self.original_types, self.types = element_types(original), element_types(converted)
        self.by_name = {node.name: node for node in converted.graph.node if node.name}
        self.producer = {name: node for node in converted.graph.node for name in node.output}
        self.opset = next((o.version for o in converted.opset_import if o.domain in ("", "ai.onnx")), 1)
        self.constants = {tensor.name for tensor in converted.graph.initializer}
        self.constants |= {o for n in converted.graph.node if n.op_type == "Constant" for o in n.output}
        largest = float(np.finfo(np.float16).max)
        self.wide_constants = {
            tensor.name
            for tensor in original.graph.initializer
            if tensor.data_type == TensorProto.FLOAT and (np.abs(onnx.numpy_helper.to_array(tensor)) > largest).any()
        }

    def computes(self, node: NodeProto) -> bool:
        """Whether a node of the FP32 graph takes and gives floats."""
        return all(any(self.original_types.get(n) in FLOATS for n in names) for names in (node.input, node.output))

    def rows(self) -> Iterator[dict[str, Any]]:
        nodes = list(self.original.graph.node)
        found = [self.by_name.get(node.name) or self.producer.get(node.output[0]) for node in nodes]
        precisions = [self._precision(node) for node in found]
        any_converted = any(p == self.kind for node, p in zip(nodes, precisions, strict=True) if self.computes(node))
        for node, precision in zip(nodes, precisions, strict=True):
            reason = self._reason(node)
            if self.computes(node) or self.kind == "int8":
                at = precision == self.kind
            else:
                at = any_converted and reason == "other"
            yield {
                "name": identity(node),
                "output": node.output[0],
                "type": node.op_type,
                "precision": precision,
                "at_precision": at,
                "reason": None if at else reason,
                "flops": flops(node, self.observed.shapes),
            }

    def elements(self) -> dict[str, dict[str, int]] | None:
        """Elements by type of weights, inputs and outputs, and activations; None where a shape or type is unknown."""
        graph, shapes, constants = self.converted.graph, self._shapes(), set(self.constants)
        weights: set[str] = set()
        activations: list[str] = []
        for node in graph.node:
            taken, given = [name for name in node.input if name], [name for name in node.output if name]
            if constants.issuperset(taken):
                constants.update(given)
            elif node.op_type not in VIEWS:
                weights.update(constants.intersection(taken))
                activations += [name for name in (*taken, *given) if name not in constants]
        ends = [value.name for value in (*graph.input, *graph.output) if value.name not in constants]
        counted = {"weights": sorted(weights), "inputs_outputs": ends, "activations": activations}
        if any(name not in shapes or name not in self.types for names in counted.values() for name in names):
            return None
        return {what: self._by_type(names, shapes) for what, names in counted.items()}

    def _by_type(self, names: list[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        found: Counter[str] = Counter()
        for name in names:
            kind = self.types[name]
            found[FLOATS.get(kind) or onnx.helper.tensor_dtype_to_np_dtype(kind).name] += prod(shapes[name])
        return dict(sorted(found.items()))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the converted graph for one sample: as observed in the FP32 graph, through what was inserted."""
        shapes = dict(self.observed.shapes) | {t.name: tuple(t.dims) for t in self.converted.graph.initializer}
        originals = {node.name: node for node in self.original.graph.node if node.name}
        for node in self.converted.graph.node:
            before = [node.input[0]] if node.op_type in KEEPING_SHAPE else []
            before = before or list(getattr(originals.get(node.name), "output", ()))
            for name, known in zip(node.output, before, strict=False):
                if known in shapes:
                    shapes.setdefault(name, shapes[known])
        return shapes

    def _precision(self, node: NodeProto | None) -> str:
        """fp32, fp16, …; int8; none (no float output); mixed; unknown (not typed); removed (not in the graph)."""
        if node is None:
            return "removed"
        kinds = [self.types.get(name) for name in node.output if name]
        if None in kinds:
            return "unknown"
        floats = {FLOATS[kind] for kind in kinds if kind in FLOATS}
        if floats and self._quantised(node):
            return "int8"
        return floats.pop() if len(floats) == 1 else "mixed" if floats else "none"

    def _quantised(self, node: NodeProto) -> bool:
        inputs = [
            name
            for i, name in enumerate(node.input)
            if self.types.get(name) in FLOATS and (name not in self.constants or (node.op_type in WEIGHTED and i == 1))
        ]
        sources = [self.producer.get(name) for name in inputs]
        return bool(sources) and all(source is not None and source.op_type == "DequantizeLinear" for source in sources)

    def _reason(self, node: NodeProto) -> str:
        if node.name in self.options["exclude_nodes"] or node.op_type in self.options["exclude_ops"]:
            return "exclusion"
        if self.kind == "int8":
            return "other" if node.op_type in QUANTISED_BY_MODELOPT and self.computes(node) else "op"
        if self.kind not in ("fp16", "bf16"):
            return "other"
        limit = self.options["data_max"]
        if not self.wide_constants.isdisjoint(node.input):
            return "range"
        largest = max((self.observed.ranges.get(name, 0.0) for name in (*node.input, *node.output)), default=0.0)
        if limit is not None and largest > limit and node.op_type != "Constant":
            return "range"
        return "other" if self._has_form(node) else "op"

    def _has_form(self, node: NodeProto) -> bool:
        wanted = {"fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}[self.kind]
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, node.domain)
        except onnx.defs.SchemaError:
            return True  # an operator of another domain: the standard does not tell
        return any(wanted in constraint.allowed_type_strs for constraint in schema.type_constraints)
