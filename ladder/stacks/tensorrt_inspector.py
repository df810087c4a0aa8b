"""What TensorRT says of an engine's layers, as precision and ONNX origins. Pure: texts in, layers out.

Two texts tell. The *inspector's* JSON needs a GPU, and in 8.6 it answers "N/A due to dynamic shapes" for every tensor
of an engine that has them. The *build report* is what the builder logs of the finished engine, once, at its most
talkative severity; it needs no GPU and has the types of dynamic engines as well.

Precision of a layer
    One that multiplies and accumulates (convolution, matrix product) counts as what it reads: its first input, else its
    weights, else the operands in its tactic's name. Any other counts as the widest float type it reads or writes. These
    are the types of tensors, not of the accumulators. TF32 has no tensor type: only a tactic's name tells it from FP32,
    so where TF32 was allowed and no name tells, the precision is unknown. A Myelin graph that is listed as one layer is
    unknown too, since its inner tensors are not told.

Left out are layers that do nothing on the device: constants, no-operations, events, and shapes worked out on the host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ladder.stacks import checks

REPORTS = ("Engine Layer Information:", "Layers:")  # how the build report begins, by version

_IDLE = {"Constant", "NoOp", "signal", "wait", "shape_call"}
_PRODUCTS = re.compile(r"conv|correlation|gemm|matrixmultiply|matmul|fullyconnected", re.I)  # by type, and …
_MYELIN_PRODUCTS = re.compile(r"__myl_(Corr|Fc|Bmm)|_gemm_mha")  # … by name, of kernels that Myelin fused
_MOVES = re.compile(r"__myl_((?:Move|Tran|Resh|Slic|Repl|Cast)+)_")  # kernels of Myelin that only move or cast
_TYPE = re.compile(
    r"\b(?:(?P<fp32>fp32|float32|float)|(?P<fp16>fp16|float16|half)|(?P<bf16>bf16|bfloat16|bfloat)|(?P<fp8>fp8\w*)"
    r"|(?P<fp4>fp4\w*)|(?P<int8>u?int8)|(?P<int4>int4)|(?P<int32>int32)|(?P<int64>int64)|(?P<bool>bool))\b",
    re.I,
)
_OPERANDS = re.compile(r"_(f32|f16|bf16|i8|e4m3)(?:f32|f16|bf16|i8|i32|e4m3|tf32)_", re.I)  # …_f16f16_f16f32_f32_…
_OPERAND_TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "e4m3": "fp8"}
_ONELINE = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<type>.*?), Inputs: \[(?P<inputs>.*?)\], "
    r"(?:Constants: \[(?P<constants>.*?)\], )?Outputs: \[(?P<outputs>.*?\}|) *\](?P<rest>.*)"
)
_SHORT = re.compile(
    r"Layer\((?P<type>[^)]*)\): (?P<name>.*), Tactic: (?P<tactic>[^,]*), (?P<inputs>.*?) ?-> (?P<outputs>.*)"
)
_DATATYPE = re.compile(r"Datatype: ([^,}]+)")
_SHORT_TYPE = re.compile(r"[(\[](\w+)(?:\[[^\]]*\]\)|\([^)]*\)\])")  # x (Half[1,3]), before 8.5 x[Half(1,3)]


@dataclass(frozen=True)
class Layer:
    """One layer of an engine that runs on the device."""

    name: str
    type: str  # TensorRT's own word; Reformat also for Myelin's kernels that cast, or move data for no ONNX node
    precision: str | None  # None where the text does not tell
    evidence: str | None  # what told it: tensors | weights | tactic, or the text it was taken from
    typed: bool  # whether the types of all its tensors are told
    tactic: str
    origin: tuple[str, ...]  # names of ONNX nodes


@dataclass(frozen=True)
class _Told:
    """What a text says of one layer."""

    name: str
    type: str
    inputs: list[str | None]  # precision of each tensor
    outputs: list[str | None]
    weights: str | None
    tactic: str
    metadata: str


def from_inspector(text: str, tf32: bool) -> list[Layer]:
    """The layers of the inspector's JSON; ``tf32``: whether the build allowed it. Raises ValueError for other text.

    The JSON holds raw control characters between the ONNX names of a layer's metadata.
    """
    return _layers((_from_json(each) for each in json.loads(text, strict=False)["Layers"]), tf32)


def from_report(text: str, tf32: bool) -> list[Layer]:
    """The layers of the build report, in either of its two grammars."""
    return _layers(filter(None, map(_from_line, text.split("\n"))), tf32)


def completed(layers: Sequence[Layer], others: Sequence[Layer], evidence: str) -> list[Layer]:
    """The layers, unknown precisions taken from the same layer of another text.

    The same layer has the name, the type and, where both texts tell, the tactic. ``evidence`` says which text it was.
    """
    known = {(each.name, each.type): each for each in others if each.precision is not None}
    result = []
    for layer in layers:
        other = known.get((layer.name, layer.type))
        same = other and (layer.tactic == other.tactic or not layer.tactic or not other.tactic)
        if layer.precision is None and other and same:
            layer = replace(layer, precision=other.precision, evidence=evidence)
        result.append(layer)
    return result


def _layers(told: Iterable[_Told], tf32: bool) -> list[Layer]:
    """Layers with their precision, each ONNX node that one multiplies for left out of the others' origins.

    Those only prepare or finish its product, and where it is computed is one place.
    """
    kept = [each for each in told if each.type not in _IDLE]
    products = {name for each in kept if _multiplies(each) for name in _origin(each)}
    layers = []
    for each in kept:
        precision, evidence = _precision(each, tf32)
        origin = _origin(each)
        moves = _MOVES.match(each.name)
        layers.append(
            Layer(
                name=each.name,
                type="Reformat" if moves and ("Cast" in moves[1] or not origin) else each.type,
                precision=precision,
                evidence=evidence,
                typed=None not in (*each.inputs, *each.outputs),
                tactic=each.tactic,
                origin=tuple(name for name in origin if _multiplies(each) or name not in products),
            )
        )
    return layers


def _multiplies(told: _Told) -> bool:
    return bool(_PRODUCTS.search(told.type) or _MYELIN_PRODUCTS.match(told.name))


def _origin(told: _Told) -> tuple[str, ...]:
    """ONNX names of ``[ONNX Layer: a]␞[ONNX Layer: b]``; 8.6 puts 0x1E between them, 11 puts 0x1F."""
    found = (re.match(r"\[ONNX Layer: (.*)\]", part) for part in re.split("[\x1e\x1f]", told.metadata))
    return tuple(dict.fromkeys(each[1] for each in found if each))


def _precision(told: _Told, tf32: bool) -> tuple[str | None, str | None]:
    """A layer's precision and what tells it; see the module."""
    if told.type == "Myelin":
        return None, None
    if not _multiplies(told):
        types = [each for each in (*told.inputs, *told.outputs) if each is not None]
        complete = len(types) == len(told.inputs) + len(told.outputs)
        return (checks.widest(types), "tensors") if types and complete else (None, None)
    operands = _OPERANDS.search(told.tactic)
    by_tactic = _OPERAND_TYPES[operands[1].lower()] if operands else None
    found = next(iter(told.inputs), None)
    precision, evidence = next(
        (pair for pair in ((found, "tensors"), (told.weights, "weights"), (by_tactic, "tactic")) if pair[0]),
        (None, None),
    )
    if precision == "fp32" or (precision is None and "tf32" in told.tactic):
        if "tf32" in told.tactic:
            return "tf32", "tactic"
        if tf32 and not by_tactic:
            return None, None
    return precision, evidence


def _from_json(layer: dict[str, Any]) -> _Told:
    def types(key: str) -> list[str | None]:
        return [_type(str(each.get("Format/Datatype") or each.get("Datatype"))) for each in layer.get(key, [])]

    weights = layer.get("Weights") or {}
    return _Told(
        name=layer["Name"],
        type=layer["LayerType"],
        inputs=types("Inputs"),
        outputs=types("Outputs"),
        weights=_type(str(weights.get("Type"))) or next(iter(types("Constants")), None),
        tactic=layer.get("TacticName", ""),
        metadata=layer.get("Metadata", ""),
    )


def _from_line(line: str) -> _Told | None:
    """One line of a report; None where it is not about a layer."""
    if found := _ONELINE.match(line):
        tactic = re.search(r"TacticName: ([^,]*)", found["rest"])
        return _Told(
            name=found["name"],
            type=found["type"],
            inputs=[_type(each) for each in _DATATYPE.findall(found["inputs"])],
            outputs=[_type(each) for each in _DATATYPE.findall(found["outputs"])],
            weights=next((_type(each) for each in _DATATYPE.findall(found["constants"] or "")), None),
            tactic=tactic[1] if tactic else "",
            metadata=found["rest"].partition("Metadata: ")[2],
        )
    if found := _SHORT.match(line):
        return _Told(
            name=found["name"],
            type=found["type"],
            inputs=[_type(each) for each in _SHORT_TYPE.findall(found["inputs"])],
            outputs=[_type(each) for each in _SHORT_TYPE.findall(found["outputs"])],
            weights=None,
            tactic="",  # a number here, which the inspector's names cannot be compared with
            metadata="",
        )
    return None


def _type(text: str) -> str | None:
    """The precision in TensorRT's words for a type or a format, e.g. ``Half``, ``Row major linear FP16 format``."""
    found = _TYPE.search(text)
    return found.lastgroup if found else None
