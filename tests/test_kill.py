"""kill -9 at any moment loses at most the round in progress, leaves nothing half-written and nobody timing."""

from __future__ import annotations

import csv
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from workflow_run import Workflow, copy_repository, identity_config, resnet_config

from ladder.files import read_json, sha256


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("repository"))


def processes_in(folder: Path) -> list[psutil.Process]:
    """Every process of this host that works in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:  # gone meanwhile, or not ours to see
            continue
    return found


def start_and_kill(workflow, config, seconds, only_main=False):
    """kill -9 a call after so long: its process group, or its main process alone. Returns whether it still ran."""
    process, output = workflow.start(config)
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        kill(workflow, process, only_main)
        check(workflow, output)
        return True


def kill(workflow, process, only_main=False):
    started = processes_in(workflow.folder)
    if only_main:
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(started, timeout=5)
    assert processes_in(workflow.folder) == []


def finished_rounds(workflow):
    """Hash of each finished round's record and raw file, by the record's path."""
    records = sorted(p for p in workflow.folder.glob("results/*/rounds/**/*.json") if p.stem.isdigit())
    return {record: (sha256(record), sha256(record.with_suffix(".parquet"))) for record in records}


def check(workflow, output):
    """Everything under its final name is whole, and no round that was told as finished is lost."""
    for folder in ("artifacts", "results"):
        for path in (workflow.folder / folder).rglob("[!.]*"):
            if path.suffix == ".json":
                read_json(path)
            elif path.suffix == ".parquet":
                pq.read_table(path)
            elif path.suffix == ".csv":
                rows = list(csv.reader(path.read_text().splitlines()))
                assert len({len(row) for row in rows}) == 1
    told = re.findall(r"round \d+ of \d+ done", output.read_text())
    assert len(finished_rounds(workflow)) >= len(told)


def finish(workflow, config):
    """The next call does the rest, and measures no finished round again."""
    before = finished_rounds(workflow)
    workflow.call(config).must()
    after = finished_rounds(workflow)
    assert {record: after[record] for record in before} == before
    return after


def test_three_kills_and_a_second_workflow(repository, tmp_path):
    workflow = Workflow(repository, tmp_path)
    config = identity_config(tmp_path, {"a": {"delay_ms": 30}, "b": {"delay_ms": 31}}, batches=[1, 2], rounds=3)
    moments = random.Random(0)
    first, output = workflow.start(config)
    deadline = time.monotonic() + 60
    while "Plan: " not in output.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    refused = workflow.call(config)
    assert refused.status not in (0, None)
    assert f"another workflow (process {first.pid}) is running in {tmp_path}" in refused.text
    assert first.poll() is None
    kill(workflow, first)
    check(workflow, output)
    assert start_and_kill(workflow, config, moments.uniform(3, 5), only_main=True)
    assert start_and_kill(workflow, config, moments.uniform(3, 5))
    assert len(finish(workflow, config)) == 6


@pytest.mark.slow
def test_twenty_kills_of_a_real_ladder(repository, tmp_path):
    config, moments = resnet_config(), random.Random(1)
    whole = Workflow(repository, tmp_path / "whole").call(config).must().seconds
    killed = 0
    for number in range(20):
        workflow = Workflow(repository, tmp_path / str(number))
        killed += start_and_kill(workflow, config, moments.uniform(0, whole), only_main=number % 4 == 3)
        assert len(finish(workflow, config)) == 4
        assert len(workflow.table("results.csv")) == 16 and workflow.table("failures.csv") == []
    assert killed >= 15  # a moment near the end may come too late
