"""TensorRT 8.6, 10 and 11, and TensorRT-RTX, through one module; the GPU through ``ladder.stacks.cuda``.

The engine file is a zip, uncompressed, with what a build leaves behind: ``plan`` (TensorRT's own file),
``timing.cache`` (how long each tactic took, for a build of the same layers; TensorRT-RTX times none), ``layers.txt``
(the builder's report of the finished engine, see ``tensorrt_inspector``) and ``facts.json`` (its settings, read back).
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ladder.artifacts import TIMING_CACHE
from ladder.errors import StepError
from ladder.files import replacing
from ladder.stacks import checks, cuda, tensorrt_flags, tensorrt_inspector
from ladder.stacks.base import Arrays, Node, Rung, Source
from ladder.stacks.tensorrt_inspector import Layer

PROVIDER = "cuda:0"

_PRODUCTS = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_OPTIONS = {
    "tensorrt": ("builder_level", "workspace_mb"),
    "tensorrt_rtx": ("builder_level", "workspace_mb", "compute_capability"),
}
_MEMORY = {"activations_mb": "Total Activation Memory", "weights_mb": "Total Weights Memory"}  # in the build's log
_PROFILED_RUNS = 5  # after one that is not counted
_INFO = 3  # ILogger.Severity: 0 internal error, 1 error, 2 warning, 3 info, 4 verbose


def create(package: str = "tensorrt", typing: str = "strong") -> TensorRt:
    return TensorRt(package, typing)


@dataclass(frozen=True)
class Built:
    """What a build leaves behind, and the engine file holds."""

    plan: bytes
    timing_cache: bytes | None
    report: str
    facts: dict[str, Any]


class TensorRt:
    def __init__(self, package: str, typing: str):
        if package not in _PRODUCTS:
            raise StepError(f"there is no package '{package}', only {', '.join(_PRODUCTS)}", permanent=True)
        self.package, self.typing = package, typing

    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Build the engine for the profile's batches, or for its optimum alone where the rung is static.

        Facts: ``builder_level``, ``workspace_mb`` (10⁶ bytes), ``flags`` and ``tf32`` as read back from the builder,
        ``shapes`` of each input at the profile's ends, ``layers`` and, where the build says so, ``weights_mb`` and
        ``activations_mb`` at the profile's maximum; ``timing_cache_mb`` and, of that, ``known_timings_mb`` known before
        the build. Raises StepError with the last errors TensorRT logged.
        """
        cache = destination.with_name(TIMING_CACHE)
        known = cache.read_bytes() if cache.is_file() else b""
        built = self._build(source, rung, source.profile["opt"] if rung.shape == "static" else None, known)
        _write(destination, built)
        if built.timing_cache is not None:
            with replacing(cache) as temporary:
                temporary.write_bytes(built.timing_cache)
        return built.facts

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        self._check(rung)
        checks.check_batch(source, batch)
        self._check_gpu(cuda.Gpu())
        built = _read(payload)
        logger = _logger(self.package).restarted()
        return Session(self.trt, logger, self._deserialised(built.plan, logger, payload), rung, batch, built.facts)

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every layer that runs on the device, its precision from what tells it first: the engine, then others.

        ``evidence`` says which: the inspector's ``tensors``, ``weights`` or ``tactic``; where that leaves it open the
        ``build report``; where tensors are still of no known type, a ``static twin``: the same network built again for
        this one batch with the first build's timing cache, whose layers count only where name, type and tactic agree.
        Without a GPU that runs it an engine cannot be inspected: then the build report alone tells, without times.
        """
        built = _read(payload)
        tf32 = built.facts["tf32"]
        reported = tensorrt_inspector.from_report(built.report, tf32)
        try:
            self._check_gpu(cuda.Gpu())
        except StepError:
            if not reported:
                raise
            return [_node(replace(each, evidence=each.precision and "build report"), None) for each in reported]
        logger = _logger(self.package).restarted()
        engine = self._deserialised(built.plan, logger, payload)
        layers = tensorrt_inspector.completed(self._inspected(engine, tf32), reported, "build report")
        if any(each.precision is None and not each.typed for each in layers):
            twin = self._build(source, rung, batch, built.timing_cache or b"")
            others = self._inspected(self._deserialised(twin.plan, logger, payload), tf32)
            layers = tensorrt_inspector.completed(layers, others, "static twin")
        session = Session(self.trt, logger, engine, rung, batch, built.facts)
        session.bind(inputs)
        times = session.layer_times_ms(_PROFILED_RUNS)
        session.close()
        return [_node(each, times.get(each.name)) for each in layers]

    def identity(self) -> dict[str, str]:
        return {self.package: self.trt.__version__, "cuda_bindings": checks.runtime("cuda.bindings").__version__}

    @property
    def trt(self) -> Any:
        return checks.runtime(self.package)

    @property
    def _version(self) -> str:
        return f"{_PRODUCTS[self.package]} {self.trt.__version__}"

    def _check(self, rung: Rung) -> tensorrt_flags.Choice:
        """The flags that the rung needs. Raises StepError for what this version cannot do."""
        checks.refuse_tf32_override()
        checks.check_options(rung, _OPTIONS[self.package], self._version)
        names = {
            name: frozenset(getattr(self.trt, kind).__members__)
            for name, kind in (
                ("network_flags", "NetworkDefinitionCreationFlag"),
                ("builder_flags", "BuilderFlag"),
                ("tactic_sources", "TacticSource"),
            )
        }
        return tensorrt_flags.choose(rung.precision, self.typing, tensorrt_flags.Offer(self._version, **names))

    def _check_gpu(self, gpu: cuda.Gpu) -> None:
        """TensorRT-RTX runs on some GPUs only. Raises StepError naming them."""
        if self.package != "tensorrt_rtx":
            return
        names = (name for name in self.trt.ComputeCapability.__members__ if name.startswith("SM"))
        known = sorted((int(name[2:-1]), int(name[-1])) for name in names)
        if gpu.compute_capability not in known and gpu.compute_capability < known[-1]:
            raise StepError(
                f"{self._version} does not run on {gpu.name} (compute capability {_dotted(gpu.compute_capability)}), "
                f"only on {', '.join(map(_dotted, known))} and later; use the stack tensorrt"
            )

    def _build(self, source: Source, rung: Rung, static_batch: int | None, timing_cache: bytes = b"") -> Built:
        trt, choice, logger = self.trt, self._check(rung), _logger(self.package).restarted()
        times_tactics = self.package != "tensorrt_rtx"  # which builds without a GPU, its timing caches doing nothing
        if times_tactics:
            cuda.Gpu()  # for a clear error: TensorRT's own is a null pointer
        try:
            builder = trt.Builder(logger)
        except (RuntimeError, TypeError) as error:
            raise StepError(f"{self._version} cannot build here: {logger.reason() or checks.reason(error)}") from error
        builder.max_threads = len(os.sched_getaffinity(0))  # its default is 1
        flags = trt.NetworkDefinitionCreationFlag.__members__
        network = builder.create_network(sum(1 << int(flags[name]) for name in choice.network_flags))
        self._parse(network, logger, source)
        config = self._configured(builder, choice, rung)
        shapes = self._set_shapes(builder, network, config, source, static_batch)
        known = _start_from(config, timing_cache) if times_tactics else None
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            reason = logger.reason() or "it gave no reason"
            raise StepError(
                f"{self._version} built no engine from {source.onnx}: {reason}", permanent=logger.lacks_implementation()
            )
        cache = bytes(config.get_timing_cache().serialize()) if times_tactics else None
        facts = {
            "version": self._version,
            "typing": self.typing,
            "builder_level": config.builder_optimization_level,
            "workspace_mb": config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) / 1e6,
            "flags": sorted(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag)),
            "tf32": bool(config.get_flag(trt.BuilderFlag.TF32)),
            "builder_threads": builder.max_threads,
            "compute_capability": rung.options.get("compute_capability"),
            "static_batch": static_batch,
            "shapes": shapes,
            "layers": len(tensorrt_inspector.from_report(logger.report, tf32=False)) or None,
            "timing_cache_mb": len(cache) / 1e6 if cache is not None else None,
            "known_timings_mb": len(known) / 1e6 if known is not None else None,
            **{name: logger.megabytes_told(words) for name, words in _MEMORY.items()},
        }
        return Built(bytes(plan), cache, logger.report, facts)

    def _parse(self, network: Any, logger: Any, source: Source) -> None:
        parser = self.trt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(source.onnx)):
            reasons = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
            raise StepError(f"{self._version} cannot parse {source.onnx}: {_short(reasons)}", permanent=True)

    def _configured(self, builder: Any, choice: tensorrt_flags.Choice, rung: Rung) -> Any:
        trt, config = self.trt, builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        for name in choice.set_flags:
            config.set_flag(trt.BuilderFlag.__members__[name])
        for name in choice.cleared_flags:
            config.clear_flag(trt.BuilderFlag.__members__[name])
        if choice.tactics_off:
            off = sum(1 << int(trt.TacticSource.__members__[name]) for name in choice.tactics_off)
            config.set_tactic_sources(config.get_tactic_sources() & ~off)
        self._set_options(config, rung)
        return config

    def _set_options(self, config: Any, rung: Rung) -> None:
        """Set the rung's options and read them back. Raises StepError where one is not taken as it is."""
        trt = self.trt
        for option in ("builder_level", "workspace_mb"):
            value = rung.options.get(option)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise StepError(f"option {option} must be a whole number, not {value!r}", permanent=True)
        if (level := rung.options.get("builder_level")) is not None:
            config.builder_optimization_level = level
            if config.builder_optimization_level != level:
                taken = config.builder_optimization_level
                raise StepError(f"{self._version} has no builder_level {level}; it took {taken}", permanent=True)
        if (megabytes := rung.options.get("workspace_mb")) is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, megabytes * 10**6)
            if (taken := config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)) != megabytes * 10**6:
                raise StepError(f"asked {self._version} for a workspace of {megabytes} MB, it took {taken / 1e6:g} MB")
        if (capability := rung.options.get("compute_capability")) is not None:
            known = {name: each for name, each in trt.ComputeCapability.__members__.items() if name != "NONE"}
            if capability not in known:
                offered = ", ".join(known)
                raise StepError(
                    f"{self._version} has no compute_capability {capability}, only {offered}", permanent=True
                )
            config.num_compute_capabilities = 1
            config.set_compute_capability(known[capability], 0)

    def _set_shapes(
        self, builder: Any, network: Any, config: Any, source: Source, static_batch: int | None
    ) -> dict[str, list[list[int]]]:
        """Give each input the profile's shapes or, for a static engine, its one shape; return [min, opt, max] by name.

        The parser keeps the names of dynamic axes.
        """
        profile, dynamic, shapes = builder.create_optimization_profile(), False, {}
        for i in range(network.num_inputs):
            tensor = network.get_input(i)
            if tensor.is_shape_tensor:
                what = f"input '{tensor.name}' of {source.onnx} is the shape of another tensor"
                raise StepError(f"{what}, which is not supported", permanent=True)
            ends = []
            for end in ("min", "opt", "max"):
                batch = static_batch or source.profile[end]
                sizes = [
                    _size(size, tensor.get_dimension_name(axis), batch, source, tensor.name)
                    for axis, size in enumerate(tuple(tensor.shape))
                ]
                ends.append(sizes)
            if static_batch:
                tensor.shape = ends[1]
            elif -1 in tuple(tensor.shape):
                profile.set_shape(tensor.name, *ends)
                dynamic = True
            shapes[tensor.name] = ends
        if dynamic:
            config.add_optimization_profile(profile)
        return shapes

    def _deserialised(self, plan: bytes, logger: Any, payload: Path | None) -> Any:
        """The engine. Raises StepError with TensorRT's own reason where it was not built by and for what is here."""
        trt = self.trt
        trt.init_libnvinfer_plugins(logger, "")  # or layers that the parser made of plugins are unknown
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        if engine is None:
            raise StepError(
                f"{self._version} refuses the engine {payload}: {logger.reason()}; if it was built by another version "
                "or for another GPU, delete its folder and call again"
            )
        return engine

    def _inspected(self, engine: Any, tf32: bool) -> list[Layer]:
        kind = self.trt.LayerInformationFormat.JSON
        return tensorrt_inspector.from_inspector(engine.create_engine_inspector().get_engine_information(kind), tf32)


class Session:
    """An execution context with its tensors bound, launched layer by layer or as one CUDA graph."""

    def __init__(self, trt: Any, logger: Any, engine: Any, rung: Rung, batch: int, built: dict[str, Any]):
        self._trt, self._logger, self._engine, self._built = trt, logger, engine, built
        self._stream = cuda.Stream()
        self._context = self._new_context()
        self._inputs: dict[str, cuda.Buffer] = {}
        self._outputs: dict[str, cuda.Buffer] = {}
        self._pinned: dict[str, cuda.Pinned] = {}
        self._bfloat16: set[str] = set()
        self._graph: cuda.Graph | None = None
        self._bind_tensors(batch)
        for buffer in self._inputs.values():
            buffer.host[...] = 0
            buffer.upload(self._stream)
        self.run()  # before a capture everything lazy must have happened
        self.synchronise()
        if rung.launch == "graph":
            self._graph = cuda.Graph(self._stream, self.run)
            self.run()
            self.synchronise()

    def bind(self, inputs: Arrays) -> None:
        narrowed = {name: self._narrowed(name, array) for name, array in inputs.items()}
        checks.check_inputs(narrowed, {n: (b.host.shape, b.host.dtype) for n, b in self._inputs.items()})
        for name, buffer in self._inputs.items():
            whole, row = checks.whole_of(narrowed[name])
            if whole is narrowed[name]:
                buffer.host[...] = whole
                buffer.upload(self._stream)
            else:
                buffer.upload(self._stream, self._pinned_copy(name, whole).address_of(row))
        self._stream.synchronise()

    def _pinned_copy(self, name: str, whole: np.ndarray) -> cuda.Pinned:
        """The copy of what an input's batches are slices of; one an input, made anew for another array."""
        held = self._pinned.get(name)
        if held is None or held.array is not whole:
            if held is not None:
                held.close()
            held = self._pinned[name] = cuda.Pinned(whole)
        return held

    def run(self) -> None:
        if self._graph is not None:
            self._graph.launch()
        elif not self._context.execute_async_v3(self._stream.address):
            raise StepError(f"TensorRT failed while running: {self._logger.reason()}")

    def synchronise(self) -> None:
        self._stream.synchronise()

    def device_ms(self, launches: int) -> dict[str, list[float]]:
        """The device's own clock; see ``ladder.stacks.base.Session``. It waits for a value that the host writes."""
        found = {"device_span_ms": [self._stream.span_ms(self.run) for _ in range(launches)]}
        busy = []
        for _ in range(launches):
            if (queued_ms := self._stream.busy_ms(self.run)) is None:
                return found
            busy.append(queued_ms)
        return found | {"device_busy_ms": busy}

    def outputs(self) -> Arrays:
        for buffer in self._outputs.values():
            buffer.download(self._stream)
        self._stream.synchronise()
        return {
            name: _widened(buffer.host) if name in self._bfloat16 else buffer.host.copy()
            for name, buffer in self._outputs.items()
        }

    def facts(self) -> dict[str, Any]:
        """``threads`` is the one that submits. Settings of the build are those read back then; the plan keeps none."""
        settings = ("version", "typing", "builder_level", "workspace_mb", "flags", "tf32", "shapes", "static_batch")
        return {
            "threads": 1,
            "provider": PROVIDER,
            "precision_hint": "+".join(self._built["flags"]) or self._built["typing"],
            "launch": "eager" if self._graph is None else "graph",
            "auxiliary_streams": getattr(self._engine, "num_aux_streams", None),
            "tensors": {
                name: f"{self._engine.get_tensor_dtype(name)} {list(buffer.host.shape)}"
                for name, buffer in (self._inputs | self._outputs).items()
            },
            **{name: self._built[name] for name in settings},
        }

    def memory_mb(self) -> dict[str, float]:
        """``activations_mb``: what a context takes at the profile's maximum. ``weights_mb``: as the build told.

        8.6 does not tell: there it is what the log says that loading the engine took, in whole MiB.
        """
        version_2 = hasattr(self._engine, "device_memory_size_v2")
        size = self._engine.device_memory_size_v2 if version_2 else self._engine.device_memory_size
        weights = self._built["weights_mb"]
        if weights is None:
            weights = self._logger.megabytes_allocated("engine deserialization")
        return {"activations_mb": size / 1e6} | ({} if weights is None else {"weights_mb": weights})

    def layer_times_ms(self, runs: int) -> dict[str, float]:
        """Mean time of each layer that TensorRT's profiler names, ms a run. Ends what the session was for."""
        profiler = _profiler(self._trt)
        self._context.profiler = profiler
        self.run()
        self.synchronise()
        profiler.total_ms.clear()
        for _ in range(runs):
            self.run()
            self.synchronise()
        return {name: total / runs for name, total in profiler.total_ms.items()}

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()
        self._graph = self._context = self._engine = None
        for buffer in (*self._inputs.values(), *self._outputs.values()):
            buffer.close()
        for pinned in self._pinned.values():
            pinned.close()
        self._inputs, self._outputs, self._pinned = {}, {}, {}
        self._stream.close()

    def _new_context(self) -> Any:
        """A context whose kernels are those for its shapes. Raises StepError where it cannot be had."""
        settings = []
        if strategies := getattr(self._trt, "DynamicShapesKernelSpecializationStrategy", None):
            # or TensorRT-RTX would compile them in the background and change kernels while they are timed
            settings = [self._engine.create_runtime_config()]
            settings[0].dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        context = self._engine.create_execution_context(*settings)
        if context is None:
            raise StepError(f"TensorRT gives no execution context: {self._logger.reason()}")
        return context

    def _bind_tensors(self, batch: int) -> None:
        """A buffer for every tensor at this batch. Raises StepError for one on the host or of no fixed size."""
        engine, context, trt = self._engine, self._context, self._trt
        if self._built["static_batch"] not in (None, batch):
            raise StepError(f"the engine was built for batch {self._built['static_batch']} alone, not for {batch}")
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        for name in inputs:
            low, _, high = self._built["shapes"][name]
            shape = tuple(least if least == most else batch for least, most in zip(low, high, strict=True))
            if not context.set_input_shape(name, shape):
                raise StepError(f"the engine does not take '{name}' as {list(shape)}: {self._logger.reason()}")
        for name in names:
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape or engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise StepError(f"'{name}' has a size that depends on data, or lives on the host: not supported")
            dtype = engine.get_tensor_dtype(name)
            if dtype == getattr(trt.DataType, "BF16", None):  # numpy has none
                self._bfloat16.add(name)
                buffer = cuda.Buffer(shape, np.dtype(np.uint16))
            else:
                buffer = cuda.Buffer(shape, np.dtype(trt.nptype(dtype)))
            (self._inputs if name in inputs else self._outputs)[name] = buffer
            context.set_tensor_address(name, buffer.address)

    def _narrowed(self, name: str, array: np.ndarray) -> np.ndarray:
        """TensorRT 8.6 takes 64-bit integers as 32-bit ones; a value that does not fit is an error."""
        if name not in self._inputs or (array.dtype, self._inputs[name].host.dtype) != (np.int64, np.int32):
            return array
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise StepError(f"input '{name}' holds integers beyond 32 bits, which TensorRT 8.6 does not take")
        return narrow


@cache
def _logger(package: str) -> Any:
    """The logger: prints all but the verbose, and keeps it for what it says of errors, memory and a build's layers.

    One a process: TensorRT sends part of its messages to the first that it was given.
    """
    trt: Any = checks.runtime(package)

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.restarted()

        def restarted(self) -> Any:
            """This logger, all that it kept forgotten."""
            self.lines: list[tuple[int, str]] = []
            self.report = ""
            return self

        def log(self, severity: Any, message: str) -> None:
            if message.startswith(tensorrt_inspector.REPORTS):
                self.report = message
            if int(severity) <= _INFO:
                self.lines.append((int(severity), message))
                print(f"[{severity.name}] {message}", flush=True)

        def reason(self) -> str:
            errors = [message for severity, message in self.lines if severity < 2]
            return _short("; ".join(errors[-3:]))

        def lacks_implementation(self) -> bool:
            """Whether a layer has none, and not for want of memory: every further try would end so."""
            text = "\n".join(message for _, message in self.lines)
            short_of_memory = re.search("insufficient|out ?of ?memory", text, re.I)
            return "Could not find any implementation" in text and not short_of_memory

        def megabytes_told(self, words: str) -> float | None:
            """A size in MB from the last line such as ``Total Activation Memory: 8388608 bytes``."""
            return None if (found := self._last(rf"{words}: (\d+)")) is None else found / 1e6

        def megabytes_allocated(self, during: str) -> float | None:
            """Device memory, MB, from the last line such as ``… allocation in DURING: CPU +0, GPU +9, … (MiB)``."""
            found = self._last(rf"TensorRT-managed allocation in {during}: .*?GPU \+(\d+).*\(MiB\)")
            return None if found is None else found * 2**20 / 1e6

        def _last(self, pattern: str) -> int | None:
            found = [each for _, message in self.lines if (each := re.search(pattern, message))]
            return int(found[-1][1]) if found else None

    return Logger()


def _profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.total_ms: dict[str, float] = defaultdict(float)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.total_ms[layer_name] += ms

    return Profiler()


def _start_from(config: Any, timing_cache: bytes) -> bytes:
    """Give the builder these timings, or none where they are not such a host's, and return what it took.

    TensorRT 8.6 takes any bytes without a word, and then holds nothing; so what it holds is read back.
    """
    nothing = config.create_timing_cache(b"")
    cache = config.create_timing_cache(timing_cache)
    if cache is not None and config.set_timing_cache(cache, False):
        held = bytes(cache.serialize())
        return held if held != bytes(nothing.serialize()) else b""
    config.set_timing_cache(nothing, False)
    return b""


def _size(size: int, axis: str | None, batch: int, source: Source, tensor: str) -> int:
    """Size of one axis of an input: its own, or that of its name under axes. Raises StepError."""
    if size != -1:
        return size
    value = source.axes.get(axis or "")
    if value is None:
        raise StepError(
            f"input '{tensor}' of {source.onnx} has a dynamic axis without a value: '{axis}'; give it under axes",
            permanent=True,
        )
    return batch if value == "batch" else int(value)


def _write(destination: Path, built: Built) -> None:
    with zipfile.ZipFile(destination, "w") as archive:
        archive.writestr("plan", built.plan)
        archive.writestr("layers.txt", built.report)
        archive.writestr("facts.json", json.dumps(built.facts, indent=1))
        if built.timing_cache is not None:
            archive.writestr("timing.cache", built.timing_cache)


def _read(payload: Path | None) -> Built:
    """Raises StepError for a file that no build here wrote."""
    if payload is None:
        raise StepError("TensorRT runs a built engine, and none was given")
    try:
        with zipfile.ZipFile(payload) as archive:
            return Built(
                plan=archive.read("plan"),
                timing_cache=archive.read("timing.cache") if "timing.cache" in archive.namelist() else None,
                report=archive.read("layers.txt").decode(),
                facts=json.loads(archive.read("facts.json")),
            )
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise StepError(f"{payload} is not a whole engine file ({checks.reason(error)}): delete its folder") from error


def _node(layer: Layer, time_ms: float | None) -> Node:
    return Node(layer.name, layer.type, layer.precision, PROVIDER, time_ms, layer.origin, layer.evidence)


def _widened(values: np.ndarray) -> np.ndarray:
    """bf16, held as 16-bit integers, as float32: its upper half."""
    return (values.astype(np.uint32) << 16).view(np.float32)


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _short(text: str) -> str:
    return checks.reason(RuntimeError(text))
