"""The process that looks at a device beside a run, and how a round starts it and reads what it saw.

It prints one line of JSON a sample, each by one write, so that it can be killed at any moment. It is a process of its
own so that no timed loop waits for the driver's answers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

from ladder import process
from ladder.dependencies import ROOT
from ladder.errors import StepError
from ladder.telemetry import open_reader
from ladder.telemetry.base import Process, Reader, Sample

FIRST_SAMPLE_SECONDS = 30.0  # a driver without persistence mode takes seconds to wake


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ladder.telemetry", description=__doc__)
    parser.add_argument("--device", required=True, help="cuda")
    parser.add_argument("--uuid", help="of the device; empty: the one a process here would run on")
    parser.add_argument("--period", type=float, default=0.1, help="between samples, s")
    arguments = parser.parse_args()
    process.die_with_parent()
    try:
        reader = open_reader(arguments.device, arguments.uuid)
    except StepError as error:
        sys.exit(str(error))
    due = time.monotonic()
    while True:
        os.write(sys.stdout.fileno(), (json.dumps(asdict(reader.sample())) + "\n").encode())
        due = max(due + arguments.period, time.monotonic())  # looks that a busy host missed are not made up for
        time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def sampling(
    reader: Reader, device: str, period_s: float, destination: Path, log: IO[str]
) -> Iterator[subprocess.Popen]:
    """Keep a sampler writing to ``destination`` while the block runs; the block starts after its first sample.

    Raises StepError where there is none.
    """
    command = [sys.executable, "-m", "ladder.telemetry", "--device", device]
    command += ["--uuid", reader.uuid, "--period", str(period_s)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with open(destination, "wb") as stream:
        started = subprocess.Popen(
            command,
            env=os.environ | process.as_parent() | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + FIRST_SAMPLE_SECONDS
        while not destination.stat().st_size:
            if started.poll() is not None or time.monotonic() > deadline:
                raise StepError(f"the sampler of {reader.uuid} gave no sample; the round's log says why")
            time.sleep(0.02)
        yield started
    finally:
        started.kill()
        started.wait()


def read_samples(path: Path) -> list[Sample]:
    """What a sampler wrote, in order; a last line without its end is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [_sample(json.loads(line)) for line in lines if line.endswith("\n")]


def _sample(told: dict) -> Sample:
    held = told["processes"]
    return Sample(**told | {"processes": None if held is None else [Process(**each) for each in held]})
