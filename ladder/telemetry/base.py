"""The interface between the pipeline and a vendor's management library, and what is read through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

# reasons for a clock that are settings or rest; every other reason is throttling
NOT_THROTTLING = frozenset({"idle", "application clocks", "display clocks"})


@dataclass(frozen=True)
class Process:
    """A process that computes on the device."""

    pid: int  # as the driver counts: inside a container it may be the host's number
    memory_mb: float | None  # device memory, MB (10^6 bytes)


@dataclass(frozen=True)
class Sample:
    """One look at a device; what it does not tell is None."""

    at_ns: int  # CLOCK_MONOTONIC, which time.perf_counter_ns reads on Linux
    unix_ns: int
    temperature_c: float | None
    power_w: float | None
    gpu_pct: float | None  # share of the driver's own last period in which any kernel ran
    memory_pct: float | None  # share of it in which device memory was read or written
    memory_used_mb: float | None  # of the whole device, MB (10^6 bytes)
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    performance_state: str | None  # "P0" is the fastest
    clock_reasons: list[str] | None  # why the clocks are not higher; an empty list: nothing holds them back
    energy_j: float | None  # a counter since some moment in the past
    processes: list[Process] | None


class Reader(Protocol):
    """One device of this host."""

    uuid: str

    def visible(self) -> dict[str, str]:
        """The environment variables with which a process sees this device and no other."""

    def identity(self) -> dict[str, str]:
        """What engines depend on: ``name``, ``compute_capability``, ``driver``; without what is not told."""

    def state(self) -> dict[str, Any]:
        """Settings of the device that change what is measured; None where not told.

        ``index``, ``persistence``, ``power_limit_w``, ``application_clock_mhz``, ``application_memory_clock_mhz``,
        ``ecc``, ``mig``, ``numa_node`` (of the host, where the device is attached).
        """

    def sample(self) -> Sample: ...
