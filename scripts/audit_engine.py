"""Audit an engine: parity with the reference, precision and place of each node. Runs in the rung's own environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import _repository  # noqa: F401
import numpy as np

from ladder import artifacts, audit
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.step import id_path_of, json_file, read_id, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_file, required=True, help="ladder.steps.audit_spec, JSON")
    parser.add_argument("--export-id", type=Path, required=True, help="id of the FP32 ONNX file")
    parser.add_argument("--onnx", type=Path, help="the ONNX file of the rung's precision, its id beside it")
    parser.add_argument("--graph", type=Path, help="what that ONNX file says of its nodes, JSON")
    parser.add_argument("--converted", type=Path, help="the same of the file converted to the precision, if another")
    parser.add_argument("--weights", type=Path, help="the model's weights file")
    parser.add_argument("--weights-id", type=Path, help="its identity")
    parser.add_argument("--engine", type=Path, required=True, help="the built engine, empty where there is none")
    parser.add_argument("--engine-id", type=Path, required=True, help="its identity")
    parser.add_argument("--build", type=Path, required=True, help="the facts of its build")
    parser.add_argument("--inputs", type=Path, required=True, help="inputs.npz, its id beside it")
    parser.add_argument("--reference", type=Path, required=True, help="the reference's outputs, .npz")
    parser.add_argument("--output-audit", type=Path, required=True, help="the row of audit.csv and every node, JSON")
    parser.add_argument("--output-pass", type=Path, required=True, help="the verdict, which is all a round needs, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    spec = arguments.spec
    found: dict[str, Any] = {"row": audit.empty_row(spec), "nodes": []}
    with step("audit", arguments.output_pass, [arguments.output_audit], arguments.log):
        read_id(arguments.engine_id)
        built, exported = read_json(arguments.build), read_id(arguments.export_id)
        source = artifacts.source_of(spec, arguments.export_id, arguments.onnx, arguments.weights, arguments.weights_id)
        payload = artifacts.checked_payload(arguments.engine, built)
        artifacts.checked_id(arguments.inputs, id_path_of(arguments.inputs))
        if sha256(arguments.reference) != exported["reference_sha256"]:
            raise StepError(f"{arguments.reference} is not the one the export wrote: delete it to have it made again")
        with np.load(arguments.inputs) as inputs, np.load(arguments.reference) as reference:
            try:
                graphs = [_graph(path) for path in (arguments.graph, arguments.converted)]
                found = audit.audit(spec, source, payload, dict(inputs), dict(reference), *graphs)
            except audit.NotCompared as error:
                found = error.found
                raise
        artifact = payload or source.onnx
        found["row"] |= {
            "weights": exported["weights"],
            "fp32_onnx_sha256": exported["sha256"],
            "artifact_sha256": sha256(artifact) if artifact else exported["weights_sha256"],
            "detail": str(arguments.output_audit),
        }
        write_json(arguments.output_audit, found)
        write_json(arguments.output_pass, audit.verdict_of(found["row"]))
    verdict = read_json(arguments.output_pass)
    if verdict["status"] != "ok":
        found["row"] |= {"verdict": "failed", "reason": verdict["reason"]}
        write_json(arguments.output_audit, found)
        write_json(arguments.output_pass, {**verdict, "verdict": "failed"})


def _graph(path: Path | None) -> dict[str, Any] | None:
    """What an ONNX file says of its nodes; None without one, or where its conversion failed and left it empty."""
    return read_json(path) if path and path.stat().st_size else None


if __name__ == "__main__":
    main()
