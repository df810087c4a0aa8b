"""Small seeded models for the MIGraphX stack, and the module itself: the one made up here, or a real one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

FAKE = Path(__file__).parent / "fakes" / "rocm" / "migraphx.py"
SIZE = 8
BATCH = 2
SHAPE = (BATCH, 3, SIZE, SIZE)


def module(which: str) -> ModuleType:
    """``fake``: loaded anew, without a GPU. ``real``: what LADDER_MIGRAPHX (a folder such as /opt/rocm/lib) or the
    interpreter has; the test is skipped without one."""
    if which == "fake":
        spec = importlib.util.spec_from_file_location("migraphx", FAKE)
        assert spec and spec.loader
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made
    if (folder := os.environ.get("LADDER_MIGRAPHX")) and folder not in sys.path:
        sys.path.append(folder)
    try:
        found = importlib.import_module("migraphx")
    except ImportError as error:
        pytest.skip(f"no real migraphx: {error}; LADDER_MIGRAPHX names the folder that has one")
    if not hasattr(found, "parse_onnx"):
        pytest.skip("the migraphx that is installed is PyPI's placeholder")
    return found


def net(path: Path, quantised: bool = False) -> Path:
    """A convolution, a linear layer and a softmax: ``image`` [batch, 3, height, 8] to ``scores`` [batch, 5] and
    ``features`` [batch, 4, 8, 8]; ``quantised``: with Q/DQ before the convolution and the linear layer."""
    random = np.random.default_rng(0)
    arrays = {
        "w": (random.standard_normal((4, 3, 3, 3)) / 4).astype(np.float32),
        "b": random.standard_normal(4).astype(np.float32),
        "v": (random.standard_normal((4, 5)) / 4).astype(np.float32),
    }
    nodes = []

    def through_int8(name: str) -> str:
        """The name of a tensor after Q/DQ; a weight is held as integers."""
        if not quantised:
            return name
        scale = float(np.abs(arrays[name]).max() / 127) if name in arrays else 1 / 64
        arrays[f"{name}_scale"], arrays[f"{name}_zero"] = np.array(scale, np.float32), np.array(0, np.int8)
        if name in arrays:
            arrays[f"{name}_q"] = np.round(arrays.pop(name) / scale).astype(np.int8)
        else:
            parts = [name, f"{name}_scale", f"{name}_zero"]
            nodes.append(helper.make_node("QuantizeLinear", parts, [f"{name}_q"], f"/{name}/Quantize"))
        parts = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", parts, [f"{name}_dq"], f"/{name}/Dequantize"))
        return f"{name}_dq"

    conv = [through_int8("image"), through_int8("w"), "b"]
    nodes.append(helper.make_node("Conv", conv, ["features"], "/conv/Conv", pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", ["features"], ["r"], "/relu/Relu"))
    nodes.append(helper.make_node("GlobalAveragePool", ["r"], ["p"], "/pool/GlobalAveragePool"))
    nodes.append(helper.make_node("Flatten", ["p"], ["f"], "/flat/Flatten"))
    nodes.append(helper.make_node("MatMul", [through_int8("f"), through_int8("v")], ["m"], "/fc/MatMul"))
    nodes.append(helper.make_node("Softmax", ["m"], ["scores"], "/softmax/Softmax", axis=1))
    return save(
        path,
        nodes,
        {"image": ["batch", 3, "height", SIZE]},
        {"scores": ["batch", 5], "features": ["batch", 4, "height", SIZE]},
        arrays,
    )


def save(path: Path, nodes: list, inputs: dict, outputs: dict, arrays: dict | None = None) -> Path:
    def values(of: dict) -> list:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in of.items()]

    weights = [numpy_helper.from_array(array, name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "net", values(inputs), values(outputs), weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def images(seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).random(SHAPE, dtype=np.float32)}
