"""ONNX Runtime with one execution provider.

Where a provider runs kernels of its own there is no engine file: a session is made from the ONNX each time, with all
graph optimisations on. Loading a saved optimised model instead gives the same outputs, but its nodes run in another
order: a Q/DQ ResNet-18 was 2 % slower that way on a CPU, steadily, so it would not be what a user of ONNX Runtime gets.
Where a provider compiles, its cache is the engine: filled at the build, read when a session is opened.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.stacks import checks
from ladder.stacks import onnxruntime_providers as providers
from ladder.stacks.base import Arrays, Node, Rung, Source
from ladder.stacks.onnxruntime_providers import CPU, Cache, Provider

_OPTIONS = ("allow_spinning", "graph_optimization_level")
_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_SPINNING = "session.intra_op.allow_spinning"
_PROFILED_RUNS = 5  # after one that is not counted

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
_PRECISIONS = {"double": "fp64", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "int8"}
# Kernels that multiply 8-bit integers although their outputs are wider (ONNX and com.microsoft operators).
_INTEGER_KERNELS = {
    "ConvInteger",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QAttention",
    "QGemm",
}


def create(provider: str = CPU.name) -> OnnxRuntime:
    return OnnxRuntime(provider)


class OnnxRuntime:
    def __init__(self, provider: str):
        self.provider = providers.PROVIDERS.get(provider) or Provider(provider)

    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Make a session once, which proves that the model runs as asked; a provider that compiles does so now.

        ``destination`` is written only where something was compiled: for the profile's batches, or the static rung's.
        """
        if not self.provider.compiles:
            return _facts(self._session(source, rung, source.profile["opt"], None), self.provider)
        with tempfile.TemporaryDirectory() as folder:
            cache = Cache(Path(folder), self._profile(source, rung))
            session = self._opened(source, rung, source.profile["opt"], cache)
            facts = session.facts()
            session.close()
            if not (files := cache.files()):
                raise StepError(f"{self.provider.name} left nothing in its cache, so there is nothing to run later")
            providers.pack(cache, destination)
        return facts | {"compiled": files}

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        return self._from_cache(source, payload, rung, batch, None)

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every node in ONNX Runtime's own profile.

        A node's precision is that of its widest float output; int8 where its kernel multiplies 8-bit integers or
        where it gives 8-bit integers; else the integer type it gives. A float Conv between DequantizeLinear and
        QuantizeLinear therefore stays fp32. What a provider compiled is one node of unknown precision. On a GPU the
        profile has the time to submit a node, not the node's, so there is none.
        """
        with tempfile.TemporaryDirectory() as folder:
            session = self._from_cache(source, payload, rung, batch, Path(folder, "profile"))
            session.bind(inputs)
            for _ in range(1 + _PROFILED_RUNS):
                session.run()
                session.synchronise()
            events = session.profile()
            session.close()
        return _nodes(events, self.provider)

    def identity(self) -> dict[str, str]:
        onnxruntime = checks.runtime("onnxruntime")
        return {
            "onnxruntime": onnxruntime.__version__,
            "onnxruntime_build": onnxruntime.get_build_info(),
            **checks.loaded(self.provider.kernels),
        }

    def _from_cache(
        self, source: Source, payload: Path | None, rung: Rung, batch: int, profile: Path | None
    ) -> Session:
        """A session that reads what the build compiled. It says in its facts where it had to compile all the same."""
        if not self.provider.compiles:
            return self._opened(source, rung, batch, None, profile)
        with tempfile.TemporaryDirectory() as folder:
            cache = providers.unpack(payload, Path(folder))
            before = cache.files()
            session = self._opened(source, rung, batch, cache, profile)
            session.compiled_at = "build" if cache.files() == before else "opening"
        return session

    def _opened(
        self, source: Source, rung: Rung, batch: int, cache: Cache | None, profile: Path | None = None
    ) -> Session:
        with providers.without_tf32(self.provider, rung):
            return Session(self._session(source, rung, batch, cache, profile), self.provider, source, rung, batch)

    def _session(self, source: Source, rung: Rung, batch: int, cache: Cache | None, profile: Path | None = None) -> Any:
        """A session for one batch size whose nodes all run on the asked provider. Raises StepError."""
        onnxruntime = checks.runtime("onnxruntime")
        name = self.provider.name
        checks.check_batch(source, batch)
        if self.provider.static_only and rung.shape != "static":
            raise StepError(f"{name} compiles for one shape at a time: ask for shape: static", permanent=True)
        if rung.launch not in self.provider.launches:
            checks.check_eager(rung, f"ONNX Runtime's {name}")
        providers.refuse_overrides()
        if name not in (available := onnxruntime.get_available_providers()):
            raise StepError(f"this ONNX Runtime has no {name}; it has {', '.join(available)}")
        given = providers.options_of(self.provider, rung, cache)
        options = _session_options(source, rung, batch, self.provider)
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if self.provider is not CPU:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            providers.refuse_unknown(self.provider, _folder(onnxruntime), given, onnxruntime.__version__)
            providers.preload(self.provider, onnxruntime)
        try:
            session = _make(source, options, (name, given))
        except Exception as error:
            self._explain(source, rung, batch, given)
            named = type(error).__name__ in ("NotImplemented", "InvalidGraph")
            unsupported = named or "is not a registered function/op" in str(error)
            raise StepError(
                f"ONNX Runtime refuses {source.onnx}: {checks.reason(error)}", permanent=unsupported
            ) from error
        if session.get_providers()[0] != name:
            raise StepError(f"asked for {name}, but ONNX Runtime made a session on {session.get_providers()}")
        providers.refuse_untaken(self.provider, given, session.get_provider_options()[name])
        if _tells_placement(session):  # one that does not has refused every node on the CPU by itself
            self._check_placement(_placed(session), rung)
        if (threads := session.get_session_options().intra_op_num_threads) != rung.threads:
            raise StepError(f"asked ONNX Runtime for {rung.threads} threads, it has {threads}")
        return session

    def _profile(self, source: Source, rung: Rung) -> dict[str, str]:
        """TensorRT's options for the profile's shapes, where the rung is dynamic. The CPU reads the file's inputs."""
        if self.provider is not providers.TENSORRT or rung.shape == "static":
            return {}
        inputs = _make(source, _session_options(source, rung, source.profile["opt"], CPU), (CPU.name, {})).get_inputs()
        ends = ("min", "opt", "max")
        return providers.tensorrt_profile(
            {each.name: {end: _input_shape(each, source, source.profile[end]) for end in ends} for each in inputs}
        )

    def _explain(self, source: Source, rung: Rung, batch: int, given: dict[str, str]) -> None:
        """Raise StepError naming the nodes that would run elsewhere and the library that is missing."""
        if self.provider is CPU:
            return
        fault = providers.loading_fault(self.provider, _folder(checks.runtime("onnxruntime")))
        try:
            placed = self._allowed_elsewhere(
                source, rung, batch, (CPU.name, {}) if fault else (self.provider.name, given)
            )
        except Exception:
            placed = []  # refused for another reason, which the caller reports
        if fault:
            elsewhere = ""
            if placed:
                names = [f"{name} ({kind})" for name, kind, _ in placed]
                more = "" if len(names) <= 10 else f" and {len(names) - 10} more"
                elsewhere = f". Without it {len(names)} nodes would run on the CPU: {', '.join(names[:10])}{more}"
            raise StepError(
                f"{self.provider.name} cannot be loaded: {fault}; it needs {self.provider.needs}{elsewhere}"
            )
        self._check_placement(placed, rung)

    def _allowed_elsewhere(
        self, source: Source, rung: Rung, batch: int, provider: tuple[str, dict[str, str]]
    ) -> list[tuple[str, str, str]]:
        """Name, type and provider of each node where ONNX Runtime may choose; older releases tell in a profile only."""
        options = _session_options(source, rung, batch, self.provider)
        with tempfile.TemporaryDirectory() as folder:
            options.profile_file_prefix = str(Path(folder, "profile"))
            options.enable_profiling = True
            # nodes are placed after the basic optimisations; further ones give them other names
            options.graph_optimization_level = checks.runtime("onnxruntime").GraphOptimizationLevel.ORT_ENABLE_BASIC
            session = _make(source, options, provider)
            if _tells_placement(session):
                session.end_profiling()
                return _placed(session)
            ran_by = providers.PROVIDERS[session.get_providers()[0]]
            opened = Session(session, ran_by, source, rung, batch)
            opened.bind(opened.zeros())
            opened.run()
            return [(node.name, node.type, node.provider) for node in _nodes(opened.profile(), self.provider)]

    def _check_placement(self, placed: list[tuple[str, str, str]], rung: Rung) -> None:
        strays = [f"{name} ({kind}, {place})" for name, kind, place in placed if place != self.provider.name]
        try:
            checks.check_placement(strays, len(placed), self.provider.name)
        except StepError as error:
            if rung.shape == "static":
                raise
            hint = "where these work out shapes, shape: static has that done beforehand"
            raise StepError(f"{error}; {hint}", permanent=True) from error


class Session:
    """A session with its inputs and outputs bound, so that ``run`` copies nothing.

    On a GPU it has run once: whatever is compiled, chosen or captured at the first run is there before anything is
    timed, and since inputs keep their shapes nothing is again. ``run`` waits for the GPU there, as ONNX Runtime does.
    """

    def __init__(self, session: Any, provider: Provider, source: Source, rung: Rung, batch: int):
        self._session, self._provider, self._launch = session, provider, rung.launch
        self._memory = provider.memory
        self.compiled_at: str | None = None  # build or opening, where the provider compiles
        self._binding = session.io_binding()
        self._expected = {each.name: (_input_shape(each, source, batch), _dtype(each)) for each in session.get_inputs()}
        self._buffers = {}
        if provider.allocates:
            self._buffers = {name: self._buffer(*expected) for name, expected in self._expected.items()}
        for name, buffer in self._buffers.items():
            self._binding.bind_ortvalue_input(name, buffer)
        self._output_names = [each.name for each in session.get_outputs()]
        self._unsized = []  # outputs of a size that is known after a run only
        for each in session.get_outputs():
            shape = _shape(each, source, batch)
            if not all(isinstance(size, int) for size in shape):
                self._unsized.append(each.name)
            if provider.allocates and each.name not in self._unsized:
                self._binding.bind_ortvalue_output(each.name, self._buffer(shape, _dtype(each)))
            else:
                self._binding.bind_output(each.name, self._memory)
        if rung.launch == "graph" and self._unsized:
            named = ", ".join(self._unsized)
            raise StepError(f"a graph cannot give outputs of a size that depends on data: {named}", permanent=True)
        if self._memory != "cpu":
            self.bind(self.zeros())
            self.run()
            self.synchronise()

    def _buffer(self, shape: tuple[Any, ...], dtype: np.dtype) -> Any:
        values = checks.runtime("onnxruntime").OrtValue
        return values.ortvalue_from_shape_and_type(list(shape), dtype.type, self._memory, 0)

    def zeros(self) -> Arrays:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in self._expected.items()}

    def bind(self, inputs: Arrays) -> None:
        checks.check_inputs(inputs, self._expected)
        for name, array in inputs.items():
            if name in self._buffers:
                self._buffers[name].update_inplace(np.ascontiguousarray(array))
            else:  # copied to the GPU here, since that is where the session wants it
                self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in self._unsized:  # or the next run would have to fit into the last one's buffer
            self._binding.bind_output(name, self._memory)
        if self._memory != "cpu":
            self._binding.synchronize_inputs()

    def run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise StepError(f"ONNX Runtime failed while running: {checks.reason(error)}") from error

    def synchronise(self) -> None:
        if self._memory != "cpu":  # on the CPU the run returns when it is done
            self._binding.synchronize_outputs()

    def device_ms(self, launches: int) -> dict[str, list[float]]:
        return {}

    def outputs(self) -> Arrays:
        if self._memory != "cpu":
            return dict(zip(self._output_names, self._binding.copy_outputs_to_cpu(), strict=True))
        values = self._binding.get_outputs()  # in the order they were bound
        return {name: np.array(value.numpy()) for name, value in zip(self._output_names, values, strict=True)}

    def facts(self) -> dict[str, Any]:
        compiled = {} if self.compiled_at is None else {"compiled_at": self.compiled_at}
        return _facts(self._session, self._provider) | {"launch": self._launch} | compiled

    def memory_mb(self) -> dict[str, float]:
        return {}

    def profile(self) -> list[dict[str, Any]]:
        """The events of ONNX Runtime's profile, for which the session must have been made. Ends it."""
        return json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))

    def close(self) -> None:
        self._binding = self._session = None
        self._buffers = {}


def _folder(onnxruntime: Any) -> Path:
    """Where ONNX Runtime's libraries are."""
    return Path(onnxruntime.__file__).parent / "capi"


def _tells_placement(session: Any) -> bool:
    return hasattr(session, "get_provider_graph_assignment_info")


def _placed(session: Any) -> list[tuple[str, str, str]]:
    """Name, type and provider of each node, as ONNX Runtime 1.27 and later tell."""
    parts = session.get_provider_graph_assignment_info()
    return [(node.name, node.op_type, part.ep_name) for part in parts for node in part.get_nodes()]


def _make(source: Source, options: Any, provider: tuple[str, dict[str, str]]) -> Any:
    # By default a provider that fails is replaced by the CPU's, and a model may bring its own session options.
    inference_session = checks.runtime("onnxruntime").InferenceSession
    return inference_session(
        str(source.onnx), options, providers=[provider], enable_fallback=0, read_config_from_model=0
    )


def _session_options(source: Source, rung: Rung, batch: int, provider: Provider) -> Any:
    onnxruntime = checks.runtime("onnxruntime")
    checks.check_options(rung, (*_OPTIONS, *provider.options), f"ONNX Runtime's {provider.name}")
    level = rung.options.get("graph_optimization_level", "all")
    if level not in _LEVELS:
        raise StepError(f"graph_optimization_level must be one of {', '.join(_LEVELS)}, not {level!r}", permanent=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[level])
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = rung.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if (spinning := checks.check_flag(rung, "allow_spinning")) is not None:
        options.add_session_config_entry(_SPINNING, "1" if spinning else "0")
    for axis, value in source.axes.items():
        if value != "batch":
            options.add_free_dimension_override_by_name(axis, value)
        elif rung.shape == "static":
            options.add_free_dimension_override_by_name(axis, batch)
    return options


def _shape(tensor: Any, source: Source, batch: int) -> tuple[int | str | None, ...]:
    """The shape of an input or output at this batch size; what is not a number then is not known."""
    return tuple(batch if source.axes.get(size) == "batch" else size for size in tensor.shape)


def _input_shape(tensor: Any, source: Source, batch: int) -> tuple[int, ...]:
    shape = _shape(tensor, source, batch)
    if unknown := [size for size in shape if not isinstance(size, int)]:
        raise StepError(
            f"input '{tensor.name}' of {source.onnx} has dynamic axes without a value: {unknown}; give them under axes",
            permanent=True,
        )
    return tuple(size for size in shape if isinstance(size, int))


def _dtype(tensor: Any) -> np.dtype:
    if tensor.type not in _DTYPES:
        raise StepError(f"'{tensor.name}' is a {tensor.type}, which numpy cannot hold", permanent=True)
    return np.dtype(_DTYPES[tensor.type])


def _facts(session: Any, provider: Provider) -> dict[str, Any]:
    options = session.get_session_options()
    try:
        spinning = options.get_session_config_entry(_SPINNING)
    except RuntimeError:
        spinning = "default"  # not set by us: ONNX Runtime's own choice
    return {
        "threads": options.intra_op_num_threads,
        "inter_op_threads": options.inter_op_num_threads,
        "provider": session.get_providers()[0],
        "provider_options": {
            name: value
            for name, value in session.get_provider_options()[provider.name].items()
            if not name.endswith(("_cache_dir", "_cache_path"))  # another folder each time
        },
        "execution_mode": options.execution_mode.name,
        "graph_optimization_level": options.graph_optimization_level.name,
        "allow_spinning": spinning,
        "input_shapes": {each.name: [str(size) for size in each.shape] for each in session.get_inputs()},
    }


def _nodes(events: list[dict[str, Any]], provider: Provider) -> list[Node]:
    """One node for each kernel of a profile of 1 + _PROFILED_RUNS runs, its time without the first run."""
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            kernels[event["name"].removesuffix("_kernel_time"), event["args"]["node_index"]].append(event)
    nodes = []
    for (name, _), calls in kernels.items():
        arguments = calls[-1]["args"]
        counted = calls[len(calls) // (1 + _PROFILED_RUNS) :]
        time_ms = sum(call["dur"] for call in counted) / _PROFILED_RUNS / 1e3
        compiled = provider.compiles and arguments["provider"] == provider.name
        nodes.append(
            Node(
                name=name,
                type=arguments["op_name"],
                precision=None if compiled else _precision(arguments["op_name"], arguments["output_type_shape"]),
                provider=arguments["provider"],
                time_ms=time_ms if provider is CPU else None,
                origin=_origin(name),
            )
        )
    return nodes


def _origin(name: str) -> tuple[str, ...]:
    """The ONNX node's output or name that ONNX Runtime made a node's name from; empty where it kept the name.

    A node moved to the blocked layout is ``<output>_nchwc``; a fusion appends ``/<Kind>Fusion/`` to the name of the
    node that it replaces.
    """
    origin = re.sub(r"(/\w+Fusion/)+$", "", name.removesuffix("_nchwc"))
    return (origin,) if origin != name else ()


def _precision(op_type: str, outputs: list[dict[str, Any]]) -> str | None:
    if op_type in _INTEGER_KERNELS:
        return "int8"
    return checks.widest([_PRECISIONS.get(name, name) for output in outputs for name in output])
