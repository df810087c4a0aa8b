"""What an AMD GPU says is read as it is, whichever release of amdsmi tells it; what it does not say stays empty.

amdsmi is made up here (tests/fake_amdsmi.py), rocm-smi too; tests/test_amd_gpu.py asks real ones.
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

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ladder import config, fingerprint, peaks, preflight, telemetry
from ladder.config import load
from ladder.errors import ConfigError, StepError
from ladder.matrix import platforms_of
from ladder.stacks import pytorch
from ladder.stacks.base import Rung
from ladder.telemetry import amd, sampler, summary
from ladder.telemetry.base import SHARES, Process, Sample
from ladder.telemetry.base import sample as take_sample

ROOT = Path(__file__).parent.parent
FAKE = ROOT / "tests/fake_amdsmi.py"
DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())
RELEASES = ["6.0", "6.4", "7.0"]
S = 1_000_000_000


def look(reader) -> Sample:
    return take_sample(reader.questions.values())


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    """A ROCm without anything in it but its version, and none of the variables that choose a GPU."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info/version").write_text("7.2.4-81\n")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    fingerprint.host.cache_clear()
    yield tmp_path
    fingerprint.host.cache_clear()


@pytest.fixture
def fake(rocm, monkeypatch):
    """A made-up amdsmi, in the place of the real package; call it with what it is to tell."""

    def make(**told):
        monkeypatch.setenv("FAKE_AMDSMI", json.dumps(told))
        spec = importlib.util.spec_from_file_location("amdsmi", FAKE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "amdsmi", module)
        return module

    return make


def rocm_smi(rocm: Path, told: object, prefix: str = "") -> None:
    """A program of that name that prints what it is given."""
    (rocm / "bin").mkdir(exist_ok=True)
    program = rocm / "bin/rocm-smi"
    program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{prefix}{json.dumps(told)}\nEND\n")
    program.chmod(0o755)


# ---- readings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_every_reading_has_its_unit_in_every_release(fake, release):
    fake(release=release, processes=[(7, 512_000_000), (8, 0)])
    sample = look(telemetry.open_reader("rocm"))
    told = replace(sample, at_ns=0, unix_ns=0, energy_j=0)
    reasons = None if release == "6.0" else []
    assert told == Sample(
        at_ns=0, unix_ns=0, temperature_c=41, power_w=300, gpu_pct=97, memory_pct=23,
        memory_used_mb=pytest.approx(2000 * 2**20 / 1e6), sm_clock_mhz=2100, memory_clock_mhz=1300,
        performance_state=None, clock_reasons=reasons, energy_j=0, processes=[Process(7, 512), Process(8, None)],
    )  # fmt: skip
    assert sample.energy_j == pytest.approx(300 * time.monotonic(), rel=0.01)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("call", "empty"),
    [
        ("amdsmi_get_temp_metric", ["temperature_c"]),
        ("amdsmi_get_power_info", ["power_w"]),
        ("amdsmi_get_gpu_activity", ["gpu_pct", "memory_pct"]),
        ("amdsmi_get_gpu_vram_usage", ["memory_used_mb"]),
        ("amdsmi_get_clock_info", ["sm_clock_mhz", "memory_clock_mhz"]),
        ("amdsmi_get_energy_count", ["energy_j"]),
        ("amdsmi_get_gpu_process_list", ["processes"]),
    ],
)
def test_what_is_not_supported_is_empty_and_nothing_else_is(fake, release, call, empty):
    fake(release=release, unsupported=[call], throttlers=0)
    sample = look(telemetry.open_reader("rocm"))
    found = [field.name for field in fields(sample) if getattr(sample, field.name) is None]
    assert sorted(found) == sorted([*empty, "performance_state"])


@pytest.mark.parametrize("release", RELEASES)
def test_a_field_that_the_card_leaves_blank_is_empty_in_either_form(fake, release):
    fake(release=release, blank=["current_socket_power", "socket_power", "gfx_activity", "clk", "cur_clk"])
    sample = look(telemetry.open_reader("rocm"))
    assert (sample.power_w, sample.gpu_pct, sample.sm_clock_mhz, sample.memory_pct) == (None, None, None, 23)


@pytest.mark.parametrize(
    ("info", "watts"),
    [
        ({"current_socket_power": 300, "average_socket_power": "N/A", "socket_power": 301}, 300),  # MI300, 7.x
        ({"current_socket_power": "N/A", "average_socket_power": 89}, 89),  # MI250
        ({"current_socket_power": 0, "average_socket_power": 0}, None),  # its second die
        ({"current_socket_power": 0xFFFF, "average_socket_power": 89}, 89),  # 6.0
        ({"socket_power": 300_000_000}, 300),  # µW
        ({"current_socket_power": "N/A", "average_socket_power": "N/A"}, None),
        ({}, None),
    ],
)
def test_power_is_what_the_card_has_under_the_names_that_releases_give_it(fake, info, watts):
    fake().amdsmi_get_power_info = lambda handle: info
    assert look(telemetry.open_reader("rocm")).power_w == watts


@pytest.mark.parametrize(
    "counter",
    [
        {"energy_accumulator": 2**64 - 1, "counter_resolution": 15.3},
        {"energy_accumulator": "N/A", "counter_resolution": 15.3},
        {"energy_accumulator": 5, "counter_resolution": 0.0},
        {"energy_accumulator": 5, "counter_resolution": float("nan")},
        {},
    ],
)
def test_a_counter_without_value_or_unit_is_empty(fake, counter):
    fake().amdsmi_get_energy_count = lambda handle: counter
    assert look(telemetry.open_reader("rocm")).energy_j is None


@pytest.mark.parametrize(
    ("active", "reasons"),
    [
        ([], []),
        (["ppt_pwr"], ["package power limit"]),
        (
            ["prochot_thrm", "socket_thrm", "vr_thrm", "hbm_thrm"],
            ["processor hot", "socket temperature", "voltage regulator temperature", "memory temperature"],
        ),
    ],
)
def test_violations_are_named(fake, active, reasons):
    fake(active=active)
    assert look(telemetry.open_reader("rocm")).clock_reasons == reasons


def test_violations_that_a_card_does_not_have_are_neither_there_nor_absent(fake):
    fake(active=["ppt_pwr"], blank=["active_vr_thrm", "active_hbm_thrm"])
    assert look(telemetry.open_reader("rocm")).clock_reasons == ["package power limit"]
    fake(blank=["active_" + name for name in ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")])
    assert look(telemetry.open_reader("rocm")).clock_reasons is None


@pytest.mark.parametrize(
    ("release", "bits", "reasons"),
    [
        ("6.0", 0, []),
        ("6.0", 1 << 0 | 1 << 7, ["power limit"]),
        ("6.0", 1 << 17 | 1 << 36 | 1 << 57, ["current limit", "other limit", "temperature"]),
        ("6.0", None, None),
        ("7.0", 0, []),
        ("7.0", 1 << 36, ["throttled"]),  # the package keeps only whether there are any
    ],
)
def test_older_cards_tell_their_throttlers(fake, release, bits, reasons):
    fake(release=release, throttlers=bits)
    assert look(telemetry.open_reader("rocm")).clock_reasons == reasons


def test_only_those_who_compute_are_listed(fake):
    """The sampler, the round and the workflow have the driver open too, and some releases list whoever has."""
    fake(processes=[(os.getpid(), 1000), (os.getppid(), 0), (7, 512_000_000)])
    assert look(telemetry.open_reader("rocm")).processes == [Process(7, 512)]


def test_a_call_that_trips_over_a_blank_text_is_empty(fake):
    def trips(handle):
        return {"asic_serial": int("", 16)}

    module = fake(release="6.0")
    module.amdsmi_get_gpu_asic_info = trips
    reader = telemetry.open_reader("rocm")
    assert reader.uuid == "d7ff74a1-0000-1000-8000-000000000000"
    assert reader.identity() == {"driver": "6.16.6", "rocm": "7.2.4"}
    assert reader.visible()["ROCR_VISIBLE_DEVICES"] == "0"  # a name that ROCr does not know is no use there


# ---- which GPU, and what it is ---------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("given", "index"),
    [
        ({}, 0),
        ({"HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, 1),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "GPU-BBBB111122223333"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": " 1"}, 0),
    ],
)
def test_the_gpu_is_the_one_that_hip_calls_its_first(fake, monkeypatch, release, given, index):
    module = fake(release=release)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    reader = telemetry.open_reader("rocm")
    assert reader.uuid == fingerprint.device_uuid("rocm") == module.UUIDS[index]
    alone = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    assert reader.visible() == {"ROCR_VISIBLE_DEVICES": module.UUIDS[index]} | alone
    assert reader.state()["index"] == index


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize("given", ["", "-1", "7", "GPU-dddd"])
def test_a_gpu_that_is_not_there_is_named_and_planning_goes_on(fake, monkeypatch, name, given):
    fake()
    monkeypatch.setenv(name, given)
    with pytest.raises(StepError, match=f"{name}='{given}' names no AMD GPU on this host"):
        fingerprint.device_uuid("rocm")
    assert fingerprint.host("rocm")["gpu"] is None and preflight.host_state("rocm")["gpu_state"] is None


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True), st.data())
def test_hip_counts_among_those_that_rocr_leaves(shown, data):
    uuids = [f"GPU-{number:016x}" for number in range(1, 9)]
    place = data.draw(st.integers(0, len(shown) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCR_VISIBLE_DEVICES", ",".join(map(str, shown)))
        patch.setenv("HIP_VISIBLE_DEVICES", str(place))
        assert amd.chosen(uuids, None) == shown[place]
        assert amd.chosen(uuids, uuids[5]) == 5  # a UUID is taken whatever is visible


def test_a_uuid_or_a_host_without_it_is_named(fake):
    with pytest.raises(StepError, match="no AMD GPU of this host has the number or UUID 'GPU-dddd'"):
        fake() and telemetry.open_reader("rocm", "GPU-dddd")
    fake().HANDLES.clear()
    with pytest.raises(StepError, match="no AMD GPU is visible"):
        telemetry.open_reader("rocm")


def test_partitions_of_one_gpu_are_refused(fake):
    fake().UUIDS[1] = "GPU-aaaa111122223333"
    with pytest.raises(StepError, match="split into 2 partitions"):
        telemetry.open_reader("rocm")


def test_gpus_that_nothing_tells_apart_are_refused_by_rocm_smi_too(rocm):
    """The sampler knows the GPU that a run uses by its UUID alone: it must not read another one."""
    rocm_smi(rocm, {"card0": CARD, "card1": CARD})
    with pytest.raises(StepError, match="GPU-aaaa111122223333 is split into 2 partitions"):
        telemetry.open_reader("rocm", "1")
    rocm_smi(rocm, {"card0": CARD, "card1": {"Unique ID": "N/A"}})
    assert telemetry.open_reader("rocm", "0").uuid == "GPU-aaaa111122223333"
    with pytest.raises(StepError, match="GPU 1 of 2 tells no UUID"):
        telemetry.open_reader("rocm", "1")
    rocm_smi(rocm, {"card0": {"Unique ID": "N/A"}})
    assert telemetry.open_reader("rocm").uuid == ""  # it is the only one


@pytest.mark.parametrize("release", RELEASES)
def test_the_fingerprint_holds_what_engines_depend_on(fake, release):
    fake(release=release)
    gpu = {"name": "AMD Instinct MI300X", "compute_capability": "gfx942", "driver": "6.16.6", "rocm": "7.2.4"}
    if release == "6.0":
        del gpu["compute_capability"]
    assert fingerprint.host("rocm")["gpu"] == gpu
    assert peaks.datasheet(gpu["name"]) is peaks.datasheet(gpu["name"] + " VF") is not None


@pytest.mark.parametrize("release", RELEASES)
def test_the_state_of_the_gpu_is_recorded(fake, release):
    module = fake(release=release)
    state = preflight.host_state("rocm")
    assert state["gpu_state"] == {
        "index": 0, "persistence": None, "power_limit_w": 750, "application_clock_mhz": None,
        "application_memory_clock_mhz": None, "ecc": True, "mig": False, "numa_node": 1, "performance_level": "auto",
        "read_by": "amdsmi",
    }  # fmt: skip
    assert not any("rocm-smi" in warning for warning in preflight.warnings(state, 0.0, 1))
    names = ("amdsmi_get_gpu_asic_info", "amdsmi_get_gpu_enumeration_info")  # by which the GPU is known
    module.TOLD["unsupported"] = [call for call in module._CALLS if call not in names]
    unread = {name: value for name, value in telemetry.open_reader("rocm", None).state().items() if value is not None}
    assert unread == {"index": 0, "read_by": "amdsmi"}


# ---- amdsmi that cannot be used, and rocm-smi in its place -------------------------------------------


@pytest.mark.parametrize(
    ("package", "part"),
    [
        ("print('Unable to find libamd_smi.so')\n{}['libamd_smi.so']", "no libamd_smi.so.*It says: Unable to find"),
        ("import os\nos.environ['NOT_SET_ANYWHERE']", "finds no libamd_smi.so"),  # 6.0, ROCM_PATH
        ("import ctypes\nctypes.CDLL(None).amdsmi_init_of_another_release", "of another release .*undefined symbol"),
        ("raise ImportError('broken')", "neither in .*share/amd_smi nor installed"),
    ],
)
def test_a_package_that_does_not_fit_is_one_clear_error(rocm, monkeypatch, capsys, package, part):
    monkeypatch.delitem(sys.modules, "amdsmi")
    (rocm / "share/amd_smi").mkdir(parents=True)
    (rocm / "share/amd_smi/amdsmi.py").write_text(package)
    before = list(sys.path)
    with pytest.raises(StepError, match=part):
        telemetry.open_reader("rocm")
    assert sys.path == before and capsys.readouterr().out == ""
    assert fingerprint.host("rocm")["gpu"] is None


def test_a_host_without_package_or_driver_says_so(fake, rocm, monkeypatch):
    with pytest.raises(StepError, match="amd-smi-lib"):
        telemetry.open_reader("rocm")
    fake(driver=False)
    with pytest.raises(StepError, match="no AMD driver answers on this host .*NOT_SUPPORTED"):
        telemetry.open_reader("rocm")


CARD = {
    "Unique ID": "0xAAAA111122223333", "Card Series": "AMD Instinct MI300X", "GFX Version": "gfx942",
    "Temperature (Sensor edge) (C)": "N/A", "Temperature (Sensor junction) (C)": "41.0",
    "Current Socket Graphics Package Power (W)": "300.0", "GPU use (%)": "97", "sclk clock speed:": "(2100Mhz)",
    "mclk clock speed:": "(1300Mhz)", "VRAM Total Used Memory (B)": "2000000000",
    "Accumulated Energy (uJ)": "5000000.5", "Max Graphics Package Power (W)": "750.0",
}  # fmt: skip


def test_rocm_smi_is_read_where_amdsmi_cannot_be(rocm):
    other = CARD | {"Unique ID": "0xbbbb111122223333", "Average Graphics Package Power (W)": "89.0"}
    del other["Current Socket Graphics Package Power (W)"]
    told = {"card0": CARD, "card1": other, "system": {"Driver version": "6.16.6"}}
    rocm_smi(rocm, told, "WARNING: AMD GPU device(s) is/are in a low-power state\n")
    reader = telemetry.open_reader("rocm")
    assert reader.uuid == "GPU-aaaa111122223333" and set(reader.questions) == set(SHARES)
    gpu = {"name": "AMD Instinct MI300X", "compute_capability": "gfx942", "driver": "6.16.6", "rocm": "7.2.4"}
    assert fingerprint.host("rocm")["gpu"] == gpu
    assert replace(look(reader), at_ns=0, unix_ns=0) == Sample(
        at_ns=0, unix_ns=0, temperature_c=41, power_w=300, gpu_pct=97, memory_used_mb=2000, sm_clock_mhz=2100,
        memory_clock_mhz=1300, energy_j=pytest.approx(5),
    )  # fmt: skip
    assert look(telemetry.open_reader("rocm", "GPU-bbbb111122223333")).power_w == 89
    state = preflight.host_state("rocm")
    assert (state["gpu_state"]["power_limit_w"], state["gpu_state"]["read_by"]) == (750, "rocm-smi")
    assert any("rocm-smi" in warning for warning in preflight.warnings(state, 0.0, 1))
    assert preflight.cool_down(reader, 50) >= 0


def test_what_rocm_smi_does_not_tell_is_empty(rocm):
    rocm_smi(rocm, {"card0": {"Unique ID": "0xaaaa111122223333"}})
    reader = telemetry.open_reader("rocm")
    assert set(vars(replace(look(reader), at_ns=None, unix_ns=None)).values()) == {None}
    (rocm / "bin/rocm-smi").write_text("#!/bin/sh\nexit 2\n")
    assert set(vars(replace(look(reader), at_ns=None, unix_ns=None)).values()) == {None}
    with pytest.raises(StepError, match="rocm-smi .* does not tell of the AMD GPU"):
        telemetry.open_reader("rocm")


def test_a_question_is_charged_with_the_programs_that_it_starts(monkeypatch):
    class Reader:
        questions = {name: dict for name in SHARES} | {
            "temperature": lambda: subprocess.run([sys.executable, "-c", "sum(range(10**6))"]) and {}
        }

    asked = []
    Reader.questions["temperature"], ask = lambda: asked.append(1) or ask(), Reader.questions["temperature"]
    start = time.monotonic()
    list(sampler.looks(Reader, 0.01, lambda pause: time.sleep(min(pause, 0.01)) or time.monotonic() > start + 0.6))
    assert len(asked) == 3  # to wake it, once within, and at the end: another is due after minutes


# ---- sampler, energy, configuration ------------------------------------------------------------------


def test_the_sampler_finds_the_package_that_rocm_ships(rocm, monkeypatch):
    (rocm / "share/amd_smi").mkdir(parents=True)
    (rocm / "share/amd_smi/amdsmi.py").write_text(FAKE.read_text())
    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setenv("FAKE_AMDSMI", json.dumps({"active": ["ppt_pwr"]}))
    try:
        reader = telemetry.open_reader("rocm")
    finally:
        sys.modules.pop("amdsmi", None)
    with sampler.sampling(reader, "rocm", 0.02, rocm / "s.jsonl", subprocess.DEVNULL):
        time.sleep(0.2)
    samples = sampler.read_samples(rocm / "s.jsonl")
    assert len(samples) > 2 and samples[-1].clock_reasons == ["package power limit"]
    assert samples[-1].energy_j > samples[0].energy_j


def throughput_pass(watts: float, counted: float, step_s: float = 0.1) -> list[Sample]:
    """Ten seconds of a card that draws ``watts`` while its counter runs at ``counted`` W."""
    times = [number / 10 for number in range(101)]
    return [
        Sample(int(t * S), 0, temperature_c=60, power_w=watts, energy_j=1e6 + int(t / step_s) * step_s * counted)
        for t in times
    ]


@pytest.mark.parametrize(
    ("samples", "power_w", "missing"),
    [
        (throughput_pass(600, 600), 600, None),
        (throughput_pass(600, 660), 660, None),
        (throughput_pass(600, 0), None, "the energy counter stands still"),
        (throughput_pass(600, 9.2), None, "the energy counter gives 9.2 W, the power readings 600 W"),
        (throughput_pass(600, 39200), None, "the energy counter gives 3.92e+04 W, the power readings 600 W"),
        (throughput_pass(600, 600, step_s=1), None, "the energy counter has too few steps at a steady temperature"),
        ([replace(s, energy_j=None) for s in throughput_pass(600, 600)], None, "no energy counter is told"),
        ([replace(s, power_w=None) for s in throughput_pass(600, 600)], 600, None),  # nothing to compare it with
    ],
)
def test_energy_is_empty_with_its_reason_where_the_counter_cannot_be_right(samples, power_w, missing):
    phases = {"pid": 1, "opening_ns": 0, "loops_ns": [(0, S)], "throughput_ns": (0, 10 * S)}
    row = summary.summarise(samples, phases, 100.0, 0.1)
    assert row["power_w"] == (None if power_w is None else pytest.approx(power_w, rel=0.02))
    assert (row["energy_j_per_image"] is None) == (row["energy_window_s"] is None) == (power_w is None)
    assert (row["energy_missing"] or "").startswith(missing or "") and bool(row["energy_missing"]) == bool(missing)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ({"rocm": {"name": "AMD Instinct MI300X", "rocm": "7.2.4"}}, "amd"),
        ({"rocm": {"name": "AMD Radeon 780M"}}, "cpu"),  # without ROCm nothing here runs on it
        ({"rocm": {"name": "AMD Radeon 780M", "rocm": "7.2.4"}, "cuda": {"name": "NVIDIA H200"}}, "nvidia"),
        ({}, "cpu"),
    ],
)
def test_auto_climbs_the_amd_ladder_where_an_amd_gpu_and_rocm_are(monkeypatch, gpus, expected):
    monkeypatch.setattr(fingerprint, "host", lambda device: {"gpu": gpus.get(device)})
    assert platforms_of(load(DEFAULT | {"platform": "auto"})) == [expected]


def test_tf32_is_not_offered_on_amd():
    ladder = {"platform": "amd", "models": ["yolo11n"], "batches": [1], "steps": []}
    ladder["rungs"] = [{"name": "a", "stack": "pytorch-rocm", "precision": "tf32"}]
    with pytest.raises(ConfigError, match="'tf32' is not offered by pytorch-rocm; it has fp32, fp16, bf16"):
        config.load(DEFAULT | {"ladders": {"amd": ladder}})


def rung(precision: str) -> Rung:
    return Rung("r", "pytorch-rocm", "rocm", "pytorch", "none", precision, "eager", "dynamic", "excluded", 1)


def test_pytorch_of_the_other_vendor_is_refused(monkeypatch):
    import torch

    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    stack = pytorch.create("rocm")
    if not torch.version.hip:
        with pytest.raises(StepError, match="needs device rocm, but PyTorch .* is built for"):
            stack.build(None, rung("fp32"), None)
    monkeypatch.setattr(torch.version, "hip", "7.2.53211")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StepError, match="finds no rocm device"):
        stack.build(None, rung("fp32"), None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "AMD Instinct MI300X")
    assert stack.build(None, rung("fp16"), None) == {} and stack.identity()["hip"] == "7.2.53211"
    with pytest.raises(StepError, match="no tf32 on AMD Instinct MI300X") as error:
        stack.build(None, rung("tf32"), None)
    assert error.value.permanent
