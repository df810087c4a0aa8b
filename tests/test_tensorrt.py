"""The TensorRT stack: TensorRT-RTX builds real engines here, GPU or not; running one needs a GPU.

TensorRT-RTX lives in an environment of its own, made once from its lock file. On a host with a GPU
LADDER_TENSORRT_PYTHON names the interpreter that has TensorRT.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import small_onnx
from workflow_run import ROOT, TABLES, Workflow, onnx_model

from ladder import audit, environment, graph, precision
from ladder.errors import StepError
from ladder.files import sha256
from ladder.stacks import cuda
from ladder.stacks.base import Node

DRIVER = Path(__file__).parent / "tensorrt_driver.py"
PROFILE = {"min": 1, "opt": 2, "max": 4}
RTX = {"package": "tensorrt_rtx"}
TENSORRT = os.environ.get("LADDER_TENSORRT_PYTHON", "")


def has_gpu() -> bool:
    try:
        cuda.Gpu()
    except StepError:
        return False
    return True


WITHOUT_GPU = pytest.mark.skipif(has_gpu(), reason="there is a GPU")
ON_GPU = pytest.mark.skipif(
    not has_gpu() or not TENSORRT, reason="no GPU, or LADDER_TENSORRT_PYTHON names no interpreter with TensorRT"
)


@pytest.fixture(scope="session")
def rtx_python() -> Path:
    """The interpreter with TensorRT-RTX, where the workflow's rule would make it, made once for each lock file."""
    lock, folder = ROOT / "envs" / "tensorrt-rtx.txt", ROOT / ".venvs" / "tensorrt-rtx"
    made_from = folder / "made-from"
    if not made_from.is_file() or made_from.read_text() != sha256(lock):
        try:
            environment.make(lock, folder)
        except StepError as error:
            pytest.skip(f"TensorRT-RTX cannot be installed here: {error}")
        made_from.write_text(sha256(lock))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model's FP32 file, its AutoCast FP16 and Q/DQ INT8 files and what each graph says."""
    folder = tmp_path_factory.mktemp("models")
    fp32, calibration = small_onnx.convnet(folder / "fp32.onnx"), small_onnx.data(folder / "calibration.npz")
    observed = graph.observe(fp32, graph.samples_of(calibration))
    graph.write(fp32, fp32, folder / "fp32.graph.json", "fp32", observed)
    for name in ("fp16", "int8"):
        identity = precision.convert(fp32, calibration, name, {}, observed, folder / f"{name}.onnx")
        graph.write(fp32, folder / f"{name}.onnx", folder / f"{name}.graph.json", name, observed, identity["options"])
    return folder


class Stack:
    """The stack in its own interpreter, for one model."""

    def __init__(self, python: Path, folder: Path, arguments: dict[str, str]):
        self.python, self.folder, self.arguments = python, folder, arguments
        self.log = ""

    def call(
        self, do: str, onnx_file: Path | None = None, batch: int = 2, inputs: Path | None = None, **rung: Any
    ) -> Any:
        """What ``ladder.stacks.tensorrt`` answers. Raises StepError as it does."""
        factors = {"name": "rung", "stack": "stack", "device": "cuda", "api": "api", "compiler": "compiler"}
        factors |= {"launch": "eager", "shape": "dynamic", "transfers": "excluded"}
        spec = {
            "do": do,
            "arguments": self.arguments,
            "rung": {**factors, "threads": 1, "precision": "fp32", **rung},
            "source": {
                "model": {"name": "convnet"},
                "onnx": str(onnx_file),
                "weights": None,
                "profile": PROFILE,
                "axes": {"batch": "batch"},
            },
            "engine": str(self.engine),
            "batch": batch,
            "inputs": str(inputs) if inputs else None,
        }
        path = self.folder / "call.json"
        path.write_text(json.dumps(spec))
        done = subprocess.run([self.python, DRIVER, path], capture_output=True, text=True)
        self.log = done.stdout + done.stderr
        assert done.returncode == 0, self.log[-2000:]
        answer = json.loads(path.with_suffix(".answer").read_text())
        if "failed" in answer:
            raise StepError(answer["failed"], permanent=answer["permanent"])
        return answer["result"]

    @property
    def engine(self) -> Path:
        return self.folder / "engine"

    def nodes(self, **arguments: Any) -> list[Node]:
        return [Node(**{**node, "origin": tuple(node["origin"])}) for node in self.call("nodes", **arguments)]


@pytest.fixture
def rtx(rtx_python: Path, tmp_path: Path) -> Stack:
    return Stack(rtx_python, tmp_path, RTX)


def described(models: Path, name: str) -> dict[str, Any]:
    return json.loads((models / f"{name}.graph.json").read_text())


# ---- TensorRT-RTX, without a GPU -------------------------------------------------------------------------------


@WITHOUT_GPU
@pytest.mark.parametrize("name", ["fp32", "fp16", "int8"])
def test_a_real_engine_is_built_inspected_and_refused_a_run(rtx: Stack, models: Path, name: str) -> None:
    facts = rtx.call("build", models / f"{name}.onnx", precision=name)
    assert facts["version"].startswith("TensorRT-RTX ") and facts["typing"] == "strong"
    assert facts["tf32"] is False and facts["flags"] == [] and facts["builder_level"] == 3
    assert facts["shapes"] == {"x": [[batch, 3, 16, 16] for batch in PROFILE.values()]}
    assert facts["weights_mb"] > 0 and facts["activations_mb"] > 0 and facts["timing_cache_mb"] is None
    assert "[INFO]" in rtx.log  # TensorRT's own words are in the step's log

    nodes = rtx.nodes(onnx_file=models / f"{name}.onnx", precision=name)
    assert len(nodes) == facts["layers"]
    assert {node.provider for node in nodes} == {"cuda:0"} and not any(node.time_ms for node in nodes)
    assert {node.evidence for node in nodes} == {"build report"}
    told = described(models, name)
    assert audit.flops_at_precision_pct(nodes, name, told) == pytest.approx(told["flops"]["at_precision_pct"])
    assert audit.contradiction(nodes, name, told) == ("pass", None)

    with pytest.raises(StepError, match="no NVIDIA (driver|GPU)"):
        rtx.call("open", models / f"{name}.onnx", precision=name)


def test_a_static_engine_has_one_shape_and_one_batch(rtx: Stack, models: Path) -> None:
    facts = rtx.call("build", models / "fp32.onnx", shape="static")
    assert facts["static_batch"] == 2 and facts["shapes"] == {"x": [[2, 3, 16, 16]] * 3}


def test_options_reach_the_builder_and_are_read_back(rtx: Stack, models: Path) -> None:
    options = {"builder_level": 1, "workspace_mb": 256, "compute_capability": "SM89"}
    facts = rtx.call("build", models / "fp32.onnx", options=options)
    assert {name: facts[name] for name in options} == options


def test_where_tf32_is_allowed_products_are_of_unknown_precision(rtx: Stack, models: Path) -> None:
    """The inspector calls both FP32; nothing but a tactic's name could tell, and none is there before a GPU is."""
    facts = rtx.call("build", models / "fp32.onnx", precision="tf32")
    assert facts["tf32"] is True and facts["flags"] == ["TF32"]
    counted = audit.count(rtx.nodes(onnx_file=models / "fp32.onnx", precision="tf32"), "tf32")
    assert counted["nodes_unknown"] >= 3 and counted["nodes_at_precision"] in (None, 0)


@pytest.mark.parametrize(
    ("rung", "message"),
    [
        ({"options": {"builder_level": 9}}, "has no builder_level 9; it took 5"),
        ({"options": {"builder_level": True}}, "builder_level must be a whole number, not True"),
        ({"options": {"workspace_mb": "2"}}, "workspace_mb must be a whole number, not '2'"),
        ({"options": {"tactic": 1}}, "does not know the option tactic; its options are builder_level, workspace_mb"),
        ({"options": {"compute_capability": "SM90"}}, "has no compute_capability SM90, only CURRENT, SM75"),
        ({"precision": "tf32-conv"}, "has no precision tf32-conv"),
    ],
)
def test_what_it_cannot_do_is_refused_for_good(rtx: Stack, models: Path, rung: dict[str, Any], message: str) -> None:
    with pytest.raises(StepError, match=message) as caught:
        rtx.call("build", models / "fp32.onnx", **rung)
    assert caught.value.permanent and not rtx.engine.exists()


def test_precision_flags_are_not_to_be_had(rtx: Stack, models: Path) -> None:
    rtx.arguments = {**RTX, "typing": "weak"}
    with pytest.raises(StepError, match="builds strongly typed networks only"):
        rtx.call("build", models / "fp32.onnx", precision="fp16")


def test_a_failed_build_ends_in_tensorrts_own_reason(rtx: Stack, models: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(StepError, match="cannot parse .*Failed to parse the ONNX model") as caught:
        rtx.call("build", broken)
    assert caught.value.permanent
    with pytest.raises(StepError, match="built no engine from .*within workspace limit") as caught:
        rtx.call("build", large(tmp_path / "large.onnx"), options={"workspace_mb": 1})
    assert not caught.value.permanent  # what could be tried depends on the memory that there is


def large(path: Path) -> Path:
    """A convolution that needs more than a megabyte of workspace."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 64, 256, 256]) for n in "xy")
    weights = onnx.numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], "/conv", pads=[1, 1, 1, 1])]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "large", [x], [y], [weights]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path)
    return path


def test_a_dynamic_axis_without_a_value_is_named(rtx: Stack, tmp_path: Path) -> None:
    model = onnx.load(small_onnx.convnet(tmp_path / "fp32.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, tmp_path / "renamed.onnx")
    with pytest.raises(StepError, match="'x' of .* has a dynamic axis without a value: 'n'; give it under axes"):
        rtx.call("build", tmp_path / "renamed.onnx")


def cut(engine: Path) -> None:
    engine.write_bytes(engine.read_bytes()[:-100])


def foreign(engine: Path) -> None:
    engine.write_bytes(b"ptrt" * 100)


def partial(engine: Path) -> None:
    with zipfile.ZipFile(engine, "w") as archive:
        archive.writestr("plan", b"")


@pytest.mark.parametrize("damage", [cut, foreign, partial])
def test_what_no_build_here_wrote_is_never_opened(rtx: Stack, models: Path, damage: Callable[[Path], None]) -> None:
    rtx.call("build", models / "fp32.onnx")
    damage(rtx.engine)
    with pytest.raises(StepError, match=r"engine is not a whole engine file .*: delete its folder"):
        rtx.call("nodes", models / "fp32.onnx")


@WITHOUT_GPU
def test_a_rung_without_its_gpu_is_one_failure_and_the_others_go_on(
    rtx_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workflow = Workflow(ROOT, tmp_path_factory.mktemp("work"))
    small_onnx.convnet(workflow.folder / "convnet.onnx")
    small_onnx.data(workflow.folder / "convnet.npz")

    def ladder(name: str, stack: str) -> dict[str, Any]:
        rungs = [{"name": name, "stack": stack}]
        return {"platform": "gpu", "models": ["convnet"], "batches": [1], "rounds": 1, "rungs": rungs, "steps": []}

    onnxruntime = {"module": "ladder.stacks.onnxruntime", "api": "onnxruntime", "compiler": "onnxruntime"}
    config = {
        "platform": "gpu",
        "platforms": {"gpu": {"device": "cuda"}},
        "stacks": {"beside": {**onnxruntime, "device": "cuda"}},  # needs no GPU until it is measured
        "models": {"convnet": onnx_model("convnet.onnx", {"batch": "batch"}, "random")},
        "data": {"random": {"npz": "convnet.npz"}},
        "environments": {"tensorrt-rtx": {"python": str(rtx_python)}},
        "ladders": {"beside": ladder("beside", "beside"), "rtx": ladder("tensorrt-rtx", "tensorrt-rtx")},
        "measure": {"warmup": 1, "max_seconds": 0.1, "throughput_seconds": 0},
    }
    workflow.call(config, *TABLES).must()
    assert workflow.table("results.csv") == []
    failures = {(row["rung"], row["stage"]): row["reason"] for row in workflow.table("failures.csv")}
    assert set(failures) == {("tensorrt-rtx", "audit"), ("beside", "run")}
    assert all("no NVIDIA" in reason for reason in failures.values())
    assert {row["stack"]: row["verdict"] for row in workflow.table("audit.csv")}["beside"] == "pass"
    (row,) = [row for row in workflow.table("audit.csv") if row["stack"] == "tensorrt-rtx"]
    assert row["verdict"] == "failed" and row["parity_cosine"] == ""
    assert float(row["flops_at_precision_pct"]) == 100 and json.loads(row["precisions"]) == {"fp32": int(row["nodes"])}


# ---- TensorRT, on a GPU ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tensorrt(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    stack = Stack(Path(TENSORRT), tmp_path_factory.mktemp("tensorrt"), {"package": "tensorrt"})
    weak = stack.call("identity")["tensorrt"].startswith("8.")
    return Stack(stack.python, stack.folder, {"typing": "weak" if weak else "strong"})


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("shape", ["dynamic", "static"])
@pytest.mark.parametrize(("name", "atol"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_engines_agree_with_onnxruntime_however_they_are_launched(
    tensorrt: Stack, tmp_path: Path, name: str, atol: float, shape: str
) -> None:
    if tensorrt.arguments["typing"] == "strong" and name != "fp32":
        pytest.skip("a strongly typed FP16 engine needs ModelOpt for its file")
    model, inputs = small_onnx.convnet(tmp_path / "fp32.onnx"), small_onnx.data(tmp_path / "inputs.npz", samples=2)
    rung = {"onnx_file": model, "precision": name, "shape": shape, "options": {"builder_level": 0}}
    facts = tensorrt.call("build", **rung)
    assert facts["builder_level"] == 0 and facts["timing_cache_mb"] > 0 and facts["tf32"] is False
    with np.load(inputs) as archive:
        (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, dict(archive))
    for launch in ("eager", "graph"):
        told = tensorrt.call("run", inputs=inputs, launch=launch, **rung)
        with np.load(tensorrt.folder / "call.npz") as found:
            np.testing.assert_allclose(found["y"], expected, atol=atol)
        assert told["facts"]["launch"] == launch and told["facts"]["provider"] == "cuda:0"
        assert told["memory_mb"]["activations_mb"] > 0
        busy, span = (np.median(told["device_ms"][f"device_{clock}_ms"]) for clock in ("busy", "span"))
        assert 0 < busy < 1.5 * span
    nodes = tensorrt.nodes(inputs=inputs, **rung)
    assert all(node.precision and node.evidence for node in nodes)
    assert all(node.time_ms is not None for node in nodes) and sum(node.time_ms or 0 for node in nodes) > 0


@pytest.mark.gpu
@ON_GPU
def test_a_build_takes_over_the_timings_of_the_one_before(tensorrt: Stack, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    stack = Stack(tensorrt.python, own, tensorrt.arguments)
    model, inputs = small_onnx.convnet(tmp_path / "fp32.onnx"), small_onnx.data(tmp_path / "inputs.npz", samples=2)
    rung = {"onnx_file": model, "options": {"builder_level": 0}}
    first, second = stack.call("build", **rung), stack.call("build", **rung)
    assert first["known_timings_mb"] == 0 and second["known_timings_mb"] == first["timing_cache_mb"]
    (own / "timing.cache").write_bytes(b"of another host")
    assert stack.call("build", **rung)["known_timings_mb"] == 0
    stack.call("run", inputs=inputs, **rung)


@pytest.mark.gpu
@ON_GPU
def test_an_engine_is_opened_for_the_batch_it_was_built_for_alone(tensorrt: Stack, tmp_path: Path) -> None:
    model, inputs = small_onnx.convnet(tmp_path / "fp32.onnx"), small_onnx.data(tmp_path / "inputs.npz", samples=1)
    tensorrt.call("build", model, shape="static", options={"builder_level": 0})
    with pytest.raises(StepError, match="built for batch 2 alone, not for 1"):
        tensorrt.call("open", model, batch=1, inputs=inputs, shape="static", options={"builder_level": 0})


# ---- full size -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@WITHOUT_GPU
def test_yolo11n_is_built_and_audited_in_each_precision(
    rtx_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workflow = Workflow(ROOT, tmp_path_factory.mktemp("work"))
    precisions = ["fp32", "fp16", "int8", "int8-fp16"]
    yolo = {"source": "ultralytics", "architecture": "yolo11n.yaml", "weights": {"seeded": 0}, "input": [640, 640]}
    rungs = [{"name": name, "stack": "tensorrt-rtx", "precision": name} for name in precisions]
    config = {
        "platform": "gpu",
        "platforms": {"gpu": {"device": "cuda"}},
        "models": {"yolo11n": {**yolo, "task": "detection", "data": "pictures"}},
        "environments": {"tensorrt-rtx": {"python": str(rtx_python)}},
        "ladders": {
            "rtx": {
                "platform": "gpu",
                "models": ["yolo11n"],
                "batches": [1],
                "rounds": 1,
                "rungs": rungs,
                "steps": ["precision", "precision", "precision"],
            }
        },
    }
    workflow.call(config, *TABLES).must()
    rows = {row["requested_precision"]: row for row in workflow.table("audit.csv")}
    assert list(rows) == sorted(precisions)
    assert float(rows["fp16"]["onnx_nodes_at_precision_pct"]) == pytest.approx(94.27, abs=0.01)
    for name in precisions:
        assert float(rows[name]["flops_at_precision_pct"]) == 100 and rows[name]["nodes_unknown"] == "0"
        assert "no NVIDIA" in rows[name]["reason"]
