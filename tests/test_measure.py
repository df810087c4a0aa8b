"""The timing loop, on a session whose delays are known."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from ladder import measure
from ladder.run import distinct_batches
from ladder.stacks import checks

SETTINGS = {
    "warmup": 2,
    "iterations": None,
    "min_iterations": 6,
    "max_seconds": 0.05,
    "repeats": 1,
    "interval_pct": 1e-9,
    "device_launches": 5,
    "throughput_seconds": 0.0,
    "throughput_iterations": 3,
    "queue": 2,
}


class Session:
    """Records what is called; ``run`` submits, ``synchronise`` waits a known time."""

    def __init__(self, delay=0.0, bind_delay=0.0):
        self.delay, self.bind_delay, self.calls = delay, bind_delay, []
        self.in_flight = self.most_in_flight = 0

    def bind(self, inputs):
        time.sleep(self.bind_delay)
        self.calls.append(("bind", id(inputs)))

    def run(self):
        assert not gc.isenabled()
        self.calls.append(("run", None))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def synchronise(self):
        time.sleep(self.delay)
        self.calls.append(("synchronise", None))
        self.in_flight = 0

    def device_ms(self, launches):
        return {"device_span_ms": [1.0] * launches}

    def outputs(self):
        self.calls.append(("outputs", None))
        return {}


def batches(count=3):
    return [{"x": np.full(1, i)} for i in range(count)]


def names(session):
    return [name for name, _ in session.calls]


def test_the_timed_region_holds_the_delay_and_not_the_copying():
    session = Session(delay=0.004, bind_delay=0.02)
    measured = measure.measure(session, batches(), 1, "excluded", SETTINGS | {"iterations": 8})
    (latencies,) = measured.latencies_ns
    assert 0.004 <= np.median(latencies) / 1e9 < 0.012


def test_transfers_are_inside_where_they_are_included():
    session = Session(delay=0.002, bind_delay=0.01)
    measured = measure.measure(session, batches(), 1, "included", SETTINGS | {"iterations": 4})
    assert np.median(measured.latencies_ns[0]) / 1e9 >= 0.012
    assert names(session)[:4] == ["bind", "run", "synchronise", "outputs"]


def test_fixed_counts_are_kept():
    measured = measure.measure(Session(), batches(), 1, "excluded", SETTINGS | {"iterations": 9, "repeats": 2})
    assert [len(repeat) for repeat in measured.latencies_ns] == [9, 9]
    assert (measured.stopped_by, measured.warmup) == ("iterations", 2)


def test_a_slow_model_is_timed_at_least_so_often():
    measured = measure.measure(Session(delay=0.03), batches(), 1, "excluded", SETTINGS)
    assert (len(measured.latencies_ns[0]), measured.stopped_by) == (6, "time")


def test_a_steady_model_stops_by_its_interval():
    measured = measure.measure(
        Session(delay=0.001), batches(), 1, "excluded", SETTINGS | {"interval_pct": 150, "max_seconds": 30}
    )
    assert measured.stopped_by == "interval"


def test_the_timed_parts_are_told_by_their_clock():
    start = time.perf_counter_ns()
    measured = measure.measure(Session(0.001), batches(), 1, "excluded", SETTINGS | {"repeats": 2, "iterations": 6})
    (first, second), throughput = measured.loops_ns, measured.throughput_ns
    moments = [start, *first, *second, *throughput, time.perf_counter_ns()]
    assert moments == sorted(moments)
    for (begin, end), latencies in zip(measured.loops_ns, measured.latencies_ns, strict=True):
        assert sum(latencies) <= end - begin
    images = measured.throughput_ips * (throughput[1] - throughput[0]) / 1e9
    assert images == pytest.approx(SETTINGS["throughput_iterations"], rel=0.2)


def test_the_device_is_asked_for_its_own_clock_in_each_repeat():
    measured = measure.measure(Session(), batches(), 1, "excluded", SETTINGS | {"repeats": 2})
    assert measured.device_ms == [{"device_span_ms": [1.0] * 5}] * 2


def test_every_way_a_repeat_ended_is_told(monkeypatch):
    ends = iter([([1], "time"), ([1], "interval"), ([1], "time")])
    monkeypatch.setattr(measure, "_latencies", lambda *_: next(ends))
    measured = measure.measure(Session(), batches(), 1, "excluded", SETTINGS | {"repeats": 3})
    assert measured.stopped_by == "interval, time"


def test_warm_up_and_inputs_rotate_outside_the_timed_region():
    session, given = Session(), batches(3)
    measure.measure(session, given, 1, "excluded", SETTINGS | {"iterations": 4})
    bound = [which for name, which in session.calls if name == "bind"]
    assert bound == [id(given[i % 3]) for i in range(2 + 4)]


def test_the_throughput_pass_queues_no_more_than_it_may_and_ends_synchronised():
    session = Session(delay=0.001)
    measured = measure.measure(
        session, batches(), 4, "excluded", SETTINGS | {"iterations": 1, "throughput_iterations": 7}
    )
    assert session.most_in_flight == 2
    assert names(session)[-1] == "synchronise"
    assert names(session).count("run") == SETTINGS["warmup"] + 1 + 7
    assert 0 < measured.throughput_ips < 4 * 7 / 0.004


def test_garbage_collection_is_on_again_also_after_a_failure():
    class Broken(Session):
        def run(self):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        measure.measure(Broken(), batches(), 1, "excluded", SETTINGS)
    assert gc.isenabled()


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batches_are_distinct_rotations_of_the_samples(tmp_path, batch):
    np.savez(tmp_path / "inputs.npz", x=np.arange(3, dtype=np.float32))
    made = [list(b["x"]) for b in distinct_batches(tmp_path / "inputs.npz", batch)]
    assert made == [[(first + i) % 3 for i in range(batch)] for first in range(3)]


def test_a_batch_is_known_as_a_slice_of_a_whole_that_nobody_can_change(tmp_path):
    np.savez(tmp_path / "inputs.npz", x=np.arange(12, dtype=np.float32).reshape(4, 3))
    for first, batch in enumerate(distinct_batches(tmp_path / "inputs.npz", 3)):
        whole, row = checks.whole_of(batch["x"])
        assert row == first and not whole.flags.writeable
        np.testing.assert_array_equal(whole[row : row + 3], batch["x"])


@pytest.mark.parametrize("part", [lambda a: a, lambda a: a[1:3], lambda a: a[:, 1:], lambda a: a[::2]])
def test_what_may_change_or_is_no_slice_of_rows_is_its_own_whole(part):
    array = part(np.zeros((4, 3), np.float32))
    whole, row = checks.whole_of(array)
    assert whole is array and row == 0
    fixed = np.zeros((4, 3), np.float32)
    fixed.flags.writeable = False
    for odd in (fixed[:, 1:], fixed[::2], fixed.T):
        assert checks.whole_of(odd)[0] is odd
