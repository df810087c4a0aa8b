"""Which of a host's GPUs a ladder runs on, that it stays there, and that two ladders use two at once if they may.

The GPUs are made up (tests/fakes/pynvml.py), the rounds, their processes and the workflow are real.
"""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from test_round import measured, own_host_lock, spec  # noqa: F401
from test_telemetry import FAKES, fake, fake_in_processes  # noqa: F401
from test_telemetry_round import gpu_spec  # noqa: F401
from workflow_run import KNOWN, TABLES, Workflow, copy_repository, identity_config

from ladder import config, devices, host_faults, round
from ladder.errors import ConfigError, StepError
from ladder.files import read_json, write_json
from ladder.matrix import Matrix
from ladder.records import RECORDED
from ladder.summary_warnings import find_warnings
from ladder.telemetry import amd, sampler

GPUS = ["GPU-aaaa1111-0000", "GPU-bbbb2222-0000"]
SEEING = """

import os
known_facts = Session.facts
Session.facts = lambda self: known_facts(self) | {"sees": os.environ["CUDA_VISIBLE_DEVICES"]}
"""
# In its round, not in its audit, the first run of a ladder waits until the other ladder's is there too.
MEETING = """
import sys, time
known_run = Session.run

def run(self):
    here = Path("meeting", self.ladder)
    if sys.argv[0].endswith("run.py") and here.parent.is_dir() and not here.exists():
        here.touch()
        while len(list(here.parent.iterdir())) < 2:
            time.sleep(0.01)
    known_run(self)

def open_session(self, source, payload, rung, batch):
    session = Session(rung, self.names, self.delay_ms)
    session.ladder = rung.options["ladder"]
    return session

Session.run, Stack.open = run, open_session
"""


@pytest.fixture
def two_alike(fake_in_processes):  # noqa: F811
    fake_in_processes(name="NVIDIA Fake")


def raw_config(**platform):
    """Three ladders of one platform, one of them for two models."""
    rung = {"name": "known", "stack": "known"}
    ladder = {"platform": "gpus", "models": ["m"], "batches": [1], "rungs": [rung], "steps": []}
    model = {"source": "torchvision", "architecture": "resnet18", "input": [32, 32], "weights": {"seeded": 0}}
    model |= {"data": "d"}
    return {
        "platform": "gpus",
        "platforms": {"gpus": {"device": "cuda", **platform}},
        "models": {"m": model, "n": copy.deepcopy(model)},
        "data": {"d": {"generated": {"inputs": {"input": {"dtype": "float32"}}}}},
        "stacks": {"known": {"module": "tests/stacks/known.py", **KNOWN, "device": "cuda"}},
        "ladders": {"x": ladder, "y": {**ladder, "models": ["n", "m"]}, "z": ladder},
    }


def planned(**platform):
    raw = raw_config(**platform)
    return Matrix(config.load(raw), raw)


# --- the configuration ---


def test_ladders_take_turns_and_what_runs_at_once_depends_on_the_host(two_alike):
    plan = planned(gpus=[0, GPUS[1]], exclusive_host=False)
    turns = [plan.gpu_turn(*pair) for pair in (("x", "m"), ("y", "n"), ("y", "m"), ("z", "m"))]
    assert turns == [0, 1, 0, 1] and plan.gpus("gpus") == ["0", GPUS[1]] and plan.rounds_at_once("gpus") == 2
    assert planned(gpus=[0, 1]).rounds_at_once("gpus") == 1  # the host is kept whole unless that is asked for
    assert planned(exclusive_host=False).rounds_at_once("gpus") == 1
    assert planned().gpu_turn("z", "m") == 0 and planned().gpus("gpus") == []


def test_the_platform_is_what_its_own_gpus_are(fake):  # noqa: F811
    assert planned().host("gpus")["gpu"]["name"] == "NVIDIA Fake 0"
    assert planned(gpus=[1]).host("gpus")["gpu"]["name"] == "NVIDIA Fake 1"


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ([0, 1], ["0 is a NVIDIA Fake 0 (9.0); 1 is a NVIDIA Fake 1 (9.0); a platform is one kind of GPU"]),
        ([0, 7], ["7: no NVIDIA GPU of this host has the number or UUID '7'; nvidia-smi -L"]),
        (["GPU-dddd"], ["GPU-dddd: no NVIDIA GPU of this host has the number or UUID 'GPU-dddd'"]),
        ([0, 0], [f"0 and 0 are one GPU, {GPUS[0]}; each may stand once"]),
        ([1, "GPU-bbbb"], [f"1 and GPU-bbbb are one GPU, {GPUS[1]}"]),
        ([1], []),
    ],
)
def test_gpus_that_are_not_there_stand_twice_or_differ_are_faults_before_any_job(fake, gpus, told):  # noqa: F811
    found = [fault for fault in host_faults.faults(planned(gpus=gpus)) if ".gpus" in fault]
    assert len(found) == len(told)
    for line, part in zip(found, told, strict=True):
        assert line.startswith("platforms.gpus.gpus: ") and part in line


@pytest.mark.parametrize(
    ("platform", "told"),
    [
        ({"device": "cpu", "gpus": [0]}, "gpus and exclusive_host: false are for platforms with a GPU"),
        ({"device": "cpu", "exclusive_host": False}, "gpus and exclusive_host: false are for platforms with a GPU"),
        ({"host": "declared", "gpus": [0]}, "gpus: the cluster gives each job of a declared host its GPU"),
        ({"gpus": [-1]}, "gpus.0: -1"),
        ({"gpus": [True]}, "gpus.0: true"),
        ({"gpus": 0}, "gpus: 0: input should be a valid list"),
        ({"exclusive_host": "no"}, 'exclusive_host: "no"'),
    ],
)
def test_gpus_where_none_can_be_chosen_are_faults_of_the_configuration(platform, told):
    with pytest.raises(ConfigError, match="platforms.gpus") as error:
        planned(**platform)
    assert any(told in fault for fault in error.value.faults)


def test_only_rounds_of_one_ladder_on_several_gpus_are_warned_of():
    def run(ladder, uuid):
        named = {"platform": "p", "model": "m", "ladder": ladder, "rung": "a", "batch": 1}
        return dict.fromkeys(RECORDED) | named | {"device_uuid": uuid, "throttled": "none", "contended": "none"}

    apart = [run("x", "GPU-a"), run("y", "GPU-b")]
    plan = [{**row, "rungs": [{"name": "a", "engines": {"1": "e"}}]} for row in apart]
    assert find_warnings([], apart, [], [], plan, []) == []
    (warning,) = find_warnings([], [*apart, run("x", "GPU-b")], [], [], plan, [])
    assert warning["warning"] == "p, m, x: the runs do not agree in device_uuid: GPU-a, GPU-b"


def test_a_gpu_of_amd_goes_by_the_number_that_hip_gives_it():
    uuids = [f"GPU-{number:016x}" for number in range(1, 4)]
    assert [amd.chosen(uuids, name) for name in ("2", uuids[0].upper().replace("GPU", "gpu"))] == [2, 0]
    with pytest.raises(StepError, match="number or UUID '3'"):
        amd.chosen(uuids, "3")


# --- one ladder's GPU ---


def hold(folder, *gpus, alone=True):
    with devices.held("cuda", gpus, folder, exclusive_host=alone, waiting="waiting") as uuid:
        return uuid


@pytest.mark.parametrize("alone", [True, False])
def test_a_ladder_stays_on_the_gpu_of_its_first_round(two_alike, tmp_path, alone):
    assert hold(tmp_path / "x", "1", "0", alone=alone) == GPUS[1]
    assert read_json(tmp_path / "x/gpu.json") == {"uuid": GPUS[1]}
    assert hold(tmp_path / "x", "0", "1", alone=alone) == hold(tmp_path / "x", *GPUS, alone=not alone) == GPUS[1]
    assert hold(tmp_path / "y", "0", "1", alone=alone) == GPUS[0]


@pytest.mark.parametrize("alone", [True, False])
def test_two_first_rounds_of_a_ladder_agree(two_alike, tmp_path, monkeypatch, alone):
    def write_slowly(path, value):
        time.sleep(0.2)
        write_json(path, value)

    monkeypatch.setattr(devices, "write_json", write_slowly)
    with ThreadPoolExecutor(2) as pool:
        held = list(pool.map(lambda gpus: hold(tmp_path, *gpus, alone=alone), (["0", "1"], ["1", "0"])))
    assert held == [read_json(tmp_path / "gpu.json")["uuid"]] * 2


def test_without_a_list_it_is_the_first_gpu_seen_and_nothing_is_pinned(two_alike, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert hold(tmp_path) == hold(tmp_path, alone=False) == GPUS[1] and not (tmp_path / "gpu.json").exists()


@pytest.mark.parametrize(
    ("pin", "told"),
    [
        ('{"uuid": "GPU-dddd"}', rf"on GPU-dddd, which is none .* \({GPUS[0]}\): list it in .* again"),
        ("{}", "does not say which GPU the ladder stays on"),
        ("GPU-aaaa", "does not say which GPU the ladder stays on"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_pin_to_no_gpu_of_the_platform_is_told_and_holds_nothing(two_alike, tmp_path, pin, told, alone):
    (tmp_path / "gpu.json").write_text(pin)
    with pytest.raises(StepError, match=told):
        hold(tmp_path, "0", alone=alone)
    assert hold(tmp_path / "other", "0") == GPUS[0]


# --- rounds ---


@pytest.fixture
def seeing(gpu_spec, tmp_path):  # noqa: F811
    """A short round whose one rung says which GPUs it sees; call it with the round's number and the GPUs listed."""
    rung = gpu_spec["rungs"][0]
    (tmp_path / "seeing.py").write_text(Path(rung["stack"]["module"]).read_text() + SEEING)
    rung["stack"]["module"] = str(tmp_path / "seeing.py")
    gpu_spec["measure"] |= {"throughput_seconds": 0, "pause_seconds": 0}

    def go(number, *gpus):
        files = (tmp_path / f"ladder/b1/{number}{suffix}" for suffix in (".json", ".parquet", ".log"))
        return round.measure_round(gpu_spec | {"round": number}, *files, gpus=gpus)

    return go


def test_a_round_sees_is_watched_on_and_names_its_ladders_gpu_alone(seeing, gpu_spec, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # of the caller: the list says more
    gpu_spec["exclusive_host"] = False
    sampling, watched = sampler.sampling, []
    monkeypatch.setattr(sampler, "sampling", lambda gpu, *rest: watched.append(gpu.uuid) or sampling(gpu, *rest))
    for number, gpus in ((1, ["1", "0"]), (2, ["0", "1"])):
        record = seeing(number, *gpus)
        assert record["rows"][0]["device_uuid"] == record["details"]["a"]["facts"]["sees"] == GPUS[1]
        state = record["host_state"]
        assert (state["gpu"]["name"], state["exclusive_host"]) == ("NVIDIA Fake 1", False)
    assert watched == [GPUS[1]] * 2
    assert read_json(tmp_path / "ladder/gpu.json") == {"uuid": GPUS[1]}


def test_a_pin_to_another_gpu_fails_what_is_to_be_measured_and_keeps_what_was(seeing, tmp_path):
    assert seeing(1, "0")["rows"][0]["device_uuid"] == GPUS[0]
    (failure,) = seeing(2, "1")["failures"]
    assert failure["stage"] == "run" and failure["permanent"] is False
    assert f"keeps this ladder on {GPUS[0]}" in failure["reason"]
    assert seeing(1, "1")["kept"]
    (tmp_path / "ladder/gpu.json").unlink()
    assert seeing(2, "1")["rows"][0]["device_uuid"] == GPUS[1]
    assert seeing(1, "1")["kept"]


# --- the workflow ---


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    repository = copy_repository(tmp_path_factory.mktemp("repository"))
    folder = tmp_path_factory.mktemp("work")
    return Workflow(repository, folder, PYTHONPATH=str(FAKES), FAKE_NVML='{"name": "NVIDIA Fake"}')


def test_two_ladders_use_two_gpus_at_once_if_they_may(workflow):
    folder = workflow.folder
    setup = identity_config(folder, {"a": {}}, rounds=2)
    (folder / "known.py").write_text((folder / "known.py").read_text() + SEEING + MEETING)
    ladder = setup["ladders"].pop("known") | {"platform": "gpus"}
    for name in ("x", "y"):
        rungs = [{"name": "a", "stack": "known", "options": {"ladder": name}}]
        setup["ladders"][name] = ladder | {"rungs": rungs}
    setup |= {"platform": "gpus", "platforms": {"gpus": {"device": "cuda", "gpus": [0, 1], "exclusive_host": False}}}
    setup["stacks"]["known"]["device"] = "cuda"
    setup["measure"] |= {"timeout_seconds": 60}
    setup["telemetry"] = {"period_seconds": 0.05}
    (folder / "meeting").mkdir()

    def records():
        workflow.call(setup, "--cores", "2", *TABLES).must()
        return {path.parts[-3]: record for path in rounds(folder) if (record := read_json(path))["rows"]}

    def rounds(folder):
        return sorted(path for path in folder.glob("results/gpus/rounds/**/*.json") if path.stem.isdigit())

    found = records()
    pins = {name: read_json(folder / f"results/gpus/rounds/identity/{name}/gpu.json")["uuid"] for name in found}
    assert sorted(pins.values()) == GPUS and len(workflow.table("results.csv")) == 4
    assert {(row["ladder"], row["device_uuid"]) for row in workflow.table("results.csv")} == set(pins.items())
    assert {name: record["details"]["a"]["facts"]["sees"] for name, record in found.items()} == pins
    assert len(list((folder / "meeting").iterdir())) == 2

    setup["platforms"]["gpus"]["exclusive_host"] = True
    records()
    phases = [read_json(path)["details"]["a"]["phases"] for path in rounds(folder)]
    spans = sorted((each["opening_ns"], each["throughput_ns"][1]) for each in phases)
    assert len(spans) == 4 and all(end < begin for (_, end), (begin, _) in pairwise(spans))
    assert {(row["ladder"], row["device_uuid"]) for row in workflow.table("results.csv")} == set(pins.items())
