"""How many rounds of this sitting are left, and for how long."""

from __future__ import annotations

import sys
from pathlib import Path

from ladder.files import read_json, write_json

STATE = Path(".ladder")  # what lives only while a sitting does: its lock and its progress
_PLAN, _DONE = STATE / "progress.json", STATE / "progress.done"


def start(rounds: int, runs: int, seconds: float | None) -> None:
    """Note what this sitting has to measure and print the estimate (seconds, s), where there is one."""
    write_json(_PLAN, {"rounds": rounds})
    _DONE.unlink(missing_ok=True)
    if rounds:
        print(
            f"Plan: {amount(rounds, runs, seconds)}; first, whatever has to be exported and built.",
            file=sys.stderr,
        )


def amount(rounds: int, runs: int, seconds: float | None) -> str:
    """How much there is to measure and how long it takes (seconds, s; None where it cannot be known)."""
    estimate = "time left is known after the first" if seconds is None else f"about {duration(seconds)} on a quiet host"
    return f"{rounds} round{'s' * (rounds > 1)}, {runs} runs to measure, {estimate}"


def finish_round(seconds: float) -> str:
    """Note one more finished round (seconds, s); say how many are left and for how long, from the pace so far."""
    if not _PLAN.is_file():
        return f"round done in {duration(seconds)}"
    planned = read_json(_PLAN)["rounds"]
    with open(_DONE, "a", encoding="utf-8") as stream:
        stream.write(f"{seconds:.1f}\n")
    took = [float(line) for line in _DONE.read_text(encoding="utf-8").splitlines()]
    left = max(planned - len(took), 0)
    pace = sum(took) / len(took)
    return f"round {len(took)} of {planned} done in {duration(seconds)}; {left} left, about {duration(left * pace)}"


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
