"""One round: a fresh process a rung, failures as rows, and nothing measured twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from ladder import fingerprint, locks, out_of_memory, round, round_files
from ladder.files import read_json, sha256, write_json
from ladder.step import attempts_path

ROOT = Path(__file__).parent.parent
PASSED = {"status": "ok", "verdict": "pass", "stage": "audit", "reason": None, "permanent": False, "log": None}
STACK = str(ROOT / "tests/stacks/known.py")


@pytest.fixture(autouse=True)
def own_host_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "HOST_LOCK", tmp_path / "host.lock")


def make_rung(folder, name, **options):
    engine = folder / name
    engine.mkdir(exist_ok=True)
    (engine / "engine").write_text("engine")
    write_json(engine / "id.json", {"status": "ok", "stack": "known"})
    write_json(engine / "build.json", {"sha256": sha256(engine / "engine")})
    write_json(
        engine / "pass.json",
        PASSED,
    )
    factors = {"device": "cpu", "api": "known", "compiler": "none", "precision": "fp32", "launch": "eager"}
    factors |= {"shape": "dynamic", "transfers": "excluded"}
    return {
        "rung": {"name": name, "stack": "known", **factors, "threads": 1, "options": options},
        "stack": {"module": STACK, "arguments": {}},
        "python": sys.executable,
        "versions": {},
        "code": "1",
        "engine": str(engine / "engine"),
        "engine_id": str(engine / "id.json"),
        "build": str(engine / "build.json"),
        "pass": str(engine / "pass.json"),
        "export_id": str(folder / "fp32.id.json"),
        "onnx": None,
        "weights": None,
        "weights_id": None,
    }  # fmt: skip


@pytest.fixture
def spec(tmp_path):
    write_json(
        tmp_path / "fp32.id.json", {"status": "ok", "sha256": "f" * 64, "weights": "seeded(0)", "axes": {"n": "batch"}}
    )
    for name in ("inputs", "reference"):  # the stack gives its input back
        np.savez(tmp_path / f"{name}.npz", x=np.ones((2, 3), np.float32))
    write_json(tmp_path / "inputs.id.json", {"status": "ok", "sha256": sha256(tmp_path / "inputs.npz")})
    measure = {
        "warmup": 1, "iterations": 6, "min_iterations": 6, "max_seconds": 1, "repeats": 1, "pause_seconds": 0,
        "interval_pct": 1, "device_launches": 2, "throughput_seconds": 0, "throughput_iterations": 3,
        "queue": 4, "timeout_seconds": 20,
    }  # fmt: skip
    return {
        "platform": "cpu",
        "device": "cpu",
        "ladder": "known",
        "model": {"name": "identity"},
        "batch": 2,
        "round": 1,
        "seed": 0,
        "measure": measure,
        "inputs": str(tmp_path / "inputs.npz"),
        "reference": str(tmp_path / "reference.npz"),
        "settings": "1",
        "exclusive_host": True,
        "profile": {"min": 1, "opt": 1, "max": 4},
        "fingerprint": {},
        "rungs": [make_rung(tmp_path, "a", delay_ms=1), make_rung(tmp_path, "b", delay_ms=3)],
    }


@pytest.fixture
def measured(tmp_path):
    def go(spec):
        return round.measure_round(spec, tmp_path / "1.json", tmp_path / "1.parquet", tmp_path / "1.log")

    return go


def test_a_round_has_a_row_and_its_raw_latencies_for_every_rung(spec, measured, tmp_path):
    record = measured(spec)
    rows = {row["rung"]: row for row in record["rows"]}
    assert set(rows) == {"a", "b"} and record["failures"] == []
    raw = pq.read_table(tmp_path / "1.parquet").to_pandas()
    for name, delay in (("a", 1), ("b", 3)):
        latencies = raw[raw.rung == name].latency_ns
        assert len(latencies) == rows[name]["iterations"] == 6
        assert delay <= latencies.min() / 1e6 < 20 * delay  # a wrong unit is a thousand off, a busy host less
        assert 0 < rows[name]["throughput_ips"] <= 2 / (delay / 1000)
    assert rows["a"]["device_mem_mb"] is None and rows["a"]["process_mem_mb"] > 1
    assert rows["a"]["weights"] == "seeded(0)" and rows["a"]["raw"] == str(tmp_path / "1.parquet")
    assert sorted(row["position"] for row in record["rows"]) == [0, 1]


def test_the_workflow_engine_is_idle_while_a_run_is_timed(spec, measured):
    spec["measure"]["iterations"] = 600
    for row in measured(spec)["rows"]:
        assert (
            row["parent_cpu_pct"] is not None and row["parent_cpu_pct"] < 25
        )  # of a short run; the test's own parent is pytest


def test_the_order_is_seeded_and_differs_between_rounds_and_batches():
    names = list("abcdef")
    assert round.order(names, 0, "m", 1) == round.order(names[::-1], 0, "m", 1)
    assert len({tuple(round.order(names, 0, batch, n)) for n in range(10) for batch in (1, 8)}) > 15
    firsts = [round.order(names, 0, n)[0] for n in range(600)]
    assert all(60 < firsts.count(name) < 140 for name in names)  # 100 expected; 4.4 standard deviations


def test_waiting_for_a_run_takes_no_processor_time():
    begin, before = time.monotonic(), time.process_time()
    assert round._run_to_end(["sleep", "3"], dict(os.environ), subprocess.DEVNULL, 60) == 0
    waited, spent = time.monotonic() - begin, time.process_time() - before
    assert waited > 2.9 and spent < 0.001 * waited  # looking 20 times a second takes 0.2 %
    assert round._run_to_end(["sleep", "60"], dict(os.environ), subprocess.DEVNULL, 0.2) is None


@pytest.mark.parametrize(
    ("wrong", "permanent", "part"),
    [
        ("refuse", True, "out of order"),
        ("crash", False, "died with signal 6"),
        ("nan", False, "NaN"),
        ("hang", False, "took longer than 6 s"),
    ],
)
def test_a_rung_that_fails_is_a_row_and_the_others_go_on(spec, measured, tmp_path, wrong, permanent, part):
    spec["rungs"][0]["rung"]["options"]["at_run"] = wrong
    if wrong == "hang":
        spec["measure"]["timeout_seconds"] = 6
    record = measured(spec)
    assert [row["rung"] for row in record["rows"]] == ["b"]
    (failure,) = record["failures"]
    assert failure["rung"] == "a" and failure["stage"] == "run" and failure["permanent"] is permanent
    assert part in failure["reason"]
    assert attempts_path(tmp_path / "1.json").exists() is not permanent


def test_a_finished_round_is_kept_until_something_it_depends_on_changes(spec, measured, tmp_path):
    first = measured(spec)
    assert measured(spec)["kept"]
    assert read_json(tmp_path / "1.json")["rows"] == first["rows"]
    spec["measure"]["iterations"] = 7
    assert not measured(spec)["kept"]


def test_an_engine_rebuilt_with_other_bytes_measures_nothing_again(spec, measured, tmp_path):
    measured(spec)
    (tmp_path / "a/engine").write_text("other bytes")
    write_json(tmp_path / "a/build.json", {"sha256": sha256(tmp_path / "a/engine")})
    assert measured(spec)["kept"]
    write_json(tmp_path / "a/id.json", {"status": "ok", "stack": "newer"})
    assert not measured(spec)["kept"]


def test_a_round_of_another_configuration_is_set_aside_and_taken_back(spec, measured, tmp_path):
    first = measured(spec)
    raw = (tmp_path / "1.parquet").read_bytes()
    for rung in spec["rungs"]:
        write_json(
            Path(rung["pass"]),
            {"status": "failed", "stage": "export", "reason": "typo", "permanent": True, "log": None},
        )
    broken = measured(spec)
    assert broken["rows"] == [] and len(broken["failures"]) == 2
    for rung in spec["rungs"]:
        write_json(Path(rung["pass"]), PASSED)
    assert measured(spec)["kept"]
    assert read_json(tmp_path / "1.json")["rows"] == first["rows"]
    assert (tmp_path / "1.parquet").read_bytes() == raw


def test_a_round_that_the_workflow_removed_with_its_lost_job_is_taken_back(spec, measured, tmp_path):
    first = measured(spec)
    for _ in range(2):  # a job that is tried again does it again
        round_files.keep_beside(tmp_path / "1.json", tmp_path / "1.parquet")
    assert not list(tmp_path.glob(".1.*"))
    for name in ("1.json", "1.parquet"):
        (tmp_path / name).unlink()
    again = measured(spec)
    assert again["kept"] and again["rows"] == first["rows"]
    assert sha256(tmp_path / "1.parquet") == first["raw_sha256"]


def test_a_file_system_without_links_loses_no_round(spec, measured, tmp_path, monkeypatch):
    first = measured(spec)
    monkeypatch.setattr(round_files.os, "link", lambda *_: os.stat(tmp_path / "not there"))
    round_files.keep_beside(tmp_path / "1.json", tmp_path / "1.parquet")
    for name in ("1.json", "1.parquet"):
        (tmp_path / name).unlink()
    assert measured(spec)["rows"] == first["rows"]


def test_a_round_that_another_job_measured_meanwhile_is_not_measured_twice(spec, measured, tmp_path, monkeypatch):
    """As where a call was killed and its job, still on the same node, was waited for: it writes before it lets go."""
    monkeypatch.setattr(locks, "HOST_LOCK", tmp_path / "host.lock")
    first, there = measured(spec), [tmp_path / "1.json", tmp_path / "1.parquet"]
    aside = [path.rename(path.with_name(f"other{path.suffix}")) for path in there]
    held = locks.host_lock

    @contextmanager
    def waits_for_the_other(**how):
        with held(**how):
            for path, name in zip(aside, there, strict=True):
                path.rename(name)
            yield

    monkeypatch.setattr(locks, "host_lock", waits_for_the_other)
    second = measured(spec)
    assert second["kept"] and second["rows"] == first["rows"]


def test_a_round_lets_the_host_go_when_it_has_written_everything(spec, measured, tmp_path, monkeypatch):
    held, seen = locks.host_lock, []

    @contextmanager
    def looks(**how):
        with held(**how):
            yield
            seen.append(read_json(tmp_path / "1.json")["raw_sha256"] == sha256(tmp_path / "1.parquet"))

    monkeypatch.setattr(locks, "host_lock", looks)
    measured(spec)
    assert seen == [True]


def test_a_round_of_two_names_is_set_aside_like_any_other(spec, measured, tmp_path):
    first = measured(spec)
    round_files.keep_beside(tmp_path / "1.json", tmp_path / "1.parquet")
    write_json(tmp_path / "a/id.json", {"status": "ok", "stack": "newer"})
    second = measured(spec)
    assert not second["kept"] and second["rows"] != first["rows"]
    write_json(tmp_path / "a/id.json", {"status": "ok", "stack": "known"})
    assert measured(spec)["rows"] == first["rows"]


def test_nothing_is_measured_on_a_host_unlike_the_declared_one(spec, tmp_path):
    declared = fingerprint.declaration("cpu")
    there = {"host": "node7", "fingerprint": declared["fingerprint"] | {"processor": "Z"}}
    write_json(tmp_path / "host.json", declared | there)
    files = [tmp_path / name for name in ("1.json", "1.parquet", "1.log", "host.json")]
    record = round.measure_round(spec, *files)
    assert record["rows"] == [] and len(record["failures"]) == len(spec["rungs"])
    for failure in record["failures"]:
        assert (failure["stage"], failure["permanent"]) == ("run", False)
        assert "is not like node7" in failure["reason"] and "processor" in failure["reason"]
    assert len(round.measure_round(spec, *files[:3])["rows"]) == len(spec["rungs"])


def test_a_record_whose_raw_latencies_were_changed_is_not_trusted(spec, measured, tmp_path):
    measured(spec)
    with open(tmp_path / "1.parquet", "ab") as stream:
        stream.write(b"x")
    assert not measured(spec)["kept"]


def test_a_failed_rung_is_measured_again_and_a_round_asked_for_by_name_too(spec, measured, monkeypatch):
    spec["rungs"][0]["rung"]["options"]["at_run"] = "crash"
    measured(spec)
    assert not measured(spec)["kept"]
    spec["rungs"][0]["rung"]["options"].pop("at_run")
    measured(spec)
    monkeypatch.setenv("LADDER_FORCE", "1")
    assert not measured(spec)["kept"]


def test_other_inputs_measure_again(spec, measured, tmp_path):
    measured(spec)
    np.savez(tmp_path / "inputs.npz", x=np.full((2, 3), 2, np.float32))
    write_json(tmp_path / "inputs.id.json", {"status": "ok", "sha256": sha256(tmp_path / "inputs.npz")})
    assert not measured(spec)["kept"]


def test_inputs_that_were_changed_are_not_run(spec, measured, tmp_path):
    np.savez(tmp_path / "inputs.npz", x=np.full((2, 3), 2, np.float32))
    record = measured(spec)
    assert record["rows"] == []
    assert all("was changed or cut short" in failure["reason"] for failure in record["failures"])


@pytest.mark.parametrize("name", ["inputs", "reference"])
def test_an_artifact_that_was_deleted_meanwhile_is_named(spec, measured, tmp_path, name):
    (tmp_path / "artifacts").mkdir()
    for file in ("inputs.npz", "inputs.id.json", "reference.npz"):
        (tmp_path / file).rename(tmp_path / "artifacts" / file)
    spec |= {each: str(tmp_path / "artifacts" / f"{each}.npz") for each in ("inputs", "reference")}
    Path(spec[name]).unlink()
    failures = measured(spec)["failures"]
    gone = f"{spec[name]} is gone: it was deleted after it was made; the next call makes it anew"
    assert [(each["reason"], each["permanent"]) for each in failures] == [(gone, False)] * 2


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ("half", "of sample 2 is not the model's"),
        ("shape", "has the shape [1, 3], the reference [2, 3]"),
        ("memory", "the stack reads throughput_ips = 1000000000.0"),
        ("threads", "asks for 1 threads, the stack says it has 64"),
    ],
)
def test_what_a_stack_does_at_the_measured_batch_and_says_is_checked(spec, measured, wrong, part):
    spec["rungs"][0]["rung"]["options"]["at_run"] = wrong
    record = measured(spec)
    assert [row["rung"] for row in record["rows"]] == ["b"]
    assert part in record["failures"][0]["reason"]


def test_the_folder_worked_in_lends_no_code(spec, measured, tmp_path, monkeypatch):
    (tmp_path / "ladder").mkdir()
    for name in ("ladder/__init__.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    assert len(measured(spec)["rows"]) == 2


def test_variables_that_tune_a_runtime_do_not_reach_it(spec, measured, monkeypatch):
    tuning = {"DNNL_MAX_CPU_ISA": "SSE41", "KMP_HW_SUBSET": "1c", "OMP_PLACES": "cores", "CUDA_LAUNCH_BLOCKING": "1"}
    for name, value in (tuning | {"CUDA_VISIBLE_DEVICES": "0", "PYTHONUNBUFFERED": "1"}).items():
        monkeypatch.setenv(name, value)
    given = round._environment(3, None)
    assert not tuning.keys() & given.keys()
    assert (given["OMP_NUM_THREADS"], given["CUDA_VISIBLE_DEVICES"], given["PYTHONUNBUFFERED"]) == ("3", "0", "1")


def test_nothing_that_a_run_started_goes_on_beside_the_next(spec, measured):
    spec["rungs"][0]["rung"]["options"]["at_run"] = "leave a child"
    assert len(measured(spec)["rows"]) == 2
    left = [
        p for p in psutil.process_iter(["cmdline"]) if "left by a run of the known stack" in (p.info["cmdline"] or [])
    ]
    assert left == []


def test_what_ran_out_of_memory_is_not_tried_at_larger_batches_of_its_sitting(spec, tmp_path, monkeypatch):
    def measured(batch):
        folder = tmp_path / f"ladder/b{batch}"
        folder.mkdir(parents=True, exist_ok=True)
        files = (folder / "1.json", folder / "1.parquet", folder / "1.log")
        record = round.measure_round(spec | {"batch": batch}, *files)
        return sorted(row["rung"] for row in record["rows"]), [failure["reason"] for failure in record["failures"]]

    monkeypatch.setenv("LADDER_SITTING", "one")
    spec["rungs"][0]["rung"]["options"]["at_run"] = "no memory"
    ran, (reason,) = measured(2)
    assert ran == ["b"] and "out of memory" in reason
    said = f'not tried after its run at batch 2 in this sitting failed with "{reason}"; another call tries again'
    assert measured(4) == (["b"], [said]) == measured(8)
    del spec["rungs"][0]["rung"]["options"]["at_run"]
    assert measured(1) == (["a", "b"], [])
    monkeypatch.setenv("LADDER_SITTING", "two")
    assert measured(4) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("PyTorch failed while running: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("CUDA's cuMemAlloc failed: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", True),
        ("was killed (signal 9), most often by the system because memory ran out; try a smaller batch", True),
        ("took longer than 2 s and was stopped", False),
    ],
)
def test_reasons_that_tell_of_memory(reason, said):
    assert out_of_memory.is_told_by(reason) is said


def test_an_engine_that_was_changed_is_not_run(spec, measured, tmp_path):
    (tmp_path / "b/engine").write_text("cut sh")
    record = measured(spec)
    (failure,) = record["failures"]
    assert failure["rung"] == "b" and "was changed or cut short" in failure["reason"]


def test_an_excluded_engine_is_not_run_and_says_why(spec, measured, tmp_path):
    write_json(
        tmp_path / "b/pass.json",
        {
            "status": "ok",
            "verdict": "exclude",
            "stage": "audit",
            "reason": "cosine 0.1",
            "permanent": True,
            "log": None,
        },
    )
    record = measured(spec)
    (failure,) = record["failures"]
    assert (failure["rung"], failure["stage"], failure["reason"]) == ("b", "audit", "cosine 0.1")


def test_a_round_waits_for_the_host(spec, tmp_path):
    with locks.host_lock(exclusive=False, waiting=""):
        script = f"""
            import json, sys
            from pathlib import Path
            from ladder import locks, out_of_memory, round
            locks.HOST_LOCK = Path({str(locks.HOST_LOCK)!r})
            spec = json.loads(Path({str(tmp_path / "spec.json")!r}).read_text())
            folder = Path({str(tmp_path)!r})
            round.measure_round(spec, folder / "1.json", folder / "1.parquet", folder / "1.log")
        """
        write_json(tmp_path / "spec.json", spec)
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert "waiting" in child.stdout.readline()
        assert not (tmp_path / "1.json").exists()
    assert child.wait(60) == 0
    assert (tmp_path / "1.json").exists()


def test_no_process_goes_on_timing_when_its_round_is_killed(spec, tmp_path):
    for rung in spec["rungs"]:
        rung["rung"]["options"]["at_run"] = "hang"
    write_json(tmp_path / "spec.json", spec)
    parts = ("--spec", tmp_path / "spec.json", "--round", 1)
    parts += ("--output", tmp_path / "1.json", "--raw", tmp_path / "1.parquet", "--log", tmp_path / "1.log")
    command = [sys.executable, str(ROOT / "scripts/round.py"), *map(str, parts)]
    driver = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"LADDER_HOST_LOCK": str(tmp_path / "host.lock")})
    children = []
    deadline = time.monotonic() + 30
    while not children and time.monotonic() < deadline:
        children = [c for c in psutil.Process(driver.pid).children() if "scripts/run.py" in " ".join(c.cmdline())]
        time.sleep(0.05)
    assert children
    time.sleep(1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert not (tmp_path / "1.json").exists() and not (tmp_path / "1.parquet").exists()
