"""Measure what the platform's device can do at best. Runs in the environment of its PyTorch, on a host held alone."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import peaks, preflight
from ladder.files import write_json
from ladder.step import json_file, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json_file, required=True, help="ladder.steps.peaks_spec, JSON")
    parser.add_argument("--output", type=Path, required=True, help="the peaks, JSON")
    parser.add_argument("--log", type=Path, help="where this log goes, for the record of a failure")
    arguments = parser.parse_args()
    with step("peaks", arguments.output, log=arguments.log):
        busy = preflight.busy_cpus()
        found = peaks.measure(arguments.spec["device"], arguments.spec["threads"])
        write_json(arguments.output, {"status": "ok", "load_before": busy, **found})


if __name__ == "__main__":
    main()
