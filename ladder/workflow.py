"""What the Snakefile needs of Snakemake: the configuration, the sitting, the checks before any job."""

from __future__ import annotations

import atexit
import difflib
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import yaml
from snakemake.cli import get_argument_parser
from snakemake.logging import logger as snakemake_log
from snakemake.shell import shell
from snakemake_interface_logger_plugins.common import LogEvent

from ladder import environment, fingerprint, host_faults, locks, progress, shared_cache, specs, steps, storage
from ladder.config import load
from ladder.errors import ConfigError, StepError
from ladder.files import write_json
from ladder.matrix import Matrix, Round
from ladder.progress import STATE
from ladder.step import attempts_path

CONFIG_COPY = STATE / "config.json"  # the configuration of the call, for the report's own
STARTUP_SECONDS = 2.0  # a process, its imports, the opened engine and warm-up; measured on two cores: 1 to 3 s
_ENDINGS = ("aggregate", "pages", "report", "check")  # rules that need no round to be there, only to be looked for
HOST_SHARES = 100  # a round takes all, every other job one: nothing runs beside a measurement


def open_matrix(workflow: Any, config: dict[str, Any]) -> Matrix:
    """The matrix of the given configuration files, or of config.yaml where none is given.

    Ends the program with one line a fault where the configuration is wrong.
    """
    if not workflow.is_main_process and "LADDER_SITTING" not in os.environ:
        sys.exit("This job lacks the variables of its call; have the submit command hand them on, as sbatch does")
    targets = _targets() if workflow.is_main_process else set()
    raw = dict(config)
    own = Path(workflow.basedir) / "config.yaml"
    try:
        if not workflow.overwrite_configfiles:
            raw = merged(read_yaml(own), raw)
        files = (workflow.overwrite_configfiles or [own]) if workflow.is_main_process else []
        if repeated := [line for file in files for line in repeated_keys(Path(file))]:
            raise ConfigError(repeated)
        matrix = Matrix(load(raw), raw)
        if matrix.declarations and "fingerprint" in targets and (others := sorted(targets - {"fingerprint"})):
            sys.exit(f"Call `snakemake fingerprint` alone: {', '.join(others)} is planned by what it finds")
        # declarations may be missing where this call makes them, and in one job of a call that has looked
        if workflow.is_main_process and (faults := list(_faults(workflow, matrix, targets))):
            raise ConfigError(faults)
    except ConfigError as error:
        sys.exit("The configuration is wrong; nothing was run.\n" + "\n".join(f"  {fault}" for fault in error.faults))
    if workflow.output_settings.dryrun and workflow.is_main_process:
        amount = progress.amount(*_amount(matrix, matrix.rounds()))
        _warn_of_what_is_absent(matrix, matrix.platforms)
        print(f"All ladders from nothing: {amount}. Still to do:", file=sys.stderr)
        atexit.register(_tell_what_is_left, workflow, matrix)  # a dry run has no hook that knows its jobs
    if workflow.is_main_process:
        if forgotten(Path()):
            print(FORGOTTEN, file=sys.stderr)
        os.environ.setdefault("LADDER_SITTING", datetime.now(UTC).strftime("%Y%m%dT%H%M%S") + f"-{os.getpid()}")
    shared_cache.install(workflow)
    storage.install(workflow)
    return matrix


def _faults(workflow: Any, matrix: Matrix, targets: set[str]) -> Iterator[str]:
    """What this call needs and cannot have, one line each."""
    if targets != {"fingerprint"}:
        yield from host_faults.faults(matrix)
    if any("cross_stack" in target for target in targets):
        yield from host_faults.brought_faults(matrix, partial(storage.fault, workflow))


def _targets() -> set[str]:
    """The targets of this call, which Snakemake tells the workflow only when it has read the Snakefile."""
    return set(get_argument_parser().parse_known_args(sys.argv[1:])[0].targets)


def check_targets(workflow: Any, matrix: Matrix, stacks: Iterable[str]) -> None:
    """Ends the program where a target of this call is neither rule nor path, or a stack that no ladder here has."""
    rules = {rule.name for rule in workflow.rules}
    for target in sorted(_targets() if workflow.is_main_process else ()):
        if not (target in rules or "/" in target or Path(target).exists()):
            near = difflib.get_close_matches(target, rules, n=1)
            sys.exit(f"There is no target {target}" + (f"; did you mean {near[0]}?" if near else ""))
        if target in stacks and not matrix.ladders_with(target):
            told = f"Nothing to do for {target}: no ladder of platform {', '.join(matrix.platforms)} has such a stack"
            others = matrix.ladders_with(target, matrix.config.ladders)
            named = [f"\n  {name} has, for --config platform={matrix.config.ladders[name].platform}" for name in others]
            sys.exit(told + "".join(named))


def _warn_of_what_is_absent(matrix: Matrix, platforms: Iterable[str]) -> None:
    """A line for each device or interpreter of these platforms that is not here, while there is little to wait for."""
    configured, ladders = matrix.config.platforms, matrix.config.ladders.values()
    cpu = next((ladder.platform for ladder in ladders if configured[ladder.platform].device == "cpu"), None)
    instead = f"to measure the CPU: PLATFORM={cpu} make bench, or --config platform={cpu}; " if cpu else ""
    for platform, reason in host_faults.absent_devices(matrix).items():
        if platform in platforms:
            print(
                f"Warning: platform {platform} cannot be measured on this host: {reason}. Its environments are "
                f"installed and its engines tried all the same; what fails is a row of failures.csv. Instead, {instead}"
                f"where a cluster has the GPU: platforms.{platform}.host: declared (docs/clusters.md)",
                file=sys.stderr,
            )

    for platform, lacking in host_faults.absent_interpreters(matrix).items():
        for name, stacks in lacking.items() if platform in platforms else ():
            print(
                f"Warning: environments.{name}.python: {matrix.config.environments[name].python} is not an interpreter "
                f"that runs on this host; what platform {platform} has on {', '.join(stacks)} is rows of failures.csv",
                file=sys.stderr,
            )


def _announce_environments(names: Iterable[str], matrix: Matrix) -> None:
    """A line for each environment that is installed first: its step is silent for minutes."""
    for name in names:
        kind, path = shlex.split(steps.environment_source(matrix, name))
        if kind == "--lock" and Path(path).is_file():
            print(
                f"environment {name}: installing {environment.in_words(Path(path))} into .venvs/{name}, which may take "
                f"minutes; logs/environment/{name}.log tells how far it is",
                file=sys.stderr,
            )


FORGOTTEN = (
    "Warning: results/ has tables, but .snakemake/metadata, by which Snakemake tells what has changed since, is empty "
    "or missing: a change of the configuration or the code would go unseen. Call `snakemake -R aggregate` once; it "
    "names the rounds that do not fit the configuration. `make clean-results` starts anew."
)


def forgotten(folder: Path) -> bool:
    """Whether a working folder holds tables, but nothing of what Snakemake noted when it made them."""
    notes = folder / ".snakemake/metadata"
    return any(folder.glob("results/*.csv")) and not (notes.is_dir() and any(notes.iterdir()))


def attempts(id_path: str) -> int:
    """How often a step failed in a way that may pass: one more since its last run makes Snakemake try again."""
    try:
        return len(attempts_path(Path(id_path)).read_text().splitlines())
    except FileNotFoundError:
        return 0


def begin(workflow: Any, matrix: Matrix) -> Any:
    """Before the first job: lock, silence the scheduler, say how long it will take. Returns the lock to keep.

    Ends the program where another workflow holds the folder, the host resource has no limit, or jobs would run on
    hosts that nobody has asked what they are.
    """
    if workflow.global_resources.get("host") != HOST_SHARES:
        sys.exit(f"Measurements would not run alone: start with --resources host={HOST_SHARES} (the profiles do)")
    if not workflow.local_exec:
        _begin_elsewhere(workflow, matrix)
    elif asked := [job for job in workflow.dag.needrun_jobs() if job.rule.name == "declare_host"]:
        sys.exit(
            f"platforms.{asked[0].wildcards.platform} is declared by the host that its jobs run on, and this call runs "
            "them here: call with your cluster's profile (--workflow-profile profiles/slurm), or say host: local"
        )
    _silence_scheduler(workflow)
    snakemake_log.addHandler(_JobErrors(logging.ERROR))
    try:
        lock = locks.take_workflow_lock(STATE)
        locks.try_host_lock()  # seen now, not by every step
    except StepError as error:
        sys.exit(str(error))
    if matrix.config.platform == "auto" and not matrix.declarations:
        (platform,) = matrix.platforms
        print(f"Platform {platform}: {fingerprint.in_words(matrix.host(platform))}", file=sys.stderr)
    needed = list(workflow.dag.needrun_jobs())
    _warn_of_what_is_absent(matrix, {job.wildcards.platform for job in needed if hasattr(job.wildcards, "platform")})
    _announce_environments((job.wildcards.environment for job in needed if job.rule.name == "environment"), matrix)
    specs.remove_others()  # the lock says that no other call is running here
    write_json(CONFIG_COPY, matrix.raw)
    if _forces_rounds(workflow, matrix):
        os.environ["LADDER_FORCE"] = "1"  # a round asked for by name is measured again, whatever its key says
    progress.start(*_amount_left(workflow, matrix))
    return lock


def _tell_what_is_left(workflow: Any, matrix: Matrix) -> None:
    """The last line of a dry run: what is left to measure, where anything is."""
    if workflow.dag is not None and (left := _amount_left(workflow, matrix))[0]:
        print(f"Of these: {progress.amount(*left)}.", file=sys.stderr)


def _amount_left(workflow: Any, matrix: Matrix) -> tuple[int, int, float | None, int]:
    """The arguments of ``progress.amount`` for what this call has to measure."""
    jobs = workflow.dag.needrun_jobs(exclude_finished=False)  # a dry run finishes them all
    pending = [_round_of(job.wildcards) for job in jobs if job.rule.name == "round"]
    recorded = 0 if _forces_rounds(workflow, matrix) else sum(Path(round.record).is_file() for round in pending)
    return *_amount(matrix, pending), recorded


class _JobErrors(logging.Handler):
    """Says why a job failed that its executor saw failing: ``quiet: rules`` in the profiles hides that too."""

    def emit(self, record: logging.LogRecord) -> None:
        info = vars(record)
        if info.get("event") is LogEvent.JOB_ERROR and info["rule_msg"]:
            print(f"{' '.join(info['output']) or info['rule_name']}: {info['rule_msg']}", file=sys.stderr)


def _begin_elsewhere(workflow: Any, matrix: Matrix) -> None:
    """What a call needs whose jobs run on a cluster's hosts; ends the program where it lacks it."""
    if not workflow.resource_scopes.is_local("host"):
        sys.exit("One round would keep the whole cluster waiting: add --set-resource-scopes host=local")
    if here := [platform for platform in matrix.platforms if platform not in matrix.declarations]:
        say = ", ".join(f"platforms.{platform}.host: declared" for platform in here)
        sys.exit(
            f"Jobs run on other hosts, but {', '.join(here)} would be this one (host: local): say {say}, name what you "
            "mean under 'platform' (auto looks at this host), and call `snakemake fingerprint` first"
        )
    progress.relay()


def _round_of(wildcards: Any) -> Round:
    return Round(wildcards.model, wildcards.ladder, int(wildcards.batch), int(wildcards.number), wildcards.platform)


def _amount(matrix: Matrix, rounds: list[Round]) -> tuple[int, int, float | None]:
    """How many rounds, how many runs in them, and their expected length, s; None where one is not known."""
    lengths = [expected_seconds(matrix, round) for round in rounds]
    known = [length for length in lengths if length is not None]
    runs = sum(len(matrix.ladders[round.ladder].rungs) for round in rounds)
    return len(rounds), runs, sum(known) if len(known) == len(lengths) else None


def expected_seconds(matrix: Matrix, round: Round) -> float | None:
    """A round's expected length, s; None where fixed iteration counts leave it to the model's speed."""
    settings = matrix.config.measure
    if settings.iterations is not None:
        return None
    run = STARTUP_SECONDS + settings.pause_seconds + settings.repeats * settings.max_seconds
    return len(matrix.ladders[round.ladder].rungs) * (run + settings.throughput_seconds)


def _forces_rounds(workflow: Any, matrix: Matrix) -> bool:
    """Whether -F, -R or -f names rounds; one that only follows a forced step is judged by its key as ever."""
    settings, records = workflow.dag_settings, [round.record for round in matrix.rounds()]
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


def make_held_back_tables(workflow: Any) -> None:
    """At the end of a call in which jobs died: make tables and report, which wait for them, from what there is.

    A job that dies without a word has no output, and Snakemake starts nothing that reads it.
    """
    dag, failed = workflow.dag, workflow.scheduler.failed
    undone = [job for level in dag.toposorted() for job in level if dag.needrun(job) and not dag.finished(job)]
    held_back = [job for job in undone if job.rule.name in _ENDINGS]
    if failed and failed.isdisjoint(held_back):  # else the call was interrupted, or one of these died itself
        for job in held_back:
            workflow.persistence.started(job)  # and never finished: the next call makes them again
            for file in job.products():
                file.prepare()
            try:
                shell(job.shellcmd)
            except CalledProcessError:  # its log says why, and this call ends badly anyway
                if job.rule.name == "aggregate":
                    return


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty where the file is. Raises ConfigError where it holds something else."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: byte {error.start} is not UTF-8; save the file in UTF-8"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path} is not YAML: {' '.join(str(error).split())}"]) from None
    if not isinstance(found, dict | None):
        raise ConfigError([f"{path}: expected a mapping, key: value"])
    return found or {}


def repeated_keys(path: Path) -> Iterator[str]:
    """The keys that stand twice in one mapping of a YAML or JSON file, a line each: only the last would count."""
    # JSON may be indented by tabs, YAML may not
    nodes, seen = [yaml.compose(path.read_text(encoding="utf-8").expandtabs())], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias of what was there before
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        if isinstance(node, yaml.MappingNode):
            keys: dict[tuple[str, str], yaml.Node] = {}
            for key, value in node.value:
                nodes.append(value)
                first = keys.setdefault((key.tag, str(key.value)), key)
                if first is not key and key.tag != "tag:yaml.org,2002:merge":
                    there, line = first.start_mark.line + 1, key.start_mark.line + 1
                    yield f"{path}, line {line}: '{key.value}' stands in line {there} too; each key may stand once"


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result
