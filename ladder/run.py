"""One rung's process in a round: open its engine, measure, write raw latencies. Started by ladder.round.

Needs numpy and the rung's own runtime, nothing else. ``scripts/run.py SPEC.json`` writes ``SPEC.latencies.npy``
(int64 [iterations, 2]: repeat and ns, in arrival order) and ``SPEC.result.json`` beside it.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ladder import artifacts, measure, parity, process, stacks
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.stacks.base import Arrays, Rung, Session
from ladder.step import id_path_of, lost_artifact

FILES = ("export_id", "onnx", "weights", "weights_id")  # what a source is made from
MEMORY = ("allocator_mem_mb", "weights_mb", "activations_mb", "context_mb")  # what only a stack can tell
DEVICE = ("device_span_ms", "device_busy_ms")


def run(spec: dict[str, Any], latencies_file: Path) -> dict[str, Any]:
    """Measure one rung as its specification says and return its part of the row. Raises StepError.

    ``phases`` says when it did what, for whoever watched the device meanwhile (``ladder.telemetry.summary``).
    """
    rung, batch = Rung(**spec["rung"]), spec["batch"]
    stack = stacks.load(**spec["stack"])
    source = artifacts.source_of(spec, *(spec[file] and Path(spec[file]) for file in FILES))
    payload = artifacts.checked_payload(Path(spec["engine"]), read_json(Path(spec["build"])))
    artifacts.checked_id(Path(spec["inputs"]), id_path_of(Path(spec["inputs"])))
    opening_ns = time.perf_counter_ns()
    session = stack.open(source, payload, rung, batch)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    batches = distinct_batches(Path(spec["inputs"]), batch)
    session.bind(batches[0])  # what a session makes at the first binding is made before anything is timed
    measured = measure.measure(session, batches, batch, rung.transfers, spec["measure"])
    np.save(latencies_file, np.asarray([(r, ns) for r, repeat in enumerate(measured.latencies_ns) for ns in repeat]))
    row = {
        "started_at": started_at,
        "warmup": measured.warmup,
        "iterations": sum(map(len, measured.latencies_ns)),
        "stopped_by": measured.stopped_by,
        "throughput_ips": measured.throughput_ips,
        "process_mem_mb": process.peak_memory_mb(),
        **_memory(session.memory_mb()),
        **_device_medians(measured.device_ms),
    }
    facts = session.facts()
    if rung.device == "cpu" and facts.get("threads") != rung.threads:
        raise StepError(f"the rung asks for {rung.threads} threads, the stack says it has {facts.get('threads')}")
    _check_outputs(session, batches, batch, Path(spec["reference"]))
    phases = {
        "pid": os.getpid(),
        "opening_ns": opening_ns,
        "loops_ns": measured.loops_ns,
        "throughput_ns": measured.throughput_ns,
    }
    result = {
        "row": row,
        "facts": facts,
        "identity": {"python": platform.python_version(), **stack.identity()},
        "phases": phases,
        "device_ms": measured.device_ms,
    }
    session.close()
    return result


def distinct_batches(inputs: Path, batch: int) -> list[Arrays]:
    """As many different batches as there are samples: batch i starts at sample i and wraps around.

    They are overlapping views of one read-only array, so that memory grows with one batch and not with all, and a
    session may keep a copy of it (``ladder.stacks.checks.whole_of``).
    """
    with np.load(inputs) as archive:
        arrays = {name: archive[name] for name in archive.files}
    samples = min(len(array) for array in arrays.values())
    tiled = {name: np.take(array, range(samples + batch - 1), axis=0, mode="wrap") for name, array in arrays.items()}
    for array in tiled.values():
        array.flags.writeable = False
    return [{name: array[first : first + batch] for name, array in tiled.items()} for first in range(samples)]


def _memory(told: dict[str, Any]) -> dict[str, float | None]:
    """The columns of a stack's own readings, None where it has none. Raises StepError for any other reading."""
    for name, value in told.items():
        if name not in MEMORY or not _is_reading(value):
            raise StepError(
                f"the stack reads {name} = {value!r}; expected are numbers of 0 or more, {', '.join(MEMORY)}"
            )
    return dict.fromkeys(MEMORY) | told


def _device_medians(repeats: list[dict[str, Any]]) -> dict[str, float | None]:
    """The median of each of the device's clocks over all launches, ms, None without any. Raises StepError as above."""
    for name, launches in (reading for repeat in repeats for reading in repeat.items()):
        if name not in DEVICE or not isinstance(launches, list) or not all(map(_is_reading, launches)):
            raise StepError(
                f"the stack reads {name} = {launches!r}; expected is a list of ms, one a launch, of {', '.join(DEVICE)}"
            )
    every = {name: [ms for repeat in repeats for ms in repeat.get(name, ())] for name in DEVICE}
    return {name: statistics.median(launches) if launches else None for name, launches in every.items()}


def _is_reading(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _check_outputs(session: Session, batches: list[Arrays], batch: int, reference: Path) -> None:
    """Raises StepError where the session that was timed does not give what the reference does for the first batch.

    The audit judges precision at the ends of the profile; this catches an engine that is broken at this batch.
    """
    session.bind(batches[0])
    session.run()
    session.synchronise()
    with np.load(reference) as stored:
        expected = {name: np.take(stored[name], range(batch), axis=0, mode="wrap") for name in stored.files}
    parity.refuse_broken(session.outputs(), expected, batch)


def measure_rung(spec_file: Path) -> None:
    """Measure what the file asks for and write ``SPEC.result.json`` beside it, also where that fails."""
    result_file = spec_file.with_suffix(".result.json")
    try:
        result = {"status": "ok", **run(read_json(spec_file), spec_file.with_suffix(".latencies.npy"))}
    except StepError as error:
        result = {"status": "failed", "reason": str(error), "permanent": error.permanent}
    except FileNotFoundError as error:
        if (reason := lost_artifact(error)) is None:
            raise
        result = {"status": "failed", "reason": reason, "permanent": False}
    write_json(result_file, result)
