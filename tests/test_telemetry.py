"""What a GPU says is read as it is, a sampler beside a run keeps it, and what it does not say stays empty.

NVML is made up here (tests/fakes/pynvml.py); tests/test_telemetry_gpu.py asks a real one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from ladder import fingerprint, preflight, telemetry
from ladder.errors import StepError
from ladder.telemetry import base, nvml, raw, sampler
from ladder.telemetry.base import SHARES, Process, Sample
from ladder.telemetry.base import sample as take_sample

ROOT = Path(__file__).parent.parent
FAKES = ROOT / "tests/fakes"


def look(reader) -> Sample:
    return take_sample(reader.questions.values())


@pytest.fixture
def fake(monkeypatch):
    """A made-up NVML of this test's own, in the place of the real package."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = importlib.util.spec_from_file_location("pynvml", FAKES / "pynvml.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    fingerprint.host.cache_clear()
    yield module
    fingerprint.host.cache_clear()


@pytest.fixture
def fake_in_processes(fake, monkeypatch):
    """The same for the processes that this one starts; call it with what they are to be told."""
    monkeypatch.setenv("PYTHONPATH", str(FAKES))

    def tell(**told):
        monkeypatch.setenv("FAKE_NVML", json.dumps(told))
        fake.TOLD |= told

    return tell


def test_every_reading_has_its_unit(fake):
    fake.TOLD["processes"] = [(7, 512_000_000), (8, None)]
    before = time.perf_counter_ns()
    sample = look(telemetry.open_reader("cuda"))
    assert before <= sample.at_ns <= time.perf_counter_ns() and abs(sample.unix_ns - time.time_ns()) < 1e9
    assert replace(sample, at_ns=0, unix_ns=0, energy_j=0) == Sample(
        at_ns=0, unix_ns=0, temperature_c=41, power_w=100, gpu_pct=97, memory_pct=23, memory_used_mb=2000,
        sm_clock_mhz=1755, memory_clock_mhz=3201, performance_state="P0", clock_reasons=["idle"], energy_j=0,
        processes=[Process(7, 512), Process(8, None)],
    )  # fmt: skip
    assert sample.energy_j == pytest.approx(100 * time.monotonic(), rel=0.01)


@pytest.mark.parametrize(
    ("call", "empty"),
    [
        ("nvmlDeviceGetTemperature", ["temperature_c"]),
        ("nvmlDeviceGetPowerUsage", ["power_w"]),
        ("nvmlDeviceGetUtilizationRates", ["gpu_pct", "memory_pct"]),
        ("nvmlDeviceGetMemoryInfo", ["memory_used_mb"]),
        ("nvmlDeviceGetClockInfo", ["sm_clock_mhz", "memory_clock_mhz"]),
        ("nvmlDeviceGetPerformanceState", ["performance_state"]),
        ("nvmlDeviceGetTotalEnergyConsumption", ["energy_j"]),
    ],
)
def test_what_is_not_supported_is_empty_and_nothing_else_is(fake, call, empty):
    fake.TOLD["unsupported"] = [call]
    sample = look(telemetry.open_reader("cuda"))
    assert [field.name for field in fields(sample) if getattr(sample, field.name) is None] == empty


def test_a_driver_that_supports_nothing_gives_an_empty_sample(fake):
    gpu = telemetry.open_reader("cuda")
    fake.TOLD["unsupported"] = [name for name in vars(fake) if name.startswith("nvml")]
    assert set(vars(replace(look(gpu), at_ns=None, unix_ns=None)).values()) == {None}
    assert set(gpu.state().values()) == {None} and gpu.identity() == {}


def test_older_packages_and_drivers_are_asked_by_their_own_names(fake):
    del fake.nvmlMemory_v2, fake.nvmlDeviceGetCurrentClocksEventReasons, fake.nvmlDeviceGetComputeRunningProcesses_v3
    sample = look(telemetry.open_reader("cuda"))
    assert (sample.memory_used_mb, sample.clock_reasons) == (2500, ["software power cap"])
    assert sample.processes == [Process(2, None)]
    del fake.nvmlDeviceGetComputeRunningProcesses_v2
    assert look(telemetry.open_reader("cuda")).processes == [Process(1, None)]

    def mismatch(handle):
        raise fake.NVMLLibraryMismatchError

    fake.nvmlDeviceGetComputeRunningProcesses = mismatch
    assert look(telemetry.open_reader("cuda")).processes is None


def test_text_may_come_as_bytes(fake):
    fake.nvmlDeviceGetName = lambda handle: b"NVIDIA Old"
    fake.nvmlSystemGetDriverVersion = lambda: b"470.1"
    fake.nvmlDeviceGetUUID = lambda handle: fake.UUIDS[handle].encode()
    gpu = telemetry.open_reader("cuda", "GPU-bbbb")
    assert gpu.identity() == {"name": "NVIDIA Old", "compute_capability": "9.0", "driver": "470.1"}
    assert gpu.uuid == fake.UUIDS[1]


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, []),
        (0x1 | 0x4, ["idle", "software power cap"]),
        (0x8 | 0x20 | 0x40, ["hardware slowdown", "software thermal slowdown", "hardware thermal slowdown"]),
        (0x2 | 0x10 | 0x80 | 0x100, ["application clocks", "sync boost", "hardware power brake", "display clocks"]),
        (0x4000, ["reason 0x4000"]),
    ],
)
def test_clock_reasons_are_named(fake, bits, names):
    fake.TOLD["reasons"] = bits
    assert look(telemetry.open_reader("cuda")).clock_reasons == names


def test_an_unknown_performance_state_is_empty(fake):
    fake.TOLD["state"] = 32
    assert look(telemetry.open_reader("cuda")).performance_state is None


@pytest.mark.parametrize(
    ("given", "index"),
    [(None, 0), ("0", 0), ("1", 1), ("1,0", 1), (" 1 , 0", 1), ("GPU-bbbb2222", 1), ("GPU-bbbb2222-0000,GPU-aaaa", 1)],
)
def test_the_gpu_is_the_one_that_cuda_calls_its_first(fake, monkeypatch, given, index):
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert telemetry.open_reader("cuda").uuid == fingerprint.device_uuid("cuda") == fake.UUIDS[index]
    assert fingerprint.host("cuda")["gpu"]["name"] == f"NVIDIA Fake {index}"
    assert telemetry.open_reader("cuda").visible() == {"CUDA_VISIBLE_DEVICES": fake.UUIDS[index]}


@pytest.mark.parametrize("given", ["", "-1", "7", "GPU-dddd", "none"])
def test_a_gpu_that_is_not_there_is_named_and_planning_goes_on(fake, monkeypatch, given):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with pytest.raises(StepError, match=f"CUDA_VISIBLE_DEVICES='{given}' names no GPU"):
        fingerprint.device_uuid("cuda")
    assert fingerprint.host("cuda")["gpu"] is None and preflight.host_state("cuda")["gpu_state"] is None


def test_a_host_without_driver_or_package_says_so(fake, monkeypatch):
    fake.TOLD["driver"] = False
    with pytest.raises(StepError, match="no NVIDIA driver answers"):
        telemetry.open_reader("cuda")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(StepError, match="nvidia-ml-py"):
        telemetry.open_reader("cuda")
    assert fingerprint.host("cuda")["gpu"] is None
    with pytest.raises(StepError, match="'npu' has no reader"):
        fingerprint.device_uuid("npu")


def test_a_uuid_that_is_not_there_is_named(fake):
    with pytest.raises(StepError, match="GPU-dddd"):
        telemetry.open_reader("cuda", "GPU-dddd")


def test_of_a_split_gpu_the_first_instance_is_taken(fake, monkeypatch):
    fake.TOLD["mig"] = True
    gpu = telemetry.open_reader("cuda")
    assert gpu.uuid == telemetry.open_reader("cuda", fake.INSTANCE).uuid == fake.INSTANCE
    assert gpu.identity()["compute_capability"] == "9.0"  # of the whole
    assert gpu.state()["mig"] is True and gpu.state()["power_limit_w"] == 700
    sample = look(gpu)
    assert (sample.power_w, sample.energy_j, sample.memory_used_mb) == (None, None, 2000)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", fake.INSTANCE)
    assert telemetry.open_reader("cuda").uuid == fake.INSTANCE


def test_the_state_of_the_gpu_is_recorded(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(nvml, "_PCI_DEVICES", tmp_path)
    (tmp_path / "0000:1b:00.0").mkdir()
    node = tmp_path / "0000:1b:00.0/numa_node"
    node.write_text("1\n")
    state = preflight.host_state("cuda")["gpu_state"]
    assert state == {
        "index": 0, "persistence": True, "power_limit_w": 700, "application_clock_mhz": 1980,
        "application_memory_clock_mhz": 3201, "ecc": True, "mig": False, "numa_node": 1,
    }  # fmt: skip
    node.write_text("-1\n")  # the kernel does not know
    fake.TOLD["unsupported"] = ["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEccMode"]
    state = telemetry.open_reader("cuda").state()
    assert (state["numa_node"], state["power_limit_w"], state["ecc"]) == (None, 650, None)
    assert "gpu_state" not in preflight.host_state("cpu")


class Clock:
    """A reader whose answers take known CPU time (s), and the clocks that run with them; sleeping takes no CPU time."""

    def __init__(self, monkeypatch, costs: dict[str, float]):
        self.now = self.cpu = 100.0
        self.asked: dict[str, list[float]] = {name: [] for name in SHARES}
        self.questions = {name: lambda name=name: self.answer(name, costs.get(name, 0.0)) for name in SHARES}
        monkeypatch.setattr(sampler.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sampler.time, "thread_time", lambda: self.cpu)

    def answer(self, name: str, cost: float) -> dict:
        self.now, self.cpu = self.now + cost, self.cpu + cost
        self.asked[name].append(self.now)
        return {"power_w": 1.0} if name == "power" else {}

    def run(self, seconds: float, period_s: float = 0.1) -> list[Sample]:
        end = self.now + seconds

        def wait(pause: float) -> bool:
            self.now += pause
            return self.now > end

        return list(sampler.looks(self, period_s, wait))


def test_the_shares_leave_half_of_what_is_promised():
    assert sum(SHARES.values()) == pytest.approx(0.005)


@pytest.mark.parametrize(
    "costs",
    [
        dict.fromkeys(SHARES, 0.33e-3),  # 3.6 ms a sample, all alike
        dict.fromkeys(SHARES, 0.06e-3) | {"processes": 3e-3},
        dict.fromkeys(SHARES, 0.02e-3) | {"energy": 3e-3, "power": 0.5e-3},
        dict.fromkeys(SHARES, 30e-3),
    ],
)
def test_no_question_takes_more_of_a_core_than_its_share(monkeypatch, costs):
    clock = Clock(monkeypatch, costs)
    clock.run(600)
    for name, times in clock.asked.items():
        during = times[1:-1]  # before them the driver is woken, after them the run is over
        assert costs[name] * (len(during) - 1) <= SHARES[name] * (during[-1] - during[0]) * 1.001
        assert all(after - before >= 0.09 for before, after in zip(during, during[1:], strict=False))


def test_on_a_dear_driver_the_columns_still_have_what_they_need(monkeypatch):
    """An H200 with driver 580: 3.6 ms a sample. Which call is dear is not known; here all are alike, or one is."""
    for dear in (None, *SHARES):
        costs = dict.fromkeys(SHARES, 0.36e-3) if dear is None else dict.fromkeys(SHARES, 0.06e-3) | {dear: 3e-3}
        clock = Clock(monkeypatch, costs)
        samples = clock.run(10)
        starts, ends = (sorted(times[place] for times in clock.asked.values()) for place in (1, -1))
        assert starts[-1] - starts[0] < 0.02 and ends[-1] - ends[0] < 0.02  # whole looks, before the run and after it
        assert dear == "energy" or len(clock.asked["energy"]) > 24
        assert dear == "clock reasons" or len(clock.asked["clock reasons"]) > 15
        assert dear == "processes" or len(clock.asked["processes"]) > 10
        assert sum(sample.power_w is not None for sample in samples) == len(clock.asked["power"]) - 1  # never repeated


def test_one_dear_answer_does_not_silence_its_question(monkeypatch):
    """As the list of processes while a run opens the GPU: 8 ms once, 0.3 ms before and after."""
    costs = dict.fromkeys(SHARES, 0.02e-3) | {"processes": 0.3e-3}
    clock = Clock(monkeypatch, costs)
    usual = clock.questions["processes"]
    monkeypatch.setitem(
        clock.questions,
        "processes",
        lambda: clock.answer("processes", 8e-3) if len(clock.asked["processes"]) == 5 else usual(),
    )
    clock.run(10)
    times = clock.asked["processes"]
    gaps = [after - before for before, after in zip(times[1:-1], times[2:], strict=False)]
    assert max(gaps) < 0.5 and len(times) > 25


@pytest.mark.parametrize("step_s", [0.02, 0.1])
def test_the_time_between_steps_of_the_energy_counter_is_found(monkeypatch, step_s):
    now = [50.0]
    monkeypatch.setattr(base.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(base.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    class Reader:
        questions = {"energy": lambda: now.__setitem__(0, now[0] + 0.003) or {"energy_j": now[0] // step_s * 5}}

    found = base.counter_period_s(Reader)
    assert step_s - 0.005 < found < step_s + 0.01


@pytest.mark.parametrize("energy_j", [None, 7.0])
def test_a_counter_that_stands_still_has_no_time_between_steps(monkeypatch, energy_j):
    monkeypatch.setattr(base, "COUNTER_WATCH_SECONDS", 0.02)

    class Reader:
        questions = {"energy": lambda: {"energy_j": energy_j}}

    assert base.counter_period_s(Reader) is None


def test_cheap_answers_are_asked_for_in_every_period(monkeypatch):
    clock = Clock(monkeypatch, dict.fromkeys(SHARES, 2e-6))
    samples = clock.run(10)
    assert 95 <= len(samples) <= 101
    assert {len(times) for times in clock.asked.values()} == {len(samples) + 1}  # that one woke the driver


def running(tmp_path, period_s=0.02):
    return sampler.sampling(telemetry.open_reader("cuda"), "cuda", period_s, tmp_path / "s.jsonl", subprocess.DEVNULL)


def test_a_sampler_looks_every_period_until_its_block_ends(fake_in_processes, tmp_path):
    fake_in_processes(watts=50)
    start = time.monotonic_ns()
    with running(tmp_path) as process:
        assert (tmp_path / "s.jsonl").stat().st_size  # the first sample is there
        time.sleep(1)
    samples = sampler.read_samples(tmp_path / "s.jsonl")
    times = [sample.at_ns for sample in samples]
    assert start < times[0] and times == sorted(times) and times[-1] < time.monotonic_ns()
    assert 10 <= len(samples) <= 55 and samples[0].power_w == 50  # 50 in the second, or fewer on a busy host
    assert not psutil.pid_exists(process.pid)


def test_a_sampler_watches_the_gpu_it_was_told(fake_in_processes, tmp_path, monkeypatch):
    fake_in_processes()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    gpu = telemetry.open_reader("cuda", "GPU-bbbb2222-0000")
    with sampler.sampling(gpu, "cuda", 0.02, tmp_path / "s.jsonl", subprocess.DEVNULL):
        pass
    assert sampler.read_samples(tmp_path / "s.jsonl")


def test_a_sampler_that_cannot_start_fails_the_run(fake_in_processes, tmp_path, monkeypatch):
    gpu = telemetry.open_reader("cuda")
    fake_in_processes(driver=False)
    with (
        open(tmp_path / "log", "w") as log,
        pytest.raises(StepError, match="gave no sample"),
        sampler.sampling(gpu, "cuda", 0.02, tmp_path / "s.jsonl", log),
    ):
        pytest.fail("the block began without a sample")
    assert "no NVIDIA driver answers" in (tmp_path / "log").read_text()


def test_a_sampler_dies_with_its_round(fake_in_processes, tmp_path):
    fake_in_processes()
    script = f"""
import subprocess, sys, time
from pathlib import Path
from ladder import telemetry
from ladder.telemetry import sampler
gpu, samples = telemetry.open_reader("cuda"), Path({str(tmp_path / "s.jsonl")!r})
with sampler.sampling(gpu, "cuda", 0.02, samples, sys.stderr) as p:
    print(p.pid, flush=True)
    time.sleep(60)
"""
    environment = os.environ | {"PYTHONPATH": f"{FAKES}{os.pathsep}{ROOT}"}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive


def test_a_line_that_was_cut_is_left_out(fake, tmp_path):
    line = json.dumps(vars(look(telemetry.open_reader("cuda"))))
    (tmp_path / "s.jsonl").write_text(f"{line}\n{line[:50]}")
    assert len(sampler.read_samples(tmp_path / "s.jsonl")) == 1


def test_samples_are_kept_as_they_were(fake, tmp_path):
    fake.TOLD["processes"] = [(7, 512_000_000), (8, None)]
    full = look(telemetry.open_reader("cuda"))
    fake.TOLD["unsupported"] = [name for name in vars(fake) if name.startswith("nvmlDevice")]
    empty = replace(full, **dict.fromkeys(f.name for f in fields(full)[2:]))
    raw.write(tmp_path / "1.parquet", {"a": [full, empty], "b": [full]})
    table = pq.read_table(tmp_path / "1.telemetry.parquet").to_pylist()
    assert [row.pop("rung") for row in table] == ["a", "a", "b"]
    assert table[0] == vars(full) | {"processes": [vars(each) for each in full.processes]}
    assert table[1] == vars(empty) and list(table[0]) == [field.name for field in fields(Sample)]
    raw.write(tmp_path / "1.parquet", {"a": []})
    assert not (tmp_path / "1.telemetry.parquet").exists()


def test_a_run_waits_for_the_device_to_cool(fake, monkeypatch):
    gpu = telemetry.open_reader("cuda")
    monkeypatch.setattr(preflight.time, "sleep", lambda seconds: None)
    temperatures = iter([60, 55, 49])
    fake.nvmlDeviceGetTemperature = lambda *_: next(temperatures)
    assert preflight.cool_down(gpu, None) is None
    assert preflight.cool_down(gpu, 50) >= 0 and next(temperatures, None) is None
    fake.nvmlDeviceGetTemperature = lambda *_: 60
    monkeypatch.setattr(preflight, "COOLDOWN_SECONDS", 0.01)
    with pytest.raises(StepError, match="still at 60 °C .* less than 50"):
        preflight.cool_down(gpu, 50)
    del fake.nvmlDeviceGetTemperature
    with pytest.raises(StepError, match="does not tell its temperature"):
        preflight.cool_down(gpu, 50)
