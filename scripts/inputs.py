"""Make the inputs of a model, for timing and parity or for calibration."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import inputs, models
from ladder.files import write_json
from ladder.step import json_file, read_id, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_file, required=True, help="the model's section, JSON")
    parser.add_argument("--data", type=json_file, required=True, help="the entry of 'data', JSON")
    parser.add_argument("--samples", type=int, default=8, help="at most so many (8)")
    parser.add_argument("--weights", type=Path, help="the weights file; an ONNX model says its inputs there")
    parser.add_argument("--weights-id", type=Path, help="their identity, JSON")
    parser.add_argument("--output-npz", type=Path, required=True, help="the .npz: [samples, ...] by input name")
    parser.add_argument("--output-id", type=Path, required=True, help="their identity, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    with step("inputs", arguments.output_id, [arguments.output_npz], arguments.log):
        if arguments.weights_id:
            read_id(arguments.weights_id)
        specs = models.input_specs(arguments.spec, arguments.weights)
        arrays, label = inputs.make(arguments.data, specs, arguments.samples)
        write_json(arguments.output_id, inputs.write(arrays, label, arguments.data, arguments.output_npz))


if __name__ == "__main__":
    main()
