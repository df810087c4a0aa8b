"""A stack from outside the package whose latency is known: it waits ``delay_ms``, then gives its input back.

Arguments: outputs, the output's name by the input's; delay_ms; anything else only makes its engines others.
Options: delay_ms again; needs, a file without which nothing is built; at_build, what goes wrong there (refuse, killed);
at_run, what goes wrong there (refuse, no memory, crash, hang, leave a child, nan, half, shape, memory, threads).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ladder.errors import StepError
from ladder.stacks.base import Node


def create(outputs=None, delay_ms=1, **others):
    return Stack(outputs or {}, delay_ms)


class Stack:
    def __init__(self, names, delay_ms):
        self.names, self.delay_ms = names, delay_ms

    def build(self, source, rung, destination):
        wrong, needs = rung.options.get("at_build"), rung.options.get("needs")
        if wrong == "refuse":
            raise StepError("the identity is not supported", permanent=True)
        if wrong == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if needs and not Path(needs).exists():
            raise StepError(f"{needs} is missing; make it")
        Path(destination).write_text(f"engine {os.urandom(8).hex()}")
        return {}

    def open(self, source, payload, rung, batch):
        return Session(rung, self.names, self.delay_ms)

    def nodes(self, source, payload, rung, batch, inputs):
        return [Node("identity", "Identity", rung.precision, "CPU", 1.0)]

    def identity(self):
        return {"known": "1"}


class Session:
    def __init__(self, rung, names, delay_ms):
        self.delay = rung.options.get("delay_ms", delay_ms) / 1000
        self.wrong = rung.options.get("at_run")
        self.threads = rung.threads
        self.names = names
        self.inputs = {}
        self.in_flight = 0

    def bind(self, inputs):
        self.inputs = {name: array.copy() for name, array in inputs.items()}

    def run(self):
        if self.wrong == "refuse":
            raise StepError("the delay is out of order", permanent=True)
        if self.wrong == "no memory":
            raise StepError("CUDA out of memory")
        if self.wrong == "crash":
            os.abort()
        if self.wrong == "hang":
            time.sleep(3600)
        if self.wrong == "leave a child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "left by a run of the known stack"])
            self.wrong = None
        self.in_flight += 1

    def synchronise(self):
        end = time.perf_counter() + self.delay * self.in_flight
        self.in_flight = 0
        while time.perf_counter() < end:
            pass

    def device_ms(self, launches):
        return {}

    def outputs(self):
        value = np.nan if self.wrong == "nan" else 1.0
        given = {self.names.get(name, name): array * value for name, array in self.inputs.items()}
        if self.wrong == "half":
            return {name: np.where(np.arange(len(a))[:, None] < len(a) // 2, a, 0) for name, a in given.items()}
        if self.wrong == "shape":
            return {name: array[:1] for name, array in given.items()}
        return given

    def facts(self):
        return {"threads": 64 if self.wrong == "threads" else self.threads, "provider": "CPU"}

    def memory_mb(self):
        return {"throughput_ips": 1e9} if self.wrong == "memory" else {}

    def close(self):
        self.inputs = {}
