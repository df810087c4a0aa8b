"""The AMD ladder on a host without ROCm: real wheels in environments of their own, clear errors, no results.

The two environments are a download of about 110 MB and take 0.8 GB of disk.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import small_onnx
from tests.workflow_run import ROOT, Call, Workflow, onnx_model

STACKS = {  # the provider of each, and the first library that its loading asks for
    "onnxruntime-migraphx": ("MIGraphXExecutionProvider", "libmigraphx_c.so.3"),
    "onnxruntime-rocm": ("ROCMExecutionProvider", "libhipblas.so.3"),
}


def config(folder: Path) -> dict[str, Any]:
    """A small network on a CPU and on an AMD GPU that is not there."""
    small_onnx.convnet(folder / "convnet.onnx")
    small_onnx.data(folder / "convnet.npz")
    shared = {"models": ["convnet"], "batches": [2], "rounds": 1}
    return {
        "platform": ["cpu", "amd"],
        "platforms": {"cpu": {"device": "cpu"}, "amd": {"device": "rocm"}},
        "models": {"convnet": onnx_model("convnet.onnx", {"batch": "batch"}, "random")},
        "data": {"random": {"npz": "convnet.npz"}},
        "ladders": {
            "cpu": {
                "platform": "cpu",
                "rungs": [{"name": "onnxruntime-cpu", "stack": "onnxruntime-cpu", "shape": "static"}],
                "steps": [],
                **shared,
            },
            "amd": {
                "platform": "amd",
                "rungs": [{"name": stack, "stack": stack, "shape": "static"} for stack in STACKS],
                "steps": ["compilation"],
                **shared,
            },
        },
        "measure": {"warmup": 1, "max_seconds": 0.1, "throughput_seconds": 0},
    }


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    return Workflow(ROOT, tmp_path_factory.mktemp("amd"))


@pytest.fixture(scope="module")
def call(workflow: Workflow) -> Call:
    """The ladders of both platforms, on a host that has the CPU's alone. The target makes no report, which is long."""
    if (found := [*Path("/opt").glob("rocm*")]) or "ROCM_PATH" in os.environ:
        pytest.skip(f"ROCm is here: {found or os.environ['ROCM_PATH']}")
    return workflow.call(config(workflow.folder), "--cores", "2", "--", "onnxruntime")


@pytest.mark.parametrize("stack", STACKS)
def test_each_rung_has_one_row_that_names_the_library_it_lacks_and_its_nodes(
    call: Call, workflow: Workflow, stack: str
) -> None:
    [row] = [row for row in workflow.table("onnxruntime/failures.csv") if row["rung"] == stack]
    assert (row["platform"], row["stage"], row["permanent"]) == ("amd", "engine", "false")
    provider, library = STACKS[stack]
    assert row["reason"].startswith(f"{provider} cannot be loaded: {library}: cannot open shared object file")
    assert "it needs the ROCm that it was built with" in row["reason"]
    assert "nodes would run on the CPU: /conv1/Conv (Conv), " in row["reason"]


def test_the_call_ends_badly_and_says_how_many_gave_no_result(call: Call) -> None:
    assert "2 gave no result" in call.must(1).text


def test_the_rungs_that_can_run_are_finished(call: Call, workflow: Workflow) -> None:
    rows = workflow.table("onnxruntime/results.csv")
    assert [(row["platform"], row["rung"]) for row in rows] == [("cpu", "onnxruntime-cpu")]
    assert float(rows[0]["median_ms"]) > 0


def test_each_stack_was_in_the_environment_that_its_lock_file_says(call: Call, workflow: Workflow) -> None:
    for name in ("migraphx", "onnxruntime-rocm"):
        made = json.loads((workflow.folder / f"artifacts/environments/{name}.id.json").read_text())
        assert made["status"] == "ok"
        pins = (ROOT / f"envs/{name}.txt").read_text().splitlines()[1:]
        assert pins and set(pins) <= set(made["packages"])
