"""Which flags a rung's precision needs of a TensorRT version, from the names its API has. Pure.

Two ways to a precision. *Strong* typing: the ONNX file's own types decide, and TensorRT may not change one. *Weak*
typing: the file is FP32 (or Q/DQ over FP32), and flags allow TensorRT to run what it likes in FP16, BF16 or INT8. The
names of a version's flags say which it offers: 8.6 has only the weak one, 10 both, 11 and TensorRT-RTX only the strong.
"""

from __future__ import annotations

from dataclasses import dataclass

from ladder.errors import StepError

_WEAK_FLAGS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "tf32": (),
    "fp16": ("FP16",),
    "bf16": ("BF16",),
    "int8": ("INT8",),
    "int8-fp16": ("INT8", "FP16"),
}
_EXTERNAL_TACTICS = ("CUBLAS", "CUBLAS_LT", "CUDNN")  # off by default since 10, gone since 11


@dataclass(frozen=True)
class Offer:
    """What a version has, as the names of its enumerations' members."""

    version: str  # with its product, for messages: "TensorRT 8.6.1"
    network_flags: frozenset[str]  # NetworkDefinitionCreationFlag
    builder_flags: frozenset[str]  # BuilderFlag
    tactic_sources: frozenset[str]  # TacticSource


@dataclass(frozen=True)
class Choice:
    """What is set, cleared and switched off for one build; every name is one that the version has."""

    network_flags: tuple[str, ...]
    set_flags: tuple[str, ...]
    cleared_flags: tuple[str, ...]
    tactics_off: tuple[str, ...]


def choose(precision: str, typing: str, offer: Offer) -> Choice:
    """The flags of a precision under a typing (strong or weak). Raises StepError for what the version lacks."""
    if precision not in _WEAK_FLAGS:
        known = ", ".join(_WEAK_FLAGS)
        raise StepError(f"{offer.version} has no precision {precision}, only {known}", permanent=True)
    has_weak, has_strong = "FP16" in offer.builder_flags, "STRONGLY_TYPED" in offer.network_flags
    needed: tuple[str, ...] = ()
    network: tuple[str, ...] = ("EXPLICIT_BATCH",) if "EXPLICIT_BATCH" in offer.network_flags else ()
    if typing == "strong":
        if has_strong:
            network += ("STRONGLY_TYPED",)
        elif has_weak:
            raise StepError(
                f"{offer.version} has no strongly typed networks: use the stack tensorrt-weak, which builds from the "
                "FP32 file with precision flags",
                permanent=True,
            )
    elif typing == "weak":
        if not has_weak:
            raise StepError(
                f"{offer.version} builds strongly typed networks only: use the stack tensorrt, which takes the "
                "precision from the ONNX file",
                permanent=True,
            )
        needed = _WEAK_FLAGS[precision]
    else:
        raise StepError(f"typing must be strong or weak, not '{typing}'", permanent=True)
    if precision == "tf32":
        needed += ("TF32",)
    if missing := [flag for flag in needed if flag not in offer.builder_flags]:
        raise StepError(f"{offer.version} has no {precision}: it lacks the flag {', '.join(missing)}", permanent=True)
    return Choice(
        network_flags=network,
        set_flags=needed,
        # TensorRT has TF32 on unless told otherwise, which would make every FP32 layer something else
        cleared_flags=("TF32",) if "TF32" in offer.builder_flags and precision != "tf32" else (),
        tactics_off=tuple(source for source in _EXTERNAL_TACTICS if source in offer.tactic_sources),
    )
