"""The interface between the pipeline and a vendor's management library, and what is read through it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

# reasons for a clock that are settings or rest; every other reason is throttling
NOT_THROTTLING = frozenset({"idle", "application clocks", "display clocks"})

COUNTER_WATCH_SECONDS, COUNTER_WATCH_STEPS = 1.0, 5  # NVIDIA's counters step every 20 to 100 ms (arXiv 2312.02741)
COUNTER_WATCH_PAUSE_SECONDS = 0.002


@dataclass(frozen=True)
class Process:
    """A process that computes on the device."""

    pid: int  # as the driver counts: inside a container it may be the host's number
    memory_mb: float | None  # device memory, MB (10^6 bytes)


@dataclass(frozen=True)
class Sample:
    """One look at a device; what it does not tell, or was not asked this time, is None."""

    at_ns: int  # CLOCK_MONOTONIC, which time.perf_counter_ns reads on Linux
    unix_ns: int
    temperature_c: float | None = None
    power_w: float | None = None
    gpu_pct: float | None = None  # share of the driver's own last period in which any kernel ran
    memory_pct: float | None = None  # share of it in which device memory was read or written
    memory_used_mb: float | None = None  # of the whole device, MB (10^6 bytes)
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    performance_state: str | None = None  # "P0" is the fastest
    clock_reasons: list[str] | None = None  # why the clocks are not higher; an empty list: nothing holds them back
    energy_j: float | None = None  # a counter since some moment in the past
    processes: list[Process] | None = None


Question = Callable[[], dict[str, Any]]  # asks the device, and answers in fields of a sample

# What each question may take of a CPU core beside a run: 0.5 % in all, half of what workflow and sampler may take
# together. Most for what loses most by rare looks: energy needs 21 of them in a throughput pass. In the order in which
# they are asked: the moment of the energy counter matters most.
SHARES = {
    "energy": 0.0016, "clock reasons": 0.0008, "processes": 0.001, "temperature": 0.0005, "power": 0.0003,
    "sm clock": 0.0003, "memory clock": 0.0002, "memory": 0.0002, "utilisation": 0.00005, "performance state": 0.00005,
}  # fmt: skip


class Reader(Protocol):
    """One device of this host."""

    uuid: str
    questions: Mapping[str, Question]  # the names of SHARES

    def visible(self) -> dict[str, str]:
        """The environment variables with which a process sees this device and no other."""

    def identity(self) -> dict[str, str]:
        """What engines depend on: ``name``, ``compute_capability`` (AMD: the target, gfx942), ``driver`` and, on AMD,
        ``rocm``, the installed version; without what is not told."""

    def state(self) -> dict[str, Any]:
        """Settings of the device that change what is measured; None where not told.

        ``index``, ``persistence``, ``power_limit_w``, ``application_clock_mhz``, ``application_memory_clock_mhz``,
        ``ecc``, ``mig`` (whether it is split; on AMD into partitions), ``numa_node`` (of the host, where the device is
        attached); on AMD ``performance_level`` and ``read_by``, what told all this.
        """


def counter_period_s(reader: Reader) -> float | None:
    """The longest time between steps of the energy counter, s, as long as asking now and then shows several.

    Asked before anything is timed: where an answer is dear, looks beside a run are rarer than steps.
    """
    steps: list[float] = []
    before, deadline = None, time.monotonic() + COUNTER_WATCH_SECONDS
    while len(steps) < COUNTER_WATCH_STEPS and time.monotonic() < deadline:
        told = reader.questions["energy"]().get("energy_j")
        if told is None:
            return None
        if before not in (None, told):
            steps.append(time.monotonic())
        before = told
        time.sleep(COUNTER_WATCH_PAUSE_SECONDS)
    return max(after - before for before, after in pairwise(steps)) if len(steps) == COUNTER_WATCH_STEPS else None


def sample(questions: Iterable[Question]) -> Sample:
    """One look at a device that asks these questions and no others."""
    at_ns, unix_ns = time.monotonic_ns(), time.time_ns()
    answers = [question() for question in questions]
    return Sample(at_ns, unix_ns, **{field: value for answer in answers for field, value in answer.items()})
