"""The configuration: every setting documented where it is defined, every fault found before any job.

``load`` returns a validated ``Config`` or raises ConfigError with one line a fault. The JSON schema
under schemas/ is exported from these classes by ``python -m ladder.config``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag, ValidationError, model_validator

from ladder import causes, parity
from ladder.errors import ConfigError
from ladder.stacks.registry import BUILT_IN

PRECISIONS_NEEDING_CALIBRATION = ("fp16", "bf16", "int8", "int8-fp16")

# a file system's names have 255 bytes at most, and an engine's name adds to its stack's
Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, description="becomes part of paths"),
]
Text = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=604800)]  # at most a week
SomeSeconds = Annotated[float, Field(gt=0, le=604800)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Batch = Annotated[int, Field(ge=1, le=65536, description="Images a launch, 1 to 65536.")]
Threads = Annotated[int, Field(ge=1, le=1024, description="1 to 1024.")]
Device = Literal["cpu", "cuda", "rocm"]
Precision = Literal["fp32", "tf32", "tf32-conv", "fp16", "bf16", "int8", "int8-fp16"]
Launch = Literal["eager", "graph"]
Shape = Literal["dynamic", "static"]
Cause = Literal["launch", "compilation", "wrapper", "precision", "specialisation", "tuning", "none"]


class Section(BaseModel):
    # strict: a quoted number or a yes is a slip, not a number; whole numbers are still taken for floats.
    # validate_default: a default left out and the same one written out must be one value, 0.0, or their hashes differ
    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, strict=True, allow_inf_nan=False, validate_default=True
    )


# the profile gives these to each kind of step, and what it sets wins over a platform's resources
OF_THE_PROFILE = ("disk", "disk_mb", "host", "mem", "mem_mb", "runtime", "tmpdir")
# what Slurm's executor knows with slurm_ before it and without; any other name with slurm_ it passes over in silence.
# Source: snakemake-executor-plugin-slurm 2.8.0, docs/further.md; slurm_nodes: its jobstep plugin 0.6.1
SLURM_NAMES = (
    "slurm_account", "slurm_cluster", "slurm_extra", "slurm_nodes", "slurm_partition", "slurm_requeue",
)  # fmt: skip
SLURM_OTHERS = (
    "clusters", "constraint", "cpus_per_gpu", "cpus_per_task", "gpu", "gpu_model", "gres", "mem_mb_per_cpu", "mpi",
    "qos", "tasks", "tasks_per_gpu", "tasks_per_node",
)  # fmt: skip
Resource = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)]


class Platform(Section):
    """A kind of host."""

    device: Device = Field("cpu", description="What its ladders run on.")
    threads: Threads | Literal["physical"] = Field(
        "physical",
        description="Threads of every CPU rung that names none: 1 to 1024, or the host's physical cores.",
    )
    host: Literal["local", "declared"] = Field(
        "local",
        description="local: the host that the workflow is called on. declared: another one, such as a cluster's node; "
        "`snakemake fingerprint` asks it what it is, and every build and round there must find the same.",
    )
    gpus: list[Annotated[int, Field(ge=0)] | Text] = Field(
        default_factory=list,
        description="Its GPUs, by number (as nvidia-smi or HIP counts) or UUID; a ladder stays on one of them. "
        "Empty: the first that the caller sees.",
    )
    exclusive_host: bool = Field(
        True, description="One round at a time on the host, whatever it runs on. false: one on each GPU."
    )
    resources: dict[Resource, int | Text] = Field(
        default_factory=dict,
        description="Snakemake's resources of every job that needs the device, for a cluster: partition, GPU, CPUs.",
    )

    @model_validator(mode="after")
    def _gpus_are_here(self) -> Platform:
        if self.device == "cpu" and (self.gpus or not self.exclusive_host):
            raise ValueError("gpus and exclusive_host: false are for platforms with a GPU; this one is a cpu")
        if self.host == "declared" and self.gpus:
            raise ValueError("gpus: the cluster gives each job of a declared host its GPU; leave them out")
        return self

    @model_validator(mode="after")
    def _profile_has_the_rest(self) -> Platform:
        if taken := [name for name in self.resources if name in OF_THE_PROFILE]:
            raise ValueError(f"resources: {', '.join(taken)}: the profile gives these to each kind of step")
        return self


class Environment(Section):
    """Where a stack's Python lives: made from a lock file, or an interpreter that is already there."""

    lock: Text | None = Field(None, description="Requirements file, every version pinned, for pip install --no-deps.")
    python: Text | None = Field(None, description="Path of an interpreter to use as it is.")

    @model_validator(mode="after")
    def _one(self) -> Environment:
        if (self.lock is None) == (self.python is None):
            raise ValueError("needs exactly one of 'lock' and 'python'")
        return self


MAIN = Environment(lock="envs/main.txt")  # the workflow's own Python, made by make


class Stack(Section):
    """A runtime on a device; the built-in ones are listed in ladder/stacks/registry.py."""

    module: Text = Field(description="Python module, or path of a .py file, that defines create(**arguments).")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="Passed to create(), as JSON.")
    environment: Name = Field("main", description="The environment its processes run in.")
    device: Device
    api: Text
    compiler: Literal["none", "inductor", "onnxruntime", "openvino", "tensorrt", "migraphx"] | Text
    source: Literal["onnx", "fp32-onnx", "module"] = Field(
        "onnx",
        description="What it starts from: the ONNX file of the rung's precision; the FP32 one where the runtime lowers "
        "to FP16 and BF16 by itself (INT8 keeps its Q/DQ file); or the PyTorch module.",
    )
    precisions: list[Precision] = ["fp32"]
    launches: list[Launch] = ["eager"]
    shapes: list[Shape] = ["dynamic", "static"]
    packages: list[Text] = Field(default_factory=list, description="Distributions whose versions identify it.")


class Weights(Section):
    """Where a model's weights come from. Exactly one of seeded, path, url, pretrained."""

    seeded: Seed | None = Field(None, description="Random weights from this seed.")
    path: Text | None = Field(None, description="A local file; a pickle (.pt, .pth) needs its sha256.")
    url: Text | None = Field(None, description="Fetched by its own rule; needs its sha256.")
    sha256: Sha256 | None = None
    pretrained: Literal[True] | None = Field(None, description="torchvision's own weights, checked by hash.")

    @model_validator(mode="after")
    def _one(self) -> Weights:
        given = [k for k in ("seeded", "path", "url", "pretrained") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of seeded, path, url, pretrained; has {', '.join(given) or 'none'}")
        if self.url and not self.sha256:
            raise ValueError("a url needs the sha256 of the file it serves")
        if self.path and not self.path.endswith(".onnx") and not self.sha256:
            raise ValueError(f"'{self.path}' is a pickle, which runs code when loaded: pin its sha256")
        return self


class Profile(Section):
    """Batch sizes an engine is built for. Never derived from the batches measured."""

    min: Batch = 1
    opt: Batch = 1
    max: Batch = 8

    @model_validator(mode="after")
    def _ordered(self) -> Profile:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"needs min <= opt <= max, has {self.min}, {self.opt}, {self.max}")
        return self


class Conversion(Section):
    """How reduced-precision ONNX files are made (NVIDIA ModelOpt)."""

    calibration_method: Literal["max", "entropy"] = Field("max", description="How INT8 ranges are chosen.")
    data_max: Annotated[float, Field(gt=0)] = Field(512, description="FP16: a node with larger values stays FP32.")
    exclude_nodes: list[str] = Field(default_factory=list, description="Node names that stay FP32.")
    exclude_ops: list[str] = Field(default_factory=list, description="Operator types that stay FP32.")


class Model(Section):
    source: Literal["ultralytics", "torchvision", "transformers", "onnx"]
    architecture: str | None = Field(None, description="yolo11n.yaml, resnet50, bert-base, …; empty for a .pt or .onnx")
    weights: Weights
    input: list[Positive] | None = Field(None, description="[height, width] of a picture input, pixels.")
    axes: dict[str, Positive | Literal["batch"]] = Field(
        default_factory=dict,
        description="Value of each dynamic ONNX axis by its name; 'batch' marks the batch axis. An ONNX file needs all "
        "of its own; other sources know theirs.",
    )
    opset: Annotated[int, Field(ge=11, le=23)] = 17
    profile: Profile = Field(default_factory=Profile)
    task: Literal["detection", "generic"] = Field(
        "generic", description="Detectors have boxes and scores judged apart."
    )
    data: Name = Field(description="Entry of 'data' for timing and parity.")
    calibration: Name | None = Field(
        None, description="Entry of 'data' for calibration; empty: the same, unless that is random."
    )
    conversion: Conversion = Field(default_factory=Conversion)

    @model_validator(mode="after")
    def _fits(self) -> Model:
        if self.input is not None and len(self.input) != 2:
            raise ValueError("input must be [height, width]")
        if self.source in ("torchvision", "transformers") and not self.architecture:
            raise ValueError(f"source '{self.source}' needs an architecture")
        if self.source == "ultralytics" and (self.weights.seeded is not None) != bool(self.architecture):
            raise ValueError(
                "ultralytics takes an architecture with seeded weights, or a .pt file without architecture"
            )
        if self.source in ("ultralytics", "torchvision") and self.input is None:
            raise ValueError("a picture model needs input: [height, width]")
        if self.weights.pretrained and self.source != "torchvision":
            raise ValueError("pretrained weights are torchvision's; give a path or url with its sha256")
        if self.source == "onnx" and self.weights.seeded is not None:
            raise ValueError("an ONNX file brings its own weights: give its path or url")
        return self


class Generated(Section):
    dtype: Literal[
        "float64", "float32", "float16", "int64", "int32", "int16", "int8",
        "uint64", "uint32", "uint16", "uint8", "bool",
    ]  # fmt: skip
    low: float = 0
    high: float = 1


class Generator(Section):
    seed: Seed = 0
    samples: Positive = 8
    inputs: dict[str, Generated] = Field(min_length=1)


class Data(Section):
    """Inputs: a picture folder, an .npz keyed by input name, or a seeded generator."""

    pictures: Text | None = Field(None, description="A folder of pictures, or 'ultralytics' for its own two.")
    npz: Text | None = None
    generated: Generator | None = None

    @model_validator(mode="after")
    def _one(self) -> Data:
        if sum(v is not None for v in (self.pictures, self.npz, self.generated)) != 1:
            raise ValueError("needs exactly one of pictures, npz, generated")
        return self


class Rung(Section):
    name: Name
    stack: str
    precision: Precision = "fp32"
    launch: Launch = "eager"
    shape: Shape = "dynamic"
    transfers: Literal["excluded", "included"] = "excluded"
    threads: Threads | None = Field(None, description="1 to 1024; empty: the platform's.")
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="Passed to the stack, as JSON; part of the factors."
    )


class Step(Section):
    from_: str = Field(alias="from")
    to: str
    cause: Cause


# a step by its ends, or the bare cause of a step between neighbours; the tags keep error messages to one of the two
StepOrCause = Annotated[
    Annotated[Step, Tag("{step}")] | Annotated[Cause, Tag("{cause}")],
    Discriminator(lambda value: "{cause}" if isinstance(value, str) else "{step}"),
]


class Ladder(Section):
    platform: Name
    models: list[Name] = Field(min_length=1)
    batches: list[Batch] = Field(min_length=1)
    rounds: Annotated[int, Field(ge=1, le=10000)] = Field(8, description="1 to 10000; fewer than 6 give no verdict.")
    rungs: list[Rung] = Field(min_length=1)
    steps: list[StepOrCause] = Field(description="{from, to, cause} each; or the causes between neighbours.")

    @model_validator(mode="after")
    def _one_kind(self) -> Ladder:
        bare = sum(isinstance(step, str) for step in self.steps)
        if bare not in (0, len(self.steps)):
            raise ValueError("steps are all {from, to, cause}, or all bare causes between neighbours, not both")
        if bare and bare != len(self.rungs) - 1:
            raise ValueError(
                f"{bare} bare causes for {len(self.rungs)} rungs; a plain list has one between neighbours, "
                f"{len(self.rungs) - 1} here"
            )
        return self

    def all_steps(self) -> list[Step]:
        """The steps by their ends, bare causes resolved to neighbours."""
        given = [step for step in self.steps if isinstance(step, Step)]
        if given:
            return given
        names = [rung.name for rung in self.rungs]
        return [
            Step.model_validate({"from": first, "to": second, "cause": cause})
            for first, second, cause in zip(names, names[1:], self.steps, strict=False)
        ]


class Measure(Section):
    """The timed loop. Latencies are ms; a run is one rung's process in a round. No time is over a week, 604800 s."""

    warmup: Annotated[int, Field(ge=0, le=10**9)] = Field(
        3, description="Iterations discarded before timing, in every run."
    )
    iterations: Positive | None = Field(None, description="Timed iterations; empty: until tight enough or time is up.")
    min_iterations: Positive = Field(6, description="Timed at least this often, however slow the model is.")
    max_seconds: SomeSeconds = Field(2.5, description="Time bound of the latency loop, s.")
    repeats: Positive = Field(1, description="Times the warm-up and the latency loop are done within one process.")
    pause_seconds: Seconds = Field(
        0, description="Pause before each run, for the device to cool, s. A GPU's idle power needs 3."
    )
    interval_pct: Annotated[float, Field(gt=0)] = Field(
        0.5, description="Tight enough: the median's 95 % interval is narrower than this share of it, %."
    )
    device_launches: Positive = Field(
        30, description="Launches timed by the device's own clock, where it has one, after each latency loop."
    )
    throughput_seconds: Seconds = Field(
        1.0, description="Length of the throughput pass, s, at least. Energy needs some seconds: ask for 10."
    )
    throughput_iterations: Positive = Field(3, description="Launches of the throughput pass, at least.")
    queue: Positive = Field(16, description="Launches in flight at most in the throughput pass.")
    timeout_seconds: SomeSeconds = Field(600, description="A run that takes longer is a failure, s.")


class Telemetry(Section):
    """What is read of a GPU beside each run, and what of it keeps a run out of the verdicts. A CPU has none."""

    period_seconds: SomeSeconds = Field(0.1, description="Between two samples, s, at least.")
    cooldown_below_c: float | None = Field(
        None, description="Each run waits until the device is cooler than this, °C; empty: no run waits."
    )
    exclude: list[Literal["throttled", "contended"]] = Field(
        ["throttled", "contended"],
        description="Runs with any of these flags stay in results.csv and take their round out of their rung's steps.",
    )


class Threshold(Section):
    """Bounds of the parity check; a figure beyond its bound excludes the engine (seeded weights: warns)."""

    relative: Annotated[float, Field(gt=0)] | None = Field(None, description="Largest error over the reference's RMS.")
    cosine: Annotated[float, Field(ge=-1, le=1)] | None = Field(None, description="Least cosine similarity.")
    matched_pct: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Detectors: least share of boxes matched at IoU 0.5, %."
    )


class Limits(Section):
    """Take only the first so many of each, to try a configuration out."""

    models: Positive | None = None
    batches: Positive | None = None
    rounds: Positive | None = None


class CrossStack(Section):
    """What `snakemake cross_stack` sets side by side: the folders that are named, and no other."""

    results: list[Text] = Field(
        default_factory=list,
        description="Folders, each with results.csv and summary.json, or Snakemake storage URLs of such folders; "
        "'results' is this host's own.",
    )
    reference: Name | None = Field(
        None,
        description="The platform that the others are compared with; of several folders with it the first, and empty: "
        "the first folder's.",
    )


class Config(Section):
    platform: Name | Annotated[list[Name], Field(min_length=1)] = Field(
        "auto",
        description="An entry of 'platforms', or several in a list; auto: the first whose device this host has, GPUs "
        "before the CPU.",
    )
    seed: Seed = Field(0, description="Seed of the order of rungs within each round.")
    platforms: dict[Name, Platform] = Field(default_factory=lambda: {"cpu": Platform()})
    environments: dict[Name, Environment] = Field(default_factory=dict)
    stacks: dict[Name, Stack] = Field(default_factory=dict)
    data: dict[Name, Data] = Field(default_factory=lambda: {"pictures": Data(pictures="ultralytics")})
    models: dict[Name, Model] = Field(min_length=1)
    ladders: dict[Name, Ladder] = Field(min_length=1)
    measure: Measure = Field(default_factory=Measure)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    parity: dict[Precision, Threshold] = Field(default_factory=dict)
    limits: Limits = Field(default_factory=Limits)
    cross_stack: CrossStack = Field(default_factory=CrossStack)
    documents: list[Literal["gpu-bench", "deep-gap", "beyond-tops"]] = Field(
        default_factory=list, description="Published documents whose own files are written too: docs/presets.md."
    )

    @model_validator(mode="after")
    def _with_main(self) -> Config:
        self.environments.setdefault("main", MAIN)
        return self


def load(raw: dict[str, Any]) -> Config:
    """Validate a configuration as read from YAML. Raises ConfigError with every fault found."""
    built_in = {"stacks": BUILT_IN, "parity": parity.DEFAULT_THRESHOLDS, "environments": {}}
    try:
        config = Config.model_validate(raw | {key: _over(entries, raw.get(key)) for key, entries in built_in.items()})
    except ValidationError as error:
        raise ConfigError(_lines(error)) from None
    faults = list(dict.fromkeys(_faults(config)))
    if faults:
        raise ConfigError(faults)
    return config


def _over(built_in: Mapping[str, Mapping[str, Any]], given: Any) -> Any:
    """Built-in entries with the given ones, whose fields replace theirs; what is no mapping stays, to be refused."""
    if not isinstance(given, dict | None):
        return given
    changed = {
        name: {**built_in.get(name, {}), **entry} if isinstance(entry, dict) else entry
        for name, entry in (given or {}).items()
    }
    return {**built_in, **changed}


def _lines(error: ValidationError) -> list[str]:
    """One line a key: what it is, its value, what is allowed."""
    found: dict[str, list[str]] = {}
    for fault in error.errors():
        key, message = _fault(fault)
        found.setdefault(key, []).append(message)
    return [f"{key}: {' or '.join(dict.fromkeys(messages))}" for key, messages in sorted(found.items())]


def _fault(error: Any) -> tuple[str, str]:
    """The key and the message of one of pydantic's errors."""
    where = _where(error["loc"])
    key, kind, given = ".".join(where) or "configuration", error["type"], error["input"]
    if kind == "extra_forbidden":
        known = _fields_at(where[:-1])
        near = difflib.get_close_matches(where[-1], known, 1)
        advice = f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(known)}"
        return ".".join(where[:-1]) or "top level", f"unknown key '{where[-1]}'; {advice}"
    if kind == "missing":
        return key, "missing; it has no default"
    if kind == "too_short":
        return key, "empty; at least one entry is needed"
    if kind == "string_pattern_mismatch" and where[-1] == "sha256":
        return key, f"{json.dumps(given)} is not a sha256: expected 64 hexadecimal digits in lower case"
    if kind in ("model_type", "dict_type"):
        return key, f"{_shown(given)}: expected a mapping, key: value"
    if kind == "invalid-json-value":
        return key, f"{_shown(given)}: only text, numbers, true, false, null, lists and mappings are passed on"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if kind in ("int_type", "float_type", "bool_type") and isinstance(given, str) and _is_json(given):
        message += " without quotes; in the braces of --config every number is text: give it in a file, --configfile"
    return key, message if isinstance(given, dict | BaseModel) else f"{_shown(given)}: {message}"


def _is_json(text: str) -> bool:
    """Whether a text holds what would be a value without its quotes: a number, true, false or null."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _where(loc: tuple[str | int, ...]) -> list[str]:
    """The keys to a fault: pydantic's place without the names of the types it tried there."""
    parts = [str(part) for part in loc if part != "[key]"]
    # below stacks.NAME.arguments and ladders.NAME.rungs.0.options a type stands after each key
    for section, at, key in (("stacks", 2, "arguments"), ("ladders", 4, "options")):
        if parts[:1] == [section] and parts[at : at + 1] == [key]:
            return parts[: at + 1] + parts[at + 1 :: 2]
    return [part for part in parts if not re.match(r"\{|literal\[|constrained-|int$|str$", part)]


def _shown(value: Any) -> str:
    """A value in one line, as it stands in the configuration where JSON can say it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a date, a set, bytes, a list that holds itself
        return repr(value)


def _fields_at(where: list[str]) -> list[str]:
    """The valid keys of the section at a path such as ladders.cpu.rungs.0."""
    schema = Config.model_json_schema()
    node: dict[str, Any] = schema
    for part in where:
        node = _resolve(node, schema)
        if "properties" in node and part in node["properties"]:
            node = node["properties"][part]
        elif part.isdigit():
            node = node.get("items") or next((o["items"] for o in node.get("anyOf", []) if "items" in o), {})
        else:
            patterns = node.get("patternProperties", {})
            node = node.get("additionalProperties") or next(iter(patterns.values()), {})
    return sorted(_resolve(node, schema).get("properties", {}))


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while True:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        elif options := [o for o in node.get("anyOf", node.get("oneOf", [])) if "$ref" in o]:
            node = options[0]
        else:
            return node


def _one_of(key: str, value: str, known: Any) -> str | None:
    """The fault of a name that is not among the known ones; None where it is."""
    if value in known:
        return None
    near = difflib.get_close_matches(value, list(known), 1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return f"{key}: '{value}' is unknown{hint}; known: {', '.join(sorted(known)) or 'none'}"


def _slurm_fault(key: str, resource: str) -> str:
    """The fault of a resource's name that Slurm's executor does not know. Prefixes are alike: what follows decides."""
    known = {name.removeprefix("slurm_"): name for name in (*SLURM_OTHERS, *SLURM_NAMES)}
    near = difflib.get_close_matches(resource.removeprefix("slurm_"), known, 1)
    hint = f" (did you mean '{known[near[0]]}'?)" if near else ""
    return f"{key}: '{resource}' is unknown{hint}; of slurm_… the executor has {', '.join(SLURM_NAMES)}"


def _faults(config: Config):
    """Faults that span sections, one line each."""
    named = config.platform if isinstance(config.platform, list) else [config.platform]
    for name in named if config.platform != "auto" else []:
        if fault := _one_of("platform", name, config.platforms):
            yield fault
    for name, count in Counter(named).items():
        if count > 1:
            yield f"platform: '{name}' stands {count} times; each may stand once"
    for name, platform in config.platforms.items():
        for resource in platform.resources:
            if resource.startswith("slurm_") and resource not in SLURM_NAMES:
                yield _slurm_fault(f"platforms.{name}.resources", resource)
    if "auto" in config.platforms:
        yield "platforms.auto: 'auto' means that the host decides; give the platform another name"
    if config.environments["main"] != MAIN:
        yield "environments.main: the workflow's own Python, made by make; give another environment another name"
    if "environments" in config.models:
        yield "models.environments: artifacts/environments holds environments; give the model another name"
    for name, stack in config.stacks.items():
        if stack.environment not in config.environments and name not in BUILT_IN:
            yield _one_of(f"stacks.{name}.environment", stack.environment, config.environments)
    for name, model in config.models.items():
        for key in ("data", "calibration"):
            value = getattr(model, key)
            if value is not None and (fault := _one_of(f"models.{name}.{key}", value, config.data)):
                yield fault
        if model.source == "onnx" and "batch" not in model.axes.values():
            yield f"models.{name}.axes: {model.axes}: one axis must have the value 'batch'"
        if model.source == "transformers" and not isinstance(model.axes.get("sequence"), int):
            yield f"models.{name}.axes: {model.axes}: give the number of tokens, e.g. axes: {{sequence: 128}}"
    for name, ladder in config.ladders.items():
        yield from _ladder_faults(config, name, ladder)


def _ladder_faults(config: Config, name: str, ladder: Ladder):
    where = f"ladders.{name}"
    if fault := _one_of(f"{where}.platform", ladder.platform, config.platforms):
        yield fault
        return
    known_models = [m for m in ladder.models if m in config.models]
    for model in ladder.models:
        if fault := _one_of(f"{where}.models", model, config.models):
            yield fault
    for key, values in (
        ("models", ladder.models),
        ("batches", ladder.batches),
        ("rungs", [r.name for r in ladder.rungs]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                yield f"{where}.{key}: '{value}' stands {count} times; each may stand once"
    for rung in ladder.rungs:
        yield from _rung_faults(
            config, f"{where}.rungs.{rung.name}", config.platforms[ladder.platform], rung, known_models
        )
    if len(ladder.rungs) > 1 and not ladder.steps:
        yield f"{where}.steps: empty; give {{from, to, cause}} for every comparison, or the causes between neighbours"
    rungs = {rung.name: rung for rung in ladder.rungs}
    yield from _order_faults(f"{where}.steps", ladder.all_steps())
    for step in ladder.all_steps():
        label = f"{where}.steps: {step.from_} → {step.to}"
        unknown = [fault for end in (step.from_, step.to) if (fault := _one_of(f"{where}.steps", end, rungs))]
        yield from unknown
        if unknown or any(rungs[end].stack not in config.stacks for end in (step.from_, step.to)):
            continue
        ends = [rungs[end] for end in (step.from_, step.to)]
        first, second = (factors(config, ladder, rung) for rung in ends)
        one, other = (config.stacks[rung.stack].model_dump() for rung in ends)
        if step.from_ == step.to:
            yield f"{label}: a step joins two rungs; for A/A give the second rung a name of its own"
        elif fault := causes.fault(first, second, step.cause) or causes.hidden(one, other, step.cause):
            yield f"{label}: {fault}"
    for model in known_models:
        profile = config.models[model].profile
        outside = [b for b in ladder.batches if not profile.min <= b <= profile.max]
        if outside:
            low, high = min(*outside, profile.min), max(*outside, profile.max)
            yield (
                f"{where}.batches: {', '.join(map(str, outside))} outside models.{model}.profile "
                f"({profile.min}..{profile.max}); set profile: {{min: {low}, opt: {profile.opt}, max: {high}}}"
            )


def _order_faults(where: str, steps: list[Step]):
    """Steps that stand twice or lead back to where they began, which no order of the rungs could show."""
    for (start, end), count in Counter((step.from_, step.to) for step in steps).items():
        if count > 1:
            yield f"{where}: {start} → {end} stands {count} times; each may stand once"
    order: TopologicalSorter[str] = TopologicalSorter()
    for step in steps:
        if step.from_ != step.to:
            order.add(step.to, step.from_)
    try:
        order.prepare()
    except CycleError as error:
        yield f"{where}: {' → '.join(error.args[1])} runs in a circle; turn or leave out one of these steps"


def _rung_faults(config: Config, where: str, platform: Platform, rung: Rung, models: list[str]):
    if fault := _one_of(f"{where}.stack", rung.stack, config.stacks):
        yield fault
        return
    stack = config.stacks[rung.stack]
    if stack.device != platform.device:
        yield f"{where}.stack: {rung.stack} runs on {stack.device}, but the ladder's platform is a {platform.device}"
    if rung.precision not in stack.precisions:
        offered = ", ".join(stack.precisions)
        yield f"{where}.precision: '{rung.precision}' is not offered by {rung.stack}; it has {offered}"
    if rung.launch not in stack.launches:
        yield f"{where}.launch: '{rung.launch}' is not offered by {rung.stack}; it has {', '.join(stack.launches)}"
    if rung.shape not in stack.shapes:
        yield f"{where}.shape: '{rung.shape}' is not offered by {rung.stack}; set shape: {' or '.join(stack.shapes)}"
    if stack.compiler == "migraphx" and rung.options.get("offload_copy") is True and rung.transfers == "excluded":
        yield f"{where}.transfers: with offload_copy each run copies inputs and outputs itself; set transfers: included"
    for name in models:
        model = config.models[name]
        if stack.source == "module" and model.source == "onnx":
            yield f"{where}.stack: {rung.stack} runs a PyTorch module, but models.{name} exists as ONNX only"
        data = config.data.get(model.data)
        if (
            stack.source != "module"
            and rung.precision in PRECISIONS_NEEDING_CALIBRATION
            and model.calibration is None
            and data is not None
            and data.generated is not None
        ):
            yield (
                f"models.{name}.calibration: '{model.data}' is random data; {rung.precision} would be calibrated on "
                f"noise. Name real data, or ask for it by name: calibration: {model.data}"
            )


def factors(config: Config, ladder: Ladder, rung: Rung) -> dict[str, Any]:
    """The factors that describe a rung wholly, by name."""
    stack = config.stacks[rung.stack]
    return {
        "device": stack.device,
        "api": stack.api,
        "compiler": stack.compiler,
        "precision": rung.precision,
        "launch": rung.launch,
        "shape": rung.shape,
        "transfers": rung.transfers,
        "threads": rung.threads or config.platforms[ladder.platform].threads,
        "options": rung.options,
    }


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the configuration."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema(by_alias=True)}


if __name__ == "__main__":
    destination = Path(__file__).parent.parent / "schemas" / "config.schema.json"
    destination.write_text(json.dumps(schema(), indent=1) + "\n")
    print(destination)
