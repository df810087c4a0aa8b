"""Behaves as MIGraphX 2.15's Python module does where the stack relies on it, and where the library is silent.

Outputs are real: ONNX Runtime computes them. Without ``enable_gpu()`` it is a build with the targets ref and cpu. What
is copied from the real one: signatures, what is silently taken, the messages of its errors, what a run demands.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

__version__ = "2.15.0.dev+20250911-17-1-1-g0fake000"

FLOATS = ("float_type", "double_type")
TYPES = {1: "float", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "half", 11: "double", 16: "bf16"}
NUMPY = {"float_type": "float32", "double_type": "float64", "half_type": "float16"}
NAMES = {"Conv": "convolution", "MatMul": "dot", "Gemm": "dot", "GlobalAveragePool": "pooling"}
VIEWS = ("reshape", "transpose", "flatten", "multibroadcast", "identity")
calls: list[str] = []  # what a session did with the device, in order


def _error(place: str, message: str) -> RuntimeError:
    return RuntimeError(f"/longer_pathname_so_that_rpms_can_support/src/{place}: {message}")


class shape:
    def __init__(self, type: str = "float_type", lens: Any = (1,), strides: Any = None):
        self._type = type if type.endswith("_type") else f"{type}_type"
        self._lens = [int(size) for size in lens]
        itemsizes = np.ones(self._lens, np.int8).strides if strides is None else strides
        self._strides = [int(each) for each in itemsizes]

    def type_string(self) -> str:
        return self._type

    def lens(self) -> list[int]:
        return list(self._lens)

    def strides(self) -> list[int]:
        return list(self._strides)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, shape) and repr(self) == repr(other)

    def __repr__(self) -> str:
        lens, strides = (", ".join(map(str, each)) for each in (self._lens, self._strides))
        return f"{self._type}, {{{lens}}}, {{{strides}}}"


class argument:
    def __init__(self, data: Any):
        self._data, self._on_gpu = _buffer(data), False

    def get_shape(self) -> shape:
        data = self._data
        return shape(_type_of(data), data.shape, [each // data.itemsize for each in data.strides])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        assert not self._on_gpu, "the host reads device memory"
        return self._data.copy() if copy else self._data


class _Operation:
    def __init__(self, name: str, values: dict[str, Any]):
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def values(self) -> dict[str, Any]:
        return self._values


class _Instruction:
    """A handle: a new one at every asking, equal to the others of its instruction."""

    def __init__(self, program: program, place: int):
        self._program, self._place = program, place

    def name(self) -> str:
        return self._program._listing[self._place]["name"]

    def shape(self) -> shape:
        each = self._program._listing[self._place]
        return shape(each["type"], each["lens"])

    def op(self) -> _Operation:
        each = self._program._listing[self._place]
        return _Operation(each["name"], each["values"])

    def inputs(self) -> list[_Instruction]:
        return [_Instruction(self._program, place) for place in self._program._listing[self._place]["inputs"]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Instruction) and (self._program, self._place) == (other._program, other._place)

    def __hash__(self) -> int:
        return hash((id(self._program), self._place))


class _Target:
    def __init__(self, name: str):
        self.name = name


class program:
    """The ONNX file, with its sizes, and what was done to it."""

    def __init__(self, model: bytes = b"", float_type: str = "float_type"):
        self._model, self._float = model, float_type
        self._target: str | None = None
        self._options: dict[str, bool] = {}
        graph = onnx.load_from_string(model).graph if model else onnx.GraphProto()
        weights = {each.name for each in graph.initializer}
        self._inputs = {each.name: _shape_of(each) for each in graph.input if each.name not in weights}
        self._outputs = [_shape_of(each) for each in graph.output]
        self._parsed = _listing(graph) if model else []
        self._listing = _lowered(self._parsed, float_type)
        self._session: Any = None
        self._scratch: list[np.ndarray] = []

    def is_compiled(self) -> bool:
        return self._target is not None

    def get_parameter_shapes(self) -> dict[str, shape]:
        found = dict(self._inputs)
        if self._target == "gpu" and not self._options["offload_copy"]:
            found |= {f"main:#output_{i}": each for i, each in enumerate(self._outputs)}
        return found

    def get_output_shapes(self) -> list[shape]:
        return list(self._outputs)

    def get_main_module(self) -> list[_Instruction]:
        return [_Instruction(self, place) for place in range(len(self._listing))]

    def compile(
        self, t: _Target, offload_copy: bool = True, fast_math: bool = True, exhaustive_tune: bool = False
    ) -> None:
        if not isinstance(t, _Target):
            raise TypeError("compile(): incompatible function arguments.")
        self._target = t.name
        self._options = {"offload_copy": offload_copy, "fast_math": fast_math, "exhaustive_tune": exhaustive_tune}
        self._listing = [_compiled(each, self._listing, t.name) for each in self._listing]

    def run(self, params: dict[str, Any]) -> list[argument]:
        calls.append("run")
        given: dict[str, argument] = {}
        for name, wanted in self.get_parameter_shapes().items():
            if name not in params:
                raise _error("program.cpp:460: operator()", f"Parameter not found: {name}")
            value = params[name]
            given[name] = value if isinstance(value, argument) else argument(value)
            if (found := given[name].get_shape()) != wanted:
                raise _error(
                    "program.cpp:468: operator()",
                    f"Incorrect shape {{{found}}} for parameter: {name} should be: {wanted}",
                )
        on_device = self._target == "gpu" and not self._options["offload_copy"]
        assert all(each._on_gpu == on_device for each in given.values()), "a kernel reads memory of the wrong side"
        results = self._computed({name: given[name]._data for name in self._inputs})
        if on_device:
            for i, result in enumerate(results):
                given[f"main:#output_{i}"]._data[...] = result
            return [given[f"main:#output_{i}"] for i in range(len(results))]
        if self._target == "cpu":  # results live in memory of the program, which the next run writes to
            self._scratch = self._scratch or [np.empty_like(result) for result in results]
            for kept, result in zip(self._scratch, results, strict=True):
                kept[...] = result
            return [argument(kept) for kept in self._scratch]
        return [argument(result) for result in results]

    def run_async(self, params: dict[str, Any], stream: int, stream_name: str) -> list[argument]:
        return self.run(params)

    def _computed(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        if self._session is None:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(self._model, options, providers=["CPUExecutionProvider"])
        rounded = self._float == "half_type" and self._target != "cpu"
        narrow = np.float16 if rounded else np.float32
        floats = {
            name: each.astype(narrow).astype(each.dtype) if each.dtype.kind == "f" else each
            for name, each in inputs.items()
        }
        return [each.astype(narrow).astype(each.dtype) for each in self._session.run(None, floats)]


def parse_onnx(
    filename: str,
    default_dim_value: int = 0,
    default_dyn_dim_value: Any = None,
    dim_params: dict[str, Any] = {},  # noqa: B006 - as the real one
    map_input_dims: dict[str, list[int]] = {},  # noqa: B006
    map_dyn_input_dims: dict[str, Any] = {},  # noqa: B006
    skip_unknown_operators: bool = False,
    print_program_on_error: bool = False,
    max_loop_iterations: int = 10,
    limit_max_iterations: int = 65535,
) -> program:
    if not isinstance(filename, str):
        raise TypeError("parse_onnx(): incompatible function arguments.")
    unreadable = _error("onnx/onnx_parser.cpp:264: parse_from", f"PARSE_FROM: Failed reading onnx file: {filename}")
    try:
        content = Path(filename).read_bytes()
        model = onnx.load_from_string(content) if content else onnx.ModelProto()
    except Exception:
        raise unreadable from None
    if not model.graph.output:
        return program()
    for node in model.graph.node:
        if not onnx.defs.has(node.op_type):
            raise _error("onnx/onnx_parser.cpp:417: parse_graph", f"Unknown operator: {node.op_type}")
    weights = {each.name for each in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dims = (
            [dim.dim_value or default_dim_value or 1 for dim in tensor.shape.dim] if tensor.HasField("shape") else [1]
        )
        dims = map_input_dims.get(value.name, dims)
        del tensor.shape.dim[:]
        for size in dims:
            tensor.shape.dim.add().dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return program(onnx.shape_inference.infer_shapes(model, data_prop=True).SerializeToString())


def get_target(name: str) -> _Target:
    if name not in _targets:
        raise _error(
            "dynamic_loader.cpp:77: check_load_error",
            f"Dynamic loading or symbol lookup failed with libmigraphx_{name}.so: cannot open shared object file",
        )
    return _Target(name)


def quantize_fp16(prog: program, ins_names: list[str] = ["all"]) -> None:  # noqa: B006
    _quantise(prog, "half_type", ins_names)


def quantize_bf16(prog: program, ins_names: list[str] = ["all"]) -> None:  # noqa: B006
    _quantise(prog, "bf16_type", ins_names)


def save_buffer(p: program) -> bytes:
    kept = {"model": base64.b64encode(p._model).decode(), "float": p._float, "target": p._target}
    return json.dumps({"version": 1, **kept, "options": p._options}).encode()


def load_buffer(b: bytes) -> program:
    if not isinstance(b, bytes):
        raise TypeError("load_buffer(): incompatible function arguments.")
    if not b:
        raise RuntimeError("insufficient bytes")
    try:
        kept = json.loads(b)
    except ValueError:
        raise _error("value.cpp:310: at", "Not an object for field: version") from None
    loaded = program(base64.b64decode(kept["model"]), kept["float"])
    if kept["target"]:
        loaded.compile(get_target(kept["target"]), **kept["options"])
    return loaded


def enable_gpu() -> None:
    """Be a build with a GPU."""
    _targets.add("gpu")
    globals().update(to_gpu=_to_gpu, from_gpu=_from_gpu, allocate_gpu=_allocate_gpu, gpu_sync=_gpu_sync)


def _to_gpu(arg: argument, host: bool = False) -> argument:
    assert not arg._on_gpu
    return _on_gpu(arg._data.copy())


def _from_gpu(arg: argument) -> argument:
    assert arg._on_gpu
    return argument(arg._data.copy())


def _allocate_gpu(s: shape, host: bool = False) -> argument:
    return _on_gpu(np.zeros(s.lens(), NUMPY.get(s.type_string(), s.type_string().removesuffix("_type"))))


def _gpu_sync() -> None:
    calls.append("gpu_sync")


def _on_gpu(data: np.ndarray) -> argument:
    found = argument(data)
    found._on_gpu = True
    return found


_targets = {"ref", "cpu"}


def _buffer(data: Any) -> np.ndarray:
    if not isinstance(data, np.ndarray):
        raise TypeError("argument(): incompatible constructor arguments.")
    return data


def _type_of(data: np.ndarray) -> str:
    return {"float32": "float_type", "float64": "double_type", "float16": "half_type"}.get(
        data.dtype.name, f"{data.dtype.name}_type"
    )


def _shape_of(value: onnx.ValueInfoProto) -> shape:
    tensor = value.type.tensor_type
    return shape(TYPES[tensor.elem_type], [dim.dim_value for dim in tensor.shape.dim])


def _listing(graph: onnx.GraphProto) -> list[dict[str, Any]]:
    """The instructions that a parse gives: shapes are literals, a bias is an addition of its own."""
    shapes = {each.name: _shape_of(each) for each in (*graph.input, *graph.value_info, *graph.output)}
    found: list[dict[str, Any]] = []
    where: dict[str, int] = {}

    def add(name: str, of: shape, inputs: list[int], **values: Any) -> int:
        found.append({"name": name, "type": of.type_string(), "lens": of.lens(), "inputs": inputs, "values": values})
        return len(found) - 1

    for each in graph.initializer:
        where[each.name] = add("@literal", shape(TYPES[each.data_type], each.dims), [])
    for each in graph.input:
        if each.name not in where:
            where[each.name] = add("@param", shapes[each.name], [], parameter=each.name)
    for node in graph.node:
        of = shapes.get(node.output[0]) or shape("int64", [1])
        inputs = [where[name] for name in node.input if name]
        if node.op_type in ("Shape", "Constant"):
            place = add("@literal", of, [])
        elif node.op_type in ("Conv", "Gemm"):
            place = add(NAMES[node.op_type], of, inputs[:2])
            if len(inputs) > 2:
                place = add("add", of, [place, add("multibroadcast", of, inputs[2:])])
        else:
            place = add(NAMES.get(node.op_type, node.op_type.lower()), of, inputs)
        where.update(dict.fromkeys(node.output, place))
    add("@return", shape(), [where[each.name] for each in graph.output])
    return found


def _quantise(prog: program, to: str, ins_names: list[str]) -> None:
    if "all" in ins_names:  # a name that no instruction has is no error
        prog._float, prog._listing = to, _lowered(prog._parsed, to)


def _lowered(listing: list[dict[str, Any]], to: str) -> list[dict[str, Any]]:
    """Every instruction in another float type, with converts where the program takes and gives its own."""
    if to == "float_type":
        return listing
    found: list[dict[str, Any]] = []
    place: dict[int, int] = {}
    for number, each in enumerate(listing):
        is_float, inputs = each["type"] in FLOATS, [place[one] for one in each["inputs"]]
        if each["name"] == "@return":
            results = inputs
            inputs = []
            for one in results:
                found.append({**found[one], "name": "convert", "type": "float_type", "inputs": [one], "values": {}})
                inputs.append(len(found) - 1)
        kept = each["name"] in ("@param", "@return") or not is_float
        found.append({**each, "type": each["type"] if kept else to, "inputs": inputs})
        if each["name"] == "@param" and is_float:
            found.append({**each, "name": "convert", "type": to, "inputs": [len(found) - 1], "values": {}})
        place[number] = len(found) - 1
    return found


def _compiled(each: dict[str, Any], listing: list[dict[str, Any]], target: str) -> dict[str, Any]:
    name = each["name"]
    if name.startswith("@") or name in VIEWS:
        return each
    if target == "ref":
        return {**each, "name": "ref::op", "values": {"name": name, "operator": each["values"]}}
    if target == "cpu":  # computes in float alone
        known = {"convolution": "dnnl::convolution", "dot": "dnnl::dot"}.get(name, "cpu::op")
        is_short = each["type"] in ("half_type", "bf16_type")
        return {**each, "name": known, "values": {"name": name}, "type": "float_type" if is_short else each["type"]}
    dequantised = name in ("convolution", "dot") and all(
        listing[one]["name"] == "dequantizelinear" for one in each["inputs"]
    )
    kernel = f"mlir_quant_{name}" if dequantised else f"{name}_kernel"
    return {**each, "name": "gpu::code_object", "values": {"symbol_name": kernel, "code_object": [0]}}
