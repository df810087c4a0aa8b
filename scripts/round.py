"""Measure one round: each rung of a ladder once, in a fresh process, on a host held alone."""

import argparse
import sys
import time
from pathlib import Path

import _repository  # noqa: F401

from ladder import progress
from ladder.round import measure_round
from ladder.step import json_argument


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--spec",
        type=json_argument,
        required=True,
        help="what to measure, as JSON or @FILE (see ladder.steps.round_spec)",
    )
    parser.add_argument("--output", type=Path, required=True, help="the round's record (JSON)")
    parser.add_argument(
        "--raw", type=Path, required=True, help="the round's latencies in ns, in arrival order (Parquet)"
    )
    parser.add_argument("--log", type=Path, required=True, help="what the rungs' processes print")
    args = parser.parse_args()
    spec, start = args.spec, time.monotonic()
    record = measure_round(spec, args.output, args.raw, args.log)
    for warning in record["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    what = f"{spec['model']['name']} · {spec['ladder']} · batch {spec['batch']} · round {spec['round']}"
    if not record["rows"]:
        print(f"{what}: nothing to measure, {len(record['failures'])} rungs failed before", file=sys.stderr)
    elif record["kept"]:
        print(f"{what}: kept, it was measured with just these artifacts and settings", file=sys.stderr)
    else:
        failed = f", {len(record['failures'])} rungs failed" if record["failures"] else ""
        print(f"{what}{failed}: {progress.finish_round(time.monotonic() - start)}", file=sys.stderr)


if __name__ == "__main__":
    main()
