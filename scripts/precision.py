"""Convert a model's FP32 ONNX file to a lower precision, count what was converted, and keep the calibration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import _repository  # noqa: F401
import onnx

from ladder import graph, precision
from ladder.errors import StepError
from ladder.files import sha256, write_json
from ladder.step import id_path_of, json_argument, read_id, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", choices=("fp16", "bf16", "int8", "int8-fp16"), required=True)
    parser.add_argument("--options", type=json_argument, default={}, help="the model's 'conversion', JSON or @file")
    parser.add_argument("--onnx", type=Path, required=True, help="the FP32 ONNX file, its id beside it")
    parser.add_argument("--calibration", type=Path, required=True, help="calibration.npz, its id beside it")
    parser.add_argument("--output-onnx", type=Path, required=True, help="the converted file")
    parser.add_argument("--output-id", type=Path, required=True, help="its identity, JSON")
    parser.add_argument("--output-graph", type=Path, required=True, help="precision, reason and FLOPs of each node, JSON")
    parser.add_argument("--output-scales", type=Path, required=True, help="INT8 scales, FP16 ranges by tensor, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    os.dup2(2, 1)  # ModelOpt and ONNX Runtime print to stdout as they like
    outputs = [arguments.output_onnx, arguments.output_graph, arguments.output_scales]
    with step(f"precision {arguments.precision}", arguments.output_id, outputs, arguments.log):
        for artifact in (arguments.onnx, arguments.calibration):
            if read_id(id_path_of(artifact))["sha256"] != sha256(artifact):
                raise StepError(f"{artifact} is not the file its id describes: delete both to have them made again")
        quantises = arguments.precision.startswith("int8")
        samples = graph.samples_of(arguments.calibration)
        observed = graph.observe(arguments.onnx, samples[:1] if quantises else samples)
        identity = precision.convert(
            arguments.onnx, arguments.calibration, arguments.precision, arguments.options, observed, arguments.output_onnx
        )
        graph.write(
            arguments.onnx,
            arguments.output_onnx,
            arguments.output_graph,
            arguments.precision,
            observed,
            identity["options"],
        )
        calibrated = precision.scales(onnx.load(arguments.output_onnx)) if quantises else observed.ranges
        write_json(arguments.output_scales, {"scales" if quantises else "ranges": calibrated})
        write_json(arguments.output_id, identity)


if __name__ == "__main__":
    main()
