"""What planning, a second call and the tables cost as runs grow; prints the figures of docs/scale.md.

Nothing is measured and no model is loaded: planning is timed beside graphs of trivial jobs under the same profile, in
turn; the tables are made by the real step from made-up rounds in the real format.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import synthetic  # noqa: E402

from ladder.files import write_json  # noqa: E402

MODELS, LADDERS, BATCHES = 5, 2, (1, 2, 4, 8)
RUNGS = {  # name: stack, precision
    "pytorch-fp32": ("pytorch-cpu", "fp32"),
    "onnxruntime-fp32": ("onnxruntime-cpu", "fp32"),
    "onnxruntime-int8": ("onnxruntime-cpu", "int8"),
    "openvino-fp32": ("openvino-cpu", "fp32"),
    "openvino-int8": ("openvino-cpu", "int8"),
}
RUNS_A_ROUND = len(RUNGS)
INPUTS_A_ROUND = 22  # of the configuration below; test_scale.py compares it with the plan
TRIVIAL = """
SOURCES = [f"source/{n}" for n in range(config["sources"])]

rule all:
    input: [f"out/{n}" for n in range(config["jobs"] - len(SOURCES) - 1)]

rule source:
    output: "source/{n}"
    shell: "touch {output}"

rule job:
    input: lambda w: [SOURCES[(int(w.n) * config["inputs"] + i) % len(SOURCES)] for i in range(config["inputs"])]
    output: "out/{n}"
    params: told="what it is told"
    shell: "touch {output}"
"""


class Cost(NamedTuple):
    """Of one process: seconds by the clock, CPU seconds, peak memory in MB (or this process's own, if that is more)."""

    seconds: float
    cpu_seconds: float
    memory_mb: float


def configuration(rounds: int) -> dict[str, Any]:
    """A configuration of ``rounds`` rounds, as near as the 40 ladders and batches of its models divide them."""
    causes = [(0, 1, "compilation"), (1, 2, "precision"), (0, 3, "compilation"), (3, 4, "precision")]
    names = list(RUNGS)
    rungs = [{"name": name, "stack": stack, "precision": precision} for name, (stack, precision) in RUNGS.items()]
    steps = [{"from": names[a], "to": names[b], "cause": cause} for a, b, cause in causes]
    noise = {"seed": 0, "samples": 4, "inputs": {"input": {"dtype": "float32", "low": 0, "high": 1}}}
    model = {"source": "torchvision", "architecture": "resnet18", "input": [64, 64]}
    models = {
        f"net{seed}": {**model, "weights": {"seeded": seed}, "data": "noise", "calibration": "noise"}
        for seed in range(MODELS)
    }
    ladder = {"platform": "cpu", "models": list(models), "batches": list(BATCHES), "steps": steps}
    ladder["rounds"] = max(1, rounds // (MODELS * LADDERS * len(BATCHES)))
    ladders = {f"threads{n}": {**ladder, "rungs": [rung | {"threads": n} for rung in rungs]} for n in (1, 2)}
    return {"platform": "cpu", "models": models, "data": {"noise": {"generated": noise}}, "ladders": ladders}


def run(command: list[Any], folder: Path) -> tuple[Cost, str]:
    """Run a command to its end; its cost and what it printed. Raises RuntimeError where it fails."""
    with tempfile.TemporaryFile("w+") as output:
        start = os.times().elapsed
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"LADDER_HOST_LOCK": str(folder / "host.lock")},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = os.times().elapsed - start
        output.seek(0)
        text = output.read()
    if status:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with status {status}:\n{text[-2000:]}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), text


class Planned:
    """A workflow in a folder of its own, planned by Snakemake under the default profile."""

    def __init__(self, folder: Path, snakefile: Path, config: dict[str, Any] | Path):
        folder.mkdir(parents=True)
        if isinstance(config, dict):
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
            config = folder / "config.yaml"
        profile = ["--workflow-profile", ROOT / "profiles/default"]
        self.folder = folder
        self.command = [sys.executable, "-m", "snakemake", "-s", snakefile, *profile, "--configfile", config]

    def plan(self, *arguments: str) -> tuple[Cost, str]:
        return run([*self.command, "--dry-run", *arguments], self.folder)

    def pretend_done(self) -> None:
        """Empty files for all outputs, which Snakemake takes for made by this very plan."""
        text = self.plan("--quiet", "host")[1]
        for files in re.findall(r"^    output: (.+)$", text, re.M):
            for file in files.replace(" (update)", "").split(", "):
                path = self.folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("")
        run([*self.command, "--touch", "--forceall"], self.folder)


def planned_jobs(text: str) -> dict[str, int]:
    """Number of jobs by rule that a dry run told of."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", text, re.M)}


def trivial(folder: Path, jobs: int, sources: int = 0, inputs: int = 0) -> Planned:
    """A graph of so many trivial jobs: one asks for all, ``sources`` have no inputs, the others so many of these."""
    (folder.parent / "trivial.smk").write_text(TRIVIAL)
    return Planned(folder, folder.parent / "trivial.smk", {"jobs": jobs, "sources": sources, "inputs": inputs})


def planning(folder: Path, runs: int, repeats: int) -> None:
    """Print what ``snakemake -n`` costs beside trivial jobs: from nothing, and where all is done."""
    ours = Planned(folder / "ours", ROOT / "Snakefile", configuration(runs // RUNS_A_ROUND))
    counts = planned_jobs(ours.plan()[1])
    jobs, rounds = counts["total"], counts["round"]
    beside = {
        f"{jobs} trivial jobs in the same graph ({INPUTS_A_ROUND} inputs a round)": trivial(
            folder / "graph", jobs, jobs - rounds - 1, INPUTS_A_ROUND
        ),
        f"{jobs} trivial jobs without inputs": trivial(folder / "bare", jobs),
        f"{runs} trivial jobs without inputs, one a run": trivial(folder / "runs", runs),
    }
    print(f"\nsnakemake -n, {rounds * RUNS_A_ROUND} runs in {rounds} rounds, {jobs} jobs; nothing is there yet")
    _compare(f"{jobs} jobs of the ladder", ours, beside, repeats)
    graph = dict([next(iter(beside.items()))])
    for each in (ours, *graph.values()):
        each.pretend_done()
    print("\nThe same where all is done already")
    _compare(f"{jobs} jobs of the ladder", ours, graph, repeats)
    default = Planned(folder / "default", ROOT / "Snakefile", ROOT / "config.yaml")
    default.command += ["--config", "platform=cpu"]
    default.pretend_done()
    print("\nThe default ladder (config.yaml) where all is done already")
    _compare("snakemake -n", default, {}, repeats)


def _compare(name: str, ours: Planned, beside: dict[str, Planned], repeats: int) -> None:
    all_of_them = {name: ours, **beside}
    costs: dict[str, list[Cost]] = {each: [] for each in all_of_them}
    for _ in range(repeats):  # in turn: what else the host does falls on all of them
        for each, workflow in all_of_them.items():
            costs[each].append(workflow.plan()[0])
    own = [cost.cpu_seconds for cost in costs[name]]
    print("| workflow | CPU s | s | ladder's CPU time / this one's |\n|---|---:|---:|---:|")
    for each, found in costs.items():
        ratio = statistics.median(a / b.cpu_seconds for a, b in zip(own, found, strict=True))
        seconds, cpu, _ = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"| {each} | {cpu:.1f} | {seconds:.1f} | {ratio:.2f} |", flush=True)


def tables(folder: Path, runs: int, iterations: int) -> Cost:
    """What the tables of so many made-up runs cost, with so many latencies each; of one ladder at several batches."""
    rounds = 100
    batches = list(range(1, runs // (rounds * RUNS_A_ROUND) + 1))
    ladder = synthetic.CPU_LADDER | {"rounds": rounds, "batches": batches}
    ladder["rungs"] = [
        rung | {"engines": dict.fromkeys(map(str, batches), rung["name"])} for rung in synthetic.CPU_LADDER["rungs"]
    ]
    plan, _ = synthetic.write_run(folder / "results", [ladder], iterations)
    synthetic.write_audits(folder / "results", ladder)
    write_json(folder / "plan.json", plan)
    script = [sys.executable, ROOT / "scripts/aggregate.py"]
    return run([*script, "--plan", "plan.json", "--output-dir", "results"], folder)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="at most (10000)")
    parser.add_argument("--repeats", type=int, default=3, help="of each timing of a plan; the median counts (3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        print("Tables\n| runs of 1,000 latencies | CPU s | s | peak MB |\n|---:|---:|---:|---:|")
        for runs in (arguments.runs // 10, arguments.runs):
            cost = tables(Path(folder) / f"tables-{runs}", runs, 1000)
            print(f"| {runs} | {cost.cpu_seconds:.1f} | {cost.seconds:.1f} | {cost.memory_mb:.0f} |", flush=True)
        planning(Path(folder), arguments.runs, arguments.repeats)


if __name__ == "__main__":
    main()
