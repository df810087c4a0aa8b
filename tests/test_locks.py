"""Who works beside whom on one host, with real processes: builders together, rounds on different GPUs, nobody else."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ladder import locks
from ladder.errors import StepError
from ladder.files import read_json

ROOT = Path(__file__).parent.parent
# Holds what it is told to until its input ends or, from then on, so many times for some ms; writes down when.
HOLDER = """
import random, sys, time
from ladder import locks
kind, name, journal, times, seed = sys.argv[1:]
rest = random.Random(seed)

def hold():
    if kind in ("builder", "alone"):
        return locks.host_lock(exclusive=kind == "alone", waiting="waiting")
    return locks.gpu_lock(lambda: kind.split(","), lambda uuid: print("keeps", uuid, flush=True), waiting="waiting")

def note(what):
    with open(journal, "a") as stream:
        stream.write(f"{what} {name} {held}\\n")

if int(times):
    sys.stdin.read()
for number in range(int(times) or 1):
    with hold() as held:
        note("begin")
        print("has it", flush=True)
        time.sleep(rest.random() / 200) if int(times) else sys.stdin.read()
        note("end")
print("is done", flush=True)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a holder: a builder, one that measures alone, or one that measures on the first free of some GPUs."""
    monkeypatch.setattr(locks, "HOST_LOCK", tmp_path / "host.lock")
    started = []

    def go(kind, times=0):
        command = [sys.executable, "-c", HOLDER, kind, f"{kind}#{len(started)}", str(tmp_path / "journal"), str(times)]
        environment = os.environ | {"LADDER_HOST_LOCK": str(tmp_path / "host.lock")}
        started.append(
            subprocess.Popen(
                [*command, str(len(started))],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield go
    for process in started:
        process.kill()
    for process in started:
        process.wait()
        process.stdin.close()
        process.stdout.close()


def said(process):
    return process.stdout.readline().strip()


def gets(process, uuid=None):
    """Whether what a holder says next is that it has what it asked for."""
    return (uuid is None or said(process) == f"keeps {uuid}") and said(process) == "has it"


def end(process):
    process.stdin.close()
    assert said(process) == "is done" and process.wait(10) == 0


def test_rounds_on_two_gpus_run_at_once_and_on_one_they_do_not(start):
    first = start("GPU-a")
    assert gets(first, "GPU-a")
    other = start("GPU-b")
    assert gets(other, "GPU-b")
    second = start("GPU-a")
    assert said(second) == "waiting"
    end(first)
    assert gets(second, "GPU-a")


def test_a_round_takes_the_first_free_gpu_and_waits_for_the_first_where_none_is(start):
    first = start("GPU-a,GPU-b")
    assert gets(first, "GPU-a")
    second = start("GPU-a,GPU-b")
    assert gets(second, "GPU-b")
    third = start("GPU-a,GPU-b")
    assert said(third) == "waiting"
    end(first)
    assert gets(third, "GPU-a")
    end(second)
    assert gets(start("GPU-a,GPU-b"), "GPU-b")


def test_whoever_waits_for_a_gpu_keeps_nobody_from_another(start):
    first = start("GPU-a")
    assert gets(first, "GPU-a")
    second = start("GPU-a")
    assert said(second) == "waiting"
    assert gets(start("GPU-b"), "GPU-b")


@pytest.mark.parametrize("kind", ["builder", "alone"])
def test_nothing_is_built_or_measured_alone_beside_a_round(start, kind):
    first = start("GPU-a")
    assert gets(first, "GPU-a")
    second = start("GPU-b")
    assert gets(second, "GPU-b")
    other = start(kind)
    assert said(other) == "waiting"
    end(first)
    late = start("GPU-a")
    assert said(late) == "waiting"  # else whoever builds might wait for ever
    end(second)
    assert gets(other)  # "waiting" is said once, though it waited for two GPUs
    end(other)
    assert gets(late, "GPU-a")


@pytest.mark.parametrize("kind", ["GPU-a", "alone"])
def test_builders_work_at_once_and_a_round_waits_for_all_of_them(start, kind):
    builders = [start("builder"), start("builder")]
    assert all(map(gets, builders))
    waiting = start(kind)
    assert said(waiting) == "waiting"
    end(builders[0])
    late = start(kind)
    assert said(late) == "waiting"
    late.kill()
    end(builders[1])
    assert gets(waiting, "GPU-a" if kind == "GPU-a" else None)


def test_waiting_is_said_once_though_the_host_and_a_gpu_are_waited_for(start):
    measuring = start("GPU-a")
    assert gets(measuring, "GPU-a")
    with locks.open_host_lock() as host:
        fcntl.flock(host, fcntl.LOCK_EX)
        builder = start("builder")
        assert said(builder) == "waiting"
    end(measuring)
    assert gets(builder)


@pytest.mark.parametrize("waiter", ["GPU-a", "alone"])
@pytest.mark.parametrize("owner", ["GPU-a", "builder", "alone"])
def test_whoever_is_killed_holds_nothing(start, owner, waiter):
    holding = start(owner)
    assert gets(holding, "GPU-a" if owner == "GPU-a" else None)
    waiting = start(waiter)
    assert said(waiting) == "waiting"
    holding.kill()
    assert gets(waiting, "GPU-a" if waiter == "GPU-a" else None)


def test_of_many_at_once_none_works_beside_what_it_must_not(start, tmp_path):
    kinds = ["builder", "builder", "alone", "GPU-a", "GPU-b", "GPU-b,GPU-a", "GPU-a,GPU-c"]
    holders = [start(kind, times=30) for kind in kinds]
    for holder in holders:
        holder.stdin.close()
    for holder in holders:
        assert holder.stdout.read().endswith("is done\n") and holder.wait() == 0
    working, together = {}, set()
    for line in (tmp_path / "journal").read_text().splitlines():
        what, name, held = line.split()
        if what == "end":
            assert working.pop(name) == held
            continue
        mine = name.partition("#")[0] if held == "None" else held
        for other in (other.partition("#")[0] if gpu == "None" else gpu for other, gpu in working.items()):
            together.add(frozenset((mine, other)))
        working[name] = held
    allowed = [{"builder"}, {"GPU-a", "GPU-b"}, {"GPU-a", "GPU-c"}, {"GPU-b", "GPU-c"}]
    assert together <= set(map(frozenset, allowed))


def test_lock_files_are_open_to_every_user_and_never_a_link(start, tmp_path):
    old = "MIG-GPU-a/1/0"  # as a driver before 470 calls an instance
    with locks.gpu_lock(lambda: [old], lambda uuid: None, waiting="") as uuid:
        assert uuid == old
    files = list(tmp_path.glob("host.lock*"))
    assert len(files) == 2 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666}
    for path in files:
        os.utime(path, (0, 0))
    with locks.host_lock(exclusive=False, waiting=""):
        # or what cleans /tmp would remove a file that is in use, and the next one to come would lock another
        assert all(path.stat().st_mtime > 0 for path in files)
    (tmp_path / "host.lock.gpu.GPU-a").symlink_to(tmp_path / "planted")
    with pytest.raises(StepError, match="host.lock.gpu.GPU-a"), locks.host_lock(exclusive=False, waiting=""):
        pass
    assert not (tmp_path / "planted").exists()


def test_a_lock_that_would_keep_nobody_out_is_refused_in_one_sentence(start, tmp_path, monkeypatch):
    """Where the call ends, and where a step does: Lustre has no locks by default, and a relative path is many files."""

    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patched:
        patched.setattr(locks.fcntl, "flock", no_locks)
        for attempt in (lambda: locks.take_workflow_lock(tmp_path), locks.try_host_lock):
            with pytest.raises(StepError, match=r"cannot lock \S+\.lock: Function not implemented; .*locks files"):
                attempt()
    locks.try_host_lock()
    monkeypatch.setattr(locks, "HOST_LOCK", Path("host.lock"))
    with pytest.raises(StepError, match="LADDER_HOST_LOCK='host.lock' would be another file in each folder"):
        locks.try_host_lock()


def test_a_step_whose_host_cannot_be_locked_says_so_in_its_record(tmp_path):
    script = [sys.executable, str(ROOT / "scripts/_supervise.py"), "--stage", "engine", "--log", "log.txt"]
    variables = os.environ | {"LADDER_HOST_LOCK": "host.lock", "LADDER_PARENT": str(os.getpid())}
    command = [*script, "--outputs", "engine", "id.json", "--", "touch", "started"]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True)
    assert "would be another file in each folder" in read_json(tmp_path / "id.json")["reason"]
    assert not (tmp_path / "started").exists()


def test_a_round_that_cannot_choose_holds_nothing(start):
    def candidates():
        raise StepError("no such GPU")

    with (
        pytest.raises(StepError, match="no such GPU"),
        locks.gpu_lock(candidates, lambda uuid: None, waiting=""),
    ):
        pass
    assert gets(start("alone"))
