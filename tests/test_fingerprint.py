"""Platforms of other hosts: what they are keyed by, what their jobs ask for, and what happens on the wrong node."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ladder import config, fingerprint, host_faults, steps
from ladder.errors import ConfigError, StepError
from ladder.files import read_json, write_json
from ladder.matrix import Matrix

ROOT = Path(__file__).parent.parent
DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())
H200 = {"machine": "x86_64", "processor": "A", "instructions": "1", "physical_cores": 16}
GPU = {"name": "NVIDIA H200", "compute": "9.0", "driver": "580.1"}


def declare(name, device, found):
    write_json(Path(f"artifacts/{name}/host.json"), {"device": device, "host": "node7", "fingerprint": found})


def round_specs(plan):
    return [steps.round_spec(plan, round.model, round.ladder, round.batch) for round in plan.rounds()]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Plans the default ladders for a CPU and a GPU of other hosts, in an empty working folder."""
    monkeypatch.chdir(tmp_path)

    def planned(change=lambda raw: None):
        raw = copy.deepcopy(DEFAULT)
        raw["platform"] = ["cpu", "nvidia"]
        for name in raw["platform"]:
            raw["platforms"][name]["host"] = "declared"
        change(raw)
        return Matrix(config.load(raw), raw)

    return planned


def test_a_declared_host_is_what_several_platforms_are_planned_by(cluster):
    declare("cpu", "cpu", H200)
    declare("nvidia", "cuda", H200 | {"gpu": GPU})
    plan = cluster()
    assert list(host_faults.faults(plan)) == []
    assert set(plan.ladders) == {"cpu", "nvidia"}
    for engine in plan.engines.values():
        spec = steps.engine_spec(plan, engine)
        assert spec["fingerprint"].get("gpu") == (GPU if engine.platform == "nvidia" else None)
        assert spec["rung"]["threads"] == 16
    assert {each["platform"]: each["device"] for each in round_specs(plan)} == {"cpu": "cpu", "nvidia": "cuda"}
    ladders = steps.plan(plan, list(plan.ladders))["ladders"]
    assert {ladder["platform"]: ladder["peaks"] for ladder in ladders} == {
        "cpu": "artifacts/cpu/peaks.json",
        "nvidia": "artifacts/nvidia/peaks.json",
    }


def test_the_name_of_a_declared_host_changes_nothing(cluster):
    specs = []
    for name in ("node7", "node8"):
        for declared, device in (("cpu", "cpu"), ("nvidia", "cuda")):
            found = {"device": device, "host": name, "fingerprint": H200}
            write_json(Path(f"artifacts/{declared}/host.json"), found)
        plan = cluster()
        specs.append(round_specs(plan))
    assert specs[0] == specs[1]


def test_a_platform_that_nobody_asked_is_one_fault_that_names_the_command(cluster):
    declare("cpu", "cpu", H200)
    (line,) = host_faults.faults(cluster())
    assert line == (
        "platforms.nvidia.host: declared, but artifacts/nvidia/host.json is not there; "
        "call `snakemake fingerprint` first, with your cluster's profile"
    )


def test_a_declaration_of_another_device_is_refused(cluster):
    declare("nvidia", "cpu", H200)
    with pytest.raises(ConfigError, match="is of its cpu; call `snakemake fingerprint` for its cuda"):
        cluster().host("nvidia")


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"device": ',
        "[]",
        '{"device": "cpu"}',
        '{"device": "cpu", "fingerprint": {"physical_cores": 2}}',
        '{"device": "cpu", "host": "node7", "fingerprint": null}',
        '{"device": "cpu", "host": "node7", "fingerprint": {"machine": "x86_64"}}',
        '{"device": "cpu", "host": "node7", "fingerprint": {"physical_cores": null}}',
        '{"device": "cpu", "host": "node7", "fingerprint": {"physical_cores": 0}}',
        '{"device": "cpu", "host": null, "fingerprint": {"physical_cores": 2}}',
    ],
)
def test_a_declaration_that_is_not_whole_is_one_fault_and_stops_each_step(cluster, text):
    """Edited by hand, or copied half: planning says so in one line, and a job that is on its way makes nothing."""
    declare("nvidia", "cuda", H200 | {"gpu": GPU})
    path = Path("artifacts/cpu/host.json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (line,) = host_faults.faults(cluster())
    assert line.startswith("platforms.cpu.host: declared, but artifacts/cpu/host.json ")
    assert line.endswith("call `snakemake fingerprint`")
    assert "artifacts/cpu/host.json" in fingerprint.difference(path)
    path.unlink()
    assert "No such file" in fingerprint.difference(path)


AMD = {"name": "MI300X", "compute_capability": "gfx942", "driver": "6.8", "rocm": "6.3.1"}
NVIDIA = {"name": "H200", "compute_capability": "9.0", "driver": "580.1"}


@pytest.mark.parametrize(
    ("found", "lacking"),
    [
        (H200, []),
        (H200 | {"gpu": NVIDIA}, []),
        (H200 | {"gpu": AMD}, []),
        (H200 | {"gpu": None}, ["gpu"]),
        (H200 | {"processor": None}, ["processor"]),
        *(
            (H200 | {"gpu": {k: v for k, v in AMD.items() if k != key}}, [f"gpu.{key}"])
            for key in ("name", "driver", "rocm")
        ),
        *((H200 | {"gpu": {k: v for k, v in NVIDIA.items() if k != key}}, [f"gpu.{key}"]) for key in NVIDIA),
    ],
)
def test_what_could_not_be_read_of_a_host_is_unknown(found, lacking):
    """A reader leaves out what a GPU does not tell."""
    assert fingerprint.unknown(found) == lacking


@pytest.mark.parametrize("name", config.OF_THE_PROFILE)
def test_what_the_profile_gives_is_refused_in_a_platform(cluster, name):
    with pytest.raises(ConfigError, match=f"platforms.cpu.*{name}: the profile gives"):
        cluster(lambda raw: raw["platforms"]["cpu"].update(resources={name: 1}))


def test_a_platform_that_stands_twice_is_a_fault(cluster):
    with pytest.raises(ConfigError, match="platform: 'cpu' stands 2 times"):
        cluster(lambda raw: raw.update(platform=["cpu", "cpu"]))


def test_a_host_is_like_its_own_declaration_and_unlike_any_other(tmp_path):
    path, declared = tmp_path / "host.json", fingerprint.declaration("cpu")
    write_json(path, declared)
    assert fingerprint.difference(path) is None and fingerprint.difference(None) is None
    write_json(
        path, declared | {"host": "node7", "fingerprint": declared["fingerprint"] | {"gpu": GPU, "machine": "Z"}}
    )
    said = fingerprint.difference(path)
    for part in (platform.node(), "node7", "gpu.driver None instead of '580.1'", f"machine {platform.machine()!r}"):
        assert part in said


def test_a_host_without_the_device_cannot_be_declared(monkeypatch):
    monkeypatch.setattr(fingerprint, "host", lambda device, gpu=None: H200 | {"gpu": None})
    with pytest.raises(StepError, match="shows its job no cuda device"):
        fingerprint.declaration("cuda")


def test_a_step_on_another_host_is_not_started_and_says_why(tmp_path):
    write_json(tmp_path / "host.json", {"device": "cpu", "host": "node7", "fingerprint": H200})
    script = [sys.executable, str(ROOT / "scripts/_supervise.py"), "--stage", "engine", "--log", "log.txt"]
    told = ["--outputs", "engine", "id.json", "--host", "host.json", "--", "touch", "started"]
    variables = os.environ | {"LADDER_HOST_LOCK": str(tmp_path / "lock"), "LADDER_PARENT": str(os.getpid())}
    subprocess.run([*script, *told], cwd=tmp_path, env=variables, check=True)
    failed = read_json(tmp_path / "id.json")
    assert not (tmp_path / "started").exists()
    assert (failed["stage"], failed["permanent"]) == ("engine", False)
    assert "is not like node7, by which its platform was declared" in failed["reason"]
