"""How many rounds of this sitting are left, and for how long; what jobs say, wherever they run."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ladder.errors import StepError
from ladder.files import read_json, write_json, write_text

STATE = Path(".ladder")  # what lives only while a sitting does: its lock and its progress
_PLAN, _DONE, _SAID = STATE / "progress.json", STATE / "done", STATE / "said"
_RELAYED = "LADDER_RELAYED"  # set where a call's jobs do not share its terminal
_RELAY_SECONDS = 2.0


def start(rounds: int, runs: int, seconds: float | None, recorded: int = 0) -> None:
    """Note what this sitting has to measure and print the estimate (seconds, s), where there is one.

    ``recorded``: how many of the rounds have a record, which only their own jobs can tell to be still good.
    """
    write_json(_PLAN, {"rounds": rounds})
    _empty(_DONE)
    if rounds:
        told = f"Plan: {amount(rounds, runs, seconds, recorded)}; first, whatever has to be exported and built."
        print(told, file=sys.stderr)


def amount(rounds: int, runs: int, seconds: float | None, recorded: int = 0) -> str:
    """How much there is to measure and how long it takes (seconds, s; None where it cannot be known).

    At most so much where some rounds are ``recorded``.
    """
    at_most = "up to " if recorded else ""
    estimate = "time left is known after the first" if seconds is None else f"about {duration(seconds)} on a quiet host"
    told = f"{at_most}{rounds} round{'s' * (rounds > 1)}, {runs} runs to measure, {estimate}"
    if recorded:
        told += (
            f"; of the {recorded} that have a record, those whose artifacts and settings come out as before are kept"
        )
    return told


def finish_round(seconds: float) -> str:
    """Note one more finished round (seconds, s); say how many are left and for how long, from the pace so far.

    Rounds on several hosts overlap, so the pace is the time since the first one began over those that are done. Each
    is a file of its own, whose name tells when it began: hosts that share a folder may lose lines that two of them
    append to one file, and there may be thousands.
    """
    if not _PLAN.is_file():
        return f"round done in {duration(seconds)}"
    planned, now_ns = read_json(_PLAN)["rounds"], time.time_ns()
    write_text(_DONE / _unique_name(now_ns - int(seconds * 1e9)), "")
    done = _whole_files(_DONE)
    left = max(planned - len(done), 0)
    pace = (now_ns - int(done[0].name.partition("-")[0])) / 1e9 / len(done)
    return f"round {len(done)} of {planned} done in {duration(seconds)}; {left} left, about {duration(left * pace)}"


def say(line: str) -> None:
    """Print a job's line where the person who called the workflow sees it, on whatever host the job runs."""
    if is_relayed():
        write_text(_SAID / _unique_name(time.time_ns()), line + "\n")
    else:
        print(line, flush=True)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Where the block raises StepError, say in one sentence why ``what`` is not made, and end the program."""
    try:
        yield
    except StepError as error:
        say(f"{what}: not made: {error}")
        sys.exit(str(error))


def is_relayed() -> bool:
    """Whether this is a job of a call whose jobs run on other hosts."""
    return _RELAYED in os.environ


def relay() -> None:
    """From now on print what jobs on other hosts say, a few seconds later, until this process ends."""
    _empty(_SAID)
    os.environ[_RELAYED] = "1"  # their environment is this process's
    atexit.register(_pass_on)

    def keep_passing_on() -> None:
        while True:
            time.sleep(_RELAY_SECONDS)
            _pass_on()

    threading.Thread(target=keep_passing_on, daemon=True).start()


def _pass_on() -> None:
    for path in _whole_files(_SAID):
        with suppress(FileNotFoundError):  # at the end there are two of us
            line = path.read_text(encoding="utf-8")
            path.unlink()
            print(line, end="", file=sys.stderr, flush=True)


def _unique_name(time_ns: int) -> str:
    """A file's name that no other process of any host has, in the order of time."""
    return f"{time_ns}-{platform.node()}-{os.getpid()}"


def _whole_files(folder: Path) -> list[Path]:
    """The files of a folder under their final names (``files.replacing``), in order."""
    return sorted(path for path in folder.glob("*") if not path.name.startswith("."))


def _empty(folder: Path) -> None:
    for path in folder.glob("*"):
        path.unlink(missing_ok=True)  # jobs of a killed call may go on and take their own away


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
