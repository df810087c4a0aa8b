"""Measure one rung in this process, as a round asks it to; see ladder.run."""

from __future__ import annotations

import argparse
from pathlib import Path

import _repository  # noqa: F401

from ladder.run import measure_rung


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path, help="what to measure (JSON); the result is written beside it")
    measure_rung(parser.parse_args().spec)


if __name__ == "__main__":
    main()
