"""Measure one round: each rung of a ladder once, in a fresh process, on a host held alone."""

import argparse
import time
from pathlib import Path

import _repository  # noqa: F401

from ladder import progress
from ladder.round import keep_beside, measure_round
from ladder.step import json_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--spec",
        type=json_file,
        required=True,
        help="what all rounds of its ladder and batch are told, JSON (ladder.steps.round_spec)",
    )
    parser.add_argument("--round", type=int, required=True, help="its number")
    parser.add_argument("--output", type=Path, required=True, help="the round's record (JSON)")
    parser.add_argument(
        "--raw", type=Path, required=True, help="the round's latencies in ns, in arrival order (Parquet)"
    )
    parser.add_argument("--log", type=Path, required=True, help="what the rungs' processes print")
    parser.add_argument("--host", type=Path, help="declaration of the host that the round is to run on")
    parser.add_argument("--gpus", nargs="+", default=[], help="that it may run on, best first, by number or UUID")
    args = parser.parse_args()
    spec, start = {**args.spec, "round": args.round}, time.monotonic()
    what = f"{spec['model']['name']} · {spec['ladder']} · batch {spec['batch']} · round {spec['round']}"

    def say(line: str) -> None:
        progress.say(f"{what} · {line}")

    record = measure_round(spec, args.output, args.raw, args.log, args.host, args.gpus, say)
    if progress.is_relayed():
        keep_beside(args.output, args.raw)
    for warning in record["warnings"]:
        progress.say(f"warning: {warning}")
    told = [progress.finish_round(time.monotonic() - start)]
    if not record["rows"]:
        told.insert(0, f"nothing to measure, {len(record['failures'])} rungs failed before")
    elif record["kept"]:
        told.insert(0, "kept, it was measured with just these artifacts and settings")
    elif record["failures"]:
        told.insert(0, f"{len(record['failures'])} rungs failed")
    progress.say(f"{what}: {'; '.join(told)}")


if __name__ == "__main__":
    main()
