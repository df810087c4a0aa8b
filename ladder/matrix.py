"""Turns a validated configuration into everything the workflow makes, and knows what each file is called.

Pure but for reading hosts' fingerprints. What the steps that make it read and are told is in ladder/steps.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ladder import fingerprint
from ladder.config import PRECISIONS_NEEDING_CALIBRATION, Config, Device, Ladder, factors
from ladder.config import Rung as RungConfig
from ladder.errors import ConfigError, StepError
from ladder.files import digest

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


def platforms_of(config: Config) -> list[str]:
    """The configured platforms; for ``auto`` the first whose device this host has, GPUs before the CPU.

    Raises ConfigError where this host has none of the platforms' devices.
    """
    if isinstance(config.platform, list):
        return config.platform
    if config.platform != "auto":
        return [config.platform]
    for device in ("cuda", "rocm", "cpu"):
        for name, platform in config.platforms.items():
            if platform.device == device and _is_here(device):
                return [name]
    raise ConfigError([f"platform: auto finds the device of none of {', '.join(config.platforms)} on this host"])


def _is_here(device: str) -> bool:
    """Whether this host has a kind of device and, for an AMD GPU, ROCm: without it nothing here runs on one."""
    gpu = fingerprint.host(device).get("gpu") or {}
    return device == "cpu" or ("rocm" in gpu if device == "rocm" else bool(gpu))


class Matrix:
    def __init__(self, config: Config, raw: dict[str, Any]):
        self.config = config
        self.raw = raw  # as it was given, for the report's call
        self.platforms = platforms_of(config)

    def device(self, platform: str) -> Device:
        return self.config.platforms[platform].device

    def gpus(self, platform: str) -> list[str]:
        """The GPUs of a platform, by number or UUID; none: the first that a process sees."""
        return [str(gpu) for gpu in self.config.platforms[platform].gpus]

    def rounds_at_once(self, platform: str) -> int:
        """How many of a platform's rounds may run beside each other on this host."""
        alone = self.config.platforms[platform].exclusive_host
        return 1 if alone else max(1, len(self.gpus(platform)))

    def gpu_turn(self, name: str, model: str) -> int:
        """The place, among its platform's GPUs, of the one a ladder prefers for a model: ladders take turns."""
        return self._turns[name, model] % max(1, len(self.gpus(self.ladders[name].platform)))

    @cached_property
    def _turns(self) -> dict[tuple[str, str], int]:
        """The place of every ladder and model among those of its platform."""
        return {
            pair: place
            for platform in self.platforms
            for place, pair in enumerate(
                (name, model)
                for name, ladder in self.ladders.items()
                if ladder.platform == platform
                for model in ladder.models
            )
        }

    def declaration(self, platform: str) -> str | None:
        """The file that ``snakemake fingerprint`` leaves of another host; None for a platform that is this host."""
        return f"artifacts/{platform}/host.json" if self.config.platforms[platform].host == "declared" else None

    @property
    def declarations(self) -> dict[str, str]:
        """The declarations of the configured platforms, by platform, whether they are there or not."""
        return {platform: path for platform in self.platforms if (path := self.declaration(platform))}

    @cache  # noqa: B019 - a matrix lives as long as its process
    def host(self, platform: str) -> dict[str, Any]:
        """The fingerprint that a platform's engines and rounds are keyed by.

        Raises ConfigError where it is another host's that was not declared yet, not wholly, or not for this device.
        """
        path, device = self.declaration(platform), self.device(platform)
        if path is None:
            return fingerprint.host(device, next(iter(self.gpus(platform)), None))
        where = f"platforms.{platform}.host: declared, but {path}"
        try:
            declared = fingerprint.read_declaration(Path(path))
        except FileNotFoundError:
            told = "call `snakemake fingerprint` first, with your cluster's profile"
            raise ConfigError([f"{where} is not there; {told}"]) from None
        except StepError as error:
            raise ConfigError([f"platforms.{platform}.host: declared, but {error}"]) from None
        if declared["device"] != device:
            raise ConfigError(
                [f"{where} is of its {declared['device']}; call `snakemake fingerprint` for its {device}"]
            )
        return declared["fingerprint"]

    @cached_property
    def ladders(self) -> dict[str, Ladder]:
        """The ladders of the configured platforms, after limits."""
        limits = self.config.limits
        chosen = {}
        for name, ladder in self.config.ladders.items():
            if ladder.platform in self.platforms:
                chosen[name] = ladder.model_copy(
                    update={
                        "models": ladder.models[: limits.models],
                        "batches": ladder.batches[: limits.batches],
                        "rounds": min(ladder.rounds, limits.rounds or ladder.rounds),
                    }
                )
        return chosen

    def ladders_with(self, word: str, ladders: Mapping[str, Ladder] | None = None) -> list[str]:
        """Names of the configured platforms' ladders, or of these, with a stack of this api, compiler or device."""
        stacks = self.config.stacks
        return [
            name
            for name, ladder in (self.ladders if ladders is None else ladders).items()
            if any(word in (s.api, s.compiler, s.device) for s in (stacks[rung.stack] for rung in ladder.rungs))
        ]

    def rounds(self, ladders: list[str] | None = None) -> list[Round]:
        """Every round of the named ladders, first rounds of all before second ones."""
        names = list(self.ladders) if ladders is None else ladders
        found = [
            Round(model, name, batch, number, self.ladders[name].platform)
            for name in names
            for model in self.ladders[name].models
            for batch in self.ladders[name].batches
            for number in range(1, self.ladders[name].rounds + 1)
        ]
        return sorted(found, key=lambda round: round.number)

    @cached_property
    def engines(self) -> dict[tuple[str, str, str], Engine]:
        """Every engine of the platforms by (platform, model, engine name)."""
        return {(e.platform, e.model, e.name): e for e in self.engines_of(list(self.ladders))}

    def engines_of(self, ladders: list[str]) -> list[Engine]:
        """The engines of some ladders, each once."""
        found = {
            engine.id: engine
            for name in ladders
            for ladder in [self.ladders[name]]
            for model in ladder.models
            for batch in ladder.batches
            for engine in (self.engine(ladder, model, rung, batch) for rung in ladder.rungs)
        }
        return list(found.values())

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
        return Engine(ladder.platform, model, "-".join(parts), shared, batch if static else None, rung.precision)

    def rung(self, ladder: Ladder, rung: RungConfig) -> dict[str, Any]:
        """The fields of stacks.base.Rung."""
        found = factors(self.config, ladder, rung)
        if found["threads"] == "physical":
            found["threads"] = self.host(ladder.platform)["physical_cores"]
        return {"name": rung.name, "stack": rung.stack, **found}

    def onnx(self, engine: Engine) -> str | None:
        """The ONNX file an engine is built from; None for a stack that runs the module."""
        source = self.config.stacks[engine.rung["stack"]].source
        if source == "module":
            return None
        own = BY_THE_RUNTIME.get(engine.precision, engine.precision) if source == "fp32-onnx" else engine.precision
        return export_file(engine.model, f"{_file_precision(own)}.onnx")

    def weights(self, engine: Engine) -> str | None:
        """The weights an engine's module is loaded with; None for a stack that starts from an ONNX file."""
        return None if self.onnx(engine) else export_file(engine.model, "weights.bin")

    def graph(self, engine: Engine) -> str:
        """What the ONNX file that an engine computes says of its nodes: the FP32 one for a stack that runs a module."""
        return str(Path(self.onnx(engine) or export_file(engine.model, "fp32.onnx")).with_suffix(".graph.json"))

    def converted_graph(self, engine: Engine) -> str | None:
        """The graph of the file converted to an engine's precision, where the runtime makes it from another file."""
        converted = export_file(engine.model, f"{_file_precision(engine.precision)}.graph.json")
        return converted if self.onnx(engine) and converted != self.graph(engine) else None

    def graphs_of(self, ladders: list[str]) -> list[str]:
        return sorted({self.graph(engine) for engine in self.engines_of(ladders)})

    def environment_id(self, stack: str) -> str | None:
        """The id of the environment that a stack's processes need made; None for the workflow's own."""
        name = self.config.stacks[stack].environment
        return None if name == "main" else f"artifacts/environments/{name}.id.json"

    def peaks_stack(self, platform: str) -> str | None:
        """The stack whose PyTorch measures the device's peaks: one in an environment that the ladders need anyway."""
        environments = {
            self.config.stacks[rung.stack].environment
            for ladder in self.ladders.values()
            if ladder.platform == platform
            for rung in ladder.rungs
        }
        return next(
            (
                name
                for name, stack in self.config.stacks.items()
                if stack.api == "pytorch"
                and stack.device == self.device(platform)
                and stack.environment in environments
            ),
            None,
        )

    def peaks(self, platform: str) -> str | None:
        """The file of a platform's measured peaks; None where no PyTorch could measure them."""
        return f"artifacts/{platform}/peaks.json" if self.peaks_stack(platform) else None


def _file_precision(precision: str) -> str:
    return "fp32" if precision in SAME_ONNX else precision
