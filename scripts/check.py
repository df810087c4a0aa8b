"""Print what gave no result, and fail if anything did."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=Path, required=True, help="failures.csv")
    parser.add_argument("--output", type=Path, required=True, help="written only if there are none")
    arguments = parser.parse_args()
    with open(arguments.failures, newline="", encoding="utf-8") as stream:
        failures = list(csv.DictReader(stream))
    if failures:
        sys.exit(f"{len(failures)} failed; see {arguments.failures}. Everything else is finished.")
    write_text(arguments.output, "no failures\n")


if __name__ == "__main__":
    main()
