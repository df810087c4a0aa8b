"""What each step of the workflow reads and is told: the inputs, arguments and parameters of the rules.

Snakemake runs a step again when any of them changes, so each holds what its step's result depends on and nothing else.
Asked while planning only: no step imports this.
"""

from __future__ import annotations

import shlex
import sys
from functools import cache
from os.path import abspath, relpath
from pathlib import Path
from typing import Any

from ladder import environment, fingerprint
from ladder.config import Ladder
from ladder.config import Model as ModelConfig
from ladder.config import Rung as RungConfig
from ladder.dependencies import ROOT, code_hash
from ladder.files import digest, sha256
from ladder.matrix import Engine, Matrix, export_file
from ladder.step import id_path_of
from ladder.weights import label as weights_label

# ---- environments ---------------------------------------------------------------------------------


def environment_source(matrix: Matrix, name: str) -> str:
    """How scripts/environment.py is told what an environment is made from."""
    entry = matrix.config.environments.get(name)
    if entry and entry.python:
        return f"--python {shlex.quote(entry.python)}"
    return f"--lock {shlex.quote(_lock_file(matrix, name))}"


def environment_lock(matrix: Matrix, name: str) -> str:
    """Hash of an environment's lock file and of the .pth file beside it: what they hold, not their comments."""
    path = Path(_lock_file(matrix, name))
    files = [each for each in (path, path.with_suffix(".pth")) if each.is_file()]
    lines = [line for each in files for line in each.read_text().splitlines()]
    return digest([line for line in lines if line.strip() and not line.startswith("#")])[:16]


def _lock_file(matrix: Matrix, name: str) -> str:
    entry = matrix.config.environments.get(name)
    return (entry and entry.lock) or str(ROOT / "envs" / f"{name}.txt")


def environment_packages(matrix: Matrix, name: str) -> str:
    """What a given interpreter has installed, so that other packages there are taken up; empty for a lock file."""
    entry = matrix.config.environments.get(name)
    return environment.state(entry.python) if entry and entry.python else ""


def environment_argument(matrix: Matrix, stack: str) -> str:
    """How scripts/_supervise.py is told of the environment that a stack's step runs in."""
    path = matrix.environment_id(stack)
    return f"--environment {path}" if path else ""


def python(matrix: Matrix, stack: str) -> str:
    """The interpreter a stack's processes run in."""
    name = matrix.config.stacks[stack].environment
    if name == "main":
        return relpath(sys.executable)
    entry = matrix.config.environments.get(name)
    return entry.python if entry and entry.python else f".venvs/{name}/bin/python"


def versions(matrix: Matrix, stack: str) -> dict[str, str]:
    """Versions of a stack's distributions, where they can be read from here while planning."""
    entry = matrix.config.stacks[stack]
    return fingerprint.versions(entry.packages) if entry.environment == "main" else {}


# ---- models: weights, inputs, export, precision -----------------------------------------------------


def model_spec(matrix: Matrix, name: str) -> dict[str, Any]:
    """A model's section as the steps get it: what defines the network, not what it is measured with."""
    model = matrix.config.models[name]
    kept = ("source", "architecture", "input", "opset", "axes", "task")
    spec = {k: getattr(model, k) for k in kept}
    weights = model.weights.model_dump(exclude_none=True)
    return {"name": name, **spec, "weights": weights}


def model_code(matrix: Matrix, model: str) -> str:
    """The module that makes a model, whose code its steps depend on."""
    return f"ladder.models.{matrix.config.models[model].source}"


def local_weights(matrix: Matrix, model: str) -> str:
    """Size and time of the user's own weights file, so that another one is taken up."""
    path = matrix.config.models[model].weights.path
    return _state(Path(path)) if path else ""


def drawing_versions(matrix: Matrix, model: str) -> dict[str, str]:
    """Versions of what draws seeded weights; none for a file."""
    section = matrix.config.models[model]
    return {} if section.weights.seeded is None else fingerprint.versions(["torch", section.source])


def data_spec(matrix: Matrix, model: str, role: str) -> dict[str, Any]:
    """The data entry a model's inputs or calibration come from."""
    found = matrix.config.models[model]
    name = (found.calibration or found.data) if role == "calibration" else found.data
    return matrix.config.data[name].model_dump(exclude_none=True)


def data_state(matrix: Matrix, model: str, role: str) -> str:
    """Names, sizes and times of the user's own data files, so that other ones make the inputs again."""
    data = data_spec(matrix, model, role)
    path = data.get("npz") or data.get("pictures", "ultralytics")
    return "" if path == "ultralytics" or "generated" in data else _state(Path(path))


def _state(path: Path) -> str:
    """Names, sizes and modification times of a file, or of the files in a folder; empty where there is none."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return digest([[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]) if files else ""


def export_versions() -> dict[str, str]:
    """Versions of what exports a model."""
    return fingerprint.versions(
        ["torch", "torchvision", "ultralytics", "transformers", "onnx", "onnxslim", "onnxruntime"]
    )


def conversion_spec(matrix: Matrix, model: str) -> dict[str, Any]:
    """How a model's reduced-precision files are made."""
    return matrix.config.models[model].conversion.model_dump()


def conversion_versions() -> dict[str, str]:
    """Versions of what converts a model to a reduced precision."""
    return fingerprint.versions(["nvidia-modelopt", "onnx", "onnxruntime"])


# ---- engines and their audits -----------------------------------------------------------------------


def engine_inputs(matrix: Matrix, engine: Engine) -> dict[str, Any]:
    """The inputs of an engine by name: small ids by content; big files are read beside them."""
    inputs = {"export_id": export_file(engine.model, "fp32.id.json")}
    if environment_id := matrix.environment_id(engine.rung["stack"]):
        inputs["environment"] = environment_id
    for name, path in (("onnx", matrix.onnx(engine)), ("weights", matrix.weights(engine))):
        if path:
            inputs |= {f"{name}_id": str(id_path_of(Path(path))), name: path}
    return inputs


def engine_arguments(matrix: Matrix, engine: Engine) -> str:
    """How scripts/engine.py is told of an engine's inputs."""
    inputs = engine_inputs(matrix, engine)
    return " ".join(
        f"--{name.replace('_', '-')} {inputs[name]}"
        for name in ("export_id", "onnx", "weights", "weights_id")
        if name in inputs
    )


def engine_spec(matrix: Matrix, engine: Engine) -> dict[str, Any]:
    """Everything an engine depends on but its inputs and the code that builds it."""
    stack = engine.rung["stack"]
    static = None if engine.batch is None else {"min": engine.batch, "opt": engine.batch, "max": engine.batch}
    return {
        "rung": {"name": engine.name, **engine.rung},
        "stack": _stack_spec(matrix, stack),
        "model": model_spec(matrix, engine.model),
        "profile": static or _profile(matrix, engine.model),
        "batch": engine.batch,
        "fingerprint": {**matrix.host(engine.platform), "versions": versions(matrix, stack)},
    }


def engine_code(matrix: Matrix, script: str, engine: Engine) -> str:
    """Hash of a script that opens an engine, of its stack and, where that runs the module, of its source."""
    return _code(matrix, [f"scripts.{script}"], engine.rung["stack"], engine.model)


def audit_inputs(matrix: Matrix, engine: Engine) -> dict[str, Any]:
    """What an audit reads beside what the engine was built from."""
    onnx = matrix.onnx(engine)
    return {
        **engine_inputs(matrix, engine),
        **({"graph": str(Path(onnx).with_suffix(".graph.json"))} if onnx else {}),
        **({"converted": converted} if (converted := matrix.converted_graph(engine)) else {}),
        "inputs_id": export_file(engine.model, "inputs.id.json"),
        "inputs": export_file(engine.model, "inputs.npz"),
        "reference": export_file(engine.model, "reference.npz"),
        "engine_id": engine.id,
        "engine": engine.payload,
    }


def audit_arguments(matrix: Matrix, engine: Engine) -> str:
    """How scripts/audit_engine.py is told of an audit's inputs."""
    inputs = audit_inputs(matrix, engine)
    named = ("graph", "converted", "inputs", "reference", "engine_id", "engine")
    return " ".join(
        [engine_arguments(matrix, engine), f"--build {engine.build}"]
        + [f"--{name.replace('_', '-')} {inputs[name]}" for name in named if name in inputs]
    )


def audit_spec(matrix: Matrix, engine: Engine) -> dict[str, Any]:
    """An engine's specification and what its audit holds it to."""
    thresholds = matrix.config.parity.get(engine.precision)  # type: ignore[call-overload]
    return {
        **engine_spec(matrix, engine),
        "engine": engine.name,
        "platform": engine.platform,
        "thresholds": thresholds.model_dump(exclude_none=True) if thresholds else {},
        "requested_precision": engine.precision,
    }


def _stack_spec(matrix: Matrix, stack: str) -> dict[str, Any]:
    entry = matrix.config.stacks[stack]
    return {"module": entry.module, "arguments": entry.arguments}


def _profile(matrix: Matrix, model: str) -> dict[str, int]:
    """The batch sizes that a model's dynamic engines are built for."""
    return matrix.config.models[model].profile.model_dump()


def _code(matrix: Matrix, steps: list[str], stack: str, model: str) -> str:
    entry = matrix.config.stacks[stack]
    return code_hash(*steps, entry.module, *([model_code(matrix, model)] if entry.source == "module" else []))


# ---- what is measured -------------------------------------------------------------------------------


@cache  # rounds of one ladder and batch differ in their number only, and there may be thousands
def round_inputs(matrix: Matrix, model: str, name: str, batch: int) -> dict[str, list[str]]:
    """The small identity files that the rounds of a ladder and batch depend on, and the big files they read."""
    ladder = matrix.ladders[name]
    engines = [matrix.engine(ladder, model, rung, batch) for rung in ladder.rungs]
    networks = {path for engine in engines for path in (matrix.onnx(engine), matrix.weights(engine)) if path}
    return {
        "identities": [
            export_file(model, "fp32.id.json"),
            export_file(model, "inputs.id.json"),
            *sorted({engine.id for engine in engines}),
            *sorted({engine.verdict for engine in engines}),
        ],
        "files": [
            export_file(model, "inputs.npz"),
            export_file(model, "reference.npz"),
            *sorted(networks),
            *sorted({engine.payload for engine in engines}),
        ],
    }


@cache
def round_spec(matrix: Matrix, model: str, name: str, batch: int) -> dict[str, Any]:
    """Everything the rounds of a ladder and batch depend on but their number and the contents of what it names.

    A record keeps ``settings``, a hash of all the rest, so that no table mixes two of them.
    """
    ladder = matrix.ladders[name]
    config, device = matrix.config, matrix.device(ladder.platform)
    spec = {
        "platform": ladder.platform,
        "device": device,
        "ladder": name,
        "model": model_spec(matrix, model),
        "batch": batch,
        "seed": config.seed,
        "measure": config.measure.model_dump(),
        "telemetry": None if device == "cpu" else config.telemetry.model_dump(exclude={"exclude"}),
        "exclusive_host": config.platforms[ladder.platform].exclusive_host,
        "inputs": export_file(model, "inputs.npz"),
        "reference": export_file(model, "reference.npz"),
        "profile": _profile(matrix, model),
        "fingerprint": matrix.host(ladder.platform),
        "rungs": [_round_rung(matrix, ladder, model, batch, rung) for rung in ladder.rungs],
    }
    return {**spec, "settings": digest(spec)}


def _round_rung(matrix: Matrix, ladder: Ladder, model: str, batch: int, rung: RungConfig) -> dict[str, Any]:
    engine = matrix.engine(ladder, model, rung, batch)
    weights = matrix.weights(engine)
    return {
        "rung": matrix.rung(ladder, rung),
        "stack": _stack_spec(matrix, rung.stack),
        "python": python(matrix, rung.stack),
        "versions": versions(matrix, rung.stack),
        "code": _code(matrix, ["ladder.round", "scripts.run"], rung.stack, model),
        "engine": engine.payload,
        "engine_id": engine.id,
        "build": engine.build,
        "pass": engine.verdict,
        "export_id": export_file(model, "fp32.id.json"),
        "onnx": matrix.onnx(engine),
        "weights": weights,
        "weights_id": weights and str(id_path_of(Path(weights))),
    }


def peaks_spec(matrix: Matrix, platform: str) -> dict[str, Any]:
    """What the measuring of a device's peaks depends on; only where ``matrix.peaks_stack`` names who measures."""
    stack, host = matrix.peaks_stack(platform), matrix.host(platform)
    threads = matrix.config.platforms[platform].threads
    assert stack
    return {
        "device": matrix.device(platform),
        "threads": host["physical_cores"] if threads == "physical" else threads,
        "fingerprint": {**host, "versions": {"torch": versions(matrix, stack).get("torch")}},
    }


# ---- tables -----------------------------------------------------------------------------------------


def plan(matrix: Matrix, ladders: list[str]) -> dict[str, Any]:
    """What the tables are made for: the named ladders with their rungs and steps."""
    return {
        "exclude": matrix.config.telemetry.exclude,
        "protocol": _protocol(matrix),
        "ladders": [
            {
                "platform": ladder.platform,
                "ladder": name,
                "model": model,
                "weights": _weights_told(matrix, model),
                "batches": ladder.batches,
                "rounds": ladder.rounds,
                "settings": {b: round_spec(matrix, model, name, b)["settings"] for b in ladder.batches},
                "peaks": matrix.peaks(ladder.platform),
                "rungs": [_plan_rung(matrix, ladder, model, rung) for rung in ladder.rungs],
                "steps": [step.model_dump(by_alias=True) for step in ladder.all_steps()],
            }
            for name, ladder in matrix.ladders.items()
            if name in ladders
            for model in ladder.models
        ],
    }


def _weights_told(matrix: Matrix, model: str) -> str | None:
    """The label of a model's weights as far as its section tells: a file without a pin is known once it is there."""
    spec = model_spec(matrix, model)
    return weights_label(spec) if spec["weights"].keys() & {"seeded", "sha256"} else None


def _protocol(matrix: Matrix) -> dict[str, Any]:
    """How runs are timed, and on inputs of which size: what two hosts must have in common to be compared."""
    models = {model: matrix.config.models[model] for ladder in matrix.ladders.values() for model in ladder.models}
    return {
        "measure": matrix.config.measure.model_dump(exclude={"timeout_seconds"}),
        "timing_code": code_hash("ladder.measure"),
        "inputs": {name: _input_size(model) for name, model in models.items()},
    }


def _input_size(model: ModelConfig) -> dict[str, int]:
    """Length of every dynamic axis but the batch."""
    size = dict(zip(("height", "width"), model.input or (), strict=False))
    return size | {axis: length for axis, length in model.axes.items() if isinstance(length, int)}


def _plan_rung(matrix: Matrix, ladder: Ladder, model: str, rung: RungConfig) -> dict[str, Any]:
    engines = {b: matrix.engine(ladder, model, rung, b) for b in ladder.batches}
    return {
        **matrix.rung(ladder, rung),
        "engines": {batch: engine.name for batch, engine in engines.items()},
        "source": matrix.config.stacks[rung.stack].source,
        "graph": matrix.graph(next(iter(engines.values()))),
    }


# ---- several hosts ----------------------------------------------------------------------------------


def is_own(folder: str) -> bool:
    """Whether it is where this host's own results are."""
    return abspath(folder) == abspath("results")


def brought(matrix: Matrix, table: str) -> list[str]:
    """Paths, or storage URLs, of a table in the folders of other hosts; a local one may be without its summary."""
    paths = [f"{folder.rstrip('/')}/{table}" for folder in matrix.config.cross_stack.results if not is_own(folder)]
    return [path for path in paths if "://" in path or table == "results.csv" or Path(path).is_file()]


def own_folders(matrix: Matrix) -> list[str]:
    """This host's own folder as it is named. As inputs its tables would be made first, rounds and all."""
    return [folder for folder in matrix.config.cross_stack.results if is_own(folder)]


def own_tables(matrix: Matrix) -> list[str]:
    """Hashes of this host's own tables, if they are named and there."""
    paths = [Path(folder) / table for folder in own_folders(matrix) for table in ("results.csv", "summary.json")]
    return [sha256(path) for path in paths if path.is_file()]
