"""Locks that the kernel drops when their owner dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ladder.errors import StepError

# one place for every user and job of a host, whatever its TMPDIR is
HOST_LOCK = Path(os.environ.get("LADDER_HOST_LOCK", "/tmp/inference-ladder.host.lock"))


def take_workflow_lock(folder: Path) -> TextIO:
    """Lock a working folder for one workflow; keep the returned file open as long as it runs.

    Raises StepError naming the process that holds it.
    """
    path = folder / "workflow.lock"
    stream = _open(path)
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = stream.read().strip() or "unknown"
        raise StepError(
            f"another workflow (process {owner}) is running in {folder.parent.resolve()}; "
            "wait for it, or stop it, and call again"
        ) from None
    stream.seek(0)
    stream.truncate()
    stream.write(f"{os.getpid()}\n")
    stream.flush()
    return stream


@contextmanager
def host_lock(*, exclusive: bool, waiting: str) -> Iterator[None]:
    """Hold the host: exclusively to measure, shared to do anything that would disturb a measurement.

    Sees every workflow of the host. Waits for as long as it takes, printing ``waiting`` once.
    """
    stream = open_host_lock()
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with stream:
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, flush=True)
            fcntl.flock(stream, kind)
        yield


def open_host_lock() -> TextIO:
    """The host's lock file, not locked yet. Raises StepError where it cannot be opened."""
    try:
        return _open(HOST_LOCK)
    except StepError as error:
        raise StepError(f"{error}, or set LADDER_HOST_LOCK to a file that every user of the host may write") from None


def _open(path: Path) -> TextIO:
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
        os.fchmod(descriptor, 0o666)
    return os.fdopen(descriptor, "r+")
