"""What the samples of one run say in columns of results.csv. Pure; docs/method.md has the why.

Moments are ns of CLOCK_MONOTONIC, energy is in J, power in W, memory in MB (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from ladder.tables import CLEAR
from ladder.telemetry.base import NOT_THROTTLING, Sample

COLUMNS = (
    "device_mem_mb", "device_mem_source", "temperature_start_c", "temperature_end_c", "sm_clock_start_mhz",
    "sm_clock_end_mhz", "memory_clock_start_mhz", "memory_clock_end_mhz", "throttled", "throughput_throttled",
    "contended", "idle_power_w", "power_w", "energy_window_s", "energy_j_per_image", "ips_per_w",
)  # fmt: skip

Span = tuple[int, int]  # start and end

COUNTER_STEPS = 20  # at least: a step is seen at the next look, so that a shorter window could be off by over 5 %
STEADY_C = 2.0  # the temperature of the window for energy moves by no more
POWER_AVERAGE_NS = 1_000_000_000  # a reading of power holds the second before it


def summarise(
    samples: Sequence[Sample], phases: dict[str, Any], throughput_ips: float, period_s: float
) -> dict[str, Any]:
    """The values of ``COLUMNS``, None where the samples do not tell.

    ``phases`` is what the run says of itself: its ``pid``; ``opening_ns``, before which it had not touched the device;
    ``loops_ns``, the spans of its latency loops; ``throughput_ns``, the span of its throughput pass.
    ``throughput_ips`` is in images/s; samples are ``period_s`` s apart.
    """
    opening, loops, throughput = phases["opening_ns"], phases["loops_ns"], phases["throughput_ns"]
    period = int(period_s * 1e9)
    idle = [sample for sample in samples if sample.at_ns < opening]
    running = [sample for sample in samples if sample.at_ns >= opening]
    own = _own_pid(idle, running, phases["pid"])
    memory_mb, source = _memory(idle, running, phases["pid"])
    start, end = _ends(samples, (loops[0][0], throughput[1]), period)
    power_w, window_s = _power(samples, throughput)
    return {
        "device_mem_mb": memory_mb,
        "device_mem_source": source,
        "temperature_start_c": start and start.temperature_c,
        "temperature_end_c": end and end.temperature_c,
        "sm_clock_start_mhz": start and start.sm_clock_mhz,
        "sm_clock_end_mhz": end and end.sm_clock_mhz,
        "memory_clock_start_mhz": start and start.memory_clock_mhz,
        "memory_clock_end_mhz": end and end.memory_clock_mhz,
        "throttled": _throttled(_around(samples, loops, period)),
        "throughput_throttled": _throttled(_around(samples, [throughput], period)),
        "contended": _contended(_around(samples, [*loops, throughput], period), own),
        "idle_power_w": _idle_power(idle),
        "power_w": power_w,
        "energy_window_s": window_s,
        "energy_j_per_image": None if power_w is None else power_w / throughput_ips,
        "ips_per_w": None if power_w is None else throughput_ips / power_w,
    }


def _around(samples: Sequence[Sample], spans: Sequence[Span], period: int) -> list[Sample]:
    """The samples in these spans, and the next one on either side: a loop may be shorter than the period."""
    return [s for s in samples if any(start - period <= s.at_ns <= end + period for start, end in spans)]


def _ends(samples: Sequence[Sample], span: Span, period: int) -> tuple[Sample | None, Sample | None]:
    """The first and the last sample of a span; None where a sample of the first or last two periods is missing."""
    inside = [sample for sample in samples if span[0] <= sample.at_ns <= span[1]]
    if not inside:
        return None, None
    start = inside[0] if inside[0].at_ns - span[0] <= 2 * period else None
    end = inside[-1] if span[1] - inside[-1].at_ns <= 2 * period else None
    return start, end


def _throttled(samples: Sequence[Sample]) -> str | None:
    told = [sample.clock_reasons for sample in samples if sample.clock_reasons is not None]
    if not told:
        return None
    return ", ".join(sorted({reason for reasons in told for reason in reasons} - NOT_THROTTLING)) or CLEAR


def _pids(samples: Sequence[Sample]) -> list[int]:
    return [process.pid for sample in samples for process in sample.processes or ()]


def _own_pid(idle: Sequence[Sample], running: Sequence[Sample], pid: int) -> int | None:
    """The run as the driver lists it; None where it does not.

    By its pid or, since a container has pids of its own, the first that came after the run opened the device.
    """
    listed, before = _pids(running), set(_pids(idle))
    return pid if pid in listed else next((each for each in listed if each not in before), None)


def _contended(samples: Sequence[Sample], own: int | None) -> str | None:
    """Other processes with their peaks, e.g. ``4711 (512 MB), 4712``; a driver that hides the run hides them too."""
    peaks: dict[int, float] = {}
    for process in (each for sample in samples for each in sample.processes or () if each.pid != own):
        peaks[process.pid] = max(peaks.get(process.pid, 0.0), process.memory_mb or 0.0)
    if peaks:
        return ", ".join(f"{pid} ({peak:.0f} MB)" if peak else str(pid) for pid, peak in sorted(peaks.items()))
    return None if own is None else CLEAR


def _memory(idle: Sequence[Sample], running: Sequence[Sample], pid: int) -> tuple[float | None, str | None]:
    """Peak memory and where it comes from: the run's own, else what the device holds more than before."""
    own = [each.memory_mb for sample in running for each in sample.processes or () if each.pid == pid]
    if known := [memory for memory in own if memory is not None]:
        return max(known), "process"
    before, during = ([s.memory_used_mb for s in part if s.memory_used_mb is not None] for part in (idle, running))
    if before and during:
        return max(during) - median(before), "device"
    return None, None


def _idle_power(idle: Sequence[Sample]) -> float | None:
    """Median power before the run, once the readings hold nothing of what ran before."""
    settled = [sample.power_w for sample in idle if sample.at_ns - idle[0].at_ns >= POWER_AVERAGE_NS]
    told = [power_w for power_w in settled if power_w is not None]
    return median(told) if told else None


def _power(samples: Sequence[Sample], span: Span) -> tuple[float | None, float | None]:
    """Mean power and length (s) of the steady end of a span, between the first and the last step of the counter."""
    inside = _steady([sample for sample in samples if span[0] <= sample.at_ns <= span[1]])
    readings = [(sample.at_ns, sample.energy_j) for sample in inside if sample.energy_j is not None]
    steps = [after for before, after in pairwise(readings) if after[1] != before[1]]
    if len(steps) <= COUNTER_STEPS or any(after[1] < before[1] for before, after in pairwise(readings)):
        return None, None
    (start, first_j), (end, last_j) = steps[0], steps[-1]
    window_s = (end - start) / 1e9
    return (last_j - first_j) / window_s, window_s


def _steady(samples: Sequence[Sample]) -> list[Sample]:
    """The longest end of these samples in which the temperature moves by no more than ``STEADY_C``."""
    kept: list[Sample] = []
    low, high = float("inf"), float("-inf")
    for sample in reversed(samples):
        if sample.temperature_c is None:
            break
        low, high = min(low, sample.temperature_c), max(high, sample.temperature_c)
        if high - low > STEADY_C:
            break
        kept.append(sample)
    return kept[::-1]
