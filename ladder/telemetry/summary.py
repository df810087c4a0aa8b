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
    "contended", "idle_power_w", "power_w", "energy_window_s", "energy_j_per_image", "ips_per_w", "energy_missing",
)  # fmt: skip

Span = tuple[int, int]  # start and end

ENERGY_SECONDS = 2.0  # a shorter throughput pass has no energy: so long take COUNTER_STEPS of a counter in use
COUNTER_STEPS = 20  # at least: each end is known to within one step or look, so a shorter window may be off by over 5 %
STEADY_C = 2.0  # the temperature of the window for energy moves by no more
ENDS_NS = 2_000_000_000  # a reading further from the start or end of the timed part is not of it
AGREEMENT = 1.5  # counter and power readings: two sensors of one card differ by less, a wrong unit by far more
POWER_AVERAGE_NS = 1_000_000_000  # a reading of power holds the second before it
REST_CLOCK = 0.5  # less, of the processors' highest clock in a run: an H200 works at 1980 MHz and rests at 345 to 570


def summarise(
    samples: Sequence[Sample], phases: dict[str, Any], throughput_ips: float, period_s: float
) -> dict[str, Any]:
    """The values of ``COLUMNS``, None where the samples do not tell.

    ``phases`` is what the run says of itself: its ``pid``; ``opening_ns``, before which it had not touched the device;
    ``loops_ns``, the spans of its latency loops; ``throughput_ns``, the span of its throughput pass; and where it was
    found, ``counter_period_s``, the longest time between steps of the energy counter, s.
    ``throughput_ips`` is in images/s; samples are ``period_s`` s apart or more, and each tells what was asked then.
    """
    opening, loops, throughput = phases["opening_ns"], phases["loops_ns"], phases["throughput_ns"]
    reach_ns = max(2 * int(period_s * 1e9), ENDS_NS)
    idle = [sample for sample in samples if sample.at_ns < opening]
    running = [sample for sample in samples if sample.at_ns >= opening]
    own = _own_pid(idle, running, phases["pid"])
    memory_mb, source = _memory(idle, running, phases["pid"])
    timed = (loops[0][0], throughput[1])
    temperature, sm_clock, memory_clock = (
        _ends(samples, timed, field, reach_ns) for field in ("temperature_c", "sm_clock_mhz", "memory_clock_mhz")
    )
    power_w, window_s = _power(samples, throughput, phases.get("counter_period_s"))
    if missing := _energy_missing(samples, throughput, power_w):
        power_w = window_s = None
    return {
        "device_mem_mb": memory_mb,
        "device_mem_source": source,
        "temperature_start_c": temperature[0],
        "temperature_end_c": temperature[1],
        "sm_clock_start_mhz": sm_clock[0],
        "sm_clock_end_mhz": sm_clock[1],
        "memory_clock_start_mhz": memory_clock[0],
        "memory_clock_end_mhz": memory_clock[1],
        "throttled": _throttled(_around(samples, loops, "clock_reasons")),
        "throughput_throttled": _throttled(_around(samples, [throughput], "clock_reasons")),
        "contended": _contended(_around(samples, [*loops, throughput], "processes"), own),
        "idle_power_w": _idle_power(idle, samples),
        "power_w": power_w,
        "energy_window_s": window_s,
        "energy_j_per_image": None if power_w is None else power_w / throughput_ips,
        "ips_per_w": None if power_w is None else throughput_ips / power_w,
        "energy_missing": missing,
    }


def _around(samples: Sequence[Sample], spans: Sequence[Span], field: str) -> list[Sample]:
    """The samples in these spans that tell ``field``, and the next one on either side of each.

    A span may be shorter than the time between two looks; without one in it, it takes one on both sides to know it.
    """
    told = [sample for sample in samples if getattr(sample, field) is not None]
    found: list[Sample] = []
    for start, end in spans:
        inside = [sample for sample in told if start <= sample.at_ns <= end]
        before, after = [s for s in told if s.at_ns < start][-1:], [s for s in told if s.at_ns > end][:1]
        if inside or (before and after):
            found += [*before, *inside, *after]
    return found


def _ends(samples: Sequence[Sample], span: Span, field: str, reach_ns: int) -> tuple[Any, Any]:
    """The first and the last that was told of ``field`` in a span; None where it is ``reach_ns`` off the span's end."""
    inside = [sample for sample in samples if span[0] <= sample.at_ns <= span[1]]
    told = [(sample.at_ns, value) for sample in inside if (value := getattr(sample, field)) is not None]
    if not told:
        return None, None
    (first_ns, first), (last_ns, last) = told[0], told[-1]
    return (first if first_ns - span[0] <= reach_ns else None), (last if span[1] - last_ns <= reach_ns else None)


def _throttled(samples: Sequence[Sample]) -> str | None:
    if not samples:
        return None
    return ", ".join(sorted({each for s in samples for each in s.clock_reasons or ()} - NOT_THROTTLING)) or CLEAR


def _pids(samples: Sequence[Sample]) -> list[int]:
    return [process.pid for sample in samples for process in sample.processes or ()]


def _own_pid(idle: Sequence[Sample], running: Sequence[Sample], pid: int) -> int | None:
    """The run as the driver lists it; None where it does not.

    By its pid or, since a container has pids of its own, the first that came after the run opened the device.
    """
    listed, before = _pids(running), set(_pids(idle))
    if pid in before or pid in listed:
        return pid
    return next((each for each in listed if each not in before), None)


def _contended(samples: Sequence[Sample], own: int | None) -> str | None:
    """Other processes with their peaks, e.g. ``4711 (512 MB), 4712``; a driver that hides the run hides them too.

    None too where no sample tells.
    """
    peaks: dict[int, float] = {}
    for process in (each for sample in samples for each in sample.processes or () if each.pid != own):
        peaks[process.pid] = max(peaks.get(process.pid, 0.0), process.memory_mb or 0.0)
    if peaks:
        return ", ".join(f"{pid} ({peak:.0f} MB)" if peak else str(pid) for pid, peak in sorted(peaks.items()))
    return CLEAR if samples and own is not None else None


def _memory(idle: Sequence[Sample], running: Sequence[Sample], pid: int) -> tuple[float | None, str | None]:
    """Peak memory and where it comes from: the run's own, else what the device holds more than before."""
    own = [each.memory_mb for sample in running for each in sample.processes or () if each.pid == pid]
    if known := [memory for memory in own if memory is not None]:
        return max(known), "process"
    before, during = ([s.memory_used_mb for s in part if s.memory_used_mb is not None] for part in (idle, running))
    if before and during:
        return max(during) - median(before), "device"
    return None, None


def _idle_power(idle: Sequence[Sample], samples: Sequence[Sample]) -> float | None:
    """Median power before the run, of readings that hold nothing but rest; None where there is none.

    The device rests where its processors' clock has come down: NVML says "idle" earlier, while the clock still has to
    drop (NVML API reference, nvmlClocksEventReasonGpuIdle), and AMD's libraries have no such word.
    """
    highest = max((sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None), default=0.0)
    since: int | None = None  # the clock was seen down, and never up again
    settled = []
    for sample in idle:
        if sample.sm_clock_mhz is not None:
            down = sample.sm_clock_mhz < REST_CLOCK * highest
            since = (sample.at_ns if since is None else since) if down else None
        if since is not None and sample.power_w is not None and sample.at_ns - since >= POWER_AVERAGE_NS:
            settled.append(sample.power_w)
    return median(settled) if settled else None


def _power(
    samples: Sequence[Sample], span: Span, counter_period_s: float | None = None
) -> tuple[float | None, float | None]:
    """Mean power and length (s) of the steady end of a span, between the first and the last step of the counter.

    Either enough steps are seen one by one, or the window is as long as so many take.
    """
    inside = _steady([sample for sample in samples if span[0] <= sample.at_ns <= span[1]])
    readings = [(sample.at_ns, sample.energy_j) for sample in inside if sample.energy_j is not None]
    steps = [after for before, after in pairwise(readings) if after[1] != before[1]]
    if len(steps) < 2 or any(after[1] < before[1] for before, after in pairwise(readings)):
        return None, None
    (start, first_j), (end, last_j) = steps[0], steps[-1]
    window_s = (end - start) / 1e9
    if len(steps) <= COUNTER_STEPS and not (counter_period_s and window_s >= COUNTER_STEPS * counter_period_s):
        return None, None
    return (last_j - first_j) / window_s, window_s


def _energy_missing(samples: Sequence[Sample], span: Span, power_w: float | None) -> str | None:
    """Why a span has no energy to be trusted, ``power_w`` (W) being what its counter gives; None where it has.

    Counters of some cards stand still or count in another unit than they say, which the readings of power show.
    """
    inside = [sample for sample in samples if span[0] <= sample.at_ns <= span[1]]
    if not inside:
        return None  # nobody looked
    counted = [sample.energy_j for sample in inside if sample.energy_j is not None]
    if not counted:
        return "no energy counter is told"
    read_w = _mean_power(_steady(inside))
    if power_w is None:
        moves = "has too few steps at a steady temperature, or goes back"
        return f"the energy counter {moves if len(set(counted)) > 1 else 'stands still'}"
    if read_w and not 1 / AGREEMENT <= power_w / read_w <= AGREEMENT:
        return f"the energy counter gives {power_w:.3g} W, the power readings {read_w:.3g} W"
    return None


def _mean_power(samples: Sequence[Sample]) -> float | None:
    """The integral of the power readings over their time, W; None of fewer than two."""
    told = [(sample.at_ns, sample.power_w) for sample in samples if sample.power_w is not None]
    if len(told) < 2:
        return None
    energy = sum((before_w + after_w) / 2 * (after - before) for (before, before_w), (after, after_w) in pairwise(told))
    return energy / (told[-1][0] - told[0][0])


def _steady(samples: Sequence[Sample]) -> list[Sample]:
    """The longest end of these samples in which the temperature moves by no more than ``STEADY_C``."""
    low, high, start = float("inf"), float("-inf"), None
    for sample in reversed(samples):
        if sample.temperature_c is None:
            continue
        low, high = min(low, sample.temperature_c), max(high, sample.temperature_c)
        if high - low > STEADY_C:
            break
        start = sample.at_ns
    return [] if start is None else [sample for sample in samples if sample.at_ns >= start]
