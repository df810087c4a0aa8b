"""What the Snakefile needs of Snakemake: the configuration, the sitting, the checks before any job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ladder import locks, progress
from ladder.config import load
from ladder.errors import ConfigError, StepError
from ladder.files import write_json
from ladder.matrix import Matrix, Round
from ladder.progress import STATE
from ladder.step import attempts_path

CONFIG_COPY = STATE / "config.json"  # the configuration of the call, for the report's own
HOST_SHARES = 100  # a round takes all, every other job one: nothing runs beside a measurement


def open_matrix(workflow: Any, config: dict[str, Any]) -> Matrix:
    """The matrix of the given configuration files, or of config.yaml where none is given.

    Ends the program with one line a fault where the configuration is wrong.
    """
    raw = dict(config)
    if not workflow.overwrite_configfiles:
        raw = merged(read_yaml(Path(workflow.basedir) / "config.yaml"), raw)
    try:
        matrix = Matrix(load(raw), raw)
        if faults := list(matrix.faults()):
            raise ConfigError(faults)
    except ConfigError as error:
        sys.exit("The configuration is wrong; nothing was run.\n" + "\n".join(f"  {fault}" for fault in error.faults))
    if workflow.output_settings.dryrun and workflow.is_main_process:
        amount = progress.amount(*_amount(matrix, matrix.rounds()))
        print(f"All ladders from nothing: {amount}. Still to do:", file=sys.stderr)
    if workflow.is_main_process:
        os.environ.setdefault("LADDER_SITTING", datetime.now(UTC).strftime("%Y%m%dT%H%M%S") + f"-{os.getpid()}")
    return matrix


def attempts(id_path: str) -> int:
    """How often a step failed in a way that may pass: one more since its last run makes Snakemake try again."""
    try:
        return len(attempts_path(Path(id_path)).read_text().splitlines())
    except FileNotFoundError:
        return 0


def begin(workflow: Any, matrix: Matrix) -> Any:
    """Before the first job: lock, silence the scheduler, say how long it will take. Returns the lock to keep.

    Ends the program where another workflow holds the folder or the host resource has no limit.
    """
    if workflow.global_resources.get("host") != HOST_SHARES:
        sys.exit(
            f"Measurements would not run alone: start with --resources host={HOST_SHARES} (the default profile does)"
        )
    _silence_scheduler(workflow)
    try:
        lock = locks.take_workflow_lock(STATE)
    except StepError as error:
        sys.exit(str(error))
    if matrix.config.platform == "auto":
        device = matrix.host.get("gpu") or {"name": matrix.host["processor"]}
        print(f"Platform {matrix.platform}: {', '.join(device.values())}", file=sys.stderr)
    write_json(CONFIG_COPY, matrix.raw)
    planned = {round.record: round for round in matrix.rounds()}
    pending = [planned[job.output[0]] for job in workflow.dag.needrun_jobs() if job.rule.name == "round"]
    if _forces_rounds(workflow.dag_settings, planned):
        os.environ["LADDER_FORCE"] = "1"  # a round asked for by name is measured again, whatever its key says
    progress.start(*_amount(matrix, pending))
    return lock


def _amount(matrix: Matrix, rounds: list[Round]) -> tuple[int, int, float | None]:
    """How many rounds, how many runs in them, and their expected length, s; None where one is not known."""
    lengths = [matrix.seconds(round) for round in rounds]
    known = [length for length in lengths if length is not None]
    runs = sum(len(matrix.ladders[round.ladder].rungs) for round in rounds)
    return len(rounds), runs, sum(known) if len(known) == len(lengths) else None


def _forces_rounds(settings: Any, records: Iterable[str]) -> bool:
    """Whether -F, -R or -f names rounds; one that only follows a forced step is judged by its key as ever."""
    named = set(settings.forcerun) | (set(settings.targets) if settings.forcetargets else set())
    return settings.forceall or not named.isdisjoint(("round", *records))


def _silence_scheduler(workflow: Any) -> None:
    """Stop Snakemake's rate limiter, whose 1 s timers pile up and burn most of a core while jobs are timed.

    An attribute of Snakemake 9.27 without a setting of its own; the CPU time it cost is in every row.
    """
    scheduler = workflow.scheduler
    if not hasattr(scheduler, "job_rate_limiter"):
        sys.exit("This Snakemake has no scheduler.job_rate_limiter; use the version that envs/main.txt pins")
    scheduler.job_rate_limiter = None


def read_yaml(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result
