"""What samples say of a run: energy and power of series that are known, flags, memory, and what stays empty."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder import tables
from ladder.telemetry import summary
from ladder.telemetry.base import Process, Sample

S = 1_000_000_000
PERIOD_S = 0.1
PID, OTHER = 100, 7
REST = Sample(
    at_ns=0, unix_ns=0, temperature_c=40, power_w=75, gpu_pct=0, memory_pct=0, memory_used_mb=500, sm_clock_mhz=345,
    memory_clock_mhz=3201, performance_state="P0", clock_reasons=["idle"], energy_j=0, processes=[],
)  # fmt: skip
WORK = replace(
    REST, temperature_c=50, power_w=300, memory_used_mb=2500, sm_clock_mhz=1980, clock_reasons=[],
    processes=[Process(PID, 1900)],
)  # fmt: skip
# opened at 3 s, timed from 4 to 6 s, a throughput pass from 6 to 16 s, gone at 17 s
PHASES = {"pid": PID, "opening_ns": 3 * S, "loops_ns": [[4 * S, 6 * S]], "throughput_ns": [6 * S, 16 * S]}


def counter_j(at_s: float, step_s: float = 0.1, idle_w: float = 75, work_w: float = 300) -> float:
    """An energy counter that steps: idle until 3 s, at work after that."""
    stepped = int(at_s / step_s) * step_s
    return min(stepped, 3) * idle_w + max(stepped - 3, 0) * work_w


def series(period_s: float = PERIOD_S, change=lambda sample, at_s: sample, **counter) -> list[Sample]:
    times = [number * period_s for number in range(round(17 / period_s))]
    samples = [
        replace(WORK if at_s >= 3 else REST, at_ns=round(at_s * S), energy_j=counter_j(at_s, **counter))
        for at_s in times
    ]
    return [change(sample, at_s) for sample, at_s in zip(samples, times, strict=True)]


def told(samples, phases=PHASES, ips=1500.0, period_s=PERIOD_S):
    return summary.summarise(samples, phases, ips, period_s)


def during(first_s, last_s, **values):
    return lambda sample, at_s: replace(sample, **values) if first_s <= at_s <= last_s else sample


def test_a_quiet_run_is_told_in_full():
    row = told(series())
    assert tuple(row) == summary.COLUMNS and set(row) < set(tables.RESULTS)
    assert row.pop("energy_window_s") == pytest.approx(9.8, abs=0.21)
    energy = {name: row.pop(name) for name in ("power_w", "energy_j_per_image", "ips_per_w")}
    assert energy == pytest.approx({"power_w": 300, "energy_j_per_image": 0.2, "ips_per_w": 5}, rel=0.02)
    assert row == {
        "device_mem_mb": 1900, "device_mem_source": "process", "temperature_start_c": 50, "temperature_end_c": 50,
        "sm_clock_start_mhz": 1980, "sm_clock_end_mhz": 1980, "memory_clock_start_mhz": 3201,
        "memory_clock_end_mhz": 3201, "throttled": "none", "throughput_throttled": "none", "contended": "none",
        "idle_power_w": 75, "energy_missing": None,
    }  # fmt: skip


def test_no_samples_say_nothing():
    assert set(told([]).values()) == {None}


@settings(max_examples=60, deadline=None)
@given(
    watts=st.floats(20, 1200),
    step_s=st.floats(0.02, 0.3),
    period_s=st.floats(0.01, 0.3),
    late_s=st.floats(0, 0.3),
)
def test_the_power_of_a_known_counter_is_found_to_one_look_in_the_window(watts, step_s, period_s, late_s):
    samples = series(period_s, work_w=watts, step_s=step_s)
    samples = [replace(sample, at_ns=sample.at_ns + int(late_s * period_s * S)) for sample in samples]
    power_w, window_s = summary._power(samples, (6 * S, 16 * S))
    assert window_s <= 10
    assert power_w == pytest.approx(watts, rel=1.01 * period_s / window_s)
    assert 1.01 * period_s / window_s < 0.051  # what COUNTER_STEPS promises


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 3), st.floats(0.05, 1.5))
def test_energy_is_empty_where_the_counter_changes_too_seldom(seconds, step_s):
    samples = series(step_s=step_s)
    span = (6 * S, 6 * S + int(seconds * S))
    changes = {sample.energy_j for sample in samples if span[0] <= sample.at_ns <= span[1]}
    power_w, window_s = summary._power(samples, span)
    assert (power_w is None) == (window_s is None) == (len(changes) - 1 <= summary.COUNTER_STEPS)


@pytest.mark.parametrize(("steps", "known"), [(20, False), (21, True)])
def test_twenty_steps_after_the_first_are_enough(steps, known):
    samples = [replace(WORK, at_ns=number * S // 10, energy_j=30.0 * number) for number in range(steps + 1)]
    assert summary._power(samples, (0, 10 * S)) == ((300, 2) if known else (None, None))


@settings(max_examples=60, deadline=None)
@given(watts=st.floats(20, 1200), step_s=st.floats(0.02, 0.12), every_s=st.floats(0.5, 3), first_s=st.floats(0, 3))
def test_rare_looks_at_a_counter_of_known_step_are_enough(watts, step_s, every_s, first_s):
    """Where one answer takes 3 ms of CPU time, energy is read every 2 s: each reading is at most one step old."""
    samples = series(change=seldom(every_s, first_s, ("energy_j",)), work_w=watts, step_s=step_s)
    assert summary._power(samples, (6 * S, 16 * S))[0] is None or every_s < 0.55
    power_w, window_s = summary._power(samples, (6 * S, 16 * S), step_s)
    assert window_s > 10 - 3 * every_s - 0.2
    assert power_w == pytest.approx(watts, rel=1.05 * step_s / window_s)


def test_a_window_shorter_than_twenty_steps_has_no_energy_however_long_they_take():
    samples = series(change=seldom(1.0, 0.0, ("energy_j",)))
    assert summary._power(samples, (6 * S, 9 * S), 0.2) == (None, None)
    assert summary._power(samples, (6 * S, 9 * S), 0.09)[0] == pytest.approx(300, rel=0.05)


def test_energy_is_that_of_the_steady_end():
    warming = series(change=lambda s, at_s: replace(s, temperature_c=min(40 + 2 * at_s, 62)))  # 62 °C from 11 s on
    assert told(warming)["energy_window_s"] == pytest.approx(6, abs=0.25)  # the last two degrees are within the bound
    assert told(warming)["power_w"] == pytest.approx(300, rel=0.03)
    never = series(change=lambda s, at_s: replace(s, temperature_c=40 + 2 * at_s))
    assert told(never)["power_w"] is None


@pytest.mark.parametrize(
    "change",
    [
        lambda s, at_s: replace(s, energy_j=None),
        lambda s, at_s: replace(s, temperature_c=None),
        lambda s, at_s: replace(s, energy_j=s.energy_j - 1000 * (at_s > 10)),  # the driver was loaded anew
    ],
)
def test_energy_that_cannot_be_known_is_empty(change):
    row = told(series(change=change))
    names = ("power_w", "energy_window_s", "energy_j_per_image", "ips_per_w")
    assert [row[name] for name in names] == [None] * 4 and row["idle_power_w"] == 75


def test_idle_power_is_of_readings_a_second_after_the_clock_came_down():
    assert told(series(change=during(0, 0.95, power_w=500)))["idle_power_w"] == 75
    soon = PHASES | {"opening_ns": S // 2}
    assert told(series(), soon)["idle_power_w"] is None
    assert told(series(change=lambda s, at_s: replace(s, power_w=None)))["idle_power_w"] is None

    def settling(sample, at_s, down_s=1.5):
        """As an H200: at the clock of work for a while, then a mean of the last second."""
        if at_s >= 3:
            return sample
        settled = min(max(at_s - down_s, 0), 1)
        return replace(sample, sm_clock_mhz=1980 if at_s < down_s else 345, power_w=124 - 49 * settled)

    assert told(series(change=settling))["idle_power_w"] == 75
    assert told(series(change=lambda s, at_s: settling(s, at_s, down_s=2.2)))["idle_power_w"] is None


@pytest.mark.parametrize(
    "change",
    [
        lambda s, at_s: replace(s, sm_clock_mhz=1980),  # NVML says "idle" before the clock has come down
        lambda s, at_s: replace(s, sm_clock_mhz=None),
        during(0.9, 0.95, sm_clock_mhz=1980),  # up once more
    ],
)
def test_a_gpu_that_is_not_seen_at_rest_for_a_second_has_no_idle_power(change):
    soon = PHASES | {"opening_ns": int(1.99 * S)}
    assert told(series(), soon)["idle_power_w"] == 75
    assert told(series(change=change), soon)["idle_power_w"] is None


@pytest.mark.parametrize("setting", ["idle", "application clocks", "display clocks"])
def test_rest_and_settings_are_no_throttling(setting):
    assert told(series(change=during(0, 17, clock_reasons=[setting])))["throttled"] == "none"


def test_throttling_is_told_for_the_pass_that_it_happened_in():
    hot = ["hardware thermal slowdown", "software power cap", "idle"]
    row = told(series(change=during(5, 5.05, clock_reasons=hot)))
    assert row["throttled"] == "hardware thermal slowdown, software power cap" and row["throughput_throttled"] == "none"
    row = told(series(change=during(10, 12, clock_reasons=hot)))
    assert row["throttled"] == "none" and row["throughput_throttled"] == "hardware thermal slowdown, software power cap"
    assert told(series(change=during(0, 3.5, clock_reasons=hot)))["throttled"] == "none"  # before anything is timed
    row = told(series(change=lambda s, at_s: replace(s, clock_reasons=None)))
    assert row["throttled"] is None and row["throughput_throttled"] is None


def test_a_loop_shorter_than_the_period_has_the_looks_beside_it():
    phases = PHASES | {"loops_ns": [[int(4.02 * S), int(4.04 * S)]]}
    assert told(series(change=during(4.05, 4.15, clock_reasons=["sync boost"])), phases)["throttled"] == "sync boost"
    several = PHASES | {"loops_ns": [[4 * S, int(4.5 * S)], [int(5.5 * S), 6 * S]]}
    assert told(series(change=during(4.9, 5.1, clock_reasons=["sync boost"])), several)["throttled"] == "none"
    assert told(series(change=during(5.7, 5.8, clock_reasons=["sync boost"])), several)["throttled"] == "sync boost"


def seldom(
    every_s, first_s=0.0, fields=("temperature_c", "processes", "memory_used_mb", "sm_clock_mhz", "clock_reasons")
):
    """As a sampler asks dear questions: at one sample in so many seconds, and what lies between is empty."""

    def change(sample, at_s):
        asked = round((at_s - first_s) / PERIOD_S) % round(every_s / PERIOD_S) == 0
        return sample if asked else replace(sample, **dict.fromkeys(fields))

    return change


@pytest.mark.parametrize("first_s", [0.0, 0.4, 0.9, 1.4])
def test_dear_readings_that_are_rare_still_tell(first_s):
    full, row = told(series()), told(series(change=seldom(1.5, first_s)))
    energy = ("power_w", "energy_j_per_image", "ips_per_w")
    assert [row.pop(name) for name in energy] == pytest.approx([full.pop(name) for name in energy], rel=0.02)
    window_s = full.pop("energy_window_s")  # it begins at the first temperature that is known
    assert window_s - 1.5 < row.pop("energy_window_s") <= window_s
    assert row == full


def test_company_between_two_rare_looks_is_missed_and_at_one_of_them_is_told():
    both = [Process(PID, 1900), Process(OTHER, 300)]
    change = seldom(2)
    row = told(series(change=lambda s, at_s: change(during(6.1, 7.9, processes=both)(s, at_s), at_s)))
    assert row["contended"] == "none"
    row = told(series(change=lambda s, at_s: change(during(7.9, 8.1, processes=both)(s, at_s), at_s)))
    assert row["contended"] == "7 (300 MB)"


def test_a_span_between_two_rare_looks_needs_both():
    phases = PHASES | {"loops_ns": [[int(4.2 * S), int(4.4 * S)]], "throughput_ns": [int(4.4 * S), int(4.6 * S)]}
    row = told(series(change=seldom(2)), phases)
    assert (row["throttled"], row["throughput_throttled"], row["contended"]) == ("none", "none", "none")
    ended = [sample for sample in series(change=seldom(2)) if sample.at_ns < 5 * S]
    row = told(ended, phases)
    assert (row["throttled"], row["throughput_throttled"], row["contended"]) == (None, None, None)
    hot = told(
        series(change=lambda s, at_s: seldom(2)(during(6, 6, clock_reasons=["sync boost"])(s, at_s), at_s)), phases
    )
    assert hot["throttled"] == "sync boost"


def test_another_process_is_told_by_pid_and_peak():
    both = [Process(PID, 1900), Process(OTHER, 300), Process(3, None)]
    more = [Process(PID, 1900), Process(OTHER, 400), Process(3, None)]
    change = during(5, 6, processes=both)
    row = told(series(change=lambda s, at_s: during(7, 8, processes=more)(change(s, at_s), at_s)))
    assert row["contended"] == "3, 7 (400 MB)" and row["device_mem_mb"] == 1900
    before = told(series(change=during(0, 3.5, processes=[Process(OTHER, 300)])))
    assert before["contended"] == "none"  # gone when the timed part began


def test_where_pids_are_the_hosts_the_run_is_the_first_to_come():
    foreign = {PID: 4242}

    def change(sample, at_s):
        listed = [Process(foreign.get(each.pid, each.pid), each.memory_mb) for each in sample.processes]
        return replace(sample, processes=listed)

    row = told(series(change=change))
    assert row["contended"] == "none"
    assert (row["device_mem_mb"], row["device_mem_source"]) == (2000, "device")

    def beside_another(sample, at_s):
        return replace(sample, processes=[Process(OTHER, 9), *change(sample, at_s).processes])

    assert told(series(change=beside_another))["contended"] == "7 (9 MB)"


def test_a_driver_that_hides_the_run_hides_others_too():
    for hidden in ([], None):
        row = told(series(change=lambda s, at_s, hidden=hidden: replace(s, processes=hidden)))
        assert row["contended"] is None
        assert (row["device_mem_mb"], row["device_mem_source"]) == (2000, "device")
    row = told(series(change=lambda s, at_s: replace(s, processes=None, memory_used_mb=None)))
    assert (row["device_mem_mb"], row["device_mem_source"]) == (None, None)
    row = told(series(change=during(3, 17, processes=[Process(PID, None)])))  # its memory is not told
    assert (row["contended"], row["device_mem_mb"], row["device_mem_source"]) == ("none", 2000, "device")


def test_memory_is_the_peak_of_the_whole_run():
    assert told(series(change=during(3.2, 3.3, processes=[Process(PID, 2400)])))["device_mem_mb"] == 2400


def test_start_and_end_are_those_of_the_timed_part():
    row = told(series(change=lambda s, at_s: replace(s, temperature_c=at_s, sm_clock_mhz=2000 - at_s)))
    assert row["temperature_start_c"] == pytest.approx(4, abs=0.11)
    assert row["temperature_end_c"] == pytest.approx(16, abs=0.11)
    assert row["sm_clock_start_mhz"] == pytest.approx(1996, abs=0.11)
    assert row["sm_clock_end_mhz"] == pytest.approx(1984, abs=0.11)


def test_a_sampler_that_ended_early_has_no_end():
    row = told([sample for sample in series() if sample.at_ns < 9 * S])
    assert row["temperature_start_c"] == 50 and row["temperature_end_c"] is row["sm_clock_end_mhz"] is None
    late = told([sample for sample in series() if sample.at_ns > 9 * S])
    assert late["temperature_start_c"] is None and late["temperature_end_c"] == 50
