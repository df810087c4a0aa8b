"""Fetch, copy or draw a model's weights and record their sha256."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import weights
from ladder.files import write_json
from ladder.step import json_file, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_file, required=True, help="the model's section, JSON")
    parser.add_argument("--output-weights", type=Path, required=True, help="the file")
    parser.add_argument("--output-id", type=Path, required=True, help="its identity, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    with step("weights", arguments.output_id, [arguments.output_weights], arguments.log):
        pins = arguments.output_id.with_name("weights.pins.json")
        write_json(arguments.output_id, weights.obtain(arguments.spec, arguments.output_weights, pins))


if __name__ == "__main__":
    main()
