"""Turns a validated configuration into everything the workflow makes, and knows what each file is called.

Pure but for reading the host's fingerprint. Rules ask it; nothing else builds a path.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os.path import relpath
from pathlib import Path
from typing import Any

from ladder import environment, fingerprint
from ladder.config import PRECISIONS_NEEDING_CALIBRATION, Config, Ladder, Model, factors
from ladder.config import Rung as RungConfig
from ladder.dependencies import ROOT, code_hash
from ladder.errors import ConfigError
from ladder.files import digest
from ladder.stacks.registry import BUILT_IN
from ladder.step import id_path_of

REDUCED_PRECISIONS = PRECISIONS_NEEDING_CALIBRATION  # those with an ONNX file of their own
SAME_ONNX = ("fp32", "tf32", "tf32-conv")  # these run the FP32 file; what differs is the runtime's setting
BY_THE_RUNTIME = {"fp16": "fp32", "bf16": "fp32", "int8-fp16": "int8"}  # whose file a source of fp32-onnx takes


@dataclass(frozen=True)
class Engine:
    """One artifact of one rung: what a stack builds from a model, and what is audited."""

    platform: str
    model: str
    name: str
    rung: dict[str, Any]  # the fields of stacks.base.Rung, without the rung's name
    batch: int | None  # a static engine's batch size
    precision: str

    @property
    def folder(self) -> str:
        return f"artifacts/{self.platform}/{self.model}/{self.name}"

    @property
    def payload(self) -> str:
        return f"{self.folder}/engine"

    @property
    def id(self) -> str:
        return f"{self.folder}/id.json"

    @property
    def build(self) -> str:
        return f"{self.folder}/build.json"

    @property
    def audit(self) -> str:
        return f"results/{self.platform}/audit/{self.model}/{self.name}.json"

    @property
    def verdict(self) -> str:
        return f"results/{self.platform}/audit/{self.model}/{self.name}.pass.json"


@dataclass(frozen=True)
class Round:
    model: str
    ladder: str
    batch: int
    number: int
    platform: str

    @property
    def record(self) -> str:
        return f"results/{self.platform}/rounds/{self.model}/{self.ladder}/b{self.batch}/{self.number}.json"


def export_file(model: str, name: str) -> str:
    """Path of one of a model's own artifacts, e.g. fp32.onnx."""
    return f"artifacts/{model}/{name}"


def python_of(environment: str, config: Config) -> str:
    """The interpreter a stack's processes run in."""
    if environment == "main":
        return relpath(sys.executable)
    entry = config.environments.get(environment)
    return entry.python if entry and entry.python else f".venvs/{environment}/bin/python"


def platform_of(config: Config) -> str:
    """The configured platform; for ``auto`` the first whose device this host has, GPUs before the CPU.

    Raises ConfigError where this host has none of the platforms' devices.
    """
    if config.platform != "auto":
        return config.platform
    for device in ("cuda", "cpu"):
        for name, platform in config.platforms.items():
            if platform.device == device and (device == "cpu" or fingerprint.host(device).get("gpu")):
                return name
    raise ConfigError([f"platform: auto finds the device of none of {', '.join(config.platforms)} on this host"])


class Matrix:
    def __init__(self, config: Config, raw: dict[str, Any]):
        self.config = config
        self.raw = raw  # as it was given, for the report's call
        self.platform = platform_of(config)
        self.device = config.platforms[self.platform].device

    @cached_property
    def host(self) -> dict[str, Any]:
        """The fingerprint that engines and rounds of this platform are keyed by."""
        return fingerprint.host(self.device)

    @cached_property
    def ladders(self) -> dict[str, Ladder]:
        """The ladders of the configured platform, after limits."""
        limits = self.config.limits
        chosen = {}
        for name, ladder in self.config.ladders.items():
            if ladder.platform == self.platform:
                chosen[name] = ladder.model_copy(
                    update={
                        "models": ladder.models[: limits.models],
                        "batches": ladder.batches[: limits.batches],
                        "rounds": min(ladder.rounds, limits.rounds or ladder.rounds),
                    }
                )
        return chosen

    def ladders_with(self, word: str) -> list[str]:
        """Names of the ladders that hold a stack whose api, compiler or device is the word."""
        stacks = self.config.stacks
        return [
            name
            for name, ladder in self.ladders.items()
            if any(word in (s.api, s.compiler, s.device) for s in (stacks[rung.stack] for rung in ladder.rungs))
        ]

    def rounds(self, ladders: list[str] | None = None) -> list[Round]:
        """Every round of the named ladders, first rounds of all before second ones."""
        names = list(self.ladders) if ladders is None else ladders
        found = [
            Round(model, name, batch, number, self.platform)
            for name in names
            for model in self.ladders[name].models
            for batch in self.ladders[name].batches
            for number in range(1, self.ladders[name].rounds + 1)
        ]
        return sorted(found, key=lambda round: round.number)

    @cached_property
    def engines(self) -> dict[tuple[str, str], Engine]:
        """Every engine of the platform by (model, engine name)."""
        return {(engine.model, engine.name): engine for engine in self.engines_of(list(self.ladders))}

    def engine(self, ladder: Ladder, model: str, rung: RungConfig, batch: int) -> Engine:
        """The engine a rung runs at a batch size; rungs that differ in launch or transfers share it."""
        static = rung.shape == "static"
        parts = [rung.stack, rung.precision]
        if static:
            parts.append(f"static-b{batch}")
        if rung.threads:
            parts.append(f"t{rung.threads}")
        if rung.options:
            parts.append(digest(rung.options)[:8])
        described = self.rung(ladder, rung)
        shared = {k: v for k, v in described.items() if k != "name"} | {"launch": "eager", "transfers": "excluded"}
        return Engine(self.platform, model, "-".join(parts), shared, batch if static else None, rung.precision)

    def rung(self, ladder: Ladder, rung: RungConfig) -> dict[str, Any]:
        """The fields of stacks.base.Rung."""
        found = factors(self.config, ladder, rung)
        if found["threads"] == "physical":
            found["threads"] = fingerprint.physical_cores()
        return {"name": rung.name, "stack": rung.stack, **found}

    def model_spec(self, name: str) -> dict[str, Any]:
        """A model's section as the steps get it: what defines the network, not what it is measured with."""
        model = self.config.models[name]
        kept = ("source", "architecture", "input", "opset", "axes", "task")
        spec = {k: getattr(model, k) for k in kept}
        weights = model.weights.model_dump(exclude_none=True)
        return {"name": name, **spec, "weights": weights}

    def data_spec(self, model: str, role: str) -> dict[str, Any]:
        """The data entry a model's inputs or calibration come from."""
        found = self.config.models[model]
        name = (found.calibration or found.data) if role == "calibration" else found.data
        return self.config.data[name].model_dump(exclude_none=True)

    def data_state(self, model: str, role: str) -> str:
        """Names, sizes and times of the user's own data files, so that other ones make the inputs again."""
        data = self.data_spec(model, role)
        path = data.get("npz") or data.get("pictures", "ultralytics")
        return "" if path == "ultralytics" or "generated" in data else _state(Path(path))

    def weights(self, model: str) -> str | None:
        """A model's weights file; None where they are seeded."""
        return export_file(model, "weights.bin") if self.config.models[model].weights.seeded is None else None

    def weights_arguments(self, model: str) -> str:
        """How a script is told of a model's weights."""
        weights = self.weights(model)
        return f"--weights {weights} --weights-id {export_file(model, 'weights.id.json')}" if weights else ""

    def local_weights(self, model: str) -> str:
        """Size and time of the user's own weights file, so that another one is taken up."""
        path = self.config.models[model].weights.path
        return _state(Path(path)) if path else ""

    def onnx(self, engine: Engine) -> str | None:
        """The ONNX file an engine is built from; None for a stack that runs the module."""
        source = self.config.stacks[engine.rung["stack"]].source
        if source == "module":
            return None
        own = BY_THE_RUNTIME.get(engine.precision, engine.precision) if source == "fp32-onnx" else engine.precision
        return export_file(engine.model, f"{_file_precision(own)}.onnx")

    def graph(self, engine: Engine) -> str:
        """What the ONNX file that an engine computes says of its nodes: the FP32 one for a stack that runs a module."""
        return str(Path(self.onnx(engine) or export_file(engine.model, "fp32.onnx")).with_suffix(".graph.json"))

    def converted_graph(self, engine: Engine) -> str | None:
        """The graph of the file converted to an engine's precision, where the runtime makes it from another file."""
        converted = export_file(engine.model, f"{_file_precision(engine.precision)}.graph.json")
        return converted if self.onnx(engine) and converted != self.graph(engine) else None

    def graphs_of(self, ladders: list[str]) -> list[str]:
        return sorted({self.graph(engine) for engine in self.engines_of(ladders)})

    def stack_spec(self, stack: str) -> dict[str, Any]:
        entry = self.config.stacks[stack]
        return {"module": entry.module, "arguments": entry.arguments}

    def python(self, stack: str) -> str:
        return python_of(self.config.stacks[stack].environment, self.config)

    def versions(self, stack: str) -> dict[str, str]:
        """Versions of a stack's distributions, where they can be read from here while planning."""
        entry = self.config.stacks[stack]
        return fingerprint.versions(entry.packages) if entry.environment == "main" else {}

    def conversion_spec(self, model: str) -> dict[str, Any]:
        return self.config.models[model].conversion.model_dump()

    def export_versions(self) -> dict[str, str]:
        return fingerprint.versions(
            ["torch", "torchvision", "ultralytics", "transformers", "onnx", "onnxslim", "onnxruntime"]
        )

    def conversion_versions(self) -> dict[str, str]:
        return fingerprint.versions(["nvidia-modelopt", "onnx", "onnxruntime"])

    def environment_source(self, name: str) -> str:
        """How scripts/environment.py is told what an environment is made from."""
        entry = self.config.environments.get(name)
        if entry and entry.python:
            return f"--python {shlex.quote(entry.python)}"
        return f"--lock {shlex.quote((entry and entry.lock) or self.lock_file(name))}"

    def lock_file(self, name: str) -> str:
        return str(ROOT / "envs" / f"{name}.txt")

    def environment_lock(self, name: str) -> str:
        """Hash of an environment's lock file: its packages, not its comments."""
        entry = self.config.environments.get(name)
        path = Path((entry and entry.lock) or self.lock_file(name))
        lines = path.read_text().splitlines() if path.is_file() else []
        return digest([line for line in lines if line.strip() and not line.startswith("#")])[:16]

    def environment_packages(self, name: str) -> str:
        """What a given interpreter has installed, so that other packages there are taken up; empty for a lock file."""
        entry = self.config.environments.get(name)
        return environment.state(entry.python) if entry and entry.python else ""

    def environment_id(self, stack: str) -> str | None:
        """The id of the environment that a stack's processes need made; None for the workflow's own."""
        name = self.config.stacks[stack].environment
        return None if name == "main" else f"artifacts/environments/{name}.id.json"

    def model_code(self, model: str) -> str:
        return f"ladder.models.{self.config.models[model].source}"

    def faults(self) -> Iterator[str]:
        """What the configuration names and this host lacks, one line each: seen before any job, not after hours."""
        if not self.ladders:
            there = ", ".join(f"{name} ({ladder.platform})" for name, ladder in self.config.ladders.items())
            yield f"platform: no ladder is for '{self.platform}'; ladders: {there}"
        for name in sorted({model for ladder in self.ladders.values() for model in ladder.models}):
            model = self.config.models[name]
            if model.weights.path and not Path(model.weights.path).is_file():
                yield f"models.{name}.weights.path: '{model.weights.path}' is not a file here ({Path.cwd()})"
            if model.source == "ultralytics" and any(side % 32 for side in model.input or []):
                yield f"models.{name}.input: {model.input}: ultralytics' networks take multiples of 32"
            for entry in sorted({model.data, model.calibration or model.data}):
                data = self.config.data[entry]
                if data.npz and not Path(data.npz).is_file():
                    yield f"data.{entry}.npz: '{data.npz}' is not a file here ({Path.cwd()})"
                if data.pictures and data.pictures != "ultralytics":
                    folder = Path(data.pictures)
                    if not folder.is_dir() or not any(folder.iterdir()):
                        yield f"data.{entry}.pictures: '{data.pictures}' is not a folder with pictures ({Path.cwd()})"
        yield from self._name_faults()
        for stack in sorted({rung.stack for ladder in self.ladders.values() for rung in ladder.rungs}):
            module = self.config.stacks[stack].module
            if module.endswith(".py") and not Path(module).is_file():
                yield f"stacks.{stack}.module: '{module}' is not a file here ({Path.cwd()})"
            try:
                code_hash(module)
            except SyntaxError as error:
                yield f"stacks.{stack}.module: {error.filename}, line {error.lineno}: {error.msg}"
            for package in self._missing_packages(stack):
                yield f"stacks.{stack}.packages: '{package}' is not installed in {sys.executable}; pip list names them"

    def _name_faults(self) -> Iterator[str]:
        """Rungs whose engines differ and would still be called the same, so that one took the other's place."""
        named: dict[str, tuple[Engine, str]] = {}
        for name, ladder in self.ladders.items():
            for rung in ladder.rungs:
                where = f"ladders.{name}.rungs.{rung.name}"
                engines = [self.engine(ladder, ladder.models[0], rung, batch) for batch in ladder.batches]
                for engine in {engine.name: engine for engine in engines}.values():
                    other, there = named.setdefault(engine.name, (engine, where))
                    if other.rung != engine.rung:
                        yield (
                            f"{where}: its engine and that of {there} would both be called '{engine.name}'; "
                            f"give the stack '{engine.rung['stack']}' or '{other.rung['stack']}' another name"
                        )

    def _missing_packages(self, stack: str) -> list[str]:
        """Packages that a stack of the user's lists and the workflow's own environment lacks.

        A built-in stack lists what only some models need; that its runtime is missing is told by its engine step.
        """
        entry = self.config.stacks[stack]
        if stack in BUILT_IN or entry.environment != "main":
            return []
        return [package for package in entry.packages if package not in self.versions(stack)]

    # ---- what each step reads, and how its script is told --------------------------------------------

    def engine_inputs(self, engine: Engine) -> dict[str, Any]:
        """The inputs of an engine by name: small ids by content; big files are read beside them."""
        inputs = {"export_id": export_file(engine.model, "fp32.id.json")}
        if environment := self.environment_id(engine.rung["stack"]):
            inputs["environment"] = environment
        if onnx := self.onnx(engine):
            inputs |= {"onnx_id": str(id_path_of(Path(onnx))), "onnx": onnx}
        if weights := self.weights(engine.model):
            inputs |= {"weights_id": export_file(engine.model, "weights.id.json"), "weights": weights}
        return inputs

    def engine_arguments(self, engine: Engine) -> str:
        inputs = self.engine_inputs(engine)
        return " ".join(
            f"--{name.replace('_', '-')} {inputs[name]}"
            for name in ("export_id", "onnx", "weights", "weights_id")
            if name in inputs
        )

    def audit_inputs(self, engine: Engine) -> dict[str, Any]:
        """What an audit reads beside what the engine was built from."""
        onnx = self.onnx(engine)
        return {
            **self.engine_inputs(engine),
            **({"graph": str(Path(onnx).with_suffix(".graph.json"))} if onnx else {}),
            **({"converted": converted} if (converted := self.converted_graph(engine)) else {}),
            "inputs_id": export_file(engine.model, "inputs.id.json"),
            "inputs": export_file(engine.model, "inputs.npz"),
            "reference": export_file(engine.model, "reference.npz"),
            "engine_id": engine.id,
            "engine": engine.payload,
        }

    def audit_arguments(self, engine: Engine) -> str:
        inputs = self.audit_inputs(engine)
        named = ("graph", "converted", "inputs", "reference", "engine_id", "engine")
        return " ".join(
            [self.engine_arguments(engine), f"--build {engine.build}"]
            + [f"--{name.replace('_', '-')} {inputs[name]}" for name in named if name in inputs]
        )

    def environment_argument(self, stack: str) -> str:
        path = self.environment_id(stack)
        return f"--environment {path}" if path else ""

    def engine_code(self, script: str, engine: Engine) -> str:
        """Hash of a script that opens an engine, of its stack and, where that runs the module, of its source."""
        return self._code([f"scripts.{script}"], engine.rung["stack"], engine.model)

    def _code(self, steps: list[str], stack: str, model: str) -> str:
        entry = self.config.stacks[stack]
        return code_hash(*steps, entry.module, *([self.model_code(model)] if entry.source == "module" else []))

    def engines_of(self, ladders: list[str]) -> list[Engine]:
        """The engines of some ladders, each once."""
        found = {
            (engine.model, engine.name): engine
            for name in ladders
            for ladder in [self.ladders[name]]
            for model in ladder.models
            for batch in ladder.batches
            for engine in (self.engine(ladder, model, rung, batch) for rung in ladder.rungs)
        }
        return list(found.values())

    # ---- what each step is told -------------------------------------------------------------------

    def engine_spec(self, engine: Engine) -> dict[str, Any]:
        model = self.config.models[engine.model]
        stack = engine.rung["stack"]
        return {
            "rung": {"name": engine.name, **engine.rung},
            "stack": self.stack_spec(stack),
            "model": self.model_spec(engine.model),
            "profile": _profile(model, engine.batch),
            "batch": engine.batch,
            "fingerprint": {**self.host, "versions": self.versions(stack)},
        }

    def audit_spec(self, engine: Engine) -> dict[str, Any]:
        thresholds = self.config.parity.get(engine.precision)  # type: ignore[call-overload]
        return {
            **self.engine_spec(engine),
            "engine": engine.name,
            "platform": self.platform,
            "thresholds": thresholds.model_dump(exclude_none=True) if thresholds else {},
            "requested_precision": engine.precision,
        }

    def round_spec(self, round: Round) -> dict[str, Any]:
        """Everything a round's result depends on but the contents of the artifacts it names."""
        shared = self._round_settings(round.model, round.ladder, round.batch)
        return {**shared, "round": round.number, "settings": digest(shared)}

    def _round_settings(self, model: str, name: str, batch: int) -> dict[str, Any]:
        """What all rounds of a ladder and batch share. A record keeps its hash, so that no table mixes two of them."""
        ladder = self.ladders[name]
        return {
            "platform": self.platform,
            "device": self.device,
            "ladder": name,
            "model": self.model_spec(model),
            "batch": batch,
            "seed": self.config.seed,
            "measure": self.config.measure.model_dump(),
            "telemetry": None if self.device == "cpu" else self.config.telemetry.model_dump(exclude={"exclude"}),
            "inputs": export_file(model, "inputs.npz"),
            "reference": export_file(model, "reference.npz"),
            "profile": profile_of(self.config.models[model]),
            "fingerprint": self.host,
            "rungs": [self._round_rung(ladder, model, batch, rung) for rung in ladder.rungs],
        }

    def _round_rung(self, ladder: Ladder, model: str, batch: int, rung: RungConfig) -> dict[str, Any]:
        engine = self.engine(ladder, model, rung, batch)
        return {
            "rung": self.rung(ladder, rung),
            "stack": self.stack_spec(rung.stack),
            "python": self.python(rung.stack),
            "versions": self.versions(rung.stack),
            "code": self.round_code(rung.stack, model),
            "engine": engine.payload,
            "engine_id": engine.id,
            "build": engine.build,
            "pass": engine.verdict,
            "export_id": export_file(model, "fp32.id.json"),
            "onnx": self.onnx(engine),
            "weights": self.weights(model),
            "weights_id": self.weights(model) and export_file(model, "weights.id.json"),
        }

    def round_code(self, stack: str, model: str) -> str:
        return self._code(["ladder.round", "scripts.run"], stack, model)

    def round_inputs(self, round: Round) -> dict[str, list[str]]:
        """The small identity files a round depends on, and the big files it reads."""
        ladder = self.ladders[round.ladder]
        engines = [self.engine(ladder, round.model, rung, round.batch) for rung in ladder.rungs]
        onnx = {path for engine in engines if (path := self.onnx(engine))}
        weights = self.weights(round.model)
        return {
            "identities": [
                export_file(round.model, "fp32.id.json"),
                export_file(round.model, "inputs.id.json"),
                *sorted({engine.id for engine in engines}),
                *sorted({engine.verdict for engine in engines}),
            ],
            "files": [
                export_file(round.model, "inputs.npz"),
                export_file(round.model, "reference.npz"),
                *sorted(onnx),
                *sorted({engine.payload for engine in engines}),
                *([weights] if weights else []),
            ],
        }

    @cached_property
    def peaks_stack(self) -> str | None:
        """The stack whose PyTorch measures the device's peaks: one in an environment that the ladders need anyway."""
        environments = {
            self.config.stacks[rung.stack].environment for ladder in self.ladders.values() for rung in ladder.rungs
        }
        return next(
            (
                name
                for name, stack in self.config.stacks.items()
                if stack.api == "pytorch" and stack.device == self.device and stack.environment in environments
            ),
            None,
        )

    @property
    def peaks(self) -> str | None:
        """The file of the measured peaks; None where no PyTorch could measure them."""
        return f"artifacts/{self.platform}/peaks.json" if self.peaks_stack else None

    def peaks_spec(self) -> dict[str, Any]:
        assert self.peaks_stack
        threads = self.config.platforms[self.platform].threads
        return {
            "device": self.device,
            "threads": fingerprint.physical_cores() if threads == "physical" else threads,
            "fingerprint": {**self.host, "versions": {"torch": self.versions(self.peaks_stack).get("torch")}},
        }

    def plan(self, ladders: list[str]) -> dict[str, Any]:
        """What the tables are made for: the named ladders with their rungs and steps."""
        return {
            "platform": self.platform,
            "exclude": self.config.telemetry.exclude,
            "ladders": [
                {
                    "platform": self.platform,
                    "ladder": name,
                    "model": model,
                    "batches": ladder.batches,
                    "rounds": ladder.rounds,
                    "settings": {b: digest(self._round_settings(model, name, b)) for b in ladder.batches},
                    "peaks": self.peaks,
                    "rungs": [self._plan_rung(ladder, model, rung) for rung in ladder.rungs],
                    "steps": [step.model_dump(by_alias=True) for step in ladder.all_steps()],
                }
                for name, ladder in self.ladders.items()
                if name in ladders
                for model in ladder.models
            ],
        }

    def _plan_rung(self, ladder: Ladder, model: str, rung: RungConfig) -> dict[str, Any]:
        engines = {b: self.engine(ladder, model, rung, b) for b in ladder.batches}
        return {
            **self.rung(ladder, rung),
            "engines": {batch: engine.name for batch, engine in engines.items()},
            "source": self.config.stacks[rung.stack].source,
            "graph": self.graph(next(iter(engines.values()))),
        }

    def seconds(self, round: Round) -> float | None:
        """A round's expected length, s; None where fixed iteration counts leave it to the model's speed."""
        settings = self.config.measure
        if settings.iterations is not None:
            return None
        run = STARTUP_SECONDS + settings.pause_seconds + settings.repeats * settings.max_seconds
        return len(self.ladders[round.ladder].rungs) * (run + settings.throughput_seconds)


STARTUP_SECONDS = 2.0  # a process, its imports, the opened engine and warm-up; measured on two cores: 1 to 3 s


def _state(path: Path) -> str:
    """Names, sizes and modification times of a file, or of the files in a folder; empty where there is none."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return digest([[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]) if files else ""


def _file_precision(precision: str) -> str:
    return "fp32" if precision in SAME_ONNX else precision


def profile_of(model: Model) -> dict[str, int]:
    return model.profile.model_dump()


def _profile(model: Model, batch: int | None) -> dict[str, int]:
    return profile_of(model) if batch is None else {"min": batch, "opt": batch, "max": batch}
