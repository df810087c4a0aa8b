"""Make the inputs of a model, for timing and parity or for calibration."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import inputs, models
from ladder.files import write_json
from ladder.step import json_argument, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_argument, required=True, help="the model's section, JSON or @file")
    parser.add_argument("--data", type=json_argument, required=True, help="the entry of 'data', JSON or @file")
    parser.add_argument("--role", choices=inputs.SAMPLES, default="inputs", help="decides how many samples at most")
    parser.add_argument("--weights", type=Path, help="the weights file; an ONNX model says its inputs there")
    parser.add_argument("--output-arrays", type=Path, required=True, help="the .npz: [samples, ...] by input name")
    parser.add_argument("--output-id", type=Path, required=True, help="their identity, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    with step(arguments.role, arguments.output_id, [arguments.output_arrays], arguments.log):
        specs = models.input_specs(arguments.spec, arguments.weights)
        arrays, label = inputs.make(arguments.data, specs, inputs.SAMPLES[arguments.role])
        write_json(arguments.output_id, inputs.write(arrays, label, arguments.data, arguments.output_arrays))


if __name__ == "__main__":
    main()
