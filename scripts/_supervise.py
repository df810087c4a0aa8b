"""Start one step in the Python it needs, and record its failure where it dies without doing so itself."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import _repository  # noqa: F401

from ladder import locks
from ladder.errors import StepError
from ladder.step import read_id, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", required=True, help="the step's name in failures.csv")
    parser.add_argument(
        "--outputs", type=Path, nargs="+", required=True, help="every file the step writes, the id last"
    )
    parser.add_argument("--environment", type=Path, help="id of the environment the step runs in")
    parser.add_argument("--log", type=Path, required=True, help="where the step's messages go")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- PYTHON SCRIPT ARGUMENTS")
    arguments = parser.parse_args()
    command, id_path = arguments.command[1:], arguments.outputs[-1]
    id_path.unlink(missing_ok=True)
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    with open(arguments.log, "w", encoding="utf-8") as log:
        sys.stderr = log
        waiting = f"{arguments.stage}: waiting, another workflow of this host is measuring"
        with locks.host_lock(exclusive=False, waiting=waiting):
            reason = _start(command, arguments.environment, log)
        if not id_path.exists():
            with step(arguments.stage, id_path, arguments.outputs[:-1], arguments.log):
                raise reason or StepError("ended without a word; its log may say more")


def _start(command: list[str], environment: Path | None, log) -> StepError | None:
    """Run the step to its end; why it died, if it died."""
    try:
        if environment:
            read_id(environment)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    except StepError as error:
        return error
    except OSError as error:
        return StepError(f"cannot start {command[0]}: {error.strerror}; see environments in the configuration")
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        hint = "; most often memory ran out" if name == "SIGKILL" else ""
        return StepError(f"was ended by {name}{hint}; its log has what it said before")
    return StepError(f"ended with exit status {done.returncode}; its log has the details")


if __name__ == "__main__":
    main()
