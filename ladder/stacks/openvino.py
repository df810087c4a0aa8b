"""OpenVINO on one device: one stream, latency hint, exactly the asked precision.

The exported model holds the network and its properties; importing it compiles it for the device again. Measured
on YOLO11n and ResNet-18 in FP32 and Q/DQ INT8: same outputs bit for bit, same speed as the model compiled first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.files import replacing
from ladder.stacks import checks
from ladder.stacks.base import Arrays, Node, Rung, Source

_HINTS = {"fp32": "f32", "int8": "f32", "bf16": "bf16", "fp16": "f16", "int8-fp16": "f16"}
_PRECISIONS = {
    "f64": "fp64",
    "f32": "fp32",
    "bf16": "bf16",
    "f16": "fp16",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "int8",  # activations of a quantized model are signed or not, node by node
}
_MOVES = {"Concatenation", "Gather", "Reorder", "Reshape", "Split", "Transpose"}  # may cost nothing, done in place
_MULTIPLY_ACCUMULATE = {"Convolution", "Deconvolution", "FullyConnected", "MatMul"}
# What oneDNN calls a processor without VNNI (src/cpu/platform.cpp): its INT8 kernels add two products in 16 bits, which
# is too few for 8 bits of each side. OpenVINO's own account of it: docs.openvino.ai, "Saturation (overflow) issue".
_ADDS_IN_16_BITS = {
    "Intel SSE4.1",
    "Intel AVX",
    "Intel AVX2",
    "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions",
}
_PROFILED_RUNS = 5  # after one that is not counted


def create(device: str = "CPU") -> OpenVino:
    return OpenVino(device)


class OpenVino:
    def __init__(self, device: str):
        self.device = device

    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Compile the ONNX for the profile's batches (a static rung: for its optimum only) and export it."""
        core = self._core(rung)
        static = source.profile["opt"] if rung.shape == "static" else None
        try:
            model = core.read_model(source.onnx)
            model.reshape(_shapes(source, static))
            compiled = core.compile_model(model, self.device, self._properties(rung))
            exported = compiled.export_model()
        except RuntimeError as error:
            unsupported = "OpConversionFailure" in str(error)
            raise StepError(f"OpenVINO refuses {source.onnx}: {checks.reason(error)}", permanent=unsupported) from error
        facts = self._checked_facts(compiled, rung)
        with replacing(destination) as temporary:
            temporary.write_bytes(exported.getbuffer())
        return facts

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        compiled = self._import(source, payload, rung, batch)
        return Session(compiled, batch, self._checked_facts(compiled, rung))

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every node of the device's execution graph that runs: no constants, and nothing worked out from them alone.

        OpenVINO names for each node the type its kernel reads (``runtimePrecision``: the widest of its data inputs)
        and the types it writes. Where a kernel multiplies and accumulates, what it reads is what it computes in (an
        INT8 convolution may well write f32); every other kernel counts as the widest float type it reads or writes,
        so that an element-wise kernel that turns u8 into f32 is not called int8. Times come in whole µs: below one, a
        node has none, and one that moves data is taken as optimized out.
        """
        compiled = self._import(source, payload, rung, batch, PERF_COUNT=True)
        session = Session(compiled, batch, self._checked_facts(compiled, rung))
        session.bind(inputs)
        session.run()
        first = {each.get_friendly_name(): _mean_us(each) for each in _executions(compiled)}
        for _ in range(_PROFILED_RUNS):
            session.run()
        nodes = []
        for each in _executions(compiled):
            mean = _mean_us(each)  # over all runs so far: the first, which is slower, is taken out again
            time_us = (mean * (1 + _PROFILED_RUNS) - first[each.get_friendly_name()]) / _PROFILED_RUNS
            if mean or _info(each, "layerType") not in _MOVES:
                nodes.append(_node(each, self.device, time_us / 1e3 if time_us > 0 else None))
        session.close()
        return nodes

    def identity(self) -> dict[str, str]:
        return {"openvino": checks.runtime("openvino").get_version()}

    def _core(self, rung: Rung) -> Any:
        """OpenVINO's core, once the rung is known to be one it can run. Raises StepError."""
        checks.check_eager(rung, "OpenVINO")
        checks.check_options(rung, (), "OpenVINO")
        if rung.precision not in _HINTS:
            raise StepError(f"OpenVINO has no precision {rung.precision}, only {', '.join(_HINTS)}", permanent=True)
        core = checks.runtime("openvino").Core()
        if self.device not in core.available_devices:
            raise StepError(f"OpenVINO has no device {self.device} here; it has {', '.join(core.available_devices)}")
        return core

    def _properties(self, rung: Rung) -> dict[str, Any]:
        return {
            "INFERENCE_NUM_THREADS": rung.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": _HINTS[rung.precision],
        }

    def _import(self, source: Source, payload: Path | None, rung: Rung, batch: int, **properties: Any) -> Any:
        core = self._core(rung)
        checks.check_batch(source, batch)
        if payload is None:
            raise StepError("OpenVINO runs a built engine, and none was given")
        try:
            compiled = core.import_model(payload.read_bytes(), self.device, {**self._properties(rung), **properties})
        except (RuntimeError, OSError) as error:
            raise StepError(f"OpenVINO cannot read the engine {payload}: {checks.reason(error)}") from error
        for each in compiled.inputs:
            ranges = [(size.min_length, size.max_length) for size in each.partial_shape if size.is_dynamic]
            if any(not low <= batch <= high for low, high in ranges):
                raise StepError(
                    f"the engine {payload} was built for {each.partial_shape}, which excludes batch {batch}"
                )
        return compiled

    def _checked_facts(self, compiled: Any, rung: Rung) -> dict[str, Any]:
        """Every property read back. Raises StepError where one differs from what was asked."""
        skipped = ("SUPPORTED_PROPERTIES", "NETWORK_NAME")
        names = [name for name in compiled.get_property("SUPPORTED_PROPERTIES") if name not in skipped]
        properties = {name: _plain(compiled.get_property(name)) for name in names}
        asked = {**self._properties(rung), "EXECUTION_DEVICES": [self.device]}
        for name, value in asked.items():
            if properties[name] != value:
                raise StepError(f"asked OpenVINO for {name}={value}, but {self.device} has {properties[name]}")
        return _hazard(rung.precision, properties) | {
            "threads": properties["INFERENCE_NUM_THREADS"],
            "provider": self.device,
            "precision_hint": properties["INFERENCE_PRECISION_HINT"],
            "streams": properties["NUM_STREAMS"],
            "properties": properties,
            "input_shapes": {_name(each): str(each.partial_shape) for each in compiled.inputs},
        }


def _hazard(precision: str, properties: dict[str, Any]) -> dict[str, str]:
    """The processor's own reason to compute this precision wrongly, where it has one."""
    isa = str(properties.get("RUNTIME_REQUIREMENTS", "")).rpartition("isa=")[2]
    if not precision.startswith("int8") or isa not in _ADDS_IN_16_BITS:
        return {}
    return {
        "hazard": f"on a processor without VNNI (OpenVINO finds {isa}) its INT8 kernels add products in 16 bits, where "
        "large weights overflow"
    }


class Session:
    """An infer request with its input tensors bound. ``run`` returns when the result is there.

    Submitting with ``start_async`` and waiting costs 10 µs more a run, and a request takes one submission at a time.
    """

    def __init__(self, compiled: Any, batch: int, facts: dict[str, Any]):
        openvino = checks.runtime("openvino")
        self._facts = facts
        self._request = compiled.create_infer_request()
        self._outputs = [(_name(each), each) for each in compiled.outputs]
        self._tensors = {}
        for each in compiled.inputs:
            shape = [batch if size.is_dynamic else size.get_length() for size in each.partial_shape]
            tensor = openvino.Tensor(each.element_type, openvino.Shape(shape))
            self._request.set_tensor(each, tensor)
            self._tensors[_name(each)] = tensor
        self._expected = {n: (tuple(t.shape), np.dtype(t.element_type.to_dtype())) for n, t in self._tensors.items()}

    def bind(self, inputs: Arrays) -> None:
        checks.check_inputs(inputs, self._expected)
        for name, array in inputs.items():
            self._tensors[name].data[...] = array

    def run(self) -> None:
        try:
            self._request.infer(share_outputs=True)  # or every run would copy its outputs
        except RuntimeError as error:
            raise StepError(f"OpenVINO failed while running: {checks.reason(error)}") from error

    def synchronise(self) -> None:
        pass

    def device_ms(self, launches: int) -> dict[str, list[float]]:
        return {}

    def outputs(self) -> Arrays:
        return {name: np.array(self._request.get_tensor(output).data) for name, output in self._outputs}

    def facts(self) -> dict[str, Any]:
        return self._facts

    def memory_mb(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._request = None
        self._outputs, self._tensors = [], {}


def _shapes(source: Source, static_batch: int | None) -> dict[str, Any]:
    """The shape of each input: fixed, but for the batch axis, which has the profile's range.

    Read from the ONNX file, since OpenVINO forgets the names of dynamic axes.
    """
    openvino, onnx = checks.runtime("openvino"), checks.runtime("onnx")
    graph = onnx.load(str(source.onnx), load_external_data=False).graph
    weights = {each.name for each in graph.initializer}
    low, high = (static_batch, static_batch) if static_batch else (source.profile["min"], source.profile["max"])
    shapes = {}
    for each in graph.input:
        if each.name in weights:
            continue
        sizes = []
        for dim in each.type.tensor_type.shape.dim:
            value = source.axes.get(dim.dim_param) if dim.dim_param else dim.dim_value
            if not value:
                raise StepError(
                    f"input '{each.name}' of {source.onnx} has a dynamic axis without a value: '{dim.dim_param}'; "
                    "give it under axes",
                    permanent=True,
                )
            sizes.append(openvino.Dimension(low, high) if value == "batch" else openvino.Dimension(value))
        shapes[each.name] = openvino.PartialShape(sizes)
    return shapes


def _name(tensor: Any) -> str:
    """The ONNX name of an input or output."""
    return tensor.get_any_name()


def _plain(value: Any) -> Any:
    """A property as JSON can hold it; a precision by its short name, e.g. ``f32``."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | set | tuple):
        return sorted(_plain(each) for each in value)
    return value.get_type_name() if hasattr(value, "get_type_name") else getattr(value, "name", str(value))


def _info(execution: Any, key: str) -> str:
    return str(execution.get_rt_info()[key].value)


def _executions(compiled: Any) -> list[Any]:
    """The nodes of the execution graph that depend on an input: the rest is worked out once, before the first run."""
    varying: set[str] = set()
    found = []
    for each in compiled.get_runtime_model().get_ordered_ops():
        name, kind = each.get_friendly_name(), _info(each, "layerType")
        sources = [value.get_node().get_friendly_name() for value in each.input_values()]
        if kind == "Input" or varying.intersection(sources):
            varying.add(name)
            if kind not in ("Input", "Output"):
                found.append(each)
    return found


def _mean_us(execution: Any) -> int:
    """Mean time of a node over all runs so far; 0 where it is below 1 µs or the node did not run."""
    time = _info(execution, "execTimeMcs")
    return 0 if time == "not_executed" else int(time)


def _node(execution: Any, device: str, time_ms: float | None) -> Node:
    kind = _info(execution, "layerType")
    types = [_info(execution, "runtimePrecision")]
    if kind not in _MULTIPLY_ACCUMULATE:
        types += _info(execution, "outputPrecisions").split(",")
    origins = [name for name in _info(execution, "originalLayersNames").split(",") if name]
    return Node(
        name=execution.get_friendly_name(),
        type=kind,
        precision=checks.widest([_PRECISIONS.get(each, each) for each in types]),
        provider=device,
        time_ms=time_ms,
        origin=tuple(dict.fromkeys(name.removesuffix("/WithoutBiases") for name in origins)),  # OpenVINO's own suffix
    )
