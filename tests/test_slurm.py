"""A whole ladder on a real Slurm of one node: two platforms in one call, a node that dies in the middle, the next call.

The tests of this file share one cluster and one folder and look at what the same three calls left behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter

import plugin_folder
import pytest
import slurm_cluster
from slurm_cluster import wait_for
from workflow_run import Workflow, copy_repository, identity_config

from ladder.files import read_json, sha256

CALL_SECONDS = 300  # of one call at most; on a quiet host none takes half of it

# two kinds of hosts as the cluster sees them; what stands for a GPU serialises its jobs like one
PLATFORMS = {
    "processors": {"host": "declared", "threads": 1, "resources": {"slurm_partition": "cpu"}},
    "accelerators": {"host": "declared", "threads": 1, "resources": {"slurm_partition": "gpu", "gpu": 1}},
}
LADDERS = {
    "compiled": {
        "platform": "processors",
        "models": ["identity"],
        "batches": [1],
        "rounds": 1,
        "rungs": [
            {"name": "onnxruntime-fp32", "stack": "onnxruntime-cpu"},
            {"name": "openvino-fp32", "stack": "openvino-cpu"},
        ],
        "steps": ["compilation"],
    },
    "same": {
        "platform": "accelerators",
        "models": ["identity"],
        "batches": [1],
        "rounds": 2,
        "rungs": [{"name": "a", "stack": "onnxruntime-cpu"}, {"name": "b", "stack": "onnxruntime-cpu"}],
        "steps": ["none"],
    },
}
ROUNDS = 3


@pytest.fixture(scope="module")
def plugins():
    return plugin_folder.require("cluster", "snakemake_executor_plugin_slurm")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def workflow(plugins, cluster, tmp_path_factory):
    repository, folder = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("work")
    return Workflow(copy_repository(repository), folder, **plugins)


@pytest.fixture(scope="module")
def config(workflow):
    """Two platforms, a ladder for each. A PyTorch that no rung needs measures no peaks, which take half a minute."""
    told = {"platform": list(PLATFORMS), "platforms": PLATFORMS, "ladders": LADDERS}
    told["environments"] = {"unused": {"python": sys.executable}}
    told["stacks"] = {"pytorch-cpu": {"environment": "unused"}}
    told["measure"] = {"max_seconds": 1, "interval_pct": 1e-6, "throughput_seconds": 0}
    return identity_config(workflow.folder, {"known": {}}) | told


def start(workflow, config, *arguments):
    """Start a call as a person does on the login node. The first question after 10 s finds most jobs done."""
    profile = str(workflow.repository / "profiles/slurm")
    here = ("--slurm-init-seconds-before-status-checks", "10", "--latency-wait", "5", "--slurm-no-account")
    return workflow.start(config, "--workflow-profile", profile, *here, *arguments)


def end(process, output, status=0):
    """What a call said, which has to end in time and with this status."""
    try:
        ended = process.wait(CALL_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    text = output.read_text(errors="replace")
    assert ended == status, text[-3000:]
    return text


@pytest.fixture(scope="module")
def unasked(workflow, config):
    return workflow.call(config, "-n")


@pytest.fixture(scope="module")
def declared(unasked, workflow, config):
    return end(*start(workflow, config, "fingerprint"))


def finished_rounds(workflow):
    """Hash of each finished round's record and raw file, by the record's path."""
    records = sorted(path for path in workflow.folder.glob("results/*/rounds/**/*.json") if path.stem.isdigit())
    return {path: (sha256(path), sha256(path.with_suffix(".parquet"))) for path in records}


@pytest.fixture(scope="module")
def struck(declared, cluster, workflow, config):
    """A whole call whose node dies just when the first round is written, while another one's job runs too.

    Mostly the first one's job has not ended yet: then Snakemake removes what it made.
    """
    process, output = start(workflow, config, "--retries", "0")

    def in_the_middle():
        assert process.poll() is None, output.read_text(errors="replace")[-3000:]
        running = [job for job in cluster.jobs() if job.rule == "round" and job.state == "RUNNING"]
        return finished_rounds(workflow) and len(running) == 2

    try:
        wait_for(in_the_middle, "a first round", CALL_SECONDS)
        cluster.kill_node()
        before = finished_rounds(workflow)
        cluster.start_node()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return end(process, output, status=1), before


@pytest.fixture(scope="module")
def finished(struck, workflow, config):
    return end(*start(workflow, config))


def test_a_platform_that_nobody_asked_is_said_before_any_job(unasked):
    assert unasked.status == 1
    for platform in PLATFORMS:
        path = f"artifacts/{platform}/host.json"
        said = f"platforms.{platform}.host: declared, but {path} is not there; call `snakemake fingerprint` first"
        assert said in unasked.text


def test_fingerprint_is_one_job_a_platform_in_its_partition(declared, cluster, workflow):
    asked = [(job.partition, job.gpus) for job in cluster.jobs() if job.rule == "declare_host"]
    assert sorted(asked) == [("cpu", 0), ("gpu", 1)]
    for platform in PLATFORMS:
        found = read_json(workflow.folder / f"artifacts/{platform}/host.json")
        assert found["device"] == "cpu" and found["fingerprint"]["physical_cores"] >= 1
        assert f"fingerprint {platform}: {found['host']}, " in declared


def test_a_killed_node_loses_no_finished_round_and_none_is_measured_twice(struck, finished, cluster, workflow):
    _, before = struck
    after = finished_rounds(workflow)
    assert before and len(after) == ROUNDS
    assert {path: after[path] for path in before} == before
    states = [job.state for job in cluster.jobs() if job.rule == "round"]
    assert states.count("COMPLETED") == ROUNDS and set(states) == {"COMPLETED", "NODE_FAIL"}


def test_one_call_gives_one_table_of_both_platforms(finished, workflow):
    rows = Counter((row["platform"], row["rung"]) for row in workflow.table("results.csv"))
    assert rows == {
        ("processors", "onnxruntime-fp32"): 1,
        ("processors", "openvino-fp32"): 1,
        ("accelerators", "a"): 2,
        ("accelerators", "b"): 2,
    }
    assert len(workflow.table("ladder.csv")) == 2
    assert workflow.table("failures.csv") == []
    assert "<html" in (workflow.folder / "results/report.html").read_text()


def test_jobs_that_need_the_device_get_it_one_at_a_time_and_others_do_not_wait_for_it(finished, cluster):
    jobs = [job for job in cluster.jobs() if job.state == "COMPLETED"]
    on_it = sorted((job for job in jobs if job.gpus), key=lambda job: job.started)
    assert {job.rule for job in on_it} == {"declare_host", "engine", "audit_engine", "round"}
    assert all(job.partition == "gpu" for job in on_it)
    for job, following in zip(on_it, on_it[1:], strict=False):
        assert job.ended <= following.started
    assert {"inputs", "export", "aggregate"} <= {job.rule for job in jobs if job.partition == "cpu"}


def test_what_jobs_say_is_seen_where_the_workflow_was_called(struck, finished):
    for text in (struck[0], finished):
        assert re.search(r"round 1 of \d done in .* left, about ", text)
    assert re.search(r"engine accelerators/identity/onnxruntime-cpu-fp32: \d+ s", struck[0])


def test_a_third_call_has_nothing_to_do(finished, workflow, config):
    assert "Nothing to be done" in end(*start(workflow, config))


def test_the_killed_call_left_nothing_in_the_queue(finished, cluster):
    assert subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout == ""
