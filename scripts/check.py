"""Print what gave no result, and fail if anything did."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder.files import write_text
from ladder.progress import STATE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=Path, required=True, help="failures.csv")
    parser.add_argument("--output", type=Path, required=True, help="written only if there are none")
    arguments = parser.parse_args()
    write_text(STATE / "checked", "")  # the tables are those of this call
    folder = arguments.failures.parent
    with open(arguments.failures, newline="", encoding="utf-8") as stream:
        failures = list(csv.DictReader(stream))
    if failures:
        sys.exit(f"{len(failures)} gave no result; {arguments.failures} says why. The rest is in {folder}/ladder.md.")
    report = folder / "report.html"
    print(
        f"Tables: {folder}/ladder.md, {folder}/*.csv" + (f"; report: {report}" if report.is_file() else ""), flush=True
    )
    write_text(arguments.output, "no failures\n")


if __name__ == "__main__":
    main()
