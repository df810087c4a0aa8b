"""Locks that the kernel drops when their owner dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ladder.errors import StepError

HOST_LOCK = Path(tempfile.gettempdir()) / "inference-ladder.host.lock"


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
    stream = _open(HOST_LOCK)
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with stream:
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, flush=True)
            fcntl.flock(stream, kind)
        yield


def _open(path: Path) -> TextIO:
    """Open a lock file for any user of the host, without following a planted link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StepError(f"cannot open the lock file {path}: {error.strerror}; remove it or ask its owner to") from None
    with suppress(PermissionError):  # another user's file, already open to all
        os.fchmod(descriptor, 0o666)
    return os.fdopen(descriptor, "r+")
