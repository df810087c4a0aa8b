"""Artifacts shared between workflows: one build each, whole, and never one from another kind of host."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.exceptions import CacheMissException
from snakemake.iocontainers import Namedlist
from workflow_run import Workflow, copy_repository, identity_config

from ladder import shared_cache
from ladder.files import read_json, sha256, write_json
from ladder.shared_cache import SharedCache

# ---- two workflows at once ----------------------------------------------------------------------------------


@cache
def config_of(workflow):
    """Three engines of random bytes, one of them from a converted file, and one that cannot be built."""
    options = {"slow": {"delay_ms": 2}, "quick": {"delay_ms": 1}, "refused": {"at_build": "refuse"}}
    config = identity_config(workflow.folder, options)
    config["stacks"]["known"]["precisions"] = ["fp32", "fp16"]
    ladder = config["ladders"]["known"]
    ladder["rungs"].append({"name": "half", "stack": "known", "precision": "fp16", "options": options["slow"]})
    ladder["steps"].append({"from": "slow", "to": "half", "cause": "precision"})
    return config


def artifacts(workflow):
    """Hash of each file that the shared steps of a workflow made, by path."""
    found = [*workflow.folder.glob("artifacts/cpu/identity/*/*"), *workflow.folder.glob("artifacts/identity/*fp*")]
    return {str(path.relative_to(workflow.folder)): sha256(path) for path in found if path.suffix != ".attempts"}


def said(text, ending):
    """The shared steps of which a call says so."""
    return sorted(re.findall(rf"^((?:export|precision|engine) \S+): {ending}", text, re.M))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def new_workflow(repository, store, tmp_path_factory):
    """Makes workflows with folders of their own, as if each were another user's on another host."""
    return lambda name: Workflow(repository, tmp_path_factory.mktemp(name), SNAKEMAKE_OUTPUT_CACHE=str(store))


AUDIT = ("--cache", "--", "audit")  # makes every artifact and opens each; one cannot be built, so it ends badly


@pytest.fixture(scope="module")
def two(new_workflow):
    """Two workflows started at once, and what each said."""
    workflows = [new_workflow(name) for name in ("first", "second")]
    started = [workflow.start(config_of(workflow), *AUDIT) for workflow in workflows]
    assert [process.wait() for process, _ in started] == [1, 1]
    return [(workflow, output.read_text()) for workflow, (_, output) in zip(workflows, started, strict=True)]


def test_two_workflows_at_once_build_each_artifact_once_and_have_the_same(two, store):
    (first, said_by_first), (second, said_by_second) = two
    built = said(said_by_first, r"\d+ s") + said(said_by_second, r"\d+ s")
    taken = said(said_by_first, "taken") + said(said_by_second, "taken")
    assert len(built) == len(set(built)) == len(set(taken)) == 5
    assert len(artifacts(first)) == 4 * 3 + 2 * 4  # engines, ONNX files and what stands beside them
    assert artifacts(first) == artifacts(second)
    assert len(records(store)) == 5  # a failure is none of them


def test_nothing_in_the_store_can_be_written(two, store):
    kept = [path for path in store.iterdir() if path.suffix != ".lock"]
    assert kept and all(path.stat().st_mode & 0o777 == 0o444 for path in kept)


def test_a_second_call_has_nothing_to_do(two):
    workflow, _ = two[0]
    assert workflow.call(config_of(workflow), "-n", *AUDIT).must().jobs() == {"audit": 1}


ANOTHER_PROCESSOR = r"""
import builtins, io, re

def open(file, *arguments, open=open, **named):
    stream = open(file, *arguments, **named)
    return io.StringIO(re.sub("(model name.*: )", r"\1Other ", stream.read())) if file == "/proc/cpuinfo" else stream

builtins.open = open
"""


def test_a_host_of_another_kind_builds_its_own_engines(two, new_workflow, store, tmp_path):
    """Nothing differs but what /proc/cpuinfo says of the processor."""
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_PROCESSOR)
    workflow = new_workflow("another-host")
    workflow.variables["PYTHONPATH"] = str(tmp_path)
    before = {path: sha256(path) for path in store.iterdir()}
    text = workflow.call(config_of(workflow), *AUDIT).must(1).text
    assert said(text, "taken") == ["export identity", "precision identity/fp16"]
    here, there = artifacts(two[0][0]), artifacts(workflow)
    engines = [path for path in here if path.endswith("/engine") and (workflow.folder / path).stat().st_size]
    assert len(engines) == 3 and not [path for path in engines if here[path] == there[path]]
    built_from = {record["sha256"].get("payload"): record["made_from"] for record in records(store).values()}
    for engine in engines:
        first, other = built_from[here[engine]], built_from[there[engine]]
        spec, other_spec = first["params"].pop("spec"), other["params"].pop("spec")
        processor = other_spec["fingerprint"]["processor"] = spec["fingerprint"]["processor"]
        assert (first, spec) == (other, other_spec) and not processor.startswith("Other")
    assert {path: sha256(path) for path in before} == before


def records(store):
    """What the store says of its entries, by key."""
    return {path.stem: read_json(path) for path in store.glob("*.json") if "_" not in path.name}


def test_a_damaged_copy_is_told_left_alone_and_not_used(two, new_workflow, store):
    key = next(key for key, record in records(store).items() if record["made_from"]["rule"] == "precision")
    kept = store / f"{key}_onnx.onnx"
    damaged = kept.read_bytes()[:-3]
    kept.chmod(0o644)
    kept.write_bytes(damaged)
    workflow = new_workflow("third")
    text = workflow.call(config_of(workflow), *AUDIT).must(1).text
    assert f"{kept} was changed or cut short; delete {store}/{key}* to" in text
    assert said(text, r"\d+ s") == ["precision identity/fp16"] and len(said(text, "taken")) == 4
    assert kept.read_bytes() == damaged


def test_workflows_keep_what_they_took_when_the_store_is_cleared(two, store):
    workflow, _ = two[1]
    before = artifacts(workflow)
    shutil.rmtree(store)
    store.mkdir()
    assert workflow.call(config_of(workflow), "-n", *AUDIT).must().jobs() == {"audit": 1}
    assert artifacts(workflow) == before


def test_what_is_measured_is_never_shared(new_workflow, repository, tmp_path):
    workflow = new_workflow("refused")
    call = workflow.call(config_of(workflow), "--cache", "round", "engine", "--", "audit").must(1)
    assert "--cache round: only engine, export, precision are shared" in call.text
    nowhere = Workflow(repository, tmp_path, SNAKEMAKE_OUTPUT_CACHE=str(tmp_path / "missing"))
    assert f"but '{tmp_path}/missing' is not one" in nowhere.call(config_of(nowhere), *AUDIT).must(1).text


# ---- one job of a workflow ----------------------------------------------------------------------------------


class Job:
    """What the cache asks of Snakemake's jobs: an engine whose input is a file of its folder."""

    def __init__(self, folder, **params):
        (folder / "fp32.id.json").write_text("{}") if not (folder / "fp32.id.json").exists() else None
        self.rule = SimpleNamespace(name="engine", shellcmd="build {wildcards.engine}")
        self.wildcards = Namedlist(fromdict={"platform": "cpu", "engine": "known-fp32"})
        self.params = Namedlist(fromdict={"spec": "{}", "code": "1", "retry": 0, "python": "python"} | params)
        self.input = Namedlist(fromdict={"export_id": folder / "fp32.id.json"})
        self.output = Namedlist(fromdict={"payload": folder / "engine", "id": folder / "id.json"})

    def run(self, text="engine", **identity):
        self.output.payload.write_text(text)
        write_json(self.output.id, {"status": "ok", "fingerprint": {"processor": "x"}} | identity)


@pytest.fixture(name="cache")
def a_cache(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("SNAKEMAKE_OUTPUT_CACHE", str(tmp_path / "store"))
    monkeypatch.setattr(shared_cache.locks, "HOST_LOCK", tmp_path / "host.lock")  # another test may measure
    return SharedCache()


@pytest.fixture(name="job")
def a_job(tmp_path):
    (tmp_path / "job").mkdir()
    return Job(tmp_path / "job")


def fetched(cache, job):
    """Whether the cache had what the job makes."""
    try:
        asyncio.run(cache.fetch(job))
    except CacheMissException:
        return False
    return True


def made(cache, job, *text, **identity):
    assert not fetched(cache, job)
    job.run(*text, **identity)
    asyncio.run(cache.store(job))


def test_what_was_stored_is_given_back(cache, job):
    assert not asyncio.run(cache.exists(job))
    made(cache, job)
    assert asyncio.run(cache.exists(job))
    for path in job.output:
        path.unlink()
    assert fetched(cache, job)
    assert job.output.payload.read_text() == "engine" and read_json(job.output.id)["status"] == "ok"


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job.wildcards.__setattr__("engine", "known-fp16") or job.wildcards.__setitem__(1, "known-fp16"),
        lambda job: setattr(job.params, "spec", '{"fingerprint": {"gpu": {"driver": "580.1"}}}'),
        lambda job: setattr(job.params, "code", "2"),
        lambda job: setattr(job.rule, "shellcmd", "build otherwise"),
        lambda job: job.input.export_id.write_text('{"sha256": 1}'),
    ],
    ids=["wildcard", "fingerprint", "code", "command", "input"],
)
def test_whatever_a_result_follows_from_makes_another_entry(cache, job, change):
    made(cache, job)
    change(job)
    assert not fetched(cache, job)


def test_another_version_of_what_the_lock_file_names_makes_another_entry(cache, job, monkeypatch):
    made(cache, job)
    assert {"python", "numpy", "onnx"} <= set(shared_cache.software())
    monkeypatch.setattr(shared_cache, "software", lambda: {"numpy": "0"})
    assert not fetched(cache, job)


def test_where_a_step_runs_and_how_often_it_failed_makes_no_other_entry(cache, job):
    made(cache, job)
    job.params.retry, job.params.python = 3, "/elsewhere/python"
    assert fetched(cache, job)


def test_a_failure_is_not_stored(cache, job):
    made(cache, job, status="failed")
    assert not fetched(cache, job)


@pytest.mark.parametrize(
    ("gpu", "lacking"),
    [(None, "gpu"), ({"name": "H200", "compute_capability": "9.0"}, "gpu.driver")],
    ids=["unread", "of an unknown driver"],
)
def test_an_engine_of_an_unknown_gpu_is_not_stored(cache, job, capsys, gpu, lacking):
    made(cache, job, fingerprint={"gpu": gpu})
    assert f"what it was built on is not known: {lacking}\n" in capsys.readouterr().out
    assert not fetched(cache, job)


def test_a_stored_file_is_never_replaced(cache, job, tmp_path):
    """Somebody deletes the lock file of what is being built, so that a second one builds it."""
    (tmp_path / "late").mkdir()
    late, other = Job(tmp_path / "late"), SharedCache()
    late.input = job.input
    assert not fetched(other, late)
    entry = cache._entry(job)
    entry.lock.unlink()
    made(cache, job, "first")
    late.run("second")
    asyncio.run(other.store(late))
    assert entry.file("payload").read_text() == "first" and late.output.payload.read_text() == "second"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record | {"made_from": {**record["made_from"], "software": {}}}, "of something else than its"),
        (lambda record: {"sha256": record["sha256"]}, "does not say what was stored: KeyError"),
        (lambda record: [], "does not say what was stored: TypeError"),
        (lambda record: record | {"sha256": None}, "does not say what was stored: TypeError"),
    ],
    ids=["of another entry", "of nothing", "no record", "no hashes"],
)
def test_an_entry_whose_record_is_not_its_own_is_not_served(cache, job, capsys, change, said):
    """As where somebody renames another GPU's engine, its record with it."""
    made(cache, job)
    record = cache._entry(job).record
    changed = change(read_json(record))
    record.unlink()
    write_json(record, changed)
    assert not fetched(cache, job)
    assert said in capsys.readouterr().out


def test_what_a_killed_workflow_left_half_stored_is_not_served(cache, job):
    made(cache, job)
    cache._entry(job).record.unlink()
    made(cache, job, "again")
    assert job.output.payload.read_text() == "again"


@pytest.mark.parametrize("ending", ["stored", "failed", "killed"])
def test_a_second_workflow_waits_for_the_first(cache, job, ending):
    """It is served what the first one stored; where the first one fails or is killed it builds itself."""
    entry = cache._entry(job)
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    entry.lock.touch()
    command = [sys.executable, "-c", code, str(entry.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        first.stdout.readline()
        found = []
        second = threading.Thread(target=lambda: found.append(fetched(cache, job)))
        second.start()
        time.sleep(0.5)
        assert second.is_alive()
        if ending == "stored":
            job.run()
            shared_cache._keep(entry)
        first.send_signal(signal.SIGKILL) if ending == "killed" else first.stdin.write("\n")
        first.stdin.close()
        second.join(20)
    assert found == [ending == "stored"]


def test_a_lock_is_kept_from_the_look_to_the_end_of_storing(cache, job):
    entry = cache._entry(job)

    def is_locked():
        with open(entry.lock, "r+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    assert not fetched(cache, job) and is_locked()
    assert not fetched(cache, job) and is_locked()  # Snakemake tries a job again that died
    job.run()
    asyncio.run(cache.store(job))
    assert not is_locked()


def test_a_store_that_cannot_be_written_is_read_and_nothing_is_shared(cache, job, capsys):
    entry = cache._entry(job)
    os.symlink("/dev/null", entry.lock)  # refused as a lock, whoever asks
    made(cache, job)
    assert "will not be shared: cannot open the lock file" in capsys.readouterr().out
    assert not entry.record.exists() and job.output.payload.read_text() == "engine"
    shared_cache._keep(entry)
    assert fetched(cache, job)


def test_a_full_store_keeps_the_result_here(cache, job, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_cache.shutil, "copyfile", full)
    made(cache, job)
    assert "is not shared: [Errno 28] No space left" in capsys.readouterr().out
    assert job.output.payload.read_text() == "engine" and not fetched(cache, job)


def test_the_record_says_what_an_entry_was_made_from(cache, job):
    made(cache, job)
    record = read_json(cache._entry(job).record)
    assert record["made_from"]["wildcards"] == {"platform": "cpu", "engine": "known-fp32"}
    assert record["sha256"] == {name: sha256(Path(path)) for name, path in job.output.items()}


def test_another_snakemake_without_what_is_relied_on_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAKEMAKE_OUTPUT_CACHE", str(tmp_path))
    settings = SimpleNamespace(cache=[]), SimpleNamespace(default_storage_provider=None)
    workflow = SimpleNamespace(enable_cache=True, workflow_settings=settings[0], storage_settings=settings[1])
    with pytest.raises(SystemExit, match="the version that envs/main.txt pins"):
        shared_cache.install(workflow)
