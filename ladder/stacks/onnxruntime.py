"""ONNX Runtime with one execution provider.

There is no engine file: a session is made from the ONNX each time, with all graph optimisations on. Loading
a saved optimised model instead gives the same outputs, but its nodes run in another order: a Q/DQ ResNet-18
was 2 % slower that way on a CPU, steadily, so it would not be what a user of ONNX Runtime gets.
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
from ladder.stacks.base import Arrays, Node, Rung, Source

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

_MEMORY = {CPU: "cpu", CUDA: "cuda"}  # where a provider wants its buffers
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


def create(provider: str = CPU) -> OnnxRuntime:
    return OnnxRuntime(provider)


class OnnxRuntime:
    def __init__(self, provider: str):
        self.provider = provider

    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Make a session once, which proves that the model runs as asked; ``destination`` is not written."""
        return _facts(self._session(source, rung, source.profile["opt"]), self.provider)

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        return Session(self._session(source, rung, batch), self.provider, source, batch)

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every node in ONNX Runtime's own profile.

        A node's precision is that of its widest float output; int8 where its kernel multiplies 8-bit integers or
        where it gives 8-bit integers; else the integer type it gives. A float Conv between DequantizeLinear and
        QuantizeLinear therefore stays fp32.
        """
        with tempfile.TemporaryDirectory() as folder:
            inner = self._session(source, rung, batch, profile=Path(folder, "profile"))
            session = Session(inner, self.provider, source, batch)
            session.bind(inputs)
            for _ in range(1 + _PROFILED_RUNS):
                session.run()
                session.synchronise()
            events = json.loads(Path(inner.end_profiling()).read_text(encoding="utf-8"))
            session.close()
        return _nodes(events)

    def identity(self) -> dict[str, str]:
        onnxruntime = checks.runtime("onnxruntime")
        return {"onnxruntime": onnxruntime.__version__, "onnxruntime_build": onnxruntime.get_build_info()}

    def _session(self, source: Source, rung: Rung, batch: int, profile: Path | None = None) -> Any:
        """A session for one batch size whose nodes all run on the asked provider. Raises StepError."""
        onnxruntime = checks.runtime("onnxruntime")
        checks.check_batch(source, batch)
        checks.check_eager(rung, f"ONNX Runtime's {self.provider}")
        checks.refuse_tf32_override()
        if self.provider not in (available := onnxruntime.get_available_providers()):
            raise StepError(f"this ONNX Runtime has no {self.provider}; it has {', '.join(available)}")
        provider = (self.provider, _provider_options(self.provider, rung))
        options = _session_options(source, rung, batch)
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if self.provider != CPU:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            session = _make(source, options, provider)
        except Exception as error:
            self._explain_fallback(source, rung, batch, provider)
            named = type(error).__name__ in ("NotImplemented", "InvalidGraph")
            unsupported = named or "is not a registered function/op" in str(error)
            raise StepError(
                f"ONNX Runtime refuses {source.onnx}: {checks.reason(error)}", permanent=unsupported
            ) from error
        if session.get_providers()[0] != self.provider:
            raise StepError(f"asked for {self.provider}, but ONNX Runtime made a session on {session.get_providers()}")
        self._check_placement(session)
        if (threads := session.get_session_options().intra_op_num_threads) != rung.threads:
            raise StepError(f"asked ONNX Runtime for {rung.threads} threads, it has {threads}")
        return session

    def _explain_fallback(self, source: Source, rung: Rung, batch: int, provider: tuple[str, dict[str, str]]) -> None:
        """Name the nodes that another provider would have taken: ONNX Runtime's refusal does not."""
        if self.provider == CPU:
            return
        try:
            session = _make(source, _session_options(source, rung, batch), provider)
        except Exception:
            return  # it was refused for another reason, which the caller reports
        self._check_placement(session)

    def _check_placement(self, session: Any) -> None:
        if not hasattr(session, "get_provider_graph_assignment_info"):
            raise StepError("this ONNX Runtime cannot say where each node runs; 1.27 or newer can")
        parts = [(part.ep_name, part.get_nodes()) for part in session.get_provider_graph_assignment_info()]
        total = sum(len(nodes) for _, nodes in parts)
        strays = [f"{n.name} ({n.op_type}, {name})" for name, nodes in parts if name != self.provider for n in nodes]
        checks.check_placement(strays, total, self.provider)


class Session:
    """A session with its inputs and outputs bound, so that ``run`` copies nothing."""

    def __init__(self, session: Any, provider: str, source: Source, batch: int):
        self._session, self._provider = session, provider
        self._memory = _MEMORY.get(provider, "cpu")
        self._binding = session.io_binding()
        self._expected = {each.name: (_input_shape(each, source, batch), _dtype(each)) for each in session.get_inputs()}
        self._buffers = {name: self._buffer(*expected) for name, expected in self._expected.items()}
        for name, buffer in self._buffers.items():
            self._binding.bind_ortvalue_input(name, buffer)
        self._output_names = [each.name for each in session.get_outputs()]
        self._unsized = []  # outputs of a size that is known after a run only
        for each in session.get_outputs():
            shape = _shape(each, source, batch)
            if all(isinstance(size, int) for size in shape):
                self._binding.bind_ortvalue_output(each.name, self._buffer(shape, _dtype(each)))
            else:
                self._binding.bind_output(each.name, self._memory)
                self._unsized.append(each.name)

    def _buffer(self, shape: tuple[Any, ...], dtype: np.dtype) -> Any:
        values = checks.runtime("onnxruntime").OrtValue
        return values.ortvalue_from_shape_and_type(list(shape), dtype.type, self._memory, 0)

    def bind(self, inputs: Arrays) -> None:
        checks.check_inputs(inputs, self._expected)
        for name, array in inputs.items():
            self._buffers[name].update_inplace(np.ascontiguousarray(array))
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

    def device_ms(self, launches: int) -> dict[str, float]:
        return {}

    def outputs(self) -> Arrays:
        values = self._binding.get_outputs()  # in the order they were bound
        return {name: np.array(value.numpy()) for name, value in zip(self._output_names, values, strict=True)}

    def facts(self) -> dict[str, Any]:
        return _facts(self._session, self._provider)

    def memory_mb(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._binding = self._session = None
        self._buffers = {}


def _make(source: Source, options: Any, provider: tuple[str, dict[str, str]]) -> Any:
    # By default a provider that fails is replaced by the CPU's, and a model may bring its own session options.
    inference_session = checks.runtime("onnxruntime").InferenceSession
    return inference_session(
        str(source.onnx), options, providers=[provider], enable_fallback=0, read_config_from_model=0
    )


def _provider_options(provider: str, rung: Rung) -> dict[str, str]:
    """Options in which a provider's default is not what the rung's precision says (CUDA's TF32 is on)."""
    if provider == CUDA and rung.precision != "tf32-conv":  # use_tf32 does not tell convolutions from the rest
        return {"use_tf32": "1" if rung.precision == "tf32" else "0"}
    if rung.precision.startswith("tf32"):
        raise StepError(f"ONNX Runtime's {provider} has no precision {rung.precision}", permanent=True)
    return {}


def _session_options(source: Source, rung: Rung, batch: int) -> Any:
    onnxruntime = checks.runtime("onnxruntime")
    checks.check_options(rung, _OPTIONS, "ONNX Runtime")
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


def _facts(session: Any, provider: str) -> dict[str, Any]:
    options = session.get_session_options()
    try:
        spinning = options.get_session_config_entry(_SPINNING)
    except RuntimeError:
        spinning = "default"  # not set by us: ONNX Runtime's own choice
    return {
        "threads": options.intra_op_num_threads,
        "inter_op_threads": options.inter_op_num_threads,
        "provider": session.get_providers()[0],
        "provider_options": session.get_provider_options()[provider],
        "execution_mode": options.execution_mode.name,
        "graph_optimization_level": options.graph_optimization_level.name,
        "allow_spinning": spinning,
        "input_shapes": {each.name: [str(size) for size in each.shape] for each in session.get_inputs()},
    }


def _nodes(events: list[dict[str, Any]]) -> list[Node]:
    """One node for each kernel of a profile of 1 + _PROFILED_RUNS runs, its time without the first run."""
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            kernels[event["name"].removesuffix("_kernel_time"), event["args"]["node_index"]].append(event)
    nodes = []
    for (name, _), calls in kernels.items():
        arguments = calls[-1]["args"]
        counted = calls[len(calls) // (1 + _PROFILED_RUNS) :]
        nodes.append(
            Node(
                name=name,
                type=arguments["op_name"],
                precision=_precision(arguments["op_name"], arguments["output_type_shape"]),
                provider=arguments["provider"],
                time_ms=sum(call["dur"] for call in counted) / _PROFILED_RUNS / 1e3,
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
