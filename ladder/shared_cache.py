"""Exports, calibrations and engines shared between users and workflows: what `snakemake --cache` keeps, and how.

Snakemake calls ``fetch`` before a job of a shared rule and ``store`` after it. Its own store names a file by the rules
and parameters that lead to it, which hold no wildcard, GPU or driver, takes no lock, and replaces files in place. This
one names an entry by the content of all its step reads, has one workflow build while others wait, and changes nothing.

An entry is a file ``<key>_<output>`` for each that its step writes, and ``<key>.json``, written last: without it there
is no entry. It holds what the key is the hash of, and the sha256 of each file.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from snakemake.caching import LOCATION_ENVVAR, AbstractOutputFileCache
from snakemake.exceptions import WorkflowError

from ladder import fingerprint, locks, process, specs
from ladder.dependencies import ROOT
from ladder.errors import StepError
from ladder.files import digest, read_json, replacing, sha256, write_json

# rules whose results are shared; weights and inputs are read from a user's own files, measurements are never shared
SHARED = ("engine", "export", "precision")
ELSEWHERE = ("python", "host", "retry")  # parameters that say where and how often a step runs, not what it makes
LOCKS = ("envs/main.txt", "envs/torch-cuda.txt")  # of the workflow's own Python


def install(workflow: Any) -> None:
    """Have ``--cache`` share in this way; without it nothing changes. Called while the Snakefile is read.

    Ends the program with one line where there is no folder to share in, or a rule is named that is not shared.
    """
    if not workflow.enable_cache:
        return
    named = workflow.workflow_settings.cache
    if others := sorted(set(named) - set(SHARED)):
        sys.exit(f"--cache {' '.join(others)}: only {', '.join(SHARED)} are shared; targets come before --cache")
    if not named:
        named.extend(SHARED)  # Snakemake hands no empty list on to jobs on other nodes
    if workflow.storage_settings and workflow.storage_settings.default_storage_provider:
        sys.exit("--cache shares in a folder that can be locked; it cannot be used with --default-storage-provider")
    folder = os.environ.get(LOCATION_ENVVAR)
    if not folder or not Path(folder).is_dir():
        found = f"'{folder}' is not one" if folder else "that is not set"
        sys.exit(f"--cache needs a folder in the variable {LOCATION_ENVVAR}, but {found}; see docs/caches.md")
    module: Any = sys.modules[type(workflow).__module__]
    if not hasattr(module, "LocalOutputFileCache"):
        sys.exit("This Snakemake has no workflow.LocalOutputFileCache; use the version that envs/main.txt pins")
    module.LocalOutputFileCache = SharedCache  # what Snakemake makes when it has read the rules


@dataclass(frozen=True)
class Entry:
    """The place of one step's results."""

    folder: Path
    title: str  # what a person calls the step
    made_from: dict[str, Any]  # everything that the results follow from
    outputs: dict[str, Path]  # where this workflow has them, by the name of the rule's output; one is the id

    @property
    def key(self) -> str:
        return digest(self.made_from)

    @property
    def record(self) -> Path:
        return self.folder / f"{self.key}.json"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.key}.lock"

    def file(self, output: str) -> Path:
        return self.folder / f"{self.key}_{output}{self.outputs[output].suffix}"


class SharedCache(AbstractOutputFileCache):
    """Snakemake's between-workflow cache as a folder that several workflows use at once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(self.cache_location).resolve()
        self._building: dict[Any, tuple[Entry, TextIO]] = {}  # by job; the stream keeps others from building the same

    async def exists(self, job: Any) -> bool:
        """Whether a planned job would be served; not, as far as is known, where its inputs are still to be made."""
        try:
            return self._entry(job).record.exists()
        except FileNotFoundError:
            return False

    async def fetch(self, job: Any) -> None:
        """Copy the job's outputs from the cache; where it has none, keep others from building until ``store``.

        Raises CacheMissException, on which Snakemake runs the job. The lock of a job that dies without a result is
        kept until its workflow ends.
        """
        with _beside_no_measurement():
            entry = self._entry(job)
        if job not in self._building and not entry.record.exists():
            try:
                self._building[job] = entry, locks.open_lock_file(entry.lock)
                _lock(self._building[job][1], fcntl.LOCK_EX, f"{entry.title}: waiting, another workflow is making it")
            except (OSError, StepError) as error:
                self._release(job)
                _say(f"{entry.title}: will not be shared: {error}")
        if entry.record.exists():  # also where another workflow was waited for
            self._release(job)
            try:
                with _beside_no_measurement():
                    _take(entry)
                _say(f"{entry.title}: taken from the shared cache")
                return
            except (OSError, StepError) as error:
                _say(
                    f"{entry.title}: is made here, what the shared cache has of it cannot be used: {error}; "
                    f"delete {entry.folder}/{entry.key}* to have it shared again"
                )
        self.raise_cache_miss_exception(job)

    async def store(self, job: Any) -> None:
        """Keep what the job has made, if it is a result."""
        if job not in self._building:
            return
        entry, lock = self._building.pop(job)
        with lock:
            identity = read_json(entry.outputs["id"])
            if identity["status"] != "ok" or entry.record.exists():  # where a lock was deleted two may have built
                return
            if lacking := fingerprint.unknown(identity.get("fingerprint", {})):
                _say(f"{entry.title}: is not shared, what it was built on is not known: {', '.join(lacking)}")
                return
            try:
                with _beside_no_measurement():
                    _keep(entry)
            except OSError as error:
                _say(f"{entry.title}: is not shared: {error}")

    def _release(self, job: Any) -> None:
        if job in self._building:
            self._building.pop(job)[1].close()

    def _entry(self, job: Any) -> Entry:
        made_from = {
            "rule": job.rule.name,
            "wildcards": dict(job.wildcards.items()),
            "command": job.rule.shellcmd,
            "params": {name: _told(value) for name, value in job.params.items() if name not in ELSEWHERE},
            "inputs": {str(path): sha256(Path(path)) for path in job.input},
            "software": software(),
        }
        outputs = {name: Path(path) for name, path in job.output.items()}
        return Entry(self.folder, f"{job.rule.name} {'/'.join(job.wildcards)}", made_from, outputs)


def _told(parameter: Any) -> Any:
    """What a step is told: what stands in the file, where its parameter is the name of a specification."""
    named = isinstance(parameter, str) and Path(parameter).parent == specs.FOLDER
    return read_json(Path(parameter)) if named else parameter


@cache
def software() -> dict[str, str]:
    """The version of this Python, and of all that its lock files name, as it is installed."""
    locked = "".join((ROOT / lock).read_text(encoding="utf-8") for lock in LOCKS)
    names = re.findall(r"^([\w.-]+)==", locked, re.MULTILINE)
    return {"python": platform.python_version(), **fingerprint.versions(names)}


def _take(entry: Entry) -> None:
    """Copy an entry to where its workflow has it. Raises OSError, StepError where it is not as it was stored."""
    try:
        record = read_json(entry.record)
        expected = {name: record["sha256"][name] for name in entry.outputs}
        made_from = digest(record["made_from"])
    except (ValueError, KeyError, TypeError) as error:
        raise StepError(f"{entry.record} does not say what was stored: {error!r}") from None
    if made_from != entry.key:
        raise StepError(f"{entry.record} is of something else than its name says")
    for name, output in entry.outputs.items():
        with replacing(output) as temporary:
            shutil.copyfile(entry.file(name), temporary)
            if sha256(temporary) != expected[name]:
                raise StepError(f"{entry.file(name)} was changed or cut short")


def _keep(entry: Entry) -> None:
    """Copy the outputs into the cache, for all to read and nobody to write; what has no record was never served."""
    stored = {}
    for name, output in entry.outputs.items():
        stored[name] = sha256(output)
        with replacing(entry.file(name)) as temporary:
            shutil.copyfile(output, temporary)
            temporary.chmod(0o444)
    with replacing(entry.record) as temporary:
        write_json(temporary, {"made_from": entry.made_from, "sha256": stored})
        temporary.chmod(0o444)


@contextmanager
def _beside_no_measurement() -> Iterator[None]:
    """Hold the host as a step that builds does: hashing and copying would disturb another workflow's measurement."""
    waiting = "shared cache: waiting, a round or another workflow of this host is measuring"
    with locks.host_lock(exclusive=False, waiting=waiting, wait=_wait):
        yield


def _lock(stream: TextIO, kind: int, waiting: str) -> None:
    """Lock an open file, saying so where that takes waiting. Raises OSError, and what ``_wait`` raises."""
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(waiting)
        _wait(stream, kind)


def _wait(stream: TextIO, kind: int) -> None:
    """Lock an open file, however long it takes. Raises WorkflowError where that is interrupted.

    A thread cannot be interrupted while it waits. A child that has the same open file can, as any job's process.
    """
    descriptor = stream.fileno()
    command = [sys.executable, str(ROOT / "scripts/_lock.py"), str(descriptor), str(kind)]
    variables = os.environ | process.as_parent()
    if subprocess.run(command, pass_fds=[descriptor], env=variables, check=False).returncode:
        raise WorkflowError("waiting for others of this host was interrupted") from None


def _say(text: str) -> None:
    print(text, flush=True)
