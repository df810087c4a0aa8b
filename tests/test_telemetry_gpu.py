"""A real NVIDIA GPU: what it tells, and what telling costs the timed median. ``-s`` prints the figures."""

from __future__ import annotations

import os
import signal
import statistics
import time
from math import log

import pytest

from ladder import process, telemetry
from ladder.errors import StepError
from ladder.telemetry import sampler, summary

pytestmark = pytest.mark.gpu
BLOCK_SECONDS = 0.5
PAIRS = 24


@pytest.fixture
def gpu():
    try:
        return telemetry.open_reader("cuda")
    except StepError as error:
        pytest.skip(str(error))


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch


@pytest.fixture
def watched(gpu, tmp_path):
    """A sampler at the default period, and where it writes."""
    path = tmp_path / "samples.jsonl"
    with open(tmp_path / "log", "w") as log_stream, sampler.sampling(gpu, "cuda", 0.1, path, log_stream) as running:
        yield running, path


def launches(torch):
    """One timed launch of two kinds: 40 small kernels from the host, and the same as one CUDA graph."""
    x = torch.randn(256, 256, device="cuda")

    def eager():
        y = x
        for _ in range(40):
            y = y @ x
        return y

    for _ in range(3):
        eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    return {"eager": eager, "graph": graph.replay}


def test_a_gpu_tells_what_it_is_and_how_it_is_set(gpu, torch):
    print(gpu.identity(), gpu.state())
    assert set(gpu.identity()) == {"name", "compute_capability", "driver"}
    assert gpu.identity()["compute_capability"] == ".".join(map(str, torch.cuda.get_device_capability(0)))
    if hasattr(torch.cuda.get_device_properties(0), "uuid"):
        assert gpu.uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def test_the_samples_of_a_busy_gpu_make_sense(watched, torch):
    _, path = watched
    x = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    while time.perf_counter_ns() - start < 6e9:
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()
    end = time.perf_counter_ns()
    samples = sampler.read_samples(path)
    inside = [sample for sample in samples if start <= sample.at_ns <= end]
    assert len(inside) > 45
    steps = sum(after.energy_j != before.energy_j for before, after in zip(inside, inside[1:], strict=False))
    last = inside[-1]
    print(f"{len(inside)} samples in 6 s, {steps} changes of the energy counter; the last: {last}")
    assert last.gpu_pct is None or last.gpu_pct > 50
    assert last.clock_reasons is None or "idle" not in last.clock_reasons
    phases = {"pid": os.getpid(), "opening_ns": start, "loops_ns": [(start, end)], "throughput_ns": (start, end)}
    row = summary.summarise(samples, phases, 1.0, 0.1)
    print(row)
    if row["power_w"] is not None:
        readings = [sample.power_w for sample in inside if sample.at_ns - start > 2e9]
        assert row["power_w"] == pytest.approx(statistics.mean(readings), rel=0.2)


@pytest.mark.parametrize("kind", ["eager", "graph"])
def test_what_the_sampler_costs(watched, torch, kind):
    """Blocks with and without it by turns in one process: its cost on the timed median, and its own CPU time."""
    running, path = watched
    launch = launches(torch)[kind]

    def median_ns() -> float:
        latencies = []
        end = time.perf_counter() + BLOCK_SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter_ns()
            launch()
            torch.cuda.synchronize()
            latencies.append(time.perf_counter_ns() - start)
        return statistics.median(latencies)

    median_ns()  # clocks rise
    ratios, cpu_s, seconds = [], 0.0, 0.0
    for pair in range(PAIRS):
        medians = {}
        for sampled in (True, False) if pair % 2 else (False, True):
            os.kill(running.pid, signal.SIGCONT if sampled else signal.SIGSTOP)
            before, begin = process.cpu_seconds(running.pid), time.monotonic()
            medians[sampled] = median_ns()
            if sampled:
                cpu_s += process.cpu_seconds(running.pid) - before
                seconds += time.monotonic() - begin
        ratios.append(log(medians[True] / medians[False]))
    os.kill(running.pid, signal.SIGCONT)
    cost_pct, error_pct = (100 * f(ratios) for f in (statistics.mean, statistics.stdev))
    error_pct /= PAIRS**0.5
    cpu_pct = 100 * cpu_s / seconds
    print(f"\n{kind}: median {medians[False] / 1e6:.4f} ms, with the sampler {cost_pct:+.2f} % (± {error_pct:.2f})")
    print(f"{kind}: the sampler took {cpu_pct:.2f} % of a core; {len(sampler.read_samples(path))} samples")
    assert abs(cost_pct) < 1 + 3 * error_pct
    assert cpu_pct < 1


def test_what_each_question_costs(gpu):
    """Wall and CPU time of a whole sample, and the wall time of each call in it."""
    asked: dict[str, list[float]] = {}
    call = gpu._call

    def timed(name, *arguments):
        start = time.perf_counter()
        answer = call(name, *arguments)
        asked.setdefault(name, []).append(time.perf_counter() - start)
        return answer

    gpu.sample()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(50):
        gpu.sample()
    wall_ms, cpu_ms = 20 * (time.perf_counter() - wall), 20 * (time.process_time() - cpu)
    print(f"\na sample: {wall_ms:.2f} ms, of them {cpu_ms:.2f} ms on the CPU")
    assert cpu_ms < 1  # every 100 ms: 1 % of a core
    gpu._call = timed
    for _ in range(20):
        gpu.sample()
    for name, times in asked.items():
        print(f"{name}: {1e6 * statistics.median(times):.0f} µs")
