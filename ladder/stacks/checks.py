"""What every stack refuses in the same words, before anything is timed under a wrong name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.stacks.base import Arrays, Rung, Source

Expected = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # shape and type of each input by name


def runtime(module: str) -> Any:
    """Import a stack's runtime. Raises StepError where this environment lacks it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise StepError(f"{module} cannot be imported by {sys.executable}: {error}") from error


def loaded(beginnings: tuple[str, ...]) -> dict[str, str]:
    """Files of the libraries in this process whose names begin so, by their names without version: proc(5), maps.

    Their names hold the version; where they are not loaded yet there is none.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return {}
    names = {Path(line.split(maxsplit=5)[5]).name for line in lines if len(line.split(maxsplit=5)) == 6}
    return {name.split(".so")[0]: name for name in sorted(names) if name.startswith(beginnings)}


def reason(error: BaseException) -> str:
    """A runtime's own message on one line, at most 1,000 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 1000 else text[:999] + "…"


def check_options(rung: Rung, known: Sequence[str], stack: str) -> None:
    """Raises StepError where the rung has an option that the stack does not know."""
    if unknown := sorted(set(rung.options) - set(known)):
        offered = f"its options are {', '.join(known)}" if known else "it has no options"
        raise StepError(f"{stack} does not know the option {', '.join(unknown)}; {offered}", permanent=True)


def check_flag(rung: Rung, option: str) -> bool | None:
    """The value of an option that is on or off; None where the rung leaves it to the runtime."""
    value = rung.options.get(option)
    if value is not None and not isinstance(value, bool):
        raise StepError(f"option {option} must be true or false, not {value!r}", permanent=True)
    return value


def check_eager(rung: Rung, stack: str) -> None:
    """Raises StepError for a launch as a captured graph, where the stack has none."""
    if rung.launch != "eager":
        raise StepError(f"{stack} has no launch '{rung.launch}', only 'eager'", permanent=True)


def check_batch(source: Source, batch: int) -> None:
    """Raises StepError for a batch outside the optimization profile."""
    low, high = source.profile["min"], source.profile["max"]
    if not low <= batch <= high:
        raise StepError(
            f"batch {batch} is outside the profile {low} to {high} of model {source.model.get('name')}; "
            f"set profile: {{min: {min(low, batch)}, opt: {source.profile['opt']}, max: {max(high, batch)}}}",
            permanent=True,
        )


def check_inputs(inputs: Arrays, expected: Expected) -> None:
    """Raises StepError where names, shapes or types differ from what the engine takes."""
    if set(inputs) != set(expected):
        raise StepError(f"expected the inputs {sorted(expected)}, got {sorted(inputs)}")
    for name, (shape, dtype) in expected.items():
        if inputs[name].shape != shape or inputs[name].dtype != dtype:
            raise StepError(
                f"input '{name}': expected {dtype} {list(shape)}, got {inputs[name].dtype} {list(inputs[name].shape)}"
            )


def whole_of(array: np.ndarray) -> tuple[np.ndarray, int]:
    """The read-only array that a batch is a slice of, and at which of its rows it begins; itself and 0 for any other.

    A session that keeps a copy of the whole where copying is fast need not touch the batch on the host each time, which
    would leave the host's caches with it and not with what it needs to launch.
    """
    whole = array.base
    if (
        isinstance(whole, np.ndarray)
        and whole.flags.c_contiguous
        and not whole.flags.writeable  # or the copy could fall behind it
        and (whole.dtype, whole.shape[1:], whole.strides) == (array.dtype, array.shape[1:], array.strides)
        and whole.nbytes
    ):
        first, rest = divmod(array.ctypes.data - whole.ctypes.data, whole.strides[0])
        if not rest and 0 <= first <= len(whole) - len(array):
            return whole, first
    return array, 0


def check_placement(strays: Sequence[str], total: int, place: str) -> None:
    """Raises StepError naming the nodes (``strays``) that would run elsewhere than on ``place``."""
    if strays:
        more = "" if len(strays) <= 10 else f" and {len(strays) - 10} more"
        raise StepError(
            f"{len(strays)} of {total} nodes would not run on {place}: {', '.join(strays[:10])}{more}", permanent=True
        )


def widest(precisions: Sequence[str]) -> str | None:
    """The widest float type among them, else the first type; None of none."""
    floats = [each for each in ("fp64", "fp32", "bf16", "fp16") if each in precisions]
    return next(iter([*floats, *precisions]), None)


def refuse_tf32_override() -> None:
    """NVIDIA_TF32_OVERRIDE changes what cuBLAS and cuDNN compute in, whatever a framework was told."""
    if (value := os.environ.get("NVIDIA_TF32_OVERRIDE")) is not None:
        raise StepError(f"NVIDIA_TF32_OVERRIDE={value} is set and would override the rung's precision; unset it")
