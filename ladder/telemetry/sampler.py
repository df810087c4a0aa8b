"""The process that looks at a device beside a run, and how a round starts it and reads what it saw.

It prints one line of JSON a sample, each by one write, so that it can be killed at any moment. It is a process of its
own so that no timed loop waits for the driver's answers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import IO, Any

from ladder import process
from ladder.dependencies import ROOT
from ladder.errors import StepError
from ladder.telemetry import open_reader
from ladder.telemetry.base import SHARES, Process, Reader, Sample
from ladder.telemetry.base import sample as take_sample

LAST_SAMPLE_SECONDS = 5.0  # a driver that does not answer for so long will not
REMEMBERED_ANSWERS = 5
FIRST_SAMPLE_SECONDS = 30.0  # a driver without persistence mode takes seconds to wake


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ladder.telemetry", description=__doc__)
    parser.add_argument("--device", required=True, help="cuda or rocm")
    parser.add_argument("--uuid", help="of the device; empty: the one a process here would run on")
    parser.add_argument("--period", type=float, default=0.1, help="between samples, s, at least")
    arguments = parser.parse_args()
    process.die_with_parent()
    try:
        reader = open_reader(arguments.device, arguments.uuid)
    except StepError as error:
        sys.exit(str(error))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    for sample in looks(reader, arguments.period, ended.wait):
        os.write(sys.stdout.fileno(), _line(sample))


def _line(sample: Sample) -> bytes:
    """A sample as a line of JSON without what was not told: a good part of what a look costs."""
    told = {field: value for field, value in vars(sample).items() if value is not None}
    return (json.dumps(told, default=vars) + "\n").encode()


def looks(reader: Reader, period_s: float, wait: Callable[[float], bool]) -> Iterator[Sample]:
    """Samples ``period_s`` s apart or more, each of the questions that are due; the first and the last of all.

    ``wait`` waits so many seconds and says whether that was the end.

    A question is due again once the CPU time that its answers take is its share (``SHARES``) of the time since: how
    dear a driver's answers are differs by orders of magnitude, and no answer's cost may disturb the run beside it. That
    is the median of the last few: an answer given while a run opens the device takes many times as long as the next.
    """
    free_at: dict[str, float] = dict.fromkeys(SHARES, 0.0)
    costs: dict[str, deque[float]] = {name: deque(maxlen=REMEMBERED_ANSWERS) for name in SHARES}

    def metered(name: str) -> dict[str, Any]:
        begin = _cpu_seconds()
        answer = reader.questions[name]()
        costs[name].append(_cpu_seconds() - begin)
        free_at[name] = time.monotonic() + median_low(costs[name]) / SHARES[name]
        return answer

    metering = {name: partial(metered, name) for name in SHARES}

    take_sample(reader.questions.values())  # the first answers may have to wake the driver, which says nothing of later
    due = 0.0
    while not wait(max(0.0, due - time.monotonic())):
        start = time.monotonic()
        yield take_sample([metering[name] for name in SHARES if free_at[name] <= start])
        due = max(start + period_s, min(free_at.values()))
    yield take_sample(reader.questions.values())


def _cpu_seconds() -> float:
    """CPU time of this thread and of the programs it has waited for, s."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + programs.ru_utime + programs.ru_stime


@contextmanager
def sampling(
    reader: Reader, device: str, period_s: float, destination: Path, log: IO[str]
) -> Iterator[subprocess.Popen]:
    """Keep a sampler writing to ``destination`` while the block runs; the block starts after its first sample.

    Raises StepError where there is none.
    """
    command = [sys.executable, "-P", "-m", "ladder.telemetry", "--device", device]
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
        started.terminate()  # it looks a last time: a short run may lie between two looks
        try:
            started.wait(LAST_SAMPLE_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def read_samples(path: Path) -> list[Sample]:
    """What a sampler wrote, in order; a last line without its end is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [_sample(json.loads(line)) for line in lines if line.endswith("\n")]


def _sample(told: dict) -> Sample:
    held = told.get("processes")
    return Sample(**told | {"processes": None if held is None else [Process(**each) for each in held]})
