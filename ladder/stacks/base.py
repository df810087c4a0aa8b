"""The interface between the pipeline and a runtime. One module implements it per runtime.

A stack module defines ``create(**arguments) -> Stack``; the arguments come from the stack's entry
in the configuration. It imports nothing but numpy and the standard library at module level, since
the runtime it drives is present in the rung's own environment only. It reads no clock for a result
and writes no table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Rung:
    """The factors of one rung that a stack needs to build and open it (no timing settings)."""

    name: str
    stack: str
    device: str
    api: str
    compiler: str
    precision: str
    launch: str  # eager | graph
    shape: str  # dynamic | static
    transfers: str  # excluded | included
    threads: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """What a rung is made from."""

    model: dict[str, Any]  # the model's section of the configuration, resolved, with its name
    onnx: Path | None  # the ONNX file of the rung's precision; None for a stack that runs the module
    weights: Path | None  # the weights of the module; None for a stack that starts from an ONNX file
    profile: dict[str, int]  # batch sizes: {"min": .., "opt": .., "max": ..}
    axes: dict[str, int | str]  # value of each dynamic axis by name; the batch axis has "batch"


@dataclass(frozen=True)
class Node:
    """One executed node (layer, kernel, module) of an opened engine, as the runtime reports it."""

    name: str
    type: str
    precision: str | None  # "fp32", "fp16", "bf16", "int8", "int64", ...; None where the runtime does not tell
    provider: str  # where it runs, e.g. "CPUExecutionProvider", "CPU", "cuda:0"
    time_ms: float | None = None  # mean device time a run in a profiled pass, where the runtime tells
    origin: tuple[str, ...] = ()  # names of the ONNX nodes it came from, where the runtime tells
    evidence: str | None = None  # what told the precision, where a stack has more than one way to learn it


class Session(Protocol):
    """One opened engine with buffers bound for one batch size.

    ``run`` only submits; ``synchronise`` returns when the result is there. Inputs are whole batches,
    keyed by input name.
    """

    def bind(self, inputs: Arrays) -> None:
        """Copy inputs into the bound buffers and wait until they are there.

        They come in the types of the FP32 model, whatever the rung's precision. Raises ``ladder.errors.StepError``
        naming what was expected and what came where a name, shape or type is wrong.
        """

    def run(self) -> None: ...

    def synchronise(self) -> None: ...

    def device_ms(self, launches: int) -> dict[str, list[float]]:
        """The device's own clock: ms of each of so many launches, in order; empty where the device has none.

        ``device_span_ms``: between events around a launch, gaps between its kernels included. ``device_busy_ms``: the
        same where the host had submitted all of it before the device began, so that nothing waited for the host;
        left out where that could not be had, and shorter where it could not be had of every launch.
        """

    def outputs(self) -> Arrays:
        """Copies of the outputs of the last synchronised run, as host arrays by name; bf16 comes as float32."""

    def facts(self) -> dict[str, Any]:
        """What was asked for and is really so, read back from the runtime.

        Keys: ``threads`` (int), ``provider`` (str), ``precision_hint`` and whatever else belongs to
        the rung's identity (stream count, optimisation level, TF32 state). ``hazard`` (str), only where the runtime is
        known to compute the rung's precision wrongly on such a device: why; it is told where parity fails.
        JSON-serialisable.
        """

    def memory_mb(self) -> dict[str, float]:
        """Memory on the device in MB (10⁶ bytes) as only the runtime knows it; what it does not tell is left out.

        ``allocator_mem_mb`` (peak of its own allocator), ``weights_mb``, ``activations_mb`` (or workspace, at the
        profile's maximum), ``context_mb``.
        """

    def close(self) -> None: ...


class Stack(Protocol):
    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Write the engine to ``destination``, where the stack has one, and return build facts.

        What an earlier build of the same engine, of other weights, learnt about the device may lie beside
        ``destination`` as ``ladder.artifacts.TIMING_CACHE``; a stack that uses it says so in its facts and
        leaves it for the next build. Raises ``ladder.errors.StepError`` with the runtime's own reason. A stack
        without a build step writes nothing.
        """

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        """Open the built engine (None where the stack builds none) for one batch size.

        Raises ``ladder.errors.StepError`` where any node would run elsewhere than on the rung's device and provider.
        """

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every node that executes, with its precision, place and, where known, time.

        Opens a profiled session of its own, so that nothing timed pays for it.
        """

    def identity(self) -> dict[str, str]:
        """Exact version of the runtime and of what changes its code, by name."""
