"""ONNX Runtime's GPU providers without a GPU: options, caches, placement and refusals.

The runtime is the real one on the CPU. Around it stands what a provider adds, as its source has it: a library with the
names of its options, a cache that it fills when it compiles, sessions that say they run on it.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as real
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ladder import process
from ladder.errors import StepError
from ladder.stacks import checks, onnxruntime
from ladder.stacks import onnxruntime_providers as providers
from ladder.stacks.base import Rung, Source
from ladder.stacks.onnxruntime_providers import CPU, CUDA, MIGRAPHX, ROCM, TENSORRT
from tests import small_onnx
from tests.workflow_run import save_onnx

NAMES = {
    MIGRAPHX: "fp16_enable bf16_enable int8_enable exhaustive_tune model_cache_dir",
    TENSORRT: "fp16_enable int8_enable cuda_graph_enable builder_optimization_level max_workspace_size "
    "engine_cache_enable engine_cache_path timing_cache_enable timing_cache_path profile_min_shapes "
    "profile_opt_shapes profile_max_shapes",
}
PREFIX = {MIGRAPHX: "migraphx_", TENSORRT: "trt_"}


class Gpu:
    """The real runtime as if it had a provider for a GPU; what happened to it is kept."""

    def __init__(self, provider: providers.Provider, folder: Path):
        self.provider = provider
        self.__file__ = str(folder / "__init__.py")
        self.sessions: list[Session] = []
        self.compiled: list[str] = []
        self.tf32_override: list[str | None] = []
        self.changes: dict[str, str] = {}  # options that are not taken as they are given
        self.elsewhere: set[str] = set()  # nodes that the CPU takes
        (folder / "capi").mkdir()
        assert provider.library
        self.know(NAMES.get(provider, "").split())

    def know(self, names: list[str]) -> None:
        text = "\0".join(PREFIX.get(self.provider, "") + name for name in names)
        (Path(self.__file__).parent / "capi" / str(self.provider.library)).write_text(f"\0{text}\0")

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def get_available_providers(self) -> list[str]:
        return [self.provider.name, CPU.name]

    def preload_dlls(self, directory: str) -> None:
        pass

    class OrtValue:
        @staticmethod
        def ortvalue_from_shape_and_type(shape: list[int], kind: Any, memory: str, index: int) -> Any:
            return real.OrtValue.ortvalue_from_shape_and_type(shape, kind, "cpu", index)

    def InferenceSession(self, path: str, options: Any, providers: Any, **arguments: Any) -> Any:
        [(name, given_options)] = providers
        if name == CPU.name:
            return real.InferenceSession(path, options, providers=[name], **arguments)
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
        session = real.InferenceSession(path, options, providers=[CPU.name], **arguments)
        self.tf32_override.append(os.environ.get("NVIDIA_TF32_OVERRIDE"))
        shape = session.get_inputs()[0].shape
        for key in ("migraphx_model_cache_dir", "trt_engine_cache_path"):
            if key in given_options and not (kept := Path(given_options[key], f"{shape}.compiled")).exists():
                kept.write_text(str(shape))
                self.compiled.append(kept.name)
        self.sessions.append(Session(self, session, given_options))
        return self.sessions[-1]


class Session:
    def __init__(self, gpu: Gpu, inner: Any, given_options: dict[str, str]):
        self.gpu, self.inner, self.given, self.runs = gpu, inner, given_options, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_providers(self) -> list[str]:
        return [self.gpu.provider.name, CPU.name]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {self.gpu.provider.name: {"other": "0", **self.given, **self.gpu.changes}}

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [node for part in self.inner.get_provider_graph_assignment_info() for node in part.get_nodes()]
        stays = [node for node in nodes if node.name in self.gpu.elsewhere]
        moved = [node for node in nodes if node.name not in self.gpu.elsewhere]
        return [Part(self.gpu.provider.name, moved), Part(CPU.name, stays)]

    def io_binding(self) -> Binding:
        return Binding(self.inner.io_binding())

    def run_with_iobinding(self, binding: Binding) -> None:
        self.runs += 1
        self.inner.run_with_iobinding(binding.inner)

    def end_profiling(self) -> str:
        path = Path(self.inner.end_profiling())
        path.write_text(path.read_text().replace(CPU.name, self.gpu.provider.name))
        return str(path)


class Part:
    def __init__(self, ep_name: str, nodes: list[Any]):
        self.ep_name, self.nodes = ep_name, nodes

    def get_nodes(self) -> list[Any]:
        return self.nodes


class Binding:
    """A binding whose GPU memory is the host's."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def bind_output(self, name: str, memory: str) -> None:
        assert memory == "cuda"
        self.inner.bind_output(name, "cpu")


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_onnx.convnet(tmp_path_factory.mktemp("model") / "fp32.onnx")


@pytest.fixture
def source(onnx_file: Path) -> Source:
    return Source({"name": "net"}, onnx_file, None, {"min": 1, "opt": 2, "max": 4}, {"batch": "batch"})


@pytest.fixture
def static(source: Source) -> Source:
    return replace(source, profile={"min": 2, "opt": 2, "max": 2})


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[providers.Provider], Gpu]:
    def put(provider: providers.Provider) -> Gpu:
        fake = Gpu(provider, tmp_path)
        monkeypatch.setattr(checks, "runtime", lambda name: fake)
        return fake

    return put


def rung(**factors: Any) -> Rung:
    defaults: dict[str, Any] = dict.fromkeys(("name", "stack", "device", "api", "compiler"), "any")
    defaults |= {"precision": "fp32", "launch": "eager", "shape": "static", "transfers": "excluded", "threads": 1}
    return Rung(**{**defaults, **factors})


def images(batch: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).random((batch, 3, 16, 16), dtype=np.float32)}


def outputs(session: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session.bind(inputs)
    session.run()
    session.synchronise()
    return session.outputs()


# ---- what a provider is told ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "on"),
    [("fp32", []), ("fp16", ["fp16"]), ("bf16", ["bf16"]), ("int8", []), ("int8-fp16", ["fp16"])],
)
def test_migraphx_lowers_by_its_own_options_and_takes_int8_from_the_file(precision: str, on: list[str]) -> None:
    told = providers.options_of(MIGRAPHX, rung(precision=precision), None)
    assert [name[9:13] for name in told if name.endswith("_enable") and told[name] == "1"] == on
    assert told["migraphx_exhaustive_tune"] == "0" and told["device_id"] == "0"


def test_tuning_exhaustively_is_an_option_of_migraphx_alone() -> None:
    tuned = rung(options={"exhaustive_tune": True})
    assert providers.options_of(MIGRAPHX, tuned, None)["migraphx_exhaustive_tune"] == "1"
    with pytest.raises(StepError, match="must be true or false, not 'yes'"):
        providers.options_of(MIGRAPHX, rung(options={"exhaustive_tune": "yes"}), None)


def test_cuda_computes_fp32_without_tf32_and_launches_a_graph_on_request() -> None:
    assert providers.options_of(CUDA, rung(), None) == {"device_id": "0", "use_tf32": "0", "enable_cuda_graph": "0"}
    assert providers.options_of(CUDA, rung(precision="tf32", launch="graph"), None) == {
        "device_id": "0",
        "use_tf32": "1",
        "enable_cuda_graph": "1",
    }


@pytest.mark.parametrize("provider", [CPU, CUDA, TENSORRT, MIGRAPHX, ROCM], ids=lambda p: p.name)
def test_no_provider_tells_convolutions_from_the_rest(provider: providers.Provider) -> None:
    with pytest.raises(StepError, match="has no precision tf32-conv"):
        providers.options_of(provider, rung(precision="tf32-conv"), None)


def test_tensorrt_keeps_the_types_of_the_file_and_its_caches(tmp_path: Path) -> None:
    options = {"builder_level": 3, "workspace_mb": 512}
    told = providers.options_of(
        TENSORRT, rung(precision="fp16", options=options), providers.Cache(tmp_path, {"trt_profile_min_shapes": "x:1"})
    )
    assert (told["trt_fp16_enable"], told["trt_int8_enable"]) == ("0", "0")
    assert (told["trt_builder_optimization_level"], told["trt_max_workspace_size"]) == ("3", "512000000")
    assert told["trt_engine_cache_path"] == told["trt_timing_cache_path"] == str(tmp_path)
    assert told["trt_profile_min_shapes"] == "x:1"
    with pytest.raises(StepError, match="workspace_mb must be a whole number, not 0.5"):
        providers.options_of(TENSORRT, rung(options={"workspace_mb": 0.5}), None)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.lists(st.integers(1, 99), min_size=1)))
def test_a_profile_names_every_axis_of_every_input(shapes: dict[str, list[int]]) -> None:
    at = {name: {"min": (1, *s), "opt": (2, *s), "max": (4, *s)} for name, s in shapes.items()}
    told = providers.tensorrt_profile(at)
    for end, batch in (("min", 1), ("opt", 2), ("max", 4)):
        found = dict(each.split(":") for each in told[f"trt_profile_{end}_shapes"].split(",") if each)
        assert {name: [int(size) for size in text.split("x")] for name, text in found.items()} == {
            name: [batch, *s] for name, s in shapes.items()
        }


def test_an_option_that_the_installed_provider_does_not_know_is_refused_before_there_is_a_session(
    gpu: Any, static: Source, tmp_path: Path
) -> None:
    fake = gpu(MIGRAPHX)
    fake.know(["fp16_enable", "int8_enable", "exhaustive_tune", "model_cache_dir"])
    with pytest.raises(StepError, match=r"\(1\.[\d.]+\) does not know migraphx_bf16_enable") as raised:
        onnxruntime.create(MIGRAPHX.name).build(static, rung(precision="bf16"), tmp_path / "engine")
    assert raised.value.permanent and fake.sessions == []


@given(st.binary(max_size=40), st.integers(0, 3 * 40))
def test_an_option_is_found_wherever_it_stands_in_the_library(tmp_path_factory: Any, filler: bytes, at: int) -> None:
    folder = tmp_path_factory.mktemp("library")
    name = b"migraphx_bf16_enable"
    text = filler * 3
    (folder / str(MIGRAPHX.library)).write_bytes(text[:at] + name + text[at:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_CHUNK", 16)
        providers.refuse_unknown(MIGRAPHX, folder, {name.decode(): "1"}, "1.0")
        with pytest.raises(StepError):
            providers.refuse_unknown(MIGRAPHX, folder, {"migraphx_of_another_year": "1"}, "1.0")


@pytest.mark.parametrize("provider", [CUDA, TENSORRT, MIGRAPHX, ROCM], ids=lambda p: p.name)
def test_an_option_that_is_taken_otherwise_is_refused(gpu: Any, static: Source, provider: Any, tmp_path: Path) -> None:
    gpu(provider).changes["device_id"] = "1"
    with pytest.raises(StepError, match=f"asked {provider.name} for device_id=0, but it has 1"):
        onnxruntime.create(provider.name).build(static, rung(), tmp_path / "engine")


def test_options_are_the_same_however_a_release_spells_them() -> None:
    providers.refuse_untaken(MIGRAPHX, {"a": "1", "b": "0", "c": "/x"}, {"a": "True", "b": "false", "c": '"/x"'})


@pytest.mark.parametrize("name", ["ORT_MIGRAPHX_FP16_ENABLE", "ORT_TENSORRT_FP16_ENABLE", "MIGRAPHX_DISABLE_MLIR"])
def test_a_variable_that_overrides_options_is_refused(
    gpu: Any, static: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    gpu(MIGRAPHX)
    with pytest.raises(StepError, match=f"{name} would override the rung's options; unset it"):
        onnxruntime.create(MIGRAPHX.name).build(static, rung(), tmp_path / "engine")


def test_variables_of_onnxruntime_reach_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MIGRAPHX_INT8_ENABLE", "1")
    assert not [name for name in process.environment() if name.startswith("ORT_MIGRAPHX_")]


# ---- what a provider compiled ---------------------------------------------------------------------


@pytest.mark.parametrize("provider", [MIGRAPHX, TENSORRT], ids=lambda p: p.name)
def test_what_the_build_compiled_is_the_engine_and_is_not_compiled_again(
    gpu: Any, static: Source, tmp_path: Path, provider: Any
) -> None:
    fake, stack, engine = gpu(provider), onnxruntime.create(provider.name), tmp_path / "engine"
    built = stack.build(static, rung(), engine)
    assert list(built["compiled"]) == fake.compiled == ["[2, 3, 16, 16].compiled"]
    session = stack.open(static, engine, rung(), 2)
    assert fake.sessions[-1].runs == 1, "whatever the first run does is done before anything is timed"
    session.bind(images())
    for _ in range(3):
        session.run()
    assert len(fake.compiled) == 1
    facts = session.facts()
    assert facts["compiled_at"] == "build"
    assert json.loads(json.dumps(facts)) == facts
    assert not any(str(value).startswith(os.sep) for value in facts["provider_options"].values())


def test_a_session_that_compiles_although_it_was_built_says_so(gpu: Any, static: Source, tmp_path: Path) -> None:
    gpu(MIGRAPHX)
    providers.pack(providers.Cache(tmp_path, {}), tmp_path / "engine")  # an engine without what the session needs
    session = onnxruntime.create(MIGRAPHX.name).open(static, tmp_path / "engine", rung(), 2)
    assert session.facts()["compiled_at"] == "opening"


def test_a_provider_that_keeps_nothing_is_refused(
    gpu: Any, static: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(MIGRAPHX)
    monkeypatch.setattr(providers.Cache, "files", lambda self: {})
    with pytest.raises(StepError, match="left nothing in its cache"):
        onnxruntime.create(MIGRAPHX.name).build(static, rung(), tmp_path / "engine")


@pytest.mark.parametrize("damage", ["cut", "empty", "none"])
def test_an_engine_that_is_not_whole_is_never_opened(gpu: Any, static: Source, tmp_path: Path, damage: str) -> None:
    gpu(MIGRAPHX)
    stack, engine = onnxruntime.create(MIGRAPHX.name), tmp_path / "engine"
    stack.build(static, rung(), engine)
    engine.write_bytes(engine.read_bytes()[: 0 if damage == "empty" else -30])
    with pytest.raises(StepError, match="not a whole engine file|nothing was given"):
        stack.open(static, None if damage == "none" else engine, rung(), 2)


def test_an_engine_file_holds_the_cache_and_the_profile(gpu: Any, source: Source, tmp_path: Path) -> None:
    gpu(TENSORRT)
    stack = onnxruntime.create(TENSORRT.name)
    stack.build(source, rung(shape="dynamic"), tmp_path / "engine")
    with zipfile.ZipFile(tmp_path / "engine") as archive:
        assert archive.namelist() == ["profile.json", "cache/['batch', 3, 16, 16].compiled"]
        profile = json.loads(archive.read("profile.json"))
    assert profile == {f"trt_profile_{end}_shapes": f"x:{n}x3x16x16" for end, n in source.profile.items()}
    session = stack.open(source, tmp_path / "engine", rung(shape="dynamic"), 4)
    assert session.facts()["compiled_at"] == "build"
    assert session.facts()["provider_options"]["trt_profile_max_shapes"] == "x:4x3x16x16"


def test_migraphx_is_asked_for_one_shape(gpu: Any, source: Source, tmp_path: Path) -> None:
    gpu(MIGRAPHX)
    with pytest.raises(StepError, match="one shape at a time: ask for shape: static") as raised:
        onnxruntime.create(MIGRAPHX.name).build(source, rung(shape="dynamic"), tmp_path / "engine")
    assert raised.value.permanent


@pytest.mark.parametrize(("precision", "override"), [("fp32", "0"), ("fp16", "0"), ("tf32", None)])
def test_tensorrt_is_built_without_tf32_by_the_variable_alone(
    gpu: Any, static: Source, tmp_path: Path, precision: str, override: str | None
) -> None:
    fake = gpu(TENSORRT)
    onnxruntime.create(TENSORRT.name).build(static, rung(precision=precision), tmp_path / "engine")
    assert fake.tf32_override == [override]
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ


def test_libraries_whose_code_runs_are_part_of_the_identity() -> None:
    assert checks.loaded(("libc.", "libm."))["libc"].startswith("libc.so")
    assert checks.loaded(MIGRAPHX.kernels) == checks.loaded(CPU.kernels) == {}


# ---- sessions on a GPU ----------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [CUDA, TENSORRT, MIGRAPHX, ROCM], ids=lambda p: p.name)
def test_outputs_are_those_of_the_cpu(gpu: Any, static: Source, tmp_path: Path, provider: Any) -> None:
    wanted = outputs(onnxruntime.create().open(static, None, rung(), 2), images())
    gpu(provider)
    stack, engine = onnxruntime.create(provider.name), tmp_path / "engine"
    stack.build(static, rung(), engine)
    session = stack.open(static, engine if engine.exists() else None, rung(), 2)
    for _ in range(2):
        found = outputs(session, images())
        assert list(found) == ["y"]
        np.testing.assert_allclose(found["y"], wanted["y"], atol=1e-6)


@pytest.mark.parametrize("provider", [CUDA, MIGRAPHX], ids=lambda p: p.name)
def test_nodes_on_a_gpu_have_no_times_and_compiled_ones_no_precision(
    gpu: Any, static: Source, tmp_path: Path, provider: Any
) -> None:
    gpu(provider)
    stack, engine = onnxruntime.create(provider.name), tmp_path / "engine"
    stack.build(static, rung(), engine)
    nodes = stack.nodes(static, engine if engine.exists() else None, rung(), 2, images())
    assert nodes and {node.provider for node in nodes} == {provider.name}
    assert {node.time_ms for node in nodes} == {None}
    assert {node.precision for node in nodes} == ({None} if provider is MIGRAPHX else {"fp32"})


def test_a_node_on_the_cpu_is_an_error_that_names_it(gpu: Any, source: Source) -> None:
    gpu(CUDA).elsewhere = {"/flat/Shape", "/flat/Gather"}
    match = (
        r"2 of 10 nodes would not run on CUDAExecutionProvider: /flat/Shape \(Shape, CPU.*shape: static has that done"
    )
    with pytest.raises(StepError, match=match) as raised:
        onnxruntime.create(CUDA.name).open(source, None, rung(shape="dynamic"), 2)
    assert raised.value.permanent


def test_a_provider_without_its_libraries_is_named_with_what_the_loader_says(gpu: Any, static: Source) -> None:
    fake = gpu(ROCM)

    def refuse(path: str, options: Any, providers: Any, **others: Any) -> Any:
        if providers[0][0] == ROCM.name:
            raise RuntimeError("fallback to CPU EP has been explicitly disabled by the user")
        return real.InferenceSession(path, options, providers=[CPU.name], **others)

    fake.InferenceSession = refuse
    with pytest.raises(
        StepError, match=r"ROCMExecutionProvider cannot be loaded: .*/libonnx\S+: .*Without it \d+ nodes"
    ):
        onnxruntime.create(ROCM.name).open(static, None, rung(), 2)


def test_a_graph_is_a_launch_of_the_providers_that_capture_one(gpu: Any, static: Source, tmp_path: Path) -> None:
    fake = gpu(CUDA)
    session = onnxruntime.create(CUDA.name).open(static, None, rung(launch="graph"), 2)
    assert fake.sessions[-1].given["enable_cuda_graph"] == "1"
    assert session.facts()["launch"] == "graph"
    with pytest.raises(StepError, match="MIGraphXExecutionProvider has no launch 'graph', only 'eager'"):
        onnxruntime.create(MIGRAPHX.name).build(static, rung(launch="graph"), tmp_path / "engine")


def test_a_graph_with_outputs_of_a_size_that_follows_from_the_data_is_refused(gpu: Any, tmp_path: Path) -> None:
    path = tmp_path / "nonzero.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "found"])
    save_onnx(path, [helper.make_node("NonZero", ["x"], ["y"], "found")], [x], [y])
    gpu(CUDA)
    source = Source({"name": "nonzero"}, path, None, {"min": 2, "opt": 2, "max": 2}, {"batch": "batch"})
    with pytest.raises(StepError, match="cannot give outputs of a size that depends on data: y"):
        onnxruntime.create(CUDA.name).open(source, None, rung(launch="graph"), 2)
    session = onnxruntime.create(CUDA.name).open(source, None, rung(), 2)
    for ones in (3, 1):
        assert outputs(session, {"x": np.eye(2, 3, dtype=np.float32) * (ones > 1)})["y"].shape == (2, 2 * (ones > 1))


# ---- the real ones --------------------------------------------------------------------------------


@pytest.fixture(params=[CUDA, TENSORRT, MIGRAPHX, ROCM], ids=lambda p: p.name)
def present(request: pytest.FixtureRequest) -> providers.Provider:
    """A provider that this interpreter's ONNX Runtime has and that loads here."""
    provider: providers.Provider = request.param
    if provider.name not in real.get_available_providers():
        pytest.skip(f"this ONNX Runtime has no {provider.name}")
    providers.preload(provider, real)
    if fault := providers.loading_fault(provider, Path(str(real.__file__)).parent / "capi"):
        pytest.skip(fault)
    return provider


@pytest.mark.gpu
@pytest.mark.parametrize("launch", ["eager", "graph"])
def test_outputs_on_a_gpu_are_those_of_the_cpu(
    present: providers.Provider, static: Source, tmp_path: Path, launch: str
) -> None:
    if launch not in present.launches:
        pytest.skip(f"{present.name} has no launch {launch}")
    wanted = outputs(onnxruntime.create().open(static, None, rung(), 2), images())["y"]
    stack, engine = onnxruntime.create(present.name), tmp_path / "engine"
    stack.build(static, rung(), engine)
    session = stack.open(static, engine if engine.exists() else None, rung(launch=launch), 2)
    for _ in range(3):
        np.testing.assert_allclose(outputs(session, images())["y"], wanted, atol=1e-4)
    assert not np.allclose(outputs(session, {"x": images()["x"] + 1})["y"], wanted, atol=1e-3)
    assert session.facts().get("compiled_at") in (None, "build")
