"""Export a model to FP32 ONNX, check it, and prove it equal to its reference."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import _repository  # noqa: F401
import numpy as np

from ladder import export, graph
from ladder.artifacts import checked_id
from ladder.files import write_json
from ladder.step import json_file, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_file, required=True, help="the model's section, JSON")
    parser.add_argument("--weights", type=Path, required=True, help="the weights file")
    parser.add_argument("--weights-id", type=Path, help="their identity, JSON; the sha256 in it is checked")
    parser.add_argument("--inputs", type=Path, required=True, help="inputs.npz")
    parser.add_argument("--inputs-id", type=Path, help="their identity, JSON; the sha256 in it is checked")
    parser.add_argument("--output-onnx", type=Path, required=True, help="the ONNX file")
    parser.add_argument("--output-reference", type=Path, required=True, help="the reference's outputs, .npz")
    parser.add_argument("--output-id", type=Path, required=True, help="the identity, JSON")
    parser.add_argument("--output-build", type=Path, required=True, help="seconds and parity figures, JSON")
    parser.add_argument("--output-graph", type=Path, required=True, help="type, precision and FLOPs of each node, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    os.dup2(2, 1)  # exporters print to stdout as they like
    outputs = [arguments.output_onnx, arguments.output_reference, arguments.output_build, arguments.output_graph]
    with step("export", arguments.output_id, outputs, arguments.log):
        if arguments.weights_id:
            checked_id(arguments.weights, arguments.weights_id)
        if arguments.inputs_id:
            checked_id(arguments.inputs, arguments.inputs_id)
        with np.load(arguments.inputs, allow_pickle=False) as stored:
            inputs = {name: stored[name] for name in stored.files}
        identity, build = export.export(
            arguments.spec, arguments.weights, inputs, arguments.output_onnx, arguments.output_reference
        )
        observed = graph.observe(arguments.output_onnx, graph.samples_of(arguments.inputs)[:1])
        graph.write(arguments.output_onnx, arguments.output_onnx, arguments.output_graph, "fp32", observed)
        write_json(arguments.output_build, build)
        write_json(arguments.output_id, identity)


if __name__ == "__main__":
    main()
