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
        "call `snakemake fingerprint` first"
    )


def test_a_declaration_of_another_device_is_refused(cluster):
    declare("nvidia", "cpu", H200)
    with pytest.raises(ConfigError, match="is of its cpu; call `snakemake fingerprint` for its cuda"):
        cluster().host("nvidia")


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
