"""What the instructions of a MIGraphX program say of precision and place.

The ``ref`` target runs the program as it is. ``cpu`` computes everything in FP32, whatever the program says
(src/targets/cpu/target.cpp: every other type is eliminated). ``gpu`` fuses instructions into kernels of its own, keeps
their float types, and may turn a product between DequantizeLinear and QuantizeLinear into an INT8 one or leave it: the
names of its kernels tell, or it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ladder.errors import StepError
from ladder.stacks import checks
from ladder.stacks.base import Node

_PRECISIONS = {"float": "fp32", "double": "fp64", "half": "fp16", "bf16": "bf16", "int8": "int8", "uint8": "int8"}
_ARITHMETIC = ("fp64", "fp32", "bf16", "fp16", "fp8", "int8")
_BUILT_IN = "@"  # begins the names of parameters, literals, returns
# they give the same values under another shape: no kernel runs, or one that copies only
_VIEWS = {
    "broadcast", "broadcast_for_dot", "flatten", "get_tuple_elem", "identity", "multibroadcast", "reshape",
    "reshape_lazy", "slice", "squeeze", "transpose", "undefined", "unsqueeze",
}  # fmt: skip
# by the names that the audit knows kernels by which only change type or layout
_CONVERSIONS = {
    "contiguous": "Reorder",
    "convert": "Convert",
    "dequantizelinear": "DequantizeLinear",
    "quantizelinear": "QuantizeLinear",
}
_PRODUCTS = {"convolution": "convolution", "dot": "dot|gemm"}  # and how the gpu target names kernels of each
_SOFTMAX = ("softmax", "logsoftmax")
_CONTROL = ("if", "loop")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a program's main module."""

    name: str  # of its operator, or of its kernel where the target fused several into one
    type: str  # of what it gives: float, half, int8, …
    inputs: tuple[int, ...]  # positions of the instructions that it reads


def read(program: Any) -> list[Instruction]:
    """The main module's instructions in order. Raises StepError where MIGraphX does not tell one from another."""
    places: dict[Any, int] = {}
    found: list[Instruction] = []
    for each in program.get_main_module():
        try:
            inputs = tuple(places[one] for one in each.inputs())
        except KeyError as error:
            raise StepError("this MIGraphX does not tell its instructions apart; 2.13 or newer does") from error
        places[each] = len(found)
        found.append(Instruction(_name(each), each.shape().type_string().removesuffix("_type"), inputs))
    return found


def nodes(
    before: Sequence[Instruction], compiled: Sequence[Instruction], target: str, fp32_softmax: bool
) -> list[Node]:
    """One node for each instruction that computes or converts, with what told its precision as ``evidence``.

    Left out are constants, what is worked out from them alone, and what only shows values under another shape. A
    product counts as what it reads, anything else as the widest float type that it reads or gives. ``before`` are the
    instructions before the target lowered them, ``compiled`` those after, ``fp32_softmax`` whether the gpu target
    computes a softmax of 16 bits in FP32.
    """
    varying: set[int] = set()
    found = []
    for place, each in enumerate(before):
        if each.name != "@param" and not varying.intersection(each.inputs):
            continue
        varying.add(place)
        if each.name.startswith(_BUILT_IN) or each.name in _VIEWS:
            continue
        precision, evidence = _precision(each, before), "program"
        kept_wide = target == "gpu" and fp32_softmax and each.name in _SOFTMAX and precision in ("fp16", "bf16")
        if kept_wide or (target == "cpu" and precision in _ARITHMETIC):
            precision, evidence = "fp32", "target"
        elif target == "gpu" and each.name in _PRODUCTS and _reads_dequantised(each, before):
            precision, evidence = {True: "int8", False: precision, None: None}[_int8(each.name, compiled)], "kernels"
        kind = _CONVERSIONS.get(each.name, each.name)
        found.append(Node(f"main:@{place}", kind, precision, target, evidence=evidence if precision else None))
    return found


def on_the_host(compiled: Sequence[Instruction]) -> list[str]:
    """The instructions of a program for the gpu target that it left to the host, which is handed copies for them."""
    handed = ("hip::copy_from_gpu", "hip::sync_stream")
    return [
        f"main:@{place} ({each.name})"
        for place, each in enumerate(compiled)
        if any(compiled[one].name in handed for one in each.inputs)
        and "::" not in each.name
        and not each.name.startswith(_BUILT_IN)
        and each.name not in _CONTROL
    ]


def _name(instruction: Any) -> str:
    """The operator's name: ``ref::op`` and ``cpu::op`` hold the real one, a compiled kernel has one of its own."""
    name = instruction.name()
    key = "symbol_name" if name == "gpu::code_object" else "name" if name.endswith("::op") else None
    return instruction.op().values().get(key, name) if key else name


def _precision(each: Instruction, program: Sequence[Instruction]) -> str | None:
    """As the program has it; None for a tuple."""
    reads = [_short(program[one].type) for one in each.inputs]
    types = reads if _is_product(each.name) else [_short(each.type), *reads]
    return None if "tuple" in types else checks.widest(types)


def _is_product(name: str) -> bool:
    return name.removeprefix("quant_") in _PRODUCTS


def _reads_dequantised(each: Instruction, program: Sequence[Instruction]) -> bool:
    return all(_origin(one, program).name == "dequantizelinear" for one in each.inputs)


def _origin(place: int, program: Sequence[Instruction]) -> Instruction:
    """Where a value comes from, whatever its shape and type were changed to on the way."""
    while program[place].name in {*_VIEWS, "contiguous", "convert"} and program[place].inputs:
        place = program[place].inputs[0]
    return program[place]


def _int8(product: str, compiled: Sequence[Instruction]) -> bool | None:
    """Whether the kernels of such products multiply INT8; None where only some do, or none is to be seen."""
    text = " ".join(each.name for each in compiled)
    found = {bool(quantised) for quantised in re.findall(rf"(quant_)?(?:{_PRODUCTS[product]})", text)}
    return found.pop() if len(found) == 1 else None


def _short(type_name: str) -> str:
    return "fp8" if type_name.startswith("fp8") else _PRECISIONS.get(type_name, type_name)
