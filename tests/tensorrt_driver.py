"""One call of a TensorRT stack in the interpreter that has it: ``python tensorrt_driver.py CALL.json``.

The answer is written beside the call: what was asked for, or how it failed. Imports what that interpreter has: numpy.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # an interpreter's own wrapper may unset PYTHONPATH

from ladder import stacks  # noqa: E402
from ladder.errors import StepError  # noqa: E402
from ladder.files import write_npz  # noqa: E402
from ladder.stacks.base import Rung, Source  # noqa: E402

LAUNCHES = 10


def answer(call: dict, outputs: Path):
    stack = stacks.load("ladder.stacks.tensorrt", call["arguments"])
    if call["do"] == "identity":
        return stack.identity()
    source = Source(**{**call["source"], "onnx": Path(call["source"]["onnx"])})
    rung, engine, batch = Rung(**call["rung"]), Path(call["engine"]), call["batch"]
    if call["do"] == "build":
        return stack.build(source, rung, engine)
    inputs = {}
    if call["inputs"]:
        with np.load(call["inputs"]) as archive:
            inputs = {name: archive[name] for name in archive.files}
    if call["do"] == "nodes":
        return [asdict(node) for node in stack.nodes(source, engine, rung, batch, inputs)]
    session = stack.open(source, engine, rung, batch)
    session.bind(inputs)
    session.run()
    session.synchronise()
    write_npz(outputs, session.outputs())
    told = {"facts": session.facts(), "memory_mb": session.memory_mb(), "device_ms": session.device_ms(LAUNCHES)}
    session.close()
    return told


def main(path: Path) -> None:
    try:
        told = {"result": answer(json.loads(path.read_text()), path.with_suffix(".npz"))}
    except StepError as error:
        told = {"failed": str(error), "permanent": error.permanent}
    path.with_suffix(".answer").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
