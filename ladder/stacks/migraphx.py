"""MIGraphX without a wrapper: parse, quantise, compile, keep the program, run it.

A program has one shape, so an engine is static: built for its batch alone. The engine file is a zip, uncompressed, with
``program.mxr`` (MIGraphX's own file of the compiled program), ``instructions.json`` (what the program held before the
target lowered it, and after; see ``migraphx_program``) and ``facts.json`` (what it was made from and for).

On the ``gpu`` target inputs and outputs stay on the device: ``run`` only submits, ``gpu_sync`` waits (src/program.cpp:
``eval`` ends without waiting). That part has not run on a GPU. ``cpu`` and ``ref`` run where they are called.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.stacks import checks, migraphx_program
from ladder.stacks.base import Arrays, Node, Rung, Source
from ladder.stacks.migraphx_program import Instruction

TARGETS = ("gpu", "cpu", "ref")
OPTIONS = ("exhaustive_tune", "fast_math", "offload_copy")

_QUANTISERS = {
    "fp32": None,
    "fp16": "quantize_fp16",
    "bf16": "quantize_bf16",
    "int8": None,
    "int8-fp16": "quantize_fp16",
}
# Python has True for both. No fast_math, as in ONNX Runtime's provider: a wrapper step would have two causes
_DEFAULTS = {"exhaustive_tune": False, "fast_math": False, "offload_copy": False}
_NUMPY = {"float": "float32", "double": "float64", "half": "float16"}  # where numpy has another name for a type
_FP32_SOFTMAX_SINCE = (2, 14)  # on the gpu target: src/rewrite_reduce.cpp


def create(target: str = "gpu") -> MiGraphX:
    return MiGraphX(target)


@dataclass(frozen=True)
class Interface:
    """What an ONNX file takes and gives at one batch: MIGraphX names no outputs and makes up missing sizes."""

    inputs: dict[str, list[int]]  # shapes by name
    outputs: list[str]


@dataclass(frozen=True)
class Built:
    """What the engine file holds."""

    program: bytes
    before: list[Instruction]
    compiled: list[Instruction]
    facts: dict[str, Any]


class MiGraphX:
    def __init__(self, target: str):
        if target not in TARGETS:
            raise StepError(f"MIGraphX has no target '{target}', only {', '.join(TARGETS)}", permanent=True)
        self.target = target

    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Compile the ONNX for the rung's one batch and keep the program with its instructions.

        Facts: ``version``, ``target``, ``quantiser`` (MIGraphX's function that lowered the precision, None where the
        file's own types decide), the options as they were passed, ``static_batch``, ``input_shapes``, ``outputs``,
        ``fp32_softmax``. Raises StepError with MIGraphX's own message.
        """
        options = self._options(rung)
        library, target = self._library(), self._get_target()
        batch = source.profile["opt"]
        interface = _interface(source, batch)
        program = _parsed(library, source, interface)
        if quantiser := _QUANTISERS[rung.precision]:
            if not hasattr(library, quantiser):
                raise StepError(
                    f"MIGraphX {library.__version__} has no {quantiser}, so no {rung.precision}", permanent=True
                )
            with _explained(f"cannot {quantiser} {source.onnx}"):
                getattr(library, quantiser)(program)
        before = migraphx_program.read(program)
        with _explained(f"does not compile {source.onnx} for {self.target}"):
            program.compile(target, **options)
        if not program.is_compiled():
            raise StepError(f"MIGraphX gave no reason, but {source.onnx} is not compiled for {self.target}")
        compiled = migraphx_program.read(program)
        if self.target == "gpu":
            strays = migraphx_program.on_the_host(compiled)
            checks.check_placement(strays, len(compiled), self.target)
        facts = {
            "version": library.__version__,
            "target": self.target,
            "quantiser": quantiser,
            **options,
            "static_batch": batch,
            "input_shapes": interface.inputs,
            "outputs": interface.outputs,
            "fp32_softmax": self.target == "gpu" and _keeps_softmax_in_fp32(library.__version__),
        }
        with _explained(f"cannot save the program of {source.onnx}"):
            content = bytes(library.save_buffer(program))
        _write(destination, Built(content, before, compiled, facts))
        return facts

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        checks.check_batch(source, batch)
        built, library = self._read(payload, rung, batch), self._library()
        self._get_target()  # or the library that the program needs would be missed in the middle of loading it
        cpus = _pin(rung.threads) if self.target != "gpu" else None
        with _explained(f"cannot load the program in {payload}"):
            program = library.load_buffer(built.program)
        if not program.is_compiled():
            raise StepError(f"the program in {payload} is not compiled: delete its folder and call again")
        return Session(library, program, built.facts, cpus)

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every instruction of the quantised program that computes or converts, before the target lowered it.

        MIGraphX tells neither times nor the ONNX node that an instruction came from.
        """
        built = self._read(payload, rung, batch)
        return migraphx_program.nodes(built.before, built.compiled, self.target, built.facts["fp32_softmax"])

    def identity(self) -> dict[str, str]:
        return {"migraphx": self._library().__version__, **checks.loaded(("libmigraphx.",))}

    def _library(self) -> Any:
        """The module ``migraphx``. Raises StepError where it is missing, a placeholder or without what is needed."""
        where = (
            "it comes with ROCm (put /opt/rocm/lib on PYTHONPATH) or from AMD's own wheel index, "
            "PyPI's migraphx is a placeholder"
        )
        try:
            library = checks.runtime("migraphx")
        except StepError as error:
            raise StepError(f"{error}; {where}") from error
        if not hasattr(library, "parse_onnx"):
            file = getattr(library, "__file__", None) or "a module without a file"
            raise StepError(f"the migraphx that is installed ({file}) is not MIGraphX: it has no parse_onnx; {where}")
        if self.target == "gpu" and not hasattr(library, "to_gpu"):
            raise StepError(
                f"this MIGraphX ({library.__file__}) was built without a GPU: it has no to_gpu. Take ROCm's, or give "
                "the stack arguments: {target: ref} or {target: cpu}"
            )
        return library

    def _get_target(self) -> Any:
        with _explained(f"has no target '{self.target}' here"):
            return self._library().get_target(self.target)

    def _options(self, rung: Rung) -> dict[str, bool]:
        """How the rung's program is compiled. Raises StepError for what MIGraphX does not have."""
        checks.check_eager(rung, "MIGraphX")
        checks.check_options(rung, OPTIONS, "MIGraphX")
        if rung.precision not in _QUANTISERS:
            raise StepError(
                f"MIGraphX has no precision {rung.precision}, only {', '.join(_QUANTISERS)}", permanent=True
            )
        if rung.shape != "static":
            raise StepError(
                "a MIGraphX program has one shape, and MIGraphX turns a size left open into 1: set shape: static",
                permanent=True,
            )
        return {
            name: default if (own := checks.check_flag(rung, name)) is None else own
            for name, default in _DEFAULTS.items()
        }

    def _read(self, payload: Path | None, rung: Rung, batch: int) -> Built:
        """The engine, once it is one for this rung, batch, target and version. Raises StepError."""
        options = self._options(rung)
        built = _read(payload)
        asked = {"target": self.target, "version": self._library().__version__, "static_batch": batch, **options}
        wrong = [
            f"{name} {built.facts[name]}, not {value}" for name, value in asked.items() if built.facts[name] != value
        ]
        if wrong:
            raise StepError(f"the engine {payload} was built for {'; '.join(wrong)}: delete its folder and call again")
        return built


class Session:
    """A loaded program with its parameters: on the device where it is a GPU's, else in host arrays of its own."""

    def __init__(self, library: Any, program: Any, built: dict[str, Any], cpus: set[int] | None):
        self._library, self._program, self._built, self._cpus = library, program, built, cpus
        self._on_gpu = built["target"] == "gpu"
        self._resident = self._on_gpu and not built["offload_copy"]
        shapes = dict(program.get_parameter_shapes())
        if missing := sorted(set(built["input_shapes"]) - set(shapes)):
            raise StepError(f"the program has no parameter {', '.join(missing)}; it has {', '.join(sorted(shapes))}")
        # arrays of its own, since MIGraphX takes an input with exactly the strides that it was compiled for
        self._host = {name: np.zeros(shapes[name].lens(), _numpy_type(shapes[name])) for name in built["input_shapes"]}
        self._parameters = {name: self._placed(name) for name in self._host}
        for name in set(shapes) - set(self._host):  # main:#output_N, where the results are to be put
            if not self._resident:
                raise StepError(f"the program wants a parameter '{name}', which is no input of the model")
            with _explained(f"cannot allocate '{name}' on the GPU"):
                self._parameters[name] = library.allocate_gpu(shapes[name])
        self._results: list[Any] = []

    def bind(self, inputs: Arrays) -> None:
        checks.check_inputs(inputs, {name: (array.shape, array.dtype) for name, array in self._host.items()})
        for name, array in inputs.items():
            self._host[name][...] = array
            self._parameters[name] = self._placed(name)

    def run(self) -> None:
        try:
            self._results = self._program.run(self._parameters)
        except RuntimeError as error:
            raise StepError(f"MIGraphX failed while running: {reason(error)}") from error

    def synchronise(self) -> None:
        if self._on_gpu:
            self._library.gpu_sync()

    def device_ms(self, launches: int) -> dict[str, list[float]]:
        return {}

    def outputs(self) -> Arrays:
        """Copies: on the cpu target a result is memory that the next run writes to."""
        results = [self._library.from_gpu(each) if self._resident else each for each in self._results]
        return {name: np.array(each, order="C") for name, each in zip(self._built["outputs"], results, strict=True)}

    def facts(self) -> dict[str, Any]:
        """``threads``: the one that submits to a GPU; else how many CPUs this process may use at a time."""
        return {
            "threads": 1 if self._on_gpu else len(os.sched_getaffinity(0)),
            "provider": self._built["target"],
            "precision_hint": self._built["quantiser"] or "as in the ONNX file",
            "device_resident": self._resident,
            **{name: self._built[name] for name in ("version", *OPTIONS, "fp32_softmax", "static_batch")},
            "input_shapes": {name: list(array.shape) for name, array in self._host.items()},
        }

    def memory_mb(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._results, self._parameters, self._host = [], {}, {}
        self._program = None
        if self._cpus is not None:
            os.sched_setaffinity(0, self._cpus)

    def _placed(self, name: str) -> Any:
        """An input as the program takes it: a copy on the device (MIGraphX allocates it anew), or the host's array."""
        if not self._resident:
            return self._host[name]
        with _explained(f"cannot copy the input '{name}' to the GPU"):
            return self._library.to_gpu(self._library.argument(self._host[name]))


def reason(error: BaseException) -> str:
    """MIGraphX's message without the place in its source: ``FILE:LINE: FUNCTION: MESSAGE``."""
    return re.sub(r"^\S*:\d+: \S+: ", "", checks.reason(error))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raises StepError in the place of MIGraphX's own error: all of them are RuntimeErrors."""
    try:
        yield
    except RuntimeError as error:
        message = reason(error)
        raise StepError(f"MIGraphX {what}: {message}", permanent="Unknown operator" in message) from error


def _interface(source: Source, batch: int) -> Interface:
    """What the ONNX file takes and gives at this batch. Raises StepError for a size that nothing gives."""
    onnx, unreadable = checks.runtime("onnx"), checks.runtime("google.protobuf.message").DecodeError
    try:
        graph = onnx.load(str(source.onnx), load_external_data=False).graph
    except (unreadable, OSError) as error:
        raise StepError(f"{source.onnx} is not a whole ONNX file ({checks.reason(error)}): delete it") from error
    if not graph.output:
        raise StepError(f"{source.onnx} is empty or cut short: it has no outputs; delete it to have it made again")
    weights = {each.name for each in graph.initializer}
    inputs = {each.name: _sizes(each, source, batch) for each in graph.input if each.name not in weights}
    return Interface(inputs, [each.name for each in graph.output])


def _sizes(value: Any, source: Source, batch: int) -> list[int]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise StepError(
            f"input '{value.name}' of {source.onnx} has no shape, which MIGraphX takes for [1]", permanent=True
        )
    sizes = []
    for dim in tensor.shape.dim:
        size = source.axes.get(dim.dim_param) if dim.dim_param else dim.dim_value
        if not size:
            raise StepError(
                f"input '{value.name}' of {source.onnx} has a dynamic axis without a value: '{dim.dim_param}'; "
                "give it under axes, or MIGraphX would take it for 1",
                permanent=True,
            )
        sizes.append(batch if size == "batch" else int(size))
    return sizes


def _parsed(library: Any, source: Source, interface: Interface) -> Any:
    """The program of an ONNX file. Raises StepError where it is not what the file says, which MIGraphX never tells."""
    with _explained(f"cannot parse {source.onnx}"):
        program = library.parse_onnx(str(source.onnx), map_input_dims=interface.inputs)
    found = {name: list(shape.lens()) for name, shape in program.get_parameter_shapes().items()}
    if found != interface.inputs:
        raise StepError(f"MIGraphX parsed {source.onnx} with the inputs {found}, but asked for were {interface.inputs}")
    if (outputs := len(program.get_output_shapes())) != len(interface.outputs):
        raise StepError(f"MIGraphX parsed {outputs} outputs of {source.onnx}, which has {len(interface.outputs)}")
    return program


def _keeps_softmax_in_fp32(version: str) -> bool:
    """Whether the gpu target computes a softmax of 16 bits in FP32. Source: src/rewrite_reduce.cpp."""
    found = re.match(r"(\d+)\.(\d+)", version)
    off = os.environ.get("MIGRAPHX_DISABLE_FP32_SOFTMAX", "0").lower() in ("1", "enable", "enabled", "yes", "true")
    return found is not None and tuple(map(int, found.groups())) >= _FP32_SOFTMAX_SINCE and not off


def _numpy_type(shape: Any) -> np.dtype:
    name = shape.type_string().removesuffix("_type")
    try:
        return np.dtype(_NUMPY.get(name, name))
    except TypeError as error:
        raise StepError(f"the program takes an input of {name}, which numpy cannot hold", permanent=True) from error


def _pin(threads: int) -> set[int]:
    """Let this process use so many CPUs; returns those that it had.

    The ref target and parts of cpu start a thread for every CPU of the host, whatever they are told.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:threads])
    return before


def _write(destination: Path, built: Built) -> None:
    instructions = {"before": built.before, "compiled": built.compiled}
    with zipfile.ZipFile(destination, "w") as archive:
        archive.writestr("program.mxr", built.program)
        archive.writestr("instructions.json", json.dumps({k: [asdict(i) for i in v] for k, v in instructions.items()}))
        archive.writestr("facts.json", json.dumps(built.facts, indent=1))


def _read(payload: Path | None) -> Built:
    """Raises StepError for a file that no build here wrote."""
    if payload is None:
        raise StepError("MIGraphX runs a built engine, and none was given")
    try:
        with zipfile.ZipFile(payload) as archive:
            instructions = json.loads(archive.read("instructions.json"))
            return Built(
                program=archive.read("program.mxr"),
                before=_instructions(instructions["before"]),
                compiled=_instructions(instructions["compiled"]),
                facts=json.loads(archive.read("facts.json")),
            )
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, OSError) as error:
        raise StepError(f"{payload} is not a whole engine file ({checks.reason(error)}): delete its folder") from error


def _instructions(read: list[Mapping[str, Any]]) -> list[Instruction]:
    return [Instruction(each["name"], each["type"], tuple(each["inputs"])) for each in read]
