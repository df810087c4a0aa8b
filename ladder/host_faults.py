"""What of a configuration cannot be run on this host: seen before any job, not after hours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

from ladder import devices, steps, telemetry
from ladder.dependencies import code_hash
from ladder.errors import ConfigError, StepError
from ladder.matrix import Engine, Matrix
from ladder.stacks.registry import BUILT_IN

CROSS_STACK_PAGE = Path("results/cross_stack.html")
KFD = Path("/dev/kfd")  # without it no process here reaches an AMD GPU


def faults(matrix: Matrix) -> Iterator[str]:
    """What the configuration names and this host lacks, and engines that would share a name, one line each."""
    for platform in matrix.platforms:
        if not any(ladder.platform == platform for ladder in matrix.ladders.values()):
            there = ", ".join(f"{name} ({ladder.platform})" for name, ladder in matrix.config.ladders.items())
            yield f"platform: no ladder is for '{platform}'; ladders: {there}"
        for fault in devices.faults(matrix.device(platform), matrix.gpus(platform)):
            yield f"platforms.{platform}.gpus: {fault}"
    for model in sorted({model for ladder in matrix.ladders.values() for model in ladder.models}):
        yield from _model_faults(matrix, model)
    if undeclared := list(_undeclared(matrix)):
        yield from undeclared
    else:
        yield from _name_faults(matrix)
    for stack in sorted({rung.stack for ladder in matrix.ladders.values() for rung in ladder.rungs}):
        yield from _stack_faults(matrix, stack)


def brought_faults(matrix: Matrix, storage_fault: Callable[[str], str | None]) -> Iterator[str]:
    """Folders of other hosts' results that cannot be read, one line each; ``storage_fault`` tells why a URL cannot."""
    faults = [
        f"cross_stack.results: {fault}"
        for folder in matrix.config.cross_stack.results
        if (fault := _brought_fault(folder, storage_fault))
    ]
    yield from faults
    if faults and CROSS_STACK_PAGE.is_file():
        yield f"{CROSS_STACK_PAGE} is of an earlier call; it says what it was made from"


def _brought_fault(folder: str, storage_fault: Callable[[str], str | None]) -> str | None:
    if any(sign in folder for sign in "{}<>"):
        return f"'{folder}' has braces or <>, which Snakemake takes for names of its own; name a link to it"
    if "://" in folder:
        urls = (f"{folder.rstrip('/')}/{table}" for table in ("results.csv", "summary.json"))
        return next((f"'{url}' {fault}" for url in urls if (fault := storage_fault(url))), None)
    if steps.is_own(folder) and not (Path(folder) / "results.csv").is_file():
        return f"'{folder}' is this host's own and has no results.csv yet; measure first (make bench), or leave it out"
    if os.path.isfile(folder):
        return f"'{folder}' is a file; name the folder that holds results.csv and summary.json"
    if not os.path.isdir(folder):
        return f"'{folder}' is not a folder here ({Path.cwd()})"
    if not os.access(Path(folder) / "results.csv", os.R_OK):
        return f"'{folder}' has no results.csv that can be read; bring results.csv and summary.json of the other host"
    return None


def absent_devices(matrix: Matrix) -> dict[str, str]:
    """Why nothing can be measured here, by platform: those whose GPU this host was to have and does not show.

    Not a fault: any host can plan, some stacks build and audit without their GPU, and the other platforms go on.
    """
    found = {}
    for platform in matrix.platforms:
        device = matrix.device(platform)
        if device == "cpu" or matrix.declaration(platform) or matrix.host(platform).get("gpu"):
            continue
        try:
            telemetry.open_reader(device, next(iter(matrix.gpus(platform)), None))
        except StepError as error:
            found[platform] = str(error)
            if device == "rocm" and not KFD.exists():
                found[platform] = f"there is no {KFD}, which AMD's kernel driver makes"
    return found


def absent_interpreters(matrix: Matrix) -> dict[str, dict[str, list[str]]]:
    """Environments whose named interpreter this host has not, with the stacks that need each, by platform.

    No more a fault than an absent device; a declared host may have what this one lacks.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for ladder in matrix.ladders.values():
        if matrix.declaration(ladder.platform):
            continue
        for stack in dict.fromkeys(rung.stack for rung in ladder.rungs):
            name = matrix.config.stacks[stack].environment
            entry = matrix.config.environments.get(name)
            if entry and entry.python and which(entry.python) is None:
                stacks = found.setdefault(ladder.platform, {}).setdefault(name, [])
                stacks += [] if stack in stacks else [stack]
    return found


def _undeclared(matrix: Matrix) -> Iterator[str]:
    """Platforms whose host is another one that nothing tells of."""
    for platform in matrix.declarations:
        try:
            matrix.host(platform)
        except ConfigError as error:
            yield from error.faults


def _model_faults(matrix: Matrix, name: str) -> Iterator[str]:
    model = matrix.config.models[name]
    if model.weights.path and not Path(model.weights.path).is_file():
        yield f"models.{name}.weights.path: '{model.weights.path}' is not a file here ({Path.cwd()})"
    if model.source == "ultralytics" and any(side % 32 for side in model.input or []):
        yield f"models.{name}.input: {model.input}: ultralytics' networks take multiples of 32"
    for entry in sorted({model.data, model.calibration or model.data}):
        data = matrix.config.data[entry]
        if data.npz and not Path(data.npz).is_file():
            yield f"data.{entry}.npz: '{data.npz}' is not a file here ({Path.cwd()})"
        if data.pictures and data.pictures != "ultralytics":
            folder = Path(data.pictures)
            if not folder.is_dir() or not any(folder.iterdir()):
                yield f"data.{entry}.pictures: '{data.pictures}' is not a folder with pictures ({Path.cwd()})"


def _name_faults(matrix: Matrix) -> Iterator[str]:
    """Rungs whose engines differ and would still be called the same, so that one took the other's place."""
    named: dict[tuple[str, str], tuple[Engine, str]] = {}
    for name, ladder in matrix.ladders.items():
        for rung in ladder.rungs:
            where = f"ladders.{name}.rungs.{rung.name}"
            engines = [matrix.engine(ladder, ladder.models[0], rung, batch) for batch in ladder.batches]
            for engine in {engine.name: engine for engine in engines}.values():
                other, there = named.setdefault((ladder.platform, engine.name), (engine, where))
                if other.rung != engine.rung:
                    yield (
                        f"{where}: its engine and that of {there} would both be called '{engine.name}'; "
                        f"give the stack '{engine.rung['stack']}' or '{other.rung['stack']}' another name"
                    )


def _stack_faults(matrix: Matrix, stack: str) -> Iterator[str]:
    module = matrix.config.stacks[stack].module
    if module.endswith(".py") and not Path(module).is_file():
        yield f"stacks.{stack}.module: '{module}' is not a file here ({Path.cwd()})"
    try:
        code_hash(module)
    except SyntaxError as error:
        yield f"stacks.{stack}.module: {error.filename}, line {error.lineno}: {error.msg}"
    for package in _missing_packages(matrix, stack):
        yield f"stacks.{stack}.packages: '{package}' is not installed in {sys.executable}; pip list names them"


def _missing_packages(matrix: Matrix, stack: str) -> list[str]:
    """Packages that a stack of the user's lists and the workflow's own environment lacks.

    A built-in stack lists what only some models need; that its runtime is missing is told by its engine step.
    """
    entry = matrix.config.stacks[stack]
    if stack in BUILT_IN or entry.environment != "main":
        return []
    installed = steps.versions(matrix, stack)
    return [package for package in entry.packages if package not in installed]
