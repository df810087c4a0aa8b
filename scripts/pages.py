"""Write the report's pages, one self-contained HTML file a section, from the tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder import locks, progress
from ladder.report.build import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of the tables and of summary.json")
    parser.add_argument("--captions", type=Path, required=True, help="folder of the sections' captions (.rst)")
    parser.add_argument("--output-dir", type=Path, required=True, help="where the pages go")
    arguments = parser.parse_args()
    waiting = "pages: waiting, another workflow of this host is measuring"
    with progress.told("pages"), locks.host_lock(exclusive=False, waiting=waiting):
        for page in build(arguments.results, arguments.captions, arguments.output_dir):
            print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
