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
from ladder.telemetry.base import SHARES, counter_period_s, sample

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


def test_the_samples_of_a_busy_gpu_make_sense(gpu, watched, torch):
    _, path = watched
    step_s = counter_period_s(gpu)
    x = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    while time.perf_counter_ns() - start < 6e9:
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()
    end = time.perf_counter_ns()
    samples = sampler.read_samples(path)
    inside = [each for each in samples if start <= each.at_ns <= end]
    told = {
        field: [value for each in inside if (value := getattr(each, field)) is not None]
        for field in ("energy_j", "gpu_pct", "clock_reasons", "temperature_c", "processes", "memory_used_mb")
    }
    counts = {field: len(values) for field, values in told.items()}
    print(f"{len(inside)} samples in 6 s; the counter's step {step_s} s; told: {counts}; the last: {inside[-1]}")
    assert step_s and step_s < 0.15
    assert len(told["energy_j"]) >= 2 and len(told["clock_reasons"]) > 5 and told["processes"] and told["temperature_c"]
    assert all(pct > 50 for pct in told["gpu_pct"][-1:])
    assert "idle" not in told["clock_reasons"][-1]
    phases = {"pid": os.getpid(), "opening_ns": start, "loops_ns": [(start, end)], "throughput_ns": (start, end)}
    phases["counter_period_s"] = step_s
    row = summary.summarise(samples, phases, 1.0, 0.1)
    print(row)
    if row["power_w"] is not None:
        readings = [s.power_w for s in inside if s.at_ns - start > 2e9 and s.power_w is not None]
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
    """CPU and wall time of each question, how often its share of the CPU lets it be asked, and of the calls in it."""
    calls: dict[str, list[float]] = {}
    call = gpu._call

    def timed(name, *arguments):
        start = time.perf_counter()
        answer = call(name, *arguments)
        calls.setdefault(name, []).append(time.perf_counter() - start)
        return answer

    cpu_ms: dict[str, float] = {}
    print()
    for name, question in gpu.questions.items():
        question()
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(50):
            question()
        wall_ms, cpu_ms[name] = 20 * (time.perf_counter() - wall), 20 * (time.thread_time() - cpu)
        every_s = max(0.1, cpu_ms[name] / 1000 / SHARES[name])
        print(f"{name}: {cpu_ms[name]:.3f} ms of CPU, {wall_ms:.3f} ms; asked every {every_s:.2f} s")
    print(f"all: {sum(cpu_ms.values()):.2f} ms of CPU")
    gpu._call = timed
    for _ in range(20):
        sample(gpu.questions.values())
    for name, times in calls.items():
        print(f"{name}: {1e6 * statistics.median(times):.0f} µs")
    gaps_s = {name: max(0.1, cost / 1000 / SHARES[name]) for name, cost in cpu_ms.items()}
    assert gaps_s["energy"] < 3  # else hardly three looks fit into a throughput pass of 10 s
    assert gaps_s["clock reasons"] < 1 and gaps_s["processes"] < 3
    assert max(gaps_s[name] for name in ("temperature", "sm clock", "memory clock")) < summary.ENDS_NS / 1e9
