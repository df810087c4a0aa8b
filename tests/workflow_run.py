"""Calls the real workflow: the repository's own files in one folder, what it makes in another."""

from __future__ import annotations

import copy
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper

ROOT = Path(__file__).parent.parent
TABLES = ("--", "results/results.csv")  # a target that stops before the report, which takes longest
ENDINGS = {"aggregate", "check", "pages", "report"}  # rules that every new measurement or verdict runs again
# tests/stacks/known.py, for a model whose input is x and whose output is y
KNOWN = {"arguments": {"outputs": {"x": "y"}}, "device": "cpu", "api": "known", "compiler": "none"}

RESNET = {
    "source": "torchvision",
    "architecture": "resnet18",
    "weights": {"seeded": 0},
    "input": [64, 64],
    "profile": {"min": 1, "opt": 1, "max": 4},
    "data": "noise",
    "calibration": "noise",
}
NOISE = {"generated": {"samples": 4, "inputs": {"input": {"dtype": "float32", "low": -1, "high": 1}}}}
LADDER = {
    "platform": "cpu",
    "models": ["resnet"],
    "batches": [1, 2],
    "rounds": 2,
    "rungs": [
        {"name": "pytorch-fp32", "stack": "pytorch-cpu"},
        {"name": "onnxruntime-fp32", "stack": "onnxruntime-cpu"},
        {"name": "openvino-fp32", "stack": "openvino-cpu"},
        {"name": "openvino-int8", "stack": "openvino-cpu", "precision": "int8"},
    ],
    "steps": [
        {"from": "pytorch-fp32", "to": "onnxruntime-fp32", "cause": "compilation"},
        {"from": "pytorch-fp32", "to": "openvino-fp32", "cause": "compilation"},
        {"from": "openvino-fp32", "to": "openvino-int8", "cause": "precision"},
    ],
}

Config = dict[str, Any] | list[Path]  # what a configuration file holds, or the files themselves
_numbers = count(1)  # of calls, for their files


@dataclass(frozen=True)
class Call:
    """One finished call of the workflow. ``text`` is long: job commands hold JSON, so tests look for parts of it."""

    status: int
    text: str
    seconds: float
    cpu_seconds: float  # of the call and all that it started: a busy host adds nothing to it

    def must(self, status: int = 0) -> Call:
        """This call, if it ended so."""
        shown = "\n".join(line[:300] for line in self.text.splitlines()[-15:])
        assert self.status == status, f"status {self.status}, expected {status}:\n{shown}"
        return self

    def jobs(self) -> dict[str, int]:
        """How many jobs of each rule were planned, but for the target's own; none where nothing was to be done."""
        table = re.search(r"Job stats:\njob +count\n[- ]+\n(.*?)\n\n", self.text, re.S)
        counts = [line.split() for line in table[1].splitlines()] if table else []
        return {rule: int(number) for rule, number in counts if rule not in ("total", "all")}


class Workflow:
    def __init__(self, repository: Path, folder: Path, **variables: str):
        self.repository, self.folder, self.variables = repository, folder, variables
        (folder / "tmp").mkdir(parents=True, exist_ok=True)

    def start(self, config: Config, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a call in a process group of its own; returns the process and the file of its output.

        Its lock of the host is one that no other test knows, and what a kill leaves behind is in its own folder.
        """
        number = next(_numbers)
        output = self.folder / f"output-{number}.txt"
        if isinstance(config, dict):
            files = [self.folder / f"config-{number}.yaml"]
            files[0].write_text(yaml.safe_dump(config, sort_keys=False))
        else:
            files = config
        snakemake = [sys.executable, "-m", "snakemake", "-s", str(self.repository / "Snakefile")]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("LADDER_", "SNAKEMAKE_"))}
        own = {"LADDER_HOST_LOCK": str(self.folder / "host.lock"), "TMPDIR": str(self.folder / "tmp")}
        with open(output, "wb") as stream:
            process = subprocess.Popen(
                [*snakemake, "--configfile", *map(str, files), *arguments],
                cwd=self.folder,
                env=inherited | own | self.variables,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process, output

    def call(self, config: Config, *arguments: str) -> Call:
        began = time.monotonic()
        process, output = self.start(config, *arguments)
        try:
            _, status, used = os.wait4(process.pid, 0)  # of this call alone: others may run beside it
        except BaseException:  # the test run was interrupted
            os.killpg(process.pid, signal.SIGKILL)
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        text = output.read_text(errors="replace")
        return Call(process.returncode, text, time.monotonic() - began, used.ru_utime + used.ru_stime)

    def plan(self, config: Config, *targets: str) -> dict[str, set[str]]:
        """First outputs of the jobs that a call would run, by rule; nothing runs."""
        text = self.call(config, "--dry-run", "--quiet", "host", "--", *targets).must().text
        found = defaultdict(set)
        for rule, output in re.findall(r"^rule (\w+):\n(?:    input: .*\n)?    output: ([^\s,]+)", text, re.M):
            found[rule].add(output)
        return dict(found)

    def table(self, name: str) -> list[dict[str, str]]:
        with open(self.folder / "results" / name, newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    @contextmanager
    def changed(self, file: str | Path, addition: str) -> Iterator[None]:
        """Something added at the end of one of the repository's files, until the block ends."""
        path = self.repository / file
        before = path.read_text()
        path.write_text(before + addition)
        try:
            yield
        finally:
            path.write_text(before)


def copy_repository(destination: Path) -> Path:
    """The repository's own files, so that tests may change them."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, destination / name)
    return destination


def with_change(config: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy of a configuration after ``change(copy)``."""
    changed = copy.deepcopy(config)
    change(changed)
    return changed


def identity_config(folder: Path, rungs: dict[str, dict[str, Any]], **ladder: Any) -> dict[str, Any]:
    """A quick configuration: a model that gives its input back, on a stack that is a file of the working folder.

    ``rungs`` are options by name; each rung is compared with the first one.
    """
    first, *others = rungs
    shutil.copy(ROOT / "tests/stacks/known.py", folder)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y"))
    save_onnx(folder / "identity.onnx", [helper.make_node("Identity", ["x"], ["y"], "identity")], [x], [y])
    np.savez(folder / "identity.npz", x=np.random.default_rng(0).random((2, 4), dtype=np.float32))
    return {
        "models": {"identity": onnx_model("identity.onnx", {"n": "batch"}, "random")},
        "data": {"random": {"npz": "identity.npz"}},
        "stacks": {"known": {"module": "known.py", **copy.deepcopy(KNOWN)}},
        "ladders": {
            "known": {
                "platform": "cpu",
                "models": ["identity"],
                "batches": [1],
                "rounds": 1,
                "rungs": [{"name": name, "stack": "known", "options": options} for name, options in rungs.items()],
                "steps": [{"from": first, "to": other, "cause": "tuning"} for other in others],
                **ladder,
            }
        },
        "measure": {"warmup": 1, "max_seconds": 0.1, "throughput_seconds": 0},
    }


def resnet_config() -> dict[str, Any]:
    """A small ResNet-18 with random weights on four real rungs, two batches and two rounds; short runs."""
    return copy.deepcopy(
        {
            "models": {"resnet": RESNET},
            "data": {"noise": NOISE},
            "ladders": {"resnet": LADDER},
            "measure": {"max_seconds": 0.2, "throughput_seconds": 0},
        }
    )


def onnx_model(file: str, axes: dict[str, Any], data: str) -> dict[str, Any]:
    """The configuration's section of an ONNX file."""
    return {"source": "onnx", "weights": {"path": file}, "axes": axes, "data": data}


def save_onnx(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Any = ()) -> None:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
