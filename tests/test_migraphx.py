"""The MIGraphX stack over the module made up here and, where there is one, a real one on its CPU targets.

What needs a GPU is held by the made-up module alone; nothing of it has run on one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from migraphx_models import BATCH, FAKE, SHAPE, SIZE, images, module, net, save
from onnx import helper
from workflow_run import ROOT, TABLES, Workflow, onnx_model

from ladder import audit, config, engine, parity
from ladder import run as run_step
from ladder.errors import ConfigError, StepError
from ladder.files import sha256, write_json, write_npz
from ladder.stacks import migraphx
from ladder.stacks.base import Node, Rung, Source

STATIC = {"min": BATCH, "opt": BATCH, "max": BATCH}  # as the engine of a static rung is told
AXES: dict[str, int | str] = {"batch": "batch", "height": SIZE}
RUNG = Rung("rung", "migraphx", "cpu", "migraphx", "migraphx", "fp32", "eager", "static", "excluded", 1)
ON_CPU = pytest.mark.parametrize("target", ["ref", "cpu"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("net")
    return {"fp32": net(folder / "fp32.onnx"), "int8": net(folder / "int8.onnx", quantised=True)}


@pytest.fixture(params=["fake", "real"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    found = module(request.param)
    monkeypatch.setitem(sys.modules, "migraphx", found)
    cpus = os.sched_getaffinity(0)
    yield found
    os.sched_setaffinity(0, cpus)  # where a test left a session open


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = module("fake")
    monkeypatch.setitem(sys.modules, "migraphx", made)
    return made


@pytest.fixture
def gpu(fake: ModuleType) -> ModuleType:
    fake.enable_gpu()
    return fake


@pytest.fixture
def source(files: dict[str, Path]) -> Source:
    return source_of(files["fp32"])


def source_of(path: Path, **axes: int | str) -> Source:
    return Source({"name": "net"}, path, None, STATIC, axes or AXES)


def reference(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip(["scores", "features"], session.run(None, inputs), strict=True))


def run(session: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session.bind(inputs)
    session.run()
    session.synchronise()
    return session.outputs()


def audited(target: str, path: Path, folder: Path, rung: Rung) -> list[Node]:
    stack, engine = migraphx.create(target), folder / "engine"
    stack.build(source_of(path), rung, engine)
    return stack.nodes(source_of(path), engine, rung, BATCH, images())


def precisions(nodes: list[Node]) -> dict[str, str | None]:
    return {node.type: node.precision for node in nodes}


# ---- build, open, run -----------------------------------------------------------------------------------------


@ON_CPU
@pytest.mark.parametrize(
    ("precision", "file", "quantiser", "error"),
    [
        ("fp32", "fp32", None, 1e-5),
        ("fp16", "fp32", "quantize_fp16", 2e-2),
        ("bf16", "fp32", "quantize_bf16", 2e-1),
        ("int8", "int8", None, 1e-2),
        ("int8-fp16", "int8", "quantize_fp16", 5e-2),
    ],
)
def test_an_engine_gives_what_the_model_does(
    library: ModuleType,
    files: dict[str, Path],
    tmp_path: Path,
    target: str,
    precision: str,
    file: str,
    quantiser: str | None,
    error: float,
) -> None:
    stack, source, rung = migraphx.create(target), source_of(files[file]), replace(RUNG, precision=precision)
    built = stack.build(source, rung, tmp_path / "engine")
    assert (built["version"], built["target"], built["quantiser"]) == (library.__version__, target, quantiser)
    assert built["input_shapes"] == {"image": list(SHAPE)} and built["outputs"] == ["scores", "features"]
    assert (built["offload_copy"], built["fast_math"], built["exhaustive_tune"]) == (False, False, False)
    with zipfile.ZipFile(tmp_path / "engine") as archive:
        assert library.load_buffer(archive.read("program.mxr")).is_compiled()

    cpus = os.sched_getaffinity(0)
    session = stack.open(source, tmp_path / "engine", rung, BATCH)
    found = run(session, images())
    for name, expected in reference(files[file], images()).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], expected, atol=error, rtol=0)
    facts = session.facts()
    assert (facts["provider"], facts["threads"], facts["device_resident"]) == (target, 1, False)
    assert facts["precision_hint"] == (quantiser or "as in the ONNX file")
    assert session.memory_mb() == {} and session.device_ms(3) == {}
    session.close()
    assert os.sched_getaffinity(0) == cpus
    assert json.dumps(facts) and stack.identity()["migraphx"] == library.__version__


@ON_CPU
def test_outputs_are_copies_and_inputs_may_be_slices(
    library: ModuleType, source: Source, tmp_path: Path, target: str
) -> None:
    stack = migraphx.create(target)
    stack.build(source, RUNG, tmp_path / "engine")
    session = stack.open(source, tmp_path / "engine", RUNG, BATCH)
    first = run(session, images(0))
    kept = {name: array.copy() for name, array in first.items()}
    turned = np.ascontiguousarray(images(1)["image"].transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    second = run(session, {"image": turned})
    for name, expected in reference(source.onnx, {"image": np.ascontiguousarray(turned)}).items():
        assert np.array_equal(first[name], kept[name]) and not np.array_equal(first[name], second[name])
        np.testing.assert_allclose(second[name], expected, atol=1e-5)
    for wrong in (
        {"image": images()["image"][:1]},
        {"image": images()["image"].astype(np.float64)},
        {"nobody": turned},
    ):
        with pytest.raises(StepError, match="expected"):
            session.bind(wrong)
    session.close()


def test_a_process_may_use_as_many_cpus_as_the_rung_asks_for(fake: ModuleType, source: Source, tmp_path: Path) -> None:
    stack, there = migraphx.create("ref"), len(os.sched_getaffinity(0))
    stack.build(source, RUNG, tmp_path / "engine")
    for threads in (1, there, there + 1):
        session = stack.open(source, tmp_path / "engine", replace(RUNG, threads=threads), BATCH)
        assert session.facts()["threads"] == min(threads, there)  # what a run then refuses, where it is another
        session.close()
    assert len(os.sched_getaffinity(0)) == there


def test_options_are_passed_on_and_kept(fake: ModuleType, source: Source, tmp_path: Path) -> None:
    rung = replace(RUNG, options={"exhaustive_tune": True, "fast_math": True, "offload_copy": True})
    assert rung.options.items() <= migraphx.create("ref").build(source, rung, tmp_path / "engine").items()
    with pytest.raises(StepError, match="fast_math True, not False"):
        migraphx.create("ref").open(source, tmp_path / "engine", replace(rung, options={"offload_copy": True}), BATCH)


# ---- what the library would let through -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"tune": True}}, "MIGraphX does not know the option tune; its options are exhaustive_tune"),
        ({"options": {"fast_math": "yes"}}, "option fast_math must be true or false, not 'yes'"),
        ({"shape": "dynamic"}, "set shape: static"),
        ({"launch": "graph"}, "MIGraphX has no launch 'graph'"),
        ({"precision": "tf32"}, "MIGraphX has no precision tf32, only fp32, fp16"),
    ],
)
def test_a_rung_that_cannot_be_is_refused(
    fake: ModuleType, source: Source, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(StepError, match=message) as refused:
        migraphx.create("ref").build(source, replace(RUNG, **change), tmp_path / "engine")
    assert refused.value.permanent and not (tmp_path / "engine").exists()


def test_a_target_that_is_not_there_is_refused(fake: ModuleType) -> None:
    with pytest.raises(StepError, match="no target 'rocm', only gpu, cpu, ref"):
        migraphx.create("rocm")


def test_a_size_that_nothing_gives_is_refused(library: ModuleType, files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(StepError, match="dynamic axis without a value: 'height'; give it under axes") as refused:
        migraphx.create("ref").build(source_of(files["fp32"], batch="batch"), RUNG, tmp_path / "engine")
    assert refused.value.permanent
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    with pytest.raises(StepError, match="input 'x' of .* has no shape"):
        bare = save(tmp_path / "bare.onnx", nodes, {"x": None}, {"y": None})
        migraphx.create("ref").build(source_of(bare), RUNG, tmp_path / "engine")


@pytest.mark.parametrize("wrong", ["empty", "cut short", "garbage", "missing"])
def test_a_file_that_is_not_whole_is_refused(
    library: ModuleType, files: dict[str, Path], tmp_path: Path, wrong: str
) -> None:
    path, content = tmp_path / "model.onnx", files["fp32"].read_bytes()
    if wrong != "missing":
        path.write_bytes({"empty": b"", "cut short": content[:-50], "garbage": b"garbage" * 9}[wrong])
    with pytest.raises(StepError, match=r"model\.onnx is (not a whole ONNX file|empty or cut short)"):
        migraphx.create("ref").build(source_of(path), RUNG, tmp_path / "engine")


def test_an_unknown_operator_is_told_in_the_library_s_words(library: ModuleType, tmp_path: Path) -> None:
    nodes = [helper.make_node("Nonsense", ["x"], ["y"], "nonsense")]
    path = save(tmp_path / "a.onnx", nodes, {"x": ["batch", 3]}, {"y": ["batch", 3]})
    with pytest.raises(StepError, match=r"^MIGraphX cannot parse .*a\.onnx: .*Unknown operator: Nonsense") as refused:
        migraphx.create("ref").build(source_of(path), RUNG, tmp_path / "engine")
    assert refused.value.permanent and ".cpp:" not in str(refused.value)


@pytest.mark.parametrize("lost", ["shapes", "outputs"])
def test_a_parse_that_is_not_the_file_is_refused(
    fake: ModuleType, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    parse = fake.parse_onnx
    other = {"shapes": lambda name, map_input_dims: parse(name), "outputs": lambda name, map_input_dims: fake.program()}
    monkeypatch.setattr(fake, "parse_onnx", other[lost])
    with pytest.raises(StepError, match="MIGraphX parsed .* with the inputs"):
        migraphx.create("ref").build(source, RUNG, tmp_path / "engine")


def test_an_engine_runs_only_as_what_it_was_built_for(
    fake: ModuleType, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, engine = migraphx.create("ref"), tmp_path / "engine"
    stack.build(source, RUNG, engine)
    with pytest.raises(StepError, match="was built for target ref, not cpu"):
        migraphx.create("cpu").open(source, engine, RUNG, BATCH)
    with pytest.raises(StepError, match="was built for static_batch 2, not 1"):
        stack.open(replace(source, profile={"min": 1, "opt": 2, "max": 2}), engine, RUNG, 1)
    with pytest.raises(StepError, match="batch 3 is outside the profile 2 to 2"):
        stack.open(source, engine, RUNG, 3)
    monkeypatch.setattr(fake, "__version__", "2.16.0")  # MIGraphX itself only warns
    with pytest.raises(StepError, match=r"was built for version 2\.15\.0\.\S+, not 2\.16\.0"):
        stack.open(source, engine, RUNG, BATCH)


@pytest.mark.parametrize("wrong", ["no file", "empty", "cut short", "program", "not compiled"])
def test_an_engine_file_that_is_not_whole_is_refused(
    library: ModuleType, source: Source, tmp_path: Path, wrong: str
) -> None:
    stack, engine = migraphx.create("ref"), tmp_path / "engine"
    stack.build(source, RUNG, engine)
    if wrong == "empty":
        engine.write_bytes(b"")
    elif wrong == "cut short":
        engine.write_bytes(engine.read_bytes()[:-9])
    elif wrong in ("program", "not compiled"):
        parsed = library.parse_onnx(str(source.onnx), map_input_dims={"image": list(SHAPE)})
        content = b"garbage" if wrong == "program" else library.save_buffer(parsed)
        with zipfile.ZipFile(engine) as archive:
            rest = {name: archive.read(name) for name in archive.namelist() if name != "program.mxr"}
        with zipfile.ZipFile(engine, "w") as archive:
            for name, each in {**rest, "program.mxr": content}.items():
                archive.writestr(name, each)
    with pytest.raises(
        StepError, match="none was given|not a whole engine file|cannot load the program|is not compiled"
    ):
        stack.open(source, None if wrong == "no file" else engine, RUNG, BATCH)


def test_a_run_that_fails_is_told_in_the_library_s_words(fake: ModuleType, source: Source, tmp_path: Path) -> None:
    stack = migraphx.create("ref")
    stack.build(source, RUNG, tmp_path / "engine")
    session = stack.open(source, tmp_path / "engine", RUNG, BATCH)
    session._parameters.clear()
    with pytest.raises(StepError, match="^MIGraphX failed while running: Parameter not found: image$"):
        session.run()
    session.close()


# ---- a library that is missing, a placeholder or without a GPU --------------------------------------------------


def test_a_missing_library_is_told_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, source: Source, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "migraphx", None)  # as an import that finds nothing
    for call in (
        lambda: migraphx.create("gpu").build(source, RUNG, tmp_path / "engine"),
        lambda: migraphx.create("gpu").open(source, tmp_path / "engine", RUNG, BATCH),
        lambda: migraphx.create("gpu").identity(),
    ):
        with pytest.raises(StepError) as told:
            call()
    assert "/opt/rocm/lib on PYTHONPATH" in str(told.value) and "placeholder" in str(told.value)


def test_the_placeholder_of_pypi_is_not_taken_for_the_library(
    monkeypatch: pytest.MonkeyPatch, source: Source, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "migraphx", ModuleType("migraphx"))
    with pytest.raises(
        StepError, match=r"is not MIGraphX: it has no parse_onnx; it comes with ROCm \(put /opt/rocm/lib"
    ):
        migraphx.create("gpu").build(source, RUNG, tmp_path / "engine")


def test_a_build_without_a_gpu_says_so(fake: ModuleType, source: Source, tmp_path: Path) -> None:
    with pytest.raises(StepError, match="built without a GPU"):
        migraphx.create("gpu").build(source, RUNG, tmp_path / "engine")
    fake.enable_gpu()
    fake._targets.discard("gpu")  # the module is ROCm's, its library of the GPU is missing
    with pytest.raises(StepError, match=r"^MIGraphX has no target 'gpu' here: Dynamic loading .* libmigraphx_gpu\.so"):
        migraphx.create("gpu").build(source, RUNG, tmp_path / "engine")


# ---- the audit ------------------------------------------------------------------------------------------------


def test_nodes_are_what_the_program_says_before_it_is_lowered(
    library: ModuleType, files: dict[str, Path], tmp_path: Path
) -> None:
    for precision in ("fp32", "fp16", "bf16"):
        nodes = audited("ref", files["fp32"], tmp_path, replace(RUNG, precision=precision))
        found = precisions(nodes)
        assert {found[kind] for kind in ("convolution", "dot", "softmax", "relu")} == {precision}
        assert {(node.provider, node.evidence) for node in nodes} == {("ref", "program")}
        assert not any(node.time_ms or node.origin for node in nodes)
        assert ("Convert" in found) == (precision != "fp32")  # which the audit counts for nothing
        assert not {"@param", "@literal", "@return", "reshape", "multibroadcast"} & set(found)
        assert audit.count(nodes, precision)["nodes_at_precision_pct"] == 100


def test_the_cpu_target_is_not_taken_at_its_request(
    library: ModuleType, files: dict[str, Path], tmp_path: Path
) -> None:
    nodes = audited("cpu", files["fp32"], tmp_path, replace(RUNG, precision="fp16"))
    assert {node.precision for node in nodes} == {"fp32"} and {node.evidence for node in nodes} == {"target"}
    verdict, reason = audit.contradiction(nodes, "fp16", None)
    assert verdict == "warn" and "requested fp16, but only 0.0 %" in (reason or "")


@ON_CPU
def test_a_product_between_q_and_dq_stays_fp32_on_the_cpu(
    library: ModuleType, files: dict[str, Path], tmp_path: Path, target: str
) -> None:
    found = precisions(audited(target, files["int8"], tmp_path, replace(RUNG, precision="int8")))
    assert found["convolution"] == found["dot"] == "fp32" and "QuantizeLinear" in found


@pytest.mark.parametrize(("precision", "file", "rest"), [("int8", "int8", "fp32"), ("int8-fp16", "int8", "fp16")])
def test_kernels_of_the_gpu_tell_int8_from_float(
    gpu: ModuleType, files: dict[str, Path], tmp_path: Path, precision: str, file: str, rest: str
) -> None:
    nodes = audited("gpu", files[file], tmp_path, replace(RUNG, precision=precision))
    found = precisions(nodes)
    assert found["convolution"] == found["dot"] == "int8" and found["relu"] == rest
    assert {node.evidence for node in nodes if node.type in ("convolution", "dot")} == {"kernels"}
    assert found["softmax"] == "fp32"  # which the gpu target computes in FP32 whatever the program says


def test_softmax_on_the_gpu_is_what_the_version_and_the_variable_make_it(
    gpu: ModuleType, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = replace(RUNG, precision="fp16")
    assert precisions(audited("gpu", files["fp32"], tmp_path, rung))["softmax"] == "fp32"
    monkeypatch.setattr(gpu, "__version__", "2.13.0")
    assert precisions(audited("gpu", files["fp32"], tmp_path, rung))["softmax"] == "fp16"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "migraphx", gpu)
    monkeypatch.setenv("MIGRAPHX_DISABLE_FP32_SOFTMAX", "1")
    assert precisions(audited("gpu", files["fp32"], tmp_path, rung))["softmax"] == "fp16"


# ---- the GPU, made up -------------------------------------------------------------------------------------------


def test_buffers_stay_on_the_device(gpu: ModuleType, source: Source, tmp_path: Path) -> None:
    stack = migraphx.create("gpu")
    stack.build(source, RUNG, tmp_path / "engine")
    session = stack.open(source, tmp_path / "engine", RUNG, BATCH)
    gpu.calls.clear()
    for seed in (0, 1):
        for name, expected in reference(source.onnx, images(seed)).items():
            np.testing.assert_allclose(run(session, images(seed))[name], expected, atol=1e-5)
    assert gpu.calls == ["run", "gpu_sync"] * 4
    facts = session.facts()
    assert (facts["provider"], facts["threads"], facts["device_resident"]) == ("gpu", 1, True)
    session.close()


def test_with_offload_copy_the_run_copies_by_itself(gpu: ModuleType, source: Source, tmp_path: Path) -> None:
    rung = replace(RUNG, options={"offload_copy": True}, transfers="included")
    stack = migraphx.create("gpu")
    stack.build(source, rung, tmp_path / "engine")
    session = stack.open(source, tmp_path / "engine", rung, BATCH)
    assert session.facts()["device_resident"] is False
    np.testing.assert_allclose(run(session, images())["scores"], reference(source.onnx, images())["scores"], atol=1e-5)
    session.close()


# ---- the configuration ------------------------------------------------------------------------------------------


def rung_faults(stack: dict[str, Any] | None = None, **rung: Any) -> list[str]:
    raw = {
        "models": {"net": onnx_model("net.onnx", {"batch": "batch"}, "random")},
        "data": {"random": {"npz": "net.npz"}},
        "platforms": {"amd": {"device": "rocm"}},
        "platform": "amd",
        "stacks": {"migraphx": stack or {}},
        "ladders": {
            "amd": {
                "platform": "amd",
                "models": ["net"],
                "batches": [1],
                "rungs": [{"name": "migraphx", "stack": "migraphx", **rung}],
                "steps": [],
            }
        },
    }
    try:
        config.load(raw)
    except ConfigError as error:
        return error.faults
    return []


def test_a_rung_is_static_and_its_copies_are_named() -> None:
    where = "ladders.amd.rungs.migraphx"
    assert rung_faults(shape="static") == []
    assert rung_faults() == [f"{where}.shape: 'dynamic' is not offered by migraphx; set shape: static"]
    copies = {"shape": "static", "options": {"offload_copy": True}}
    assert rung_faults(**copies, transfers="included") == rung_faults(shape="static", transfers="included") == []
    assert rung_faults(**copies) == [
        f"{where}.transfers: with offload_copy each run copies inputs and outputs itself; set transfers: included"
    ]


# ---- a whole rung -----------------------------------------------------------------------------------------------


@ON_CPU
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_rung_is_built_audited_and_measured(
    library: ModuleType, source: Source, tmp_path: Path, target: str, precision: str
) -> None:
    rung = replace(RUNG, precision=precision)
    spec: dict[str, Any] = {
        "rung": asdict(rung),
        "stack": {"module": "ladder.stacks.migraphx", "arguments": {"target": target}},
        "model": {"name": "net", "task": "generic", "weights": {"path": "net.onnx"}},
        "profile": STATIC,
        "fingerprint": {},
        "platform": "cpu",
        "engine": "engine",
        "requested_precision": precision,
        "thresholds": parity.DEFAULT_THRESHOLDS[precision],
    }
    identity, built = engine.build(spec, source, tmp_path / "engine")
    assert identity["stack"]["identity"]["migraphx"] == library.__version__

    inputs, right = images(), reference(source.onnx, images())
    found = audit.audit(spec, source, tmp_path / "engine", inputs, right, None)
    lowered = precision == "fp16" and target == "ref"  # the cpu target computes in FP32 and is warned of
    assert found["row"]["verdict"] == ("pass" if lowered or precision == "fp32" else "warn")
    assert found["row"]["nodes_at_precision_pct"] == (100 if lowered or precision == "fp32" else 0)
    assert found["facts"]["provider"] == target and found["row"]["providers"].keys() == {target}

    for name, arrays in (("inputs", inputs), ("reference", right)):
        write_npz(tmp_path / f"{name}.npz", arrays)
    write_json(tmp_path / "build.json", built)
    write_json(tmp_path / "fp32.id.json", {"status": "ok", "axes": AXES, "sha256": sha256(source.onnx)})
    write_json(tmp_path / "inputs.id.json", {"status": "ok", "sha256": sha256(tmp_path / "inputs.npz")})
    shutil.copy(source.onnx, tmp_path / "fp32.onnx")
    files = {"engine": "engine", "build": "build.json", "export_id": "fp32.id.json", "onnx": "fp32.onnx"}
    files |= {"inputs": "inputs.npz", "reference": "reference.npz"}
    settings = config.Measure(max_seconds=0.05, throughput_seconds=0).model_dump()
    told = {name: str(tmp_path / file) for name, file in files.items()}
    measured = run_step.run(
        {**spec, **told, "weights": None, "weights_id": None, "batch": BATCH, "measure": settings},
        tmp_path / "latencies.npy",
    )
    assert measured["row"]["iterations"] == len(np.load(tmp_path / "latencies.npy")) >= 6
    assert measured["row"]["throughput_ips"] > 0 and measured["facts"]["threads"] == 1


# ---- a whole ladder ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_ladder_runs_on_the_targets_of_a_cpu(tmp_path: Path, files: dict[str, Path]) -> None:
    """Through the workflow: engines, audits, a round, tables; the target that is not there is in failures.csv."""
    shutil.copy(files["fp32"], tmp_path / "net.onnx")
    np.savez(tmp_path / "net.npz", **images())
    path = f"import sys\nsys.path.insert(0, {str(FAKE.parent)!r})\n"
    (tmp_path / "cpu_migraphx.py").write_text(f"{path}from ladder.stacks.migraphx import create\n")
    targets = {
        f"migraphx-{target}": {
            "module": "cpu_migraphx.py",
            "arguments": {"target": target},
            "device": "cpu",
            "api": "migraphx",
            "compiler": f"migraphx-{target}",
            "source": "fp32-onnx",
            "shapes": ["static"],
        }
        for target in ("ref", "cpu", "gpu")
    }
    rungs = [{"name": stack, "stack": stack, "shape": "static", "threads": 1} for stack in targets]
    workflow = Workflow(ROOT, tmp_path)
    workflow.call(
        {
            "models": {"net": onnx_model("net.onnx", {"batch": "batch", "height": SIZE}, "random")},
            "data": {"random": {"npz": "net.npz"}},
            "stacks": targets,
            "ladders": {
                "amd": {
                    "platform": "cpu",
                    "models": ["net"],
                    "batches": [BATCH],
                    "rounds": 1,
                    "rungs": rungs,
                    "steps": ["compilation", "compilation"],
                }
            },
            "measure": {"warmup": 1, "max_seconds": 0.1, "throughput_seconds": 0},
        },
        *TABLES,
    ).must()
    assert {row["rung"] for row in workflow.table("results.csv")} == {"migraphx-ref", "migraphx-cpu"}
    audits = {row["stack"]: row for row in workflow.table("audit.csv")}
    assert [audits[f"migraphx-{target}"]["verdict"] for target in ("ref", "cpu", "gpu")] == ["pass", "pass", "failed"]
    assert json.loads(audits["migraphx-ref"]["providers"]).keys() == {"ref"}
    assert all("without a GPU" in row["reason"] for row in workflow.table("failures.csv"))
    assert {row["rung"] for row in workflow.table("failures.csv")} == {"migraphx-gpu"}
