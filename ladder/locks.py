"""Locks that the kernel drops when their owner dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TextIO

from ladder.errors import StepError

# one place for every user and job of a host, whatever its TMPDIR is
HOST_LOCK = Path(os.environ.get("LADDER_HOST_LOCK", "/tmp/inference-ladder.host.lock"))


def take_workflow_lock(folder: Path) -> TextIO:
    """Lock a working folder for one workflow; keep the returned file open as long as it runs.

    Raises StepError naming the process that holds it, or where the folder is on a file system without locks.
    """
    path = folder / "workflow.lock"
    stream = open_lock_file(path)
    if not _is_free(stream, fcntl.LOCK_EX):
        owner = stream.read().strip() or "unknown"
        raise StepError(
            f"another workflow (process {owner}) is running in {folder.parent.resolve()}; "
            "wait for it, or stop it, and call again"
        )
    stream.seek(0)
    stream.truncate()
    stream.write(f"{os.getpid()}\n")
    stream.flush()
    return stream


Wait = Callable[[TextIO, int], None]  # locks an open file, however long it takes


@contextmanager
def host_lock(*, exclusive: bool, waiting: str, wait: Wait = fcntl.flock) -> Iterator[None]:
    """Hold the host: exclusively to measure, shared to do anything that would disturb a measurement.

    Sees every workflow of the host. Waits for as long as it takes, printing ``waiting`` once. Every GPU that anybody
    has measured on is held the same way, after the host and in the order of their names: whoever holds one of them
    alone (``gpu_lock``) waits for nothing any more, so nobody waits in a circle.
    """
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    take = _taker(waiting, wait)
    with ExitStack() as held:
        take(held.enter_context(open_host_lock()), kind)
        # the list is whole: only who holds the host exclusively adds a GPU
        for path in sorted(HOST_LOCK.parent.glob(f"{escape(HOST_LOCK.name)}.gpu.*")):
            take(held.enter_context(open_lock_file(path)), kind)
        yield


@contextmanager
def gpu_lock(candidates: Callable[[], Sequence[str]], keep: Callable[[str], None], *, waiting: str) -> Iterator[str]:
    """Hold one GPU to measure on it, beside rounds on others and beside nothing else; the block gets its UUID.

    The first that is free of those ``candidates()`` names, best first; ``keep`` is told which. Both are called with the
    host held exclusively, so that rounds choose one after the other. Waits as ``host_lock`` does: for whoever builds
    and, where none is free, for the first.
    """
    take, found = _taker(waiting, fcntl.flock), None
    while found is None:
        with open_host_lock() as host:
            take(host, fcntl.LOCK_EX)
            uuids = candidates()
            if found := _first_free(uuids):
                keep(found[0])
        if found is None:
            with open_lock_file(_gpu_lock_file(uuids[0])) as stream:
                take(stream, fcntl.LOCK_SH)  # while holding nothing, so that rounds on other GPUs go on
    uuid, stream = found
    with stream:
        yield uuid


def _first_free(uuids: Sequence[str]) -> tuple[str, TextIO] | None:
    """The first GPU that nobody holds, with its lock file, now locked."""
    for uuid in uuids:
        stream = open_lock_file(_gpu_lock_file(uuid))
        if _is_free(stream, fcntl.LOCK_EX):
            return uuid, stream
        stream.close()
    return None


def _gpu_lock_file(uuid: str) -> Path:
    return HOST_LOCK.with_name(f"{HOST_LOCK.name}.gpu.{uuid.replace('/', '_')}")  # an old driver's MIG-GPU-…/1/0


def _is_free(stream: TextIO, kind: int) -> bool:
    """Lock an open file if that needs no waiting; whether it is locked now. Raises StepError where none can be."""
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        where = "it has to be on a file system that locks files (Lustre: mounted with -o flock)"
        raise StepError(f"cannot lock {stream.name}: {error.strerror}; {where}") from None
    return True


def _taker(waiting: str, wait: Wait) -> Wait:
    """A function that locks open files, printing ``waiting`` the first time that it has to wait."""
    unsaid = [waiting]

    def take(stream: TextIO, kind: int) -> None:
        if not _is_free(stream, kind):
            if unsaid:
                print(unsaid.pop(), flush=True)
            wait(stream, kind)

    return take


def try_host_lock() -> None:
    """See whether the host can be locked, without waiting for it. Raises StepError."""
    with open_host_lock() as host:
        _is_free(host, fcntl.LOCK_SH)


def open_host_lock() -> TextIO:
    """The host's lock file, not locked yet. Raises StepError where it cannot be opened."""
    if not HOST_LOCK.is_absolute():
        raise StepError(f"LADDER_HOST_LOCK='{HOST_LOCK}' would be another file in each folder; give its whole path")
    try:
        return open_lock_file(HOST_LOCK)
    except StepError as error:
        raise StepError(f"{error}, or set LADDER_HOST_LOCK to a file that every user of the host may write") from None


def open_lock_file(path: Path) -> TextIO:
    """Open a lock file for any user of the host, without following a planted link."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # without O_CREAT first: with it, fs.protected_regular keeps others' files in /tmp from being opened
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise StepError(f"cannot open the lock file {path}: {error.strerror}; remove it or ask its owner to") from None
    with suppress(PermissionError):  # another user's file, already open to all
        os.utime(descriptor)  # first: what cleans /tmp removes files that nobody has touched for days
        os.fchmod(descriptor, 0o666)
    return open(path, "r+", encoding="utf-8", opener=lambda *_: descriptor)
