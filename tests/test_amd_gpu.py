"""A real AMD GPU: what it tells beside a load, and PyTorch on it. ``-s`` prints the figures.

PyTorch for ROCm is in an environment of its own (scripts/setup_rocm.sh makes it), so programs there make the load.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from ladder import peaks, process, telemetry
from ladder.errors import StepError
from ladder.telemetry import sampler, summary

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venvs/rocm/bin/python"

ABOUT = """
import json, torch
told = torch.cuda.get_device_properties(0)
print(json.dumps({"count": torch.cuda.device_count(), "name": told.name, "target": told.gcnArchName.split(":")[0],
                  "uuid": f"GPU-{bytes.fromhex(str(told.uuid).replace('-', '')).decode(errors='replace')}",
                  "hip": torch.version.hip}))
"""
LOAD = """
import time, torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + 12
while time.monotonic() < end:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
"""
YOLO = {"name": "yolo11n", "source": "ultralytics", "architecture": "yolo11n.yaml", "weights": {"seeded": 0}}
YOLO |= {"input": [640, 640], "axes": {}, "opset": 17, "task": "detection"}
STACK = """
import json, sys
import numpy as np
from pathlib import Path
from ladder import models
from ladder.stacks import pytorch
from ladder.stacks.base import Rung, Source
launch, precision, weights, model = sys.argv[1:]
model = json.loads(model)
source = Source(model, None, Path(weights), {"min": 1, "opt": 1, "max": 1}, {})
def outputs(device, launch, precision):
    rung = Rung("r", "s", device, "pytorch", "none", precision, launch, "static", "excluded", 4)
    stack = pytorch.create(device)
    session = stack.open(source, None, rung, 1)
    image = np.random.default_rng(0).random((1, 3, 640, 640), np.float32)
    session.bind({models.input_specs(model, None)[0].name: image})
    session.run()
    session.synchronise()
    return session.outputs(), session.facts(), session.memory_mb(), session.device_ms(20), stack.identity()
expected = outputs("cpu", "eager", "fp32")[0]
found, facts, memory, clock, identity = outputs("rocm", launch, precision)
error = max(float(np.abs(found[n] - expected[n]).max() / np.sqrt((expected[n] ** 2).mean())) for n in expected)
print(json.dumps({"error": error, "facts": facts, "memory": memory, "clock": clock, "identity": identity}))
"""


@pytest.fixture
def gpu():
    try:
        return telemetry.open_reader("rocm")
    except StepError as error:
        pytest.skip(str(error))


@pytest.fixture
def there(gpu):
    """Runs a program in PyTorch's environment, on the GPU that is read."""
    if not PYTHON.exists():
        pytest.skip(f"needs {PYTHON}: scripts/setup_rocm.sh makes it")

    def start(program: str, *arguments: str, **options) -> subprocess.Popen:
        variables = process.environment() | gpu.visible() | {"PYTHONPATH": str(ROOT)}
        command = [str(PYTHON), "-P", "-c", program, *arguments]
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, **options)

    return start


def answer(started: subprocess.Popen) -> dict:
    told = started.communicate(timeout=600)[0]
    assert started.returncode == 0
    return json.loads(told.splitlines()[-1])


def test_pytorch_sees_the_gpu_that_is_read_and_no_other(gpu, there):
    told, identity = answer(there(ABOUT)), gpu.identity()
    print(gpu.uuid, identity, gpu.state(), told)
    assert told["count"] == 1 and told["uuid"].lower() == gpu.uuid.lower()
    assert (identity["name"], identity["compute_capability"]) == (told["name"], told["target"])
    assert {"driver", "rocm"} < set(identity) and gpu.state()["power_limit_w"] > 50
    assert peaks.datasheet(identity["name"]), "no datasheet goes by this name: see ladder/peaks.py"


def test_the_samples_of_a_busy_gpu_make_sense(gpu, there, tmp_path):
    path = tmp_path / "samples.jsonl"
    with open(tmp_path / "log", "w") as log, sampler.sampling(gpu, "rocm", 0.1, path, log) as watching:
        opening = time.perf_counter_ns()
        load = there(LOAD)
        assert load.stdout.readline() == "ready\n"
        before, start = process.cpu_seconds(watching.pid), time.perf_counter_ns()
        time.sleep(10)
        end, after = time.perf_counter_ns(), process.cpu_seconds(watching.pid)
        load.wait()
    samples = sampler.read_samples(path)
    inside = [each for each in samples if start <= each.at_ns <= end]
    fields = ("energy_j", "power_w", "gpu_pct", "clock_reasons", "temperature_c", "processes", "memory_used_mb")
    told = {name: [v for each in inside if (v := getattr(each, name)) is not None] for name in fields}
    print(f"{len(inside)} samples in 10 s; told: { {name: len(values) for name, values in told.items()} }")
    print(f"the sampler took {100 * (after - before) / 10:.2f} % of a core; the last: {inside[-1]}")
    assert all(len(told[name]) >= 2 for name in fields), "what is not told, or costs too much to be asked often"
    assert told["gpu_pct"][-1] > 50 and 20 < told["temperature_c"][-1] < 120
    phases = {"pid": load.pid, "opening_ns": opening, "loops_ns": [(start, end)], "throughput_ns": (start, end)}
    row = summary.summarise(samples, phases, 1.0, 0.1)
    print(row)
    assert row["device_mem_mb"] > 400 and row["contended"] == "none" and row["device_mem_source"] == "process"
    assert row["energy_missing"] is None and row["power_w"] == pytest.approx(statistics.mean(told["power_w"]), rel=0.2)
    assert (after - before) / 10 < 0.01


@pytest.mark.parametrize("launch", ["eager", "graph"])
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("fp16", 5e-2), ("bf16", 3e-1)])
def test_pytorch_on_an_amd_gpu(there, weights_of, launch, precision, bound):
    told = answer(there(STACK, launch, precision, str(weights_of(YOLO)), json.dumps(YOLO), cwd=os.fspath(ROOT)))
    print(told)
    assert told["error"] < bound and told["facts"]["launch"] == launch
    assert told["facts"]["devices"] == ["cuda:0"] and told["facts"]["precision_hint"] == precision
    assert told["facts"]["tf32_matmul"] is told["facts"]["tf32_conv"] is False
    assert told["memory"]["allocator_mem_mb"] > 0 and told["identity"]["hip"] and told["identity"]["miopen"]
    busy, span = (statistics.median(told["clock"][name]) for name in ("device_busy_ms", "device_span_ms"))
    assert 0 < busy < 1.2 * span
