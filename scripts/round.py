"""Measure one round: each rung of a ladder once, in a fresh process, on a host held alone."""

import argparse
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import _repository  # noqa: F401

from ladder import progress
from ladder.files import read_json
from ladder.round import measure_round
from ladder.round_files import give_up, keep_beside
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
    spec = {**args.spec, "round": args.round}
    what = f"{spec['model']['name']} · {spec['ladder']} · batch {spec['batch']} · round {spec['round']}"
    try:
        _measure(spec, what, args)
    except Exception as error:  # a round that cannot be measured holds back no table
        args.log.parent.mkdir(parents=True, exist_ok=True)
        with open(args.log, "a", encoding="utf-8") as log, redirect_stderr(log):
            give_up(args.output, args.raw, args.log, error)
        progress.say(f"{what}: no result: {read_json(args.output)['reason']}")


def _measure(spec: dict[str, Any], what: str, args: argparse.Namespace) -> None:
    start = time.monotonic()

    def say(line: str) -> None:
        progress.say(f"{what} · {line}")

    record = measure_round(spec, args.output, args.raw, args.log, args.host, args.gpus, say)
    if progress.is_relayed():
        keep_beside(args.output, args.raw)
    for warning in [] if record["kept"] else record["warnings"]:  # those of a kept round are of another time
        progress.say(f"warning: {warning}")
    told = [progress.finish_round(time.monotonic() - start)]
    failed = "1 rung" if len(record["failures"]) == 1 else f"{len(record['failures'])} rungs"
    if not record["rows"]:
        told.insert(0, f"nothing to measure, {failed} failed before")
    elif record["kept"]:
        told.insert(0, "kept, it was measured with just these artifacts and settings")
    elif record["failures"]:
        told.insert(0, f"{failed} failed")
    progress.say(f"{what}: {'; '.join(told)}")


if __name__ == "__main__":
    main()
