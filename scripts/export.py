"""Export a model to FP32 ONNX, check it, and prove it equal to its reference."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import _repository  # noqa: F401
import numpy as np

from ladder import export, models
from ladder.errors import StepError
from ladder.files import sha256, write_json
from ladder.step import id_path_of, json_argument, read_id, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_argument, required=True, help="the model's section, JSON or @file")
    parser.add_argument("--weights", type=Path, help="the weights file; none for seeded weights")
    parser.add_argument("--inputs", type=Path, required=True, help="inputs.npz")
    parser.add_argument("--output-onnx", type=Path, required=True, help="the ONNX file")
    parser.add_argument("--output-reference", type=Path, required=True, help="the reference's outputs, .npz")
    parser.add_argument("--output-id", type=Path, required=True, help="the identity, JSON")
    parser.add_argument("--output-build", type=Path, required=True, help="seconds and parity figures, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    os.dup2(2, 1)  # exporters print to stdout as they like
    outputs = [arguments.output_onnx, arguments.output_reference, arguments.output_build]
    with step("export", arguments.output_id, outputs, arguments.log):
        weights_id, inputs_id = _id(arguments.weights), _id(arguments.inputs)
        if inputs_id and inputs_id["sha256"] != sha256(arguments.inputs):
            raise StepError(f"{arguments.inputs} is not the file its id describes: delete both to have them made again")
        with np.load(arguments.inputs, allow_pickle=False) as stored:
            inputs = {name: stored[name] for name in stored.files}
        identity, build = export.export(
            arguments.spec, arguments.weights, inputs, arguments.output_onnx, arguments.output_reference
        )
        write_json(arguments.output_build, build)
        write_json(arguments.output_id, identity | {"weights": models.weights_label(arguments.spec, weights_id)})


def _id(artifact: Path | None) -> dict[str, Any] | None:
    """The ok id beside an artifact, where one stands there (a file given by hand may have none)."""
    return read_id(id_path_of(artifact)) if artifact and id_path_of(artifact).exists() else None


if __name__ == "__main__":
    main()
