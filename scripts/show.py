"""Print the ladder, what failed, and where the report is."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder.files import read_json
from ladder.report.console import ladder_text
from ladder.report.read import read_table
from ladder.tables import FAILURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the tables")
    arguments = parser.parse_args()
    if not (arguments.results / "summary.json").is_file():
        sys.exit(f"No tables in {arguments.results} yet; the workflow says why.")
    report = arguments.results / "report.html"
    text = ladder_text(
        read_json(arguments.results / "summary.json"),
        read_table(arguments.results / "failures.csv", FAILURES),
        report=str(report) if report.is_file() else f"not made; tables: {arguments.results}/*.csv",
        width=shutil.get_terminal_size((160, 24)).columns,
        colour=sys.stdout.isatty(),
    )
    print(text, end="")


if __name__ == "__main__":
    main()
