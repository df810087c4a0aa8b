"""The one timing loop. Nothing else in the project reads a clock for a result.

Timed: from submitting to synchronised. Outside: copying the next input into the bound buffer and
fetching outputs, unless the rung includes transfers. The clock is monotonic and in nanoseconds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from ladder.median_interval import median_interval
from ladder.stacks.base import Arrays, Session

CHECK_EVERY = 10  # iterations between looks at the median's interval, so that looking costs nothing that is timed


@dataclass(frozen=True)
class Measurement:
    latencies_ns: list[list[int]]  # one list a repeat, in arrival order, warm-up excluded
    warmup: int
    stopped_by: str  # iterations | interval | time; of several repeats each one that ended one, comma-separated
    throughput_ips: float  # images/s of the throughput pass
    device_ms: list[dict[str, list[float]]]  # of each repeat by clock, see Session.device_ms
    loops_ns: list[tuple[int, int]]  # start and end of each latency loop by the same clock
    throughput_ns: tuple[int, int]  # of the throughput pass


def measure(
    session: Session, batches: list[Arrays], batch: int, transfers: str, settings: dict[str, Any]
) -> Measurement:
    """Warm up, time single launches, ask the device's own clock, all this in each repeat; then launch back to back.

    ``batches`` are the distinct inputs that rotate through the bound buffer; ``settings`` is the
    configuration's measure section.
    """
    inputs = cycle(batches)
    once = _with_transfers if transfers == "included" else _without_transfers
    repeats, reasons, loops, device_ms = [], [], [], []
    with _no_garbage_collection():
        for _ in range(settings["repeats"]):
            for _ in range(settings["warmup"]):
                once(session, next(inputs))
            start = time.perf_counter_ns()
            latencies, stopped_by = _latencies(session, inputs, once, settings)
            loops.append((start, time.perf_counter_ns()))
            repeats.append(latencies)
            reasons.append(stopped_by)
            device_ms.append(session.device_ms(settings["device_launches"]))
        start = time.perf_counter_ns()
        ips = _throughput(session, inputs, batch, transfers, settings)
        end = time.perf_counter_ns()
    return Measurement(
        latencies_ns=repeats,
        warmup=settings["warmup"],
        stopped_by=", ".join(sorted(set(reasons))),
        throughput_ips=ips,
        device_ms=device_ms,
        loops_ns=loops,
        throughput_ns=(start, end),
    )


def _latencies(
    session: Session, inputs: Iterator[Arrays], once: Any, settings: dict[str, Any]
) -> tuple[list[int], str]:
    fixed, least = settings["iterations"], settings["min_iterations"]
    deadline = time.perf_counter_ns() + int(settings["max_seconds"] * 1e9)
    latencies: list[int] = []
    while True:
        latencies.append(once(session, next(inputs)))
        done = len(latencies)
        if fixed is not None:
            if done >= fixed:
                return latencies, "iterations"
        elif done >= least:
            if time.perf_counter_ns() >= deadline:
                return latencies, "time"
            if done % CHECK_EVERY == 0 and _tight(latencies, settings["interval_pct"]):
                return latencies, "interval"


def _tight(latencies: list[int], interval_pct: float) -> bool:
    interval = median_interval(latencies)
    if interval is None:
        return False
    low, high = interval
    return (high - low) / (high + low) * 200 <= interval_pct


def _without_transfers(session: Session, inputs: Arrays) -> int:
    session.bind(inputs)
    start = time.perf_counter_ns()
    session.run()
    session.synchronise()
    return time.perf_counter_ns() - start


def _with_transfers(session: Session, inputs: Arrays) -> int:
    start = time.perf_counter_ns()
    session.bind(inputs)
    session.run()
    session.synchronise()
    session.outputs()
    return time.perf_counter_ns() - start


def _throughput(
    session: Session, inputs: Iterator[Arrays], batch: int, transfers: str, settings: dict[str, Any]
) -> float:
    """Images/s of launches back to back, at most ``queue`` in flight."""
    least, span = settings["throughput_iterations"], int(settings["throughput_seconds"] * 1e9)
    launches = 0
    start = time.perf_counter_ns()
    while launches < least or time.perf_counter_ns() - start < span:
        if transfers == "included":
            session.bind(next(inputs))
        session.run()
        launches += 1
        if transfers == "included":
            session.synchronise()
            session.outputs()
        elif launches % settings["queue"] == 0:
            session.synchronise()
    session.synchronise()
    return launches * batch / (time.perf_counter_ns() - start) * 1e9


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
