"""Small seeded ONNX models for tests, and data for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def convnet(path: Path, scale: float = 1.0) -> Path:
    """Two convolutions, a pooled linear layer and shape arithmetic; ``scale`` widens the range of one branch.

    Input ``x`` [batch, 3, 16, 16], output ``y`` [batch, 5].
    """
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "/conv1/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "/relu1/Relu"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "/conv2/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "/relu2/Relu"),
        helper.make_node("Mul", ["r2", "scale"], ["m"], "/wide/Mul"),
        helper.make_node("Div", ["m", "scale"], ["d"], "/wide/Mul_1"),  # a name that another one starts
        helper.make_node("GlobalAveragePool", ["d"], ["p"], "/pool/GlobalAveragePool"),
        helper.make_node("Shape", ["p"], ["s"], "/flat/Shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], "/flat/Gather"),
        helper.make_node("Concat", ["n", "rest"], ["to"], "/flat/Concat", axis=0),
        helper.make_node("Reshape", ["p", "to"], ["f"], "/flat/Reshape"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "/fc/Gemm", transB=1),
    ]
    initializers = [
        weight("w1", 16, 3, 3, 3),
        weight("b1", 16),
        weight("w2", 32, 16, 3, 3),
        weight("b2", 32),
        weight("w3", 5, 32),
        weight("b3", 5),
        numpy_helper.from_array(np.array(scale, np.float32), "scale"),
        numpy_helper.from_array(np.array([0], np.int64), "zero"),
        numpy_helper.from_array(np.array([-1], np.int64), "rest"),
    ]
    graph = helper.make_graph(
        nodes,
        "convnet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def data(path: Path, samples: int = 3) -> Path:
    """Seeded inputs for ``convnet``, [samples, 3, 16, 16] in 0 to 1."""
    np.savez(path, x=np.random.default_rng(1).random((samples, 3, 16, 16), dtype=np.float32))
    return path
