"""Building and auditing engines: what is reported is what the runtime says, and a failure names its own step.

Most tests use a stack from outside the package (a .py file this test writes) whose faults are chosen by argument.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_onnx

from ladder import artifacts, audit, engine, graph, precision, stacks, tables
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.parity import DEFAULT_THRESHOLDS
from ladder.stacks.base import Node
from ladder.step import attempts_path

SCRIPTS = Path(__file__).parent.parent / "scripts"

DOUBLING = '''
"""A runtime that doubles its input, badly where it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field

from ladder.errors import StepError
from ladder.stacks.base import Node


@dataclass
class Doubling:
    precision: str | None = "fp32"
    payload: str = ""
    factor: float = 2.0
    wrong_above: int = 1000
    stray: str | None = None
    error: str | None = None
    closed: str | None = None
    hazard: str | None = None
    log: list = field(default_factory=list)

    def build(self, source, rung, destination):
        if self.error:
            raise StepError(self.error, permanent=True)
        if self.payload:
            destination.write_text(self.payload)
        return {"tactics": 3}

    def open(self, source, payload, rung, batch):
        assert (payload.read_text() if payload else "") == self.payload
        assert source.axes == {"batch": "batch"}
        if self.closed:
            raise StepError(self.closed)
        return Session(self, batch)

    def nodes(self, source, payload, rung, batch, inputs):
        nodes = [Node(f"double{i}", "Mul", self.precision, "here", 1.0) for i in range(3)]
        if self.stray:
            nodes.append(Node("lost", "Mul", self.precision, self.stray, 1.0))
        return [*nodes, Node("shape", "Shape", "int64", "here", 1.0)]

    def identity(self):
        return {"doubling": "1.0"}


class Session:
    def __init__(self, stack, batch):
        self.stack, self.batch = stack, batch

    def bind(self, inputs):
        self.x = inputs["x"]
        assert len(self.x) == self.batch

    def run(self):
        self.y = self.x * (self.stack.factor if self.batch <= self.stack.wrong_above else -1)

    def synchronise(self):
        pass

    def device_ms(self, launches):
        return {}

    def outputs(self):
        return {"y": self.y}

    def facts(self):
        return {"threads": 1, "provider": "here"} | ({"hazard": self.stack.hazard} if self.stack.hazard else {})

    def memory_mb(self):
        return {}

    def close(self):
        pass


def create(**arguments):
    return Doubling(**arguments)
'''


class Folder:
    """What the steps before leave behind: inputs, reference, ids; and how to run the two steps by their scripts."""

    def __init__(self, path: Path):
        self.path = path
        (path / "doubling.py").write_text(DOUBLING)
        x = np.random.default_rng(0).random((3, 4), dtype=np.float32)
        np.savez(path / "inputs.npz", x=x)
        np.savez(path / "reference.npz", y=2 * x)
        write_json(path / "inputs.id.json", {"status": "ok", "sha256": sha256(path / "inputs.npz")})
        self.exported = {
            "status": "ok",
            "sha256": "f" * 64,
            "axes": {"batch": "batch"},
            "weights": "seeded(0)",
            "weights_sha256": "a" * 64,
            "reference_sha256": sha256(path / "reference.npz"),
        }
        write_json(path / "fp32.id.json", self.exported)

    def spec(self, requested: str = "fp32", seeded: bool = True, high: int = 4, **arguments) -> dict:
        rung = {"device": "cpu", "api": "doubling", "compiler": "none", "precision": requested, "launch": "eager"}
        rung |= {"shape": "dynamic", "transfers": "excluded", "threads": 1, "options": {}}
        weights = {"seeded": 0} if seeded else {"path": "w.pt", "sha256": "a" * 64}
        return {
            "rung": {"name": "doubling", "stack": "doubling-cpu", **rung},
            "stack": {"module": str(self.path / "doubling.py"), "arguments": arguments},
            "model": {"name": "double", "task": "generic", "weights": weights},
            "profile": {"min": 1, "opt": 1, "max": high},
            "fingerprint": {"cpu": "one"},
            "engine": "doubling-fp32",
            "platform": "cpu",
            "thresholds": DEFAULT_THRESHOLDS[requested],
            "requested_precision": requested,
        }

    def source(self, spec: dict, onnx_file: Path | None = None):
        return artifacts.source_of(spec, self.path / "fp32.id.json", onnx_file, None, None)

    def audited(self, spec: dict, described: dict | None = None, converted: dict | None = None) -> dict:
        with np.load(self.path / "inputs.npz") as inputs, np.load(self.path / "reference.npz") as reference:
            return audit.audit(spec, self.source(spec), None, dict(inputs), dict(reference), described, converted)

    def script(self, name: str, spec: dict, *arguments: str) -> None:
        write_json(self.path / "spec.json", spec)
        command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--spec", "spec.json", *arguments]
        subprocess.run(command, cwd=self.path, check=True, capture_output=True)

    def build(self, spec: dict, *more: str) -> dict:
        files = ["--output-engine", "engine", "--output-id", "id.json", "--output-build", "build.json"]
        self.script("engine", spec, "--export-id", "fp32.id.json", *files, *more)
        return read_json(self.path / "id.json")

    def audit(self, spec: dict, *more: str) -> tuple[dict, dict]:
        files = ["--engine", "engine", "--engine-id", "id.json", "--build", "build.json", "--inputs", "inputs.npz"]
        files += ["--reference", "reference.npz", "--output-audit", "audit.json", "--output-pass", "pass.json"]
        self.script("audit_engine", spec, "--export-id", "fp32.id.json", *files, *more)
        return read_json(self.path / "audit.json"), read_json(self.path / "pass.json")


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


# ---- loading stacks ----------------------------------------------------------------------------------


def test_a_stack_is_loaded_from_a_file_outside_the_package(folder):
    stack = stacks.load(str(folder.path / "doubling.py"), {"factor": 3})
    assert stack.factor == 3 and stack.identity() == {"doubling": "1.0"}


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("ladder.stacks.abacus", None, "there is no stack module 'ladder.stacks.abacus'"),
        ("missing.py", None, "there is no stack module"),
        ("needy.py", "import no_such_runtime\ndef create(): pass", "needs 'no_such_runtime'.*install it there"),
        ("empty.py", "", "defines no create"),
        ("picky.py", "def create(): return 1", "does not take the arguments {'factor': 3}"),
    ],
)
def test_a_stack_that_cannot_be_loaded_says_why(tmp_path, module, text, message):
    if text is not None:
        (tmp_path / module).write_text(text)
    name = str(tmp_path / module) if module.endswith(".py") else module
    with pytest.raises(StepError, match=message):
        stacks.load(name, {"factor": 3})


# ---- building ----------------------------------------------------------------------------------------


def test_an_engine_built_with_other_bytes_has_the_same_identity(folder):
    first = folder.build(folder.spec(payload="one"))
    built = read_json(folder.path / "build.json")
    assert built["sha256"] == sha256(folder.path / "engine") and built["size_mb"] == 3e-6
    assert built["seconds"] >= 0 and built["peak_memory_mb"] > 1 and built["facts"] == {"tactics": 3}
    assert first["status"] == "ok" and first["stack"]["identity"] == {"doubling": "1.0"}
    assert first["fingerprint"] == {"cpu": "one"} and first["rung"]["precision"] == "fp32"
    spec = folder.spec(payload="one")
    (folder.path / "doubling.py").write_text(DOUBLING.replace("write_text(self.payload)", "write_text('two')"))
    assert folder.build(spec) == first
    assert read_json(folder.path / "build.json")["sha256"] != built["sha256"]


def test_a_stack_without_a_build_step_leaves_an_empty_engine(folder):
    assert folder.build(folder.spec())["status"] == "ok"
    assert (folder.path / "engine").stat().st_size == 0
    built = read_json(folder.path / "build.json")
    assert built["sha256"] is None and built["size_mb"] is None
    assert artifacts.checked_payload(folder.path / "engine", built) is None


def test_an_engine_that_was_changed_is_not_opened(folder):
    folder.build(folder.spec(payload="one"))
    (folder.path / "engine").write_text("other")
    with pytest.raises(StepError, match="changed or cut short"):
        artifacts.checked_payload(folder.path / "engine", read_json(folder.path / "build.json"))
    assert len(attempts_path(folder.path / "id.json").read_text().splitlines()) == 1  # so that it is built anew


def test_a_failed_build_is_recorded_and_its_audit_passes_it_on(folder):
    spec = folder.spec(error="no implementation for Mul")
    record = folder.build(spec)
    assert (record["status"], record["stage"], record["reason"]) == ("failed", "engine", "no implementation for Mul")
    assert record["permanent"] and read_json(folder.path / "build.json") == engine.NOTHING_BUILT
    assert (folder.path / "engine").stat().st_size == 0
    found, verdict = folder.audit(spec)
    assert verdict == {**record, "verdict": "failed"}
    assert found["row"]["verdict"] == "failed" and found["row"]["reason"] == "no implementation for Mul"
    assert found["row"].keys() == set(tables.AUDIT) and found["row"]["nodes"] is None
    assert not attempts_path(folder.path / "pass.json").exists()


def test_a_failed_export_is_passed_through_both_steps(folder):
    failed = {"status": "failed", "stage": "export", "reason": "opset", "permanent": False, "log": "export.log"}
    write_json(folder.path / "fp32.id.json", failed)
    assert folder.build(folder.spec()) == failed
    _, verdict = folder.audit(folder.spec())
    assert verdict == {**failed, "verdict": "failed"}
    assert not attempts_path(folder.path / "id.json").exists() and not attempts_path(folder.path / "pass.json").exists()


def test_a_failed_audit_may_be_tried_again(folder):
    spec = folder.spec()
    folder.build(spec)
    np.savez(folder.path / "reference.npz", y=np.ones((3, 4), np.float32))
    found, verdict = folder.audit(spec)
    assert verdict["verdict"] == "failed" and verdict["stage"] == "audit" and not verdict["permanent"]
    assert "not the one the export wrote" in found["row"]["reason"]
    assert attempts_path(folder.path / "pass.json").read_text().count("\n") == 1


# ---- auditing ----------------------------------------------------------------------------------------


def test_an_engine_that_is_what_it_says_passes(folder):
    spec = folder.spec(payload="one")
    folder.build(spec)
    found, verdict = folder.audit(spec)
    row = found["row"]
    assert row.keys() == set(tables.AUDIT)
    assert (row["verdict"], row["reason"], row["weights"]) == ("pass", None, "seeded(0)")
    assert (row["nodes"], row["nodes_at_precision"], row["nodes_at_precision_pct"]) == (4, 3, 100)
    assert row["time_at_precision_pct"] == 75 and row["precisions"] == {"fp32": 3, "int64": 1}
    assert row["parity_finite"] and row["parity_max_abs"] == 0 and row["parity_matched_pct"] is None
    assert row["artifact_sha256"] == sha256(folder.path / "engine") and row["fp32_onnx_sha256"] == "f" * 64
    assert row["detail"] == "audit.json" and len(found["nodes"]) == 4 and row["onnx_nodes"] is None
    assert verdict["verdict"] == "pass" and verdict["status"] == "ok"


def test_an_engine_that_cannot_run_here_is_inspected_all_the_same(folder):
    spec = folder.spec(closed="no device")
    folder.build(spec)
    found, verdict = folder.audit(spec)
    assert found["row"].keys() == set(tables.AUDIT) and len(found["nodes"]) == 4
    assert (found["row"]["verdict"], found["row"]["reason"]) == ("failed", "no device")
    assert found["row"]["nodes_at_precision_pct"] == 100 and found["row"]["parity_cosine"] is None
    assert (verdict["status"], verdict["verdict"], verdict["stage"]) == ("failed", "failed", "audit")


def test_the_verdict_file_holds_no_figure_of_an_engine_that_is_measured(folder):
    verdicts = []
    for factor in (2.1, 2.2):
        row = folder.audited(folder.spec(factor=factor))["row"]
        assert row["verdict"] == "warn" and "largest error" in row["reason"]
        verdicts.append(audit.verdict_of(row))
    assert verdicts[0] == verdicts[1] and verdicts[0]["reason"] is None
    assert audit.verdict_of(folder.audited(folder.spec())["row"]) != verdicts[0]


def test_bad_outputs_exclude_and_seeded_weights_are_lenient(folder):
    row = folder.audited(folder.spec(factor=2.1, seeded=False))["row"]
    assert row["verdict"] == "exclude" and row["reason"].startswith("at batch 1: largest error")
    verdict = audit.verdict_of(row)
    assert verdict["permanent"] and verdict["reason"] == row["reason"]
    assert folder.audited(folder.spec(factor=-2))["row"]["verdict"] == "exclude"
    assert folder.audited(folder.spec(factor=float("nan")))["row"]["verdict"] == "exclude"


def test_why_a_device_computes_wrongly_is_told_where_it_does(folder):
    hazard = "sums overflow on this processor"
    row = folder.audited(folder.spec(factor=-2, hazard=hazard))["row"]
    assert row["verdict"] == "exclude" and row["reason"].endswith(f"; {hazard}")
    assert audit.verdict_of(row)["reason"] == row["reason"]
    assert folder.audited(folder.spec(hazard=hazard))["row"]["reason"] is None


def test_the_largest_batch_is_compared_too(folder):
    found = folder.audited(folder.spec(wrong_above=1, high=4))
    assert found["row"]["verdict"] == "exclude" and found["row"]["reason"].startswith("at batch 4:")
    assert found["row"]["parity_max_abs"] == 0 and found["parity"]["batch 4"]["max_abs"] > 0
    over = audit.LARGEST_CHECKED_BATCH + 1
    assert folder.audited(folder.spec(wrong_above=1, high=over))["row"]["verdict"] == "pass"


def test_batches_that_do_not_divide_the_samples_compare_them_all(folder):
    spec = folder.spec()
    spec["profile"] = {"min": 2, "opt": 2, "max": 2}
    found = folder.audited(spec)
    assert found["row"]["verdict"] == "pass" and list(found["parity"]) == ["batch 2"]


def test_a_node_elsewhere_excludes_with_its_name(folder):
    row = folder.audited(folder.spec(stray="elsewhere"))["row"]
    assert row["verdict"] == "exclude"
    assert row["reason"] == "1 of 5 nodes do not run on here: lost (elsewhere)"
    assert row["providers"] == {"elsewhere": 1, "here": 4}


def test_a_file_that_the_runtime_did_without_stands_beside_what_it_made_of_another(folder):
    """Weakly typed FP16: the engine comes from the FP32 file, AutoCast's own FP16 file is only told of."""
    path = small_onnx.convnet(folder.path / "fp32.onnx")
    observed = graph.observe(path, [{"x": np.zeros((1, 3, 16, 16), np.float32)}])
    described = graph.describe(onnx.load(path), onnx.load(path), "fp32", observed)
    nodes = len(described["detail"])
    converted = described | {"precision": "fp16", "at_precision": 6, "at_precision_pct": 100 * 6 / nodes}
    row = folder.audited(folder.spec("fp16", precision="fp16"), described, converted)["row"]
    assert (row["onnx_nodes"], row["onnx_nodes_at_precision"]) == (nodes, 6)
    assert row["nodes_at_precision_pct"] == 100 and row["verdict"] == "pass"
    assert folder.audited(folder.spec("fp16", precision="fp16"), described)["row"]["onnx_nodes_at_precision"] is None


@pytest.mark.parametrize(
    ("requested", "actual", "reason"),
    [
        ("fp16", "fp32", "requested fp16, but only 0.0 % of the nodes that compute run in it"),
        ("fp32", "bf16", "requested fp32, but of 3 nodes that compute 3 in bf16"),
        ("fp32", "tf32", "requested fp32, but of 3 nodes that compute 3 in tf32"),
        ("int8", "fp16", "requested int8, but of 3 nodes that compute 3 in fp16"),
        ("tf32-conv", "tf32", None),
        ("int8-fp16", "int8", None),
    ],
)
def test_what_was_requested_is_not_what_is_reported(folder, requested, actual, reason):
    row = folder.audited(folder.spec(requested, precision=actual))["row"]
    assert row["reason"] == reason and row["verdict"] == ("warn" if reason else "pass")
    assert row["nodes_at_precision"] == (0 if reason else 3) and row["precisions"] == {actual: 3, "int64": 1}


def test_what_the_runtime_does_not_tell_is_unknown(folder):
    row = folder.audited(folder.spec("fp16", precision=None))["row"]
    assert (row["nodes_unknown"], row["nodes_at_precision"], row["nodes_at_precision_pct"]) == (3, None, None)
    assert row["time_at_precision_pct"] is None and row["verdict"] == "pass"
    half = [Node("a", "Mul", "fp16", "here"), Node("b", "Mul", None, "here")]
    counted = audit.count(half, "fp16")
    assert counted["nodes_at_precision_pct"] == 50 and counted["time_at_precision_pct"] is None


def described(**at: bool) -> dict:
    """A graph with a node for each name, 100 FLOPs each, at fp16 or not."""
    detail = [
        {"name": name, "output": f"{name}_output", "type": "Conv", "at_precision": yes, "flops": 100}
        for name, yes in at.items()
    ]
    share = 100 * sum(at.values()) / len(at)
    flops = {"total": 100 * len(at), "at_precision_pct": share}
    figures = {"precision": "fp16", "nodes": len(at), "at_precision": sum(at.values()), "at_precision_pct": share}
    figures |= {"float_nodes": len(at), "float_nodes_at_precision": sum(at.values())}
    return {**figures, "kept": {"range": 1, "op": 0, "exclusion": 0, "other": 0}, "flops": flops, "detail": detail}


def test_flops_are_shared_by_where_nodes_come_from_and_never_guessed():
    file = described(conv1=True, conv2=True)

    def share(*nodes: Node) -> float | None:
        return audit.flops_at_precision_pct(nodes, "fp16", file)

    first = Node("fused", "Convolution", "fp16", "here", origin=("conv1", "act1"))
    assert share(first, Node("conv2", "Conv", "fp32", "here")) == 50
    assert share(first, Node("conv2_nchwc", "Conv", "fp16", "here", origin=("conv2_output",))) == 100
    assert share(first, Node("conv2", "Cast", "fp32", "here"), Node("conv2", "Conv", "fp16", "here")) == 100
    assert share(first) is None
    assert share(first, Node("conv2", "Conv", None, "here")) is None
    second = Node("a", "Conv", "fp16", "here", origin=("conv2",))
    assert share(first, second, Node("conv2", "Conv", "fp32", "here")) is None
    assert audit.flops_at_precision_pct([first], "fp16", None) is None


def test_an_engine_that_leaves_most_of_the_files_precision_is_warned_of(folder):
    file = described(double0=True, double1=True, double2=False)
    row = folder.audited(folder.spec("fp16", precision="fp32"), file)["row"]
    assert row["verdict"] == "warn" and row["flops_at_precision_pct"] == 0
    assert row["reason"].endswith("run in it, of 66.7 % in the ONNX file")
    assert (row["onnx_nodes"], row["onnx_nodes_at_precision"], row["kept_by_range"]) == (3, 2, 1)


def int8_beside(rest: str, count: int = 3) -> list[Node]:
    return [Node("a", "Conv", "int8", "here"), *(Node(f"n{i}", "Mul", rest, "here") for i in range(count))]


def test_int8_beside_fp16_is_held_to_what_the_qdq_file_has_in_int8():
    """MIGraphX lowers the INT8 file to FP16 by itself, so the engine's graph is that of INT8."""
    file = described(a=True, n0=False, n1=False, n2=False) | {"precision": "int8"}
    assert audit.contradiction(int8_beside("fp16"), "int8-fp16", file) == ("pass", None)
    assert audit.graph_contradiction(file, "int8-fp16") == []
    for requested, of in (("int8-fp16", "100.0 %"), ("int8", "100.0 %")):
        full = described(a=True, n0=True, n1=True, n2=True) | {"precision": requested}
        nodes = int8_beside("fp32" if requested == "int8" else "fp16")
        verdict, reason = audit.contradiction(nodes, requested, full)
        assert verdict == "warn" and reason.endswith(f"of {of} in the ONNX file")
    none = described(a=False) | {"precision": "int8"}
    assert audit.graph_contradiction(none, "int8-fp16") == [("warn", "the int8 ONNX file has no node in int8")]


def test_int8_beside_fp32_alone_is_not_int8_fp16():
    file = described(a=True, n0=False) | {"precision": "int8"}
    reason = "requested int8-fp16, but no node that computes is in fp16, 1 are in fp32"
    assert audit.contradiction(int8_beside("fp32", 1), "int8-fp16", file) == ("warn", reason)
    some = [*int8_beside("fp32", 1), Node("b", "Mul", "fp16", "here")]
    reason = "requested int8-fp16, but only 33.3 % of the nodes that compute run in it"
    assert audit.contradiction(some, "int8-fp16", None) == ("warn", reason)
    assert audit.contradiction(int8_beside("fp32", 0), "int8-fp16", file) == ("pass", None)


def test_a_file_that_holds_fp32_under_another_name_is_warned_of(folder):
    row = folder.audited(folder.spec("fp16", precision="fp16"), described(double0=False))["row"]
    assert row["verdict"] == "warn" and row["reason"] == "the fp16 ONNX file has no node in fp16"


def test_tf32_makes_no_claim_on_its_fp32_file(folder):
    file = described(double0=True) | {"precision": "fp32"}
    row = folder.audited(folder.spec("tf32", precision="tf32"), file)["row"]
    assert row["onnx_nodes"] == 1 and row["onnx_nodes_at_precision"] is None and row["kept_by_range"] is None


def test_onnxruntime_is_built_and_audited_for_real(folder):
    """INT8 by ModelOpt, in ONNX Runtime on the CPU, which multiplies in FP32 between the file's Q and DQ nodes."""
    fp32 = small_onnx.convnet(folder.path / "fp32.onnx")
    calibration = small_onnx.data(folder.path / "inputs.npz")
    observed = graph.observe(fp32, graph.samples_of(calibration))
    identity = precision.convert(fp32, calibration, "int8", {}, observed, folder.path / "int8.onnx")
    write_json(folder.path / "int8.id.json", identity)
    file = graph.write(fp32, folder.path / "int8.onnx", folder.path / "int8.graph.json", "int8", observed, {})
    with np.load(calibration) as arrays:
        session = precision.onnxruntime.InferenceSession(fp32, providers=["CPUExecutionProvider"])
        np.savez(folder.path / "reference.npz", y=session.run(None, dict(arrays))[0])
    write_json(folder.path / "inputs.id.json", {"status": "ok", "sha256": sha256(calibration)})
    write_json(
        folder.path / "fp32.id.json", folder.exported | {"reference_sha256": sha256(folder.path / "reference.npz")}
    )
    spec = folder.spec("int8")
    spec["stack"] = {"module": "ladder.stacks.onnxruntime", "arguments": {}}
    assert folder.build(spec, "--onnx", "int8.onnx")["onnx_sha256"] == identity["sha256"]
    found, verdict = folder.audit(spec, "--onnx", "int8.onnx", "--graph", "int8.graph.json")
    row = found["row"]
    assert verdict["verdict"] == "warn" and row["flops_at_precision_pct"] == row["nodes_at_precision"] == 0
    assert row["reason"].startswith("requested int8, but only 0.0 % of the FLOPs in convolutions and matrix products")
    assert row["reason"].endswith(f"of {file['flops']['at_precision_pct']:.1f} % in the ONNX file")
    assert row["providers"] == {"CPUExecutionProvider": row["nodes"]}
    assert row["onnx_nodes"] == len(onnx.load(fp32).graph.node)
    assert row["onnx_nodes_at_precision"] == file["at_precision"]
    assert row["artifact_sha256"] == identity["sha256"] and 0 < row["parity_relative"] < 1
    assert row["time_at_precision_pct"] == 0 and row["precisions"].keys() == {"fp32", "int8", "int64"}
