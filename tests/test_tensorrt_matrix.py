"""Which file each of TensorRT's stacks builds from, and what its audit is told of."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ladder import causes, config, steps
from ladder.matrix import Matrix

DEFAULT = yaml.safe_load((Path(__file__).parent.parent / "config.yaml").read_text())


def matrix(rung: dict[str, str]) -> Matrix:
    """The default configuration with this one rung on an NVIDIA platform, batch 1."""
    ladder = {"platform": "gpu", "models": ["yolo11n"], "batches": [1], "rounds": 1, "rungs": [rung], "steps": []}
    raw = DEFAULT | {"platform": "gpu", "platforms": {"gpu": {"device": "cuda"}}, "ladders": {"tensorrt": ladder}}
    return Matrix(config.load(raw), raw)


@pytest.mark.parametrize(
    ("stack", "precision", "file", "converted"),
    [
        ("tensorrt", "fp32", "fp32", None),
        ("tensorrt", "tf32", "fp32", None),
        ("tensorrt", "fp16", "fp16", None),
        ("tensorrt", "int8-fp16", "int8-fp16", None),
        ("tensorrt-rtx", "bf16", "bf16", None),
        ("tensorrt-weak", "fp32", "fp32", None),
        ("tensorrt-weak", "tf32", "fp32", None),
        ("tensorrt-weak", "fp16", "fp32", "fp16"),
        ("tensorrt-weak", "bf16", "fp32", "bf16"),
        ("tensorrt-weak", "int8", "int8", None),
        ("tensorrt-weak", "int8-fp16", "int8", "int8-fp16"),
    ],
)
def test_typing_decides_the_file(stack: str, precision: str, file: str, converted: str | None) -> None:
    planned = matrix({"name": "rung", "stack": stack, "precision": precision})
    (engine,) = planned.engines.values()
    assert planned.onnx(engine) == f"artifacts/yolo11n/{file}.onnx"
    inputs = steps.audit_inputs(planned, engine)
    assert inputs["graph"] == f"artifacts/yolo11n/{file}.graph.json"
    assert inputs.get("converted") == (converted and f"artifacts/yolo11n/{converted}.graph.json")
    assert (" --converted " in steps.audit_arguments(planned, engine)) == bool(converted)


def test_no_step_but_compilation_joins_two_ways_to_build() -> None:
    stacks = config.load(DEFAULT).stacks
    factors = {"device": "cuda", "precision": "fp16", "launch": "eager", "shape": "dynamic", "transfers": "excluded"}
    factors |= {"threads": 1, "options": {}}
    ways = [
        {**factors, "api": stacks[name].api, "compiler": stacks[name].compiler}
        for name in ("tensorrt", "tensorrt-weak", "tensorrt-rtx")
    ]
    for first, other in ((ways[0], ways[1]), (ways[0], ways[2]), (ways[1], ways[2])):
        assert [cause for cause in causes.CAUSES if causes.fault(first, other, cause) is None] == ["compilation"]
