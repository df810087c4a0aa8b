"""Build the engine of a rung with its stack. Runs in the rung's own environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import artifacts, engine
from ladder.files import read_json, write_json
from ladder.step import json_file, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_file, required=True, help="ladder.steps.engine_spec, JSON")
    parser.add_argument("--export-id", type=Path, required=True, help="id of the FP32 ONNX file")
    parser.add_argument("--onnx", type=Path, help="the ONNX file of the rung's precision, its id beside it")
    parser.add_argument("--weights", type=Path, help="the model's weights file")
    parser.add_argument("--weights-id", type=Path, help="its identity")
    parser.add_argument("--output-engine", type=Path, required=True, help="empty where the stack builds none")
    parser.add_argument("--output-id", type=Path, required=True, help="what it was made from and by, JSON")
    parser.add_argument("--output-build", type=Path, required=True, help="hash, size, seconds and memory, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    with step("engine", arguments.output_id, [arguments.output_engine], arguments.log):
        source = artifacts.source_of(
            arguments.spec, arguments.export_id, arguments.onnx, arguments.weights, arguments.weights_id
        )
        identity, built = engine.build(arguments.spec, source, arguments.output_engine)
        write_json(arguments.output_build, built)
        write_json(arguments.output_id, identity)
    if read_json(arguments.output_id)["status"] != "ok":
        write_json(arguments.output_build, engine.NOTHING_BUILT)


if __name__ == "__main__":
    main()
