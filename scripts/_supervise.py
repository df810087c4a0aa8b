"""Start one step in the Python it needs, and record its failure where it dies without doing so itself."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import _repository  # noqa: F401

from ladder import fingerprint, locks, process, progress, telemetry
from ladder.errors import StepError
from ladder.files import read_json
from ladder.step import read_id, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", required=True, help="the step's name in failures.csv")
    parser.add_argument(
        "--outputs", type=Path, nargs="+", required=True, help="every file the step writes, the id last"
    )
    parser.add_argument("--environment", type=Path, help="id of the environment the step runs in")
    parser.add_argument("--host", type=Path, help="declaration of the host that the step is to run on")
    parser.add_argument("--gpu", nargs=2, metavar=("DEVICE", "NAME"), help="the one GPU that it sees, as cuda 1")
    parser.add_argument("--alone", action="store_true", help="the step times something: nothing runs beside it")
    parser.add_argument("--log", type=Path, required=True, help="where the step's messages go")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- PYTHON SCRIPT ARGUMENTS")
    arguments = parser.parse_args()
    command, id_path, start = arguments.command[1:], arguments.outputs[-1], time.monotonic()
    id_path.unlink(missing_ok=True)
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    with open(arguments.log, "w", encoding="utf-8") as log:
        sys.stderr = log
        others = "measuring or building" if arguments.alone else "measuring"
        waiting = f"{arguments.stage}: waiting, a round or another workflow of this host is {others}"
        try:
            with locks.host_lock(exclusive=arguments.alone, waiting=waiting):
                reason = _start(command, arguments.environment, arguments.host, arguments.gpu, log)
        except StepError as error:  # the host cannot be locked
            reason = error
        if not id_path.exists():
            with step(arguments.stage, id_path, arguments.outputs[:-1], arguments.log):
                raise reason or StepError("ended without a word; its log may say more")
    progress.say(_said(arguments.stage, id_path, time.monotonic() - start))


def _said(stage: str, id_path: Path, seconds: float) -> str:
    """The one line that a person sees of a step: what it made and how long it took, or why it made nothing."""
    name = re.sub(r"(/id|\.id|\.pass)?\.json$", "", "/".join(part for part in id_path.parts[1:] if part != "audit"))
    record = read_json(id_path)
    if record["status"] == "ok":
        return f"{stage} {name}: {progress.duration(seconds)}"
    cause = "failed" if record["stage"].split()[0] == stage else f"not tried, {record['stage']} failed"
    return f"{stage} {name}: {cause}: {record['reason']}"


def _start(
    command: list[str], environment: Path | None, host: Path | None, gpu: tuple[str, str] | None, log
) -> StepError | None:
    """Run the step to its end; why it died, if it died."""
    if elsewhere := fingerprint.difference(host):
        return StepError(elsewhere)
    try:
        if environment:
            read_id(environment)
        visible = telemetry.open_reader(*gpu).visible() if gpu else {}
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=process.environment() | visible | process.as_parent(),
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
