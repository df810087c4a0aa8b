"""Whether a host's processor keeps its pace: launches of stock PyTorch and a plain Python loop, each by two clocks.

    PYTHONPATH=. python docs/measurements/host_pace.py artifacts/yolo11n/weights.bin host_pace.parquet

Needs a GPU and the weights of yolo11n as docs/measurements/h200/config.yaml seeds them. Where wall time and the CPU
time of the launching thread grow together, the processor itself is slower; where only the wall time does, the thread
waits. A row a launch or loop: ``phase``, ``start_ns`` (CLOCK_MONOTONIC), ``wall_ns``, ``cpu_ns`` (thread), ``cpu``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from ladder import models

SECONDS, LOOP = 8, 30_000
SPEC = {"name": "yolo11n", "source": "ultralytics", "architecture": "yolo11n.yaml", "weights": {"seeded": 0}}
SPEC |= {"input": [640, 640], "opset": 17, "axes": None, "task": "detection"}
COLUMNS = ["start_ns", "wall_ns", "cpu_ns", "cpu"]


def timed(phase: str, work: Callable[[], object]) -> pd.DataFrame:
    """``work`` again and again for SECONDS."""
    cpu_now, rows, end = ctypes.CDLL(None).sched_getcpu, [], time.monotonic() + SECONDS
    while time.monotonic() < end:
        cpu, start = time.thread_time_ns(), time.perf_counter_ns()
        work()
        rows.append((start, time.perf_counter_ns() - start, time.thread_time_ns() - cpu, cpu_now()))
    found = pd.DataFrame(rows, columns=COLUMNS).assign(phase=phase)
    print(phase, found[["wall_ns", "cpu_ns"]].quantile([0.1, 0.5, 0.9]).div(1e6).round(3).to_dict("list"), flush=True)
    return found


def add() -> None:
    total = 0
    for number in range(LOOP):
        total += number


def main() -> None:
    weights, destination = map(Path, sys.argv[1:])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    module, picture = models.load(SPEC, weights).cuda(), torch.rand(1, 3, 640, 640, device="cuda")

    def launch() -> None:
        module(picture)
        torch.cuda.synchronize()

    with torch.inference_mode():
        for _ in range(20):
            launch()
        found, allowed = [timed("free", launch)], sorted(os.sched_getaffinity(0))
        for cpu in allowed[len(allowed) // 4], allowed[len(allowed) // 2]:
            os.sched_setaffinity(0, {cpu})
            found.append(timed(f"pinned to {cpu}", launch))
        os.sched_setaffinity(0, allowed)
        found.append(timed("free again", launch))
    found.append(timed("plain Python", add))
    pd.concat(found).to_parquet(destination, index=False)


if __name__ == "__main__":
    main()
