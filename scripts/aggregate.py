"""Make the tables from what rounds and audits left behind: nothing is measured, all of it can be made again."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import locks, progress
from ladder.aggregate import aggregate, planned_files
from ladder.step import json_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=json_file, required=True, help="ladder.steps.plan, JSON")
    parser.add_argument("--output-dir", type=Path, required=True, help="where the tables go")
    arguments = parser.parse_args()
    waiting = "tables: waiting, another workflow of this host is measuring"
    with progress.told("tables"), locks.host_lock(exclusive=False, waiting=waiting):
        aggregate(arguments.plan, *planned_files(arguments.plan), arguments.output_dir)


if __name__ == "__main__":
    main()
