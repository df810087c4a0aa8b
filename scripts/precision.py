"""Convert a model's FP32 ONNX file to a lower precision, count what was converted, and keep the calibration."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

import _repository  # noqa: F401
import onnx

from ladder import graph, precision
from ladder.artifacts import checked_id
from ladder.files import write_json
from ladder.step import id_path_of, json_file, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", choices=("fp16", "bf16", "int8", "int8-fp16"), required=True)
    parser.add_argument("--options", type=json_file, default={}, help="the model's 'conversion', JSON")
    parser.add_argument("--onnx", type=Path, required=True, help="the FP32 ONNX file, its id beside it")
    parser.add_argument("--calibration", type=Path, required=True, help="calibration.npz, its id beside it")
    parser.add_argument("--output-onnx", type=Path, required=True, help="the converted file")
    parser.add_argument("--output-id", type=Path, required=True, help="its identity, JSON")
    parser.add_argument("--output-graph", type=Path, required=True, help="precision, reason, FLOPs of each node, JSON")
    parser.add_argument("--output-scales", type=Path, required=True, help="INT8 scales, FP16 ranges by tensor, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    os.dup2(2, 1)  # ModelOpt and ONNX Runtime print to stdout as they like
    outputs = [arguments.output_onnx, arguments.output_graph, arguments.output_scales]
    with step("precision", arguments.output_id, outputs, arguments.log):
        for artifact in (arguments.onnx, arguments.calibration):
            checked_id(artifact, id_path_of(artifact))
        quantises = arguments.precision.startswith("int8")
        samples = graph.samples_of(arguments.calibration)
        observed = graph.observe(arguments.onnx, samples[:1] if quantises else samples)
        fp32, converted, name = arguments.onnx, arguments.output_onnx, arguments.precision
        identity = precision.convert(fp32, arguments.calibration, name, arguments.options, observed, converted)
        graph.write(fp32, converted, arguments.output_graph, name, observed, identity["options"])
        if quantises:
            calibrated: dict[str, Any] = {"scales": precision.scales(onnx.load(converted))}
        else:  # null: not finite
            calibrated = {"ranges": {name: r if math.isfinite(r) else None for name, r in observed.ranges.items()}}
        write_json(arguments.output_scales, calibrated)
        write_json(arguments.output_id, identity)


if __name__ == "__main__":
    main()
