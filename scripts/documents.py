"""Write a published document's own files from the tables and the rounds that these name."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder import locks, progress
from ladder.documents import FILES
from ladder.documents.write import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--document", choices=FILES, required=True)
    parser.add_argument("--results", type=Path, required=True, help="folder of the tables and of summary.json")
    parser.add_argument("--output-dir", type=Path, required=True, help="where its files go")
    arguments = parser.parse_args()
    waiting = "documents: waiting, another workflow of this host is measuring"
    with progress.told("documents"), locks.host_lock(exclusive=False, waiting=waiting):
        write(arguments.document, arguments.results, arguments.output_dir)


if __name__ == "__main__":
    main()
