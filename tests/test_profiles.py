"""The profiles of clusters plan the default ladders, and calls that would measure wrongly there end before any job."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import plugin_folder
import pytest
import yaml
from snakemake.resources import ResourceScopes
from workflow_run import ROOT, Workflow, identity_config

from ladder.config import SLURM_NAMES, SLURM_OTHERS
from ladder.workflow import HOST_SHARES, begin, open_matrix

# kubernetes: a folder stands for the bucket that the profile names, which is not looked into for a plan
PLANNED = {
    "slurm": ["snakemake_executor_plugin_slurm"],
    "cluster-generic": ["snakemake_executor_plugin_cluster_generic"],
    "kubernetes": ["snakemake_executor_plugin_kubernetes", "--default-storage-provider", "fs"],
}


def profile(name):
    return yaml.safe_load((ROOT / f"profiles/{name}/profile.yaml").read_text())


@pytest.mark.parametrize("name", PLANNED)
def test_a_profile_plans_the_default_ladder(name, tmp_path):
    plugin, *arguments = PLANNED[name]
    if arguments:
        arguments += ["--default-storage-prefix", str(tmp_path / "storage")]
    workflow = Workflow(ROOT, tmp_path, **plugin_folder.require("cluster", plugin))
    call = workflow.call(
        [ROOT / "config.yaml"], "--workflow-profile", str(ROOT / "profiles" / name), *arguments, "-n", "--config",
        "platform=cpu",
    ).must()  # fmt: skip
    assert call.jobs()["round"] == 16


@pytest.mark.parametrize("name", ["default", *PLANNED])
def test_every_profile_limits_the_host_and_goes_on_after_a_failure(name):
    given = profile(name)
    assert given["resources"] == {"host": HOST_SHARES}
    assert given["default-resources"][0] == "host=1"
    assert given["nolock"] and given["rerun-incomplete"] and given["keep-going"]
    assert given["scheduler"] == "greedy"
    assert given.get("set-resource-scopes") == (None if name == "default" else ["host=local"])


def on_another_host(folder):
    """A ladder whose platform is declared by another host."""
    return identity_config(folder, {"known": {}}) | {"platforms": {"cpu": {"device": "cpu", "host": "declared"}}}


def test_the_known_names_of_slurm_are_those_that_its_plugin_reads():
    """Of the version that envs/cluster.txt pins: one that it gains must not be called a fault."""
    plugin_folder.require("cluster", PLANNED["slurm"][0])
    sources = [*(Path(sys.prefix) / "cluster").glob("snakemake_executor_plugin_slurm*/*.py")]
    words = set(re.findall(r"[a-z_]+", " ".join(path.read_text() for path in sources)))
    read = r"""resources(?:\.get\(|\[|\.)\s*["']?(slurm_[a-z_]+)"""
    used = {name for path in sources for name in re.findall(read, path.read_text())}
    assert len(used) >= 4 and used <= set(SLURM_NAMES)
    documented_only = {"slurm_requeue"}
    assert {*SLURM_NAMES, *SLURM_OTHERS} - documented_only <= words


def test_a_host_is_declared_before_anything_else_is_planned(tmp_path):
    said = Workflow(ROOT, tmp_path).call(on_another_host(tmp_path), "-n", "audit", "fingerprint").must(1).text
    assert "Call `snakemake fingerprint` alone: audit is planned by what it finds" in said and "Traceback" not in said


def test_a_rejected_submission_says_why(tmp_path):
    workflow = Workflow(ROOT, tmp_path, **plugin_folder.require("cluster", PLANNED["cluster-generic"][0]))
    submit = ("--cluster-generic-submit-cmd", "sh -c 'echo no such partition >&2; exit 1'", "--retries", "0")
    profile = ("--workflow-profile", str(ROOT / "profiles/cluster-generic"))
    said = workflow.call(on_another_host(tmp_path), *profile, *submit, "--", "fingerprint").must(1).text
    assert "no such partition" in said and "/host.json: Error submitting jobscript (exit code 1)" in said


def test_a_host_is_not_declared_by_the_one_that_calls(tmp_path):
    said = Workflow(ROOT, tmp_path).call(on_another_host(tmp_path), "--", "fingerprint").must(1).text
    assert "is declared by the host that its jobs run on, and this call runs them here" in said
    assert not [*tmp_path.glob("artifacts/*/host.json")]


def call(*, limit=HOST_SHARES, local=False, scope="local"):
    return SimpleNamespace(
        global_resources={"host": limit} if limit else {},
        local_exec=local,
        resource_scopes=ResourceScopes(host=scope),
    )


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        (call(limit=None, local=True), "start with --resources host=100"),
        (call(limit=None), "start with --resources host=100"),
        (call(scope="global"), "add --set-resource-scopes host=local"),
        (call(), "say platforms.h200.host: declared"),
    ],
)
def test_a_call_that_would_measure_wrongly_ends_before_any_job(workflow, said):
    with pytest.raises(SystemExit, match=said):
        begin(workflow, SimpleNamespace(platforms=["h200"], declarations={}))


def test_a_job_without_its_calls_variables_ends_before_it_measures(monkeypatch):
    """Where qsub is not told to hand them on: -R round would keep old rounds, and a lost job's round would be lost."""
    monkeypatch.delenv("LADDER_SITTING", raising=False)
    with pytest.raises(SystemExit, match="have the submit command hand them on"):
        open_matrix(SimpleNamespace(is_main_process=False), {})
