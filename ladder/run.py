"""One rung's process in a round: open its engine, measure, write raw latencies. Started by ladder.round.

Needs numpy and the rung's own runtime, nothing else. ``python -m ladder.run SPEC.json`` writes
``SPEC.latencies.npy`` (int64 [iterations, 2]: repeat and ns, in arrival order) and ``SPEC.result.json`` beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ladder import artifacts, measure, process, stacks
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.stacks.base import Arrays, Rung

FILES = ("export_id", "onnx", "weights", "weights_id")  # what a source is made from


def run(spec: dict[str, Any], latencies_file: Path) -> dict[str, Any]:
    """Measure one rung as its specification says and return its part of the row. Raises StepError.

    ``phases`` says when it did what, for whoever watched the device meanwhile (``ladder.telemetry.summary``).
    """
    rung, batch = Rung(**spec["rung"]), spec["batch"]
    stack = stacks.load(**spec["stack"])
    source = artifacts.source_of(spec, *(spec[file] and Path(spec[file]) for file in FILES))
    payload = artifacts.checked_payload(Path(spec["engine"]), read_json(Path(spec["build"])))
    opening_ns = time.perf_counter_ns()
    session = stack.open(source, payload, rung, batch)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    batches = distinct_batches(Path(spec["inputs"]), batch)
    measured = measure.measure(session, batches, batch, rung.transfers, spec["measure"])
    _refuse_nonsense(session.outputs())
    np.save(latencies_file, np.asarray([(r, ns) for r, repeat in enumerate(measured.latencies_ns) for ns in repeat]))
    row = {
        "started_at": started_at,
        "warmup": measured.warmup,
        "iterations": sum(map(len, measured.latencies_ns)),
        "stopped_by": measured.stopped_by,
        "throughput_ips": measured.throughput_ips,
        "process_mem_mb": process.peak_memory_mb(),
        "allocator_mem_mb": None,
        "weights_mb": None,
        "activations_mb": None,
        "context_mb": None,
        "device_span_ms": None,
        "device_busy_ms": None,
        **measured.device_ms,
        **session.memory_mb(),
    }
    phases = {
        "pid": os.getpid(),
        "opening_ns": opening_ns,
        "loops_ns": measured.loops_ns,
        "throughput_ns": measured.throughput_ns,
        "throughput_launches": measured.throughput_launches,
    }
    result = {"row": row, "facts": session.facts(), "identity": stack.identity(), "phases": phases}
    session.close()
    return result


def distinct_batches(inputs: Path, batch: int) -> list[Arrays]:
    """As many different batches as there are samples: batch i starts at sample i and wraps around.

    They are overlapping views of one array, so that memory grows with one batch and not with all.
    """
    with np.load(inputs) as archive:
        arrays = {name: archive[name] for name in archive.files}
    samples = min(len(array) for array in arrays.values())
    tiled = {name: np.take(array, range(samples + batch - 1), axis=0, mode="wrap") for name, array in arrays.items()}
    return [{name: array[first : first + batch] for name, array in tiled.items()} for first in range(samples)]


def _refuse_nonsense(outputs: Arrays) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise StepError(f"output '{name}' holds NaN or infinity after the timed loop; the latencies mean nothing")


def main(spec_file: Path) -> None:
    process.die_with_parent()
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    result_file = spec_file.with_suffix(".result.json")
    try:
        result = {"status": "ok", **run(read_json(spec_file), spec_file.with_suffix(".latencies.npy"))}
    except StepError as error:
        result = {"status": "failed", "reason": str(error), "permanent": error.permanent}
    write_json(result_file, result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
