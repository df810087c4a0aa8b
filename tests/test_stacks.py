"""The contract of ladder/stacks/base.py over every stack that works without a GPU, and what each promises alone."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ladder import audit, models
from ladder.errors import StepError
from ladder.stacks import onnxruntime, openvino, pytorch
from ladder.stacks.base import Node, Rung, Session, Source, Stack

torch = pytest.importorskip("torch")

SIZE = 16
INPUT = "image"
OUTPUTS = ["scores", "features"]
STACKS = {"pytorch": pytorch.create, "onnxruntime": onnxruntime.create, "openvino": openvino.create}
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")


class Net(torch.nn.Module):
    """Convolutions, a residual and two outputs; the second is no module's output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.body = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, image: Any) -> Any:
        features = torch.nn.functional.silu(self.stem(image))
        features = torch.nn.functional.relu(self.body(features)) + features
        return self.head(features.mean((2, 3))), features * 2


def seeded_net() -> Net:
    generator = torch.Generator().manual_seed(0)
    net = Net().eval().requires_grad_(False)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return net


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "fp32.onnx"
    torch.onnx.export(
        seeded_net(),
        (torch.zeros(1, 3, SIZE, SIZE),),
        str(path),
        opset_version=17,
        input_names=[INPUT],
        output_names=OUTPUTS,
        dynamic_axes={INPUT: {0: "batch", 2: "height", 3: "width"}, "scores": {0: "batch"}, "features": {0: "batch"}},
        dynamo=False,
    )
    return path


@pytest.fixture(scope="module")
def int8_file(onnx_file: Path) -> Path:
    """Q/DQ INT8 by ONNX Runtime, in a process of its own: ModelOpt changes its quantiser for the whole process."""
    path = onnx_file.with_name("int8.onnx")
    code = "import sys; from tests.test_stacks import quantise; quantise(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, onnx_file, path], cwd=Path(__file__).parent.parent, check=True)
    return path


def quantise(source: str, destination: str) -> None:
    """With unsigned activations and quantized outputs: ONNX Runtime fuses no other convolution on x86."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        left = 4

        def get_next(self) -> dict[str, np.ndarray] | None:
            self.left -= 1
            return images(1, seed=self.left) if self.left >= 0 else None

    quantize_static(source, destination, Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8)


@pytest.fixture(autouse=True)
def fake_models(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = models.InputSpec(INPUT, "float32", (3, SIZE, SIZE), "any")
    monkeypatch.setattr(models, "load", lambda spec, weights=None: seeded_net())
    monkeypatch.setattr(models, "input_specs", lambda *_: [spec])
    monkeypatch.setattr(models, "output_names", lambda *_: OUTPUTS)


@pytest.fixture
def source(onnx_file: Path) -> Source:
    axes: dict[str, int | str] = {"batch": "batch", "height": SIZE, "width": SIZE}
    return Source({"name": "net"}, onnx_file, None, {"min": 1, "opt": 2, "max": 4}, axes)


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    pytest.importorskip({"pytorch": "torch"}.get(request.param, request.param))
    return STACKS[request.param]()


def images(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {INPUT: np.random.default_rng(seed).standard_normal((batch, 3, SIZE, SIZE), dtype=np.float32)}


def rung(**factors: Any) -> Rung:
    defaults = {
        "name": "rung",
        "stack": "stack",
        "device": "cpu",
        "api": "api",
        "compiler": "compiler",
        "precision": "fp32",
        "launch": "eager",
        "shape": "dynamic",
        "transfers": "excluded",
        "threads": 1,
    }
    return Rung(**{**defaults, **factors})


def built(stack: Stack, source: Source, rung: Rung, folder: Path) -> Path | None:
    engine = folder / "engine"
    stack.build(source, rung, engine)
    return engine if engine.exists() else None


def opened(stack: Stack, source: Source, folder: Path, batch: int = 2, **factors: Any) -> Session:
    asked = rung(**factors)
    return stack.open(source, built(stack, source, asked, folder), asked, batch)


def result(session: Session, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session.bind(inputs)
    session.run()
    session.synchronise()
    return session.outputs()


def expected(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        return dict(zip(OUTPUTS, (each.numpy() for each in seeded_net()(torch.from_numpy(inputs[INPUT]))), strict=True))


def nodes_of(stack: Stack, source: Source, folder: Path, **factors: Any) -> list[Node]:
    asked = rung(**factors)
    return stack.nodes(source, built(stack, source, asked, folder), asked, 2, images(2))


# ---- every stack --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_outputs_agree_with_the_module(stack: Stack, source: Source, tmp_path: Path, batch: int) -> None:
    found = result(opened(stack, source, tmp_path, batch), images(batch))
    assert list(found) == OUTPUTS
    for name, array in expected(images(batch)).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], array, atol=1e-4)


def test_a_second_input_gives_other_outputs_and_leaves_the_first_alone(
    stack: Stack, source: Source, tmp_path: Path
) -> None:
    session = opened(stack, source, tmp_path)
    first = result(session, images(2, seed=1))
    kept = {name: array.copy() for name, array in first.items()}
    second = result(session, images(2, seed=2))
    for name in OUTPUTS:
        assert np.array_equal(first[name], kept[name])
        np.testing.assert_allclose(second[name], expected(images(2, seed=2))[name], atol=1e-4)
        assert not np.allclose(first[name], second[name])


def test_bound_inputs_are_copies_and_may_be_views(stack: Stack, source: Source, tmp_path: Path) -> None:
    session = opened(stack, source, tmp_path)
    many = images(5)[INPUT]
    many.flags.writeable = False
    session.bind({INPUT: many[3:5]})
    many.flags.writeable = True
    many[:] = 0
    session.run()
    session.synchronise()
    np.testing.assert_allclose(
        session.outputs()["scores"], expected({INPUT: images(5)[INPUT][3:5]})["scores"], atol=1e-4
    )


def test_runs_may_be_submitted_back_to_back(stack: Stack, source: Source, tmp_path: Path) -> None:
    session = opened(stack, source, tmp_path)
    session.bind(images(2))
    for _ in range(5):
        session.run()
    session.synchronise()
    np.testing.assert_allclose(session.outputs()["scores"], expected(images(2))["scores"], atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_facts_carry_the_threads_asked_for(stack: Stack, source: Source, tmp_path: Path, threads: int) -> None:
    facts = opened(stack, source, tmp_path, threads=threads).facts()
    assert facts["threads"] == threads
    assert facts["provider"] in ("cpu", "CPU", "CPUExecutionProvider")
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"picture": images(2)[INPUT]}, r"expected the inputs \['image'\], got \['picture'\]"),
        ({}, r"expected the inputs \['image'\], got \[\]"),
        (images(3), r"expected float32 \[2, 3, 16, 16\], got float32 \[3, 3, 16, 16\]"),
        ({INPUT: images(2)[INPUT].astype(np.float64)}, r"expected float32 \[2, 3, 16, 16\], got float64"),
    ],
)
def test_wrong_inputs_are_refused(
    stack: Stack, source: Source, tmp_path: Path, inputs: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(StepError, match=message):
        opened(stack, source, tmp_path).bind(inputs)


def test_a_batch_outside_the_profile_is_refused_with_the_profile_to_set(
    stack: Stack, source: Source, tmp_path: Path
) -> None:
    with pytest.raises(StepError, match=r"batch 5 is outside the profile 1 to 4 .* max: 5"):
        opened(stack, source, tmp_path, batch=5)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"options": {"warp": 1}}, "option warp; it"),
        ({"launch": "graph"}, "'graph', only 'eager'"),
        ({"precision": "tf32"}, "no (precision )?tf32"),
    ],
)
def test_what_a_stack_cannot_do_is_refused_for_good(
    stack: Stack, source: Source, tmp_path: Path, factors: dict[str, Any], message: str
) -> None:
    with pytest.raises(StepError, match=message) as raised:
        opened(stack, source, tmp_path, **factors)
    assert raised.value.permanent


def test_nodes_of_an_fp32_rung(stack: Stack, source: Source, tmp_path: Path) -> None:
    nodes = nodes_of(stack, source, tmp_path)
    assert len({node.name for node in nodes}) == len(nodes)
    assert {node.precision for node in nodes} == {"fp32"}
    assert len({node.provider for node in nodes}) == 1
    assert all(node.time_ms is None or node.time_ms > 0 for node in nodes)
    assert sum(node.time_ms or 0 for node in nodes) > 0
    assert sum("conv" in node.type.lower() for node in nodes) == 2


def test_identity_says_exact_versions(stack: Stack) -> None:
    identity = stack.identity()
    assert all(isinstance(value, str) and value for value in identity.values())
    assert json.loads(json.dumps(identity)) == identity


def test_openmp_variables_do_not_override_the_threads(source: Source, tmp_path: Path) -> None:
    """In a process of its own, since OpenMP reads them when it is loaded."""
    script = """
import sys
import tests.test_stacks as t
for name, create in t.STACKS.items():
    stack, folder = create(), t.Path(sys.argv[2]) / name
    folder.mkdir()
    t.models.load, t.models.output_names = lambda *_: t.seeded_net(), lambda *_: t.OUTPUTS
    t.models.input_specs = lambda *_: [t.models.InputSpec(t.INPUT, "float32", (3, t.SIZE, t.SIZE), "any")]
    source = t.Source({"name": "net"}, t.Path(sys.argv[1]), None, {"min": 1, "opt": 2, "max": 4},
                      {"batch": "batch", "height": t.SIZE, "width": t.SIZE})
    print(t.opened(stack, source, folder, threads=2).facts()["threads"])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(source.onnx), str(tmp_path)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2", "2"]


class Tokens(torch.nn.Module):
    """Several int64 inputs, as a language model has them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.words = torch.nn.Parameter(torch.randn((50, 8), generator=generator), requires_grad=False)
        self.kinds = torch.nn.Parameter(torch.randn((2, 8), generator=generator), requires_grad=False)

    def forward(self, ids: Any, types: Any) -> Any:
        return (self.words[ids] + self.kinds[types]).tanh()


def test_several_integer_inputs(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, example = ["ids", "types"], torch.zeros(1, 6, dtype=torch.int64)
    axes = {name: {0: "batch", 1: "sequence"} for name in (*names, "states")}
    path = tmp_path / "tokens.onnx"
    options: dict[str, Any] = {"input_names": names, "output_names": ["states"], "dynamic_axes": axes}
    torch.onnx.export(Tokens(), (example, example), str(path), opset_version=17, dynamo=False, **options)
    monkeypatch.setattr(models, "load", lambda *_: Tokens().eval())
    monkeypatch.setattr(models, "input_specs", lambda *_: [models.InputSpec(n, "int64", (6,), "tokens") for n in names])
    monkeypatch.setattr(models, "output_names", lambda *_: ["states"])
    source = Source({"name": "tokens"}, path, None, {"min": 1, "opt": 1, "max": 4}, {"batch": "batch", "sequence": 6})

    random = np.random.default_rng(0)
    inputs = {"types": random.integers(0, 2, (3, 6)), "ids": random.integers(0, 50, (3, 6))}
    session = opened(stack, source, tmp_path, batch=3)
    wanted = Tokens()(torch.from_numpy(inputs["ids"]), torch.from_numpy(inputs["types"])).numpy()
    np.testing.assert_allclose(result(session, inputs)["states"], wanted, atol=1e-4)
    with pytest.raises(StepError, match=r"'ids': expected int64 \[3, 6\], got int32"):
        session.bind({**inputs, "ids": inputs["ids"].astype(np.int32)})


# ---- PyTorch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["int8", "int8-fp16"])
def test_pytorch_has_no_int8(source: Source, tmp_path: Path, precision: str) -> None:
    with pytest.raises(StepError, match=f"no precision {precision}") as raised:
        pytorch.create().build(source, rung(precision=precision), tmp_path / "engine")
    assert raised.value.permanent


def test_pytorch_bf16_computes_in_bf16(source: Source, tmp_path: Path) -> None:
    stack = pytorch.create()
    session = opened(stack, source, tmp_path, precision="bf16")
    found = result(session, images(2))["scores"]
    assert session.facts()["precision_hint"] == "bf16"
    assert found.dtype == np.float32
    error = np.abs(found - expected(images(2))["scores"]).max()
    assert 1e-5 < error < 0.5  # not exact, or it would have run in FP32
    assert {node.precision for node in nodes_of(stack, source, tmp_path, precision="bf16")} == {"bf16"}


def test_pytorch_nodes_include_operators_between_modules_and_no_views(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Viewing(Net):
        def forward(self, image: Any) -> Any:
            scores, features = super().forward(image)
            return scores.unsqueeze(0).transpose(1, 2).squeeze(0), features.to(torch.float16)

    monkeypatch.setattr(models, "load", lambda *_: Viewing().eval())
    nodes = nodes_of(pytorch.create(), source, tmp_path)
    operators = [node.type.removeprefix("aten::") for node in nodes]
    assert operators == ["conv2d", "silu", "conv2d", "relu", "add", "mean", "linear", "mul", "to"]
    assert nodes[-1].precision == "fp16"
    assert [node.name for node in nodes[:3]] == ["0:stem/conv2d", "1:/silu", "2:body/conv2d"]


def test_pytorch_channels_last_is_an_option(source: Source, tmp_path: Path) -> None:
    session = opened(pytorch.create(), source, tmp_path, options={"channels_last": True})
    assert session.facts()["channels_last"]
    assert not opened(pytorch.create(), source, tmp_path).facts()["channels_last"]
    np.testing.assert_allclose(result(session, images(2))["scores"], expected(images(2))["scores"], atol=1e-4)
    with pytest.raises(StepError, match="channels_last must be true or false, not 'yes'"):
        opened(pytorch.create(), source, tmp_path, options={"channels_last": "yes"})


def test_pytorch_refuses_variables_that_would_change_the_rung(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("NVIDIA_TF32_OVERRIDE", "0"), ("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "TRUE")):
        with monkeypatch.context() as patched, pytest.raises(StepError, match=name):
            patched.setenv(name, value)
            opened(pytorch.create(), source, tmp_path, threads=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "rocm", "tpu"])
def test_pytorch_says_which_device_is_missing(source: Source, tmp_path: Path, device: str) -> None:
    with pytest.raises(StepError, match=device):
        opened(pytorch.create(device), source, tmp_path)


def test_pytorch_close_frees_the_module(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = seeded_net()
    alive = weakref.ref(net)
    monkeypatch.setattr(models, "load", lambda *_, held=[net]: held.pop())  # noqa: B006
    del net
    session = opened(pytorch.create(), source, tmp_path)
    result(session, images(2))
    assert alive() is not None
    session.close()
    gc.collect()
    assert alive() is None


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "shape"), [(1, "static"), (3, "dynamic")])
def test_pytorch_inductor(source: Source, tmp_path: Path, batch: int, shape: str) -> None:
    stack = pytorch.create(compiler="inductor")
    session = opened(stack, source, tmp_path, batch)
    np.testing.assert_allclose(result(session, images(batch))["scores"], expected(images(batch))["scores"], atol=1e-4)
    facts = session.facts()
    assert (facts["compiled_shape"], facts["graph_breaks"]) == (shape, 0)
    nodes = stack.nodes(source, None, rung(), batch, images(batch))
    assert sum("conv" in node.type for node in nodes) >= 2
    assert {node.precision for node in nodes} == {None}
    assert sum(node.time_ms or 0 for node in nodes) > 0


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("launch", ["eager", "graph"])
@pytest.mark.parametrize(("precision", "atol"), [("fp32", 1e-4), ("tf32", 5e-2), ("tf32-conv", 5e-2), ("fp16", 5e-2)])
def test_pytorch_on_a_gpu(source: Source, tmp_path: Path, launch: str, precision: str, atol: float) -> None:
    stack = pytorch.create("cuda")
    session = opened(stack, source, tmp_path, precision=precision, launch=launch)
    for seed in (1, 2):
        found = result(session, images(2, seed))
        for name, array in expected(images(2, seed)).items():
            np.testing.assert_allclose(found[name], array, atol=atol)
    facts = session.facts()
    assert facts["launch"] == launch
    assert facts["provider"].startswith("cuda:") and facts["devices"] == [facts["provider"]]
    assert facts["tf32_matmul"] == (precision == "tf32")
    assert facts["tf32_conv"] == (precision in ("tf32", "tf32-conv"))
    assert session.memory_mb()["allocator_mem_mb"] > 0
    clock = session.device_ms(10)
    assert [len(launches) for launches in clock.values()] == [10, 10]
    busy, span = (np.median(clock[f"device_{of}_ms"]) for of in ("busy", "span"))
    assert 0 < busy < 1.2 * span  # 1.2: the two are medians of different launches
    session.close()
    nodes = nodes_of(stack, source, tmp_path, precision=precision, launch=launch)
    assert {node.provider for node in nodes} == {facts["provider"]}
    convolutions = {node.precision for node in nodes if "conv" in node.type}
    assert convolutions == {None if precision.startswith("tf32") else precision}
    assert all(node.time_ms and node.time_ms > 0 for node in nodes)


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("launch", ["eager", "graph"])
def test_pytorch_inductor_on_a_gpu(source: Source, tmp_path: Path, launch: str) -> None:
    stack = pytorch.create("cuda", "inductor")
    session = opened(stack, source, tmp_path, launch=launch)
    np.testing.assert_allclose(result(session, images(2))["scores"], expected(images(2))["scores"], atol=1e-4)
    nodes = stack.nodes(source, None, rung(launch=launch), 2, images(2))
    assert any("triton" in node.type for node in nodes)
    assert all(node.time_ms for node in nodes)


@pytest.mark.gpu
@CUDA
def test_operators_off_the_gpu_are_seen_by_the_audit(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wandering(Net):
        def forward(self, image: Any) -> Any:
            scores, features = super().forward(image)
            return (scores.cpu() * 2).to(image.device), features

    monkeypatch.setattr(models, "load", lambda *_: Wandering().eval())
    verdict, reason = audit.placement(nodes_of(pytorch.create("cuda"), source, tmp_path), "cuda:0")
    assert verdict == "exclude" and re.match(r"2 of \d+ nodes do not run on cuda:0: ", reason)


# ---- ONNX Runtime -------------------------------------------------------------------------------


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_onnxruntime_has_the_threads_it_was_asked_for_and_close_ends_them(source: Source, tmp_path: Path) -> None:
    gc.collect()
    before = thread_count()
    session = opened(onnxruntime.create(), source, tmp_path, threads=4)
    assert thread_count() == before + 3  # the caller is the fourth
    session.close()
    assert thread_count() == before


def test_onnxruntime_integer_kernels_count_as_int8(source: Source, int8_file: Path, tmp_path: Path) -> None:
    nodes = nodes_of(onnxruntime.create(), replace(source, onnx=int8_file), tmp_path, precision="int8")
    by_type = {node.type: node.precision for node in nodes}
    assert by_type["QLinearConv"] == "int8"
    assert by_type["DequantizeLinear"] == "fp32"


def test_onnxruntime_float_convolution_between_q_and_dq_is_not_int8(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "input-only.onnx"
    save_graph(
        path,
        [
            ("QuantizeLinear", ["image", "scale", "zero"], "q"),
            ("DequantizeLinear", ["q", "scale", "zero"], "dq"),
            ("Conv", ["dq", "weight"], "conv"),
            ("Relu", ["conv"], "scores"),
        ],
        {
            "scale": np.array(0.05, np.float32),
            "zero": np.array(0, np.int8),
            "weight": np.ones((4, 3, 3, 3), np.float32),
        },
        ["batch", 4, SIZE - 2, SIZE - 2],
    )
    nodes = nodes_of(onnxruntime.create(), replace(source, onnx=path), tmp_path)
    assert {node.precision for node in nodes if "Conv" in node.type} == {"fp32"}


def test_onnxruntime_nodes_elsewhere_are_refused_with_count_and_names(source: Source, tmp_path: Path) -> None:
    import onnxruntime as runtime

    other = "AzureExecutionProvider"  # in every build for the CPU; takes none of ONNX's own operators
    if other not in runtime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has no {other}")
    with pytest.raises(StepError, match=r"(\d+) of \1 nodes would not run on AzureExec.*/stem/Conv \(Conv, CPUExec"):
        opened(onnxruntime.create(other), source, tmp_path)


def test_onnxruntime_names_the_providers_it_has(source: Source, tmp_path: Path) -> None:
    with pytest.raises(StepError, match="has no NoSuchProvider; it has .*CPUExecutionProvider"):
        opened(onnxruntime.create("NoSuchProvider"), source, tmp_path)


def test_onnxruntime_options_are_read_back(source: Source, tmp_path: Path) -> None:
    facts = opened(onnxruntime.create(), source, tmp_path).facts()
    assert (facts["allow_spinning"], facts["graph_optimization_level"]) == ("default", "ORT_ENABLE_ALL")
    assert (facts["execution_mode"], facts["inter_op_threads"]) == ("ORT_SEQUENTIAL", 1)
    options = {"allow_spinning": False, "graph_optimization_level": "basic"}
    facts = opened(onnxruntime.create(), source, tmp_path, options=options).facts()
    assert (facts["allow_spinning"], facts["graph_optimization_level"]) == ("0", "ORT_ENABLE_BASIC")
    with pytest.raises(StepError, match="must be one of disable, basic"):
        opened(onnxruntime.create(), source, tmp_path, options={"graph_optimization_level": "99"})


def test_onnxruntime_profile_leaves_no_file(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    onnxruntime.create().nodes(source, None, rung(), 2, images(2))
    assert list(tmp_path.iterdir()) == []


def test_onnxruntime_outputs_of_a_size_that_follows_from_the_data(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "nonzero.onnx"
    save_graph(path, [("NonZero", ["image"], "scores")], {}, [4, "found"], output_type="INT64")
    session = opened(onnxruntime.create(), replace(source, onnx=path), tmp_path, batch=1)
    for ones in (3, 7, 1):
        image = np.zeros((1, 3, SIZE, SIZE), np.float32)
        image.flat[:ones] = 1
        assert result(session, {INPUT: image})["scores"].shape == (4, ones)


# ---- OpenVINO -----------------------------------------------------------------------------------


def cpu_capabilities() -> list[str]:
    import openvino as runtime

    return list(runtime.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def test_openvino_facts_are_the_properties_read_back(source: Source, tmp_path: Path) -> None:
    facts = opened(openvino.create(), source, tmp_path).facts()
    assert (facts["streams"], facts["precision_hint"]) == (1, "f32")
    assert facts["properties"]["PERFORMANCE_HINT"] == "LATENCY"
    assert facts["input_shapes"] == {INPUT: "[1..4,3,16,16]"}


def test_openvino_refuses_a_precision_that_the_device_replaces(source: Source, tmp_path: Path) -> None:
    if "FP16" in cpu_capabilities():
        pytest.skip("this CPU computes in FP16")
    with pytest.raises(StepError, match="INFERENCE_PRECISION_HINT=f16, but CPU has (bf16|f32)"):
        opened(openvino.create(), source, tmp_path, precision="fp16")
    assert not (tmp_path / "engine").exists()


def test_openvino_bf16_computes_in_bf16(source: Source, tmp_path: Path) -> None:
    if "BF16" not in cpu_capabilities():
        with pytest.raises(StepError, match="INFERENCE_PRECISION_HINT=bf16, but CPU has f32"):
            opened(openvino.create(), source, tmp_path, precision="bf16")
        return
    assert opened(openvino.create(), source, tmp_path, precision="bf16").facts()["precision_hint"] == "bf16"
    nodes = nodes_of(openvino.create(), source, tmp_path, precision="bf16")
    assert {node.precision for node in nodes if node.type == "Convolution"} == {"bf16"}


def test_openvino_refuses_threads_it_does_not_get(source: Source, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"INFERENCE_NUM_THREADS=\d+, but CPU has \d+"):
        opened(openvino.create(), source, tmp_path, threads=2 * (os.cpu_count() or 1))


def test_openvino_integer_convolutions_count_as_int8(source: Source, int8_file: Path, tmp_path: Path) -> None:
    nodes = nodes_of(openvino.create(), replace(source, onnx=int8_file), tmp_path, precision="int8")
    assert {node.precision for node in nodes if node.type == "Convolution"} == {"int8"}
    quantize = next(node for node in nodes if node.type == "FakeQuantize")
    assert quantize.precision == "fp32"  # it reads floats
    assert not [node.name for node in nodes if node.name.startswith("Constant")]


@pytest.mark.parametrize("activations", [np.uint8, np.int8])
def test_openvino_names_the_processors_whose_int8_sums_overflow(activations: type, tmp_path: Path) -> None:
    ones, high = 16, 255 if activations is np.uint8 else 127  # largest value and largest weight stand for 1
    tensors = {"step": np.float32(1 / high), "zero": activations(0), "weights": np.full((1, ones, 1, 1), 127, np.int8)}
    tensors |= {"weights_step": np.full(1, 1 / 127, np.float32), "weights_zero": np.zeros(1, np.int8)}
    nodes = [
        onnx.helper.make_node("QuantizeLinear", [INPUT, "step", "zero"], ["quantised"]),
        onnx.helper.make_node("DequantizeLinear", ["quantised", "step", "zero"], ["input"]),
        onnx.helper.make_node("DequantizeLinear", ["weights", "weights_step", "weights_zero"], ["kernel"], axis=0),
        onnx.helper.make_node("Conv", ["input", "kernel"], ["sum"]),
    ]
    shapes = {INPUT: ["batch", ones, 4, 4], "sum": ["batch", 1, 4, 4]}
    given, got = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items())
    initial = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "ones", [given], [got], initial),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(model, tmp_path / "ones.onnx")
    source = Source({"name": "ones"}, tmp_path / "ones.onnx", None, {"min": 1, "opt": 1, "max": 2}, {"batch": "batch"})
    session = opened(openvino.create(), source, tmp_path, precision="int8")
    found = result(session, {INPUT: np.ones((2, ones, 4, 4), np.float32)})["sum"]
    assert ("hazard" in session.facts()) == bool((found < 0.9 * ones).all())
    assert "hazard" in session.facts() or found == pytest.approx(ones, rel=1e-3)


@pytest.mark.parametrize(
    ("isa", "hazardous"),
    [("Intel AVX2", True), ("Intel AVX2 with Intel DL Boost", False), ("Intel AVX-512 with Intel DL Boost", False)],
)
def test_openvino_tells_a_processor_with_vnni_by_the_isas_name(isa: str, hazardous: bool) -> None:
    told = {"RUNTIME_REQUIREMENTS": f"meta=1.0;ov=2026.4.1;isa={isa}"}
    assert bool(openvino._hazard("int8", told)) == hazardous
    assert not openvino._hazard("fp32", told)


def test_openvino_nodes_name_the_onnx_nodes_they_came_from(source: Source, tmp_path: Path) -> None:
    nodes = nodes_of(openvino.create(), source, tmp_path)
    convolutions = [node.origin for node in nodes if node.type == "Convolution"]
    assert "/stem/Conv" in convolutions[0] and "/body/Conv" in convolutions[1]
    assert not {"Const", "Input", "Output"} & {node.type for node in nodes}


@pytest.mark.parametrize("content", [b"", b"junk" * 1000, "half", "less"], ids=["empty", "junk", "half", "less"])
def test_openvino_refuses_a_damaged_engine(source: Source, tmp_path: Path, content: bytes | str) -> None:
    stack = openvino.create()
    engine = built(stack, source, rung(), tmp_path)
    assert engine is not None
    whole = engine.read_bytes()
    engine.write_bytes(whole[: len(whole) // 2] if content == "half" else whole[:-9] if content == "less" else content)
    with pytest.raises(StepError, match="cannot read the engine"):
        stack.open(source, engine, rung(), 2)


def test_openvino_refuses_an_engine_built_for_other_batches(source: Source, tmp_path: Path) -> None:
    stack = openvino.create()
    engine = built(stack, source, rung(), tmp_path)
    with pytest.raises(StepError, match=r"built for \[1..4,3,16,16\], which excludes batch 6"):
        stack.open(replace(source, profile={"min": 1, "opt": 2, "max": 8}), engine, rung(), 6)
    with pytest.raises(StepError, match="none was given"):
        stack.open(source, None, rung(), 2)


# ---- both ONNX stacks ---------------------------------------------------------------------------


@pytest.fixture(params=["onnxruntime", "openvino"])
def onnx_stack(request: pytest.FixtureRequest) -> Stack:
    pytest.importorskip(request.param)
    return STACKS[request.param]()


def save_graph(
    path: Path,
    nodes: list[tuple[str, list[str], str]],
    constants: dict[str, np.ndarray],
    output_shape: list[int | str],
    output_type: str = "FLOAT",
    domain: str = "",
) -> None:
    """One chain of nodes from ``image`` to ``scores``."""
    from onnx import TensorProto, helper, numpy_helper, save

    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], name=output, domain=domain) for kind, inputs, output in nodes],
        "graph",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", getattr(TensorProto, output_type), output_shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("content", [b"", b"\x00junk" * 1000, "half"], ids=["empty", "junk", "half"])
def test_a_damaged_onnx_file_is_refused(
    onnx_stack: Stack, source: Source, tmp_path: Path, content: bytes | str
) -> None:
    assert source.onnx is not None
    whole = source.onnx.read_bytes()
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    with pytest.raises(StepError, match="damaged.onnx"):
        opened(onnx_stack, replace(source, onnx=damaged), tmp_path)


def test_an_unknown_operator_is_refused_for_good(onnx_stack: Stack, source: Source, tmp_path: Path) -> None:
    path = tmp_path / "unknown.onnx"
    save_graph(path, [("Frobnicate", [INPUT], "scores")], {}, ["batch", 3, SIZE, SIZE], domain="made.up")
    with pytest.raises(StepError, match="Frobnicate") as raised:
        opened(onnx_stack, replace(source, onnx=path), tmp_path)
    assert raised.value.permanent


def test_an_axis_without_a_value_is_named(onnx_stack: Stack, source: Source, tmp_path: Path) -> None:
    with pytest.raises(StepError, match="'image' .* without a value: .*width"):
        opened(onnx_stack, replace(source, axes={"batch": "batch", "height": SIZE}), tmp_path)


def test_a_static_shape_fixes_the_batch(onnx_stack: Stack, source: Source, tmp_path: Path) -> None:
    static = replace(source, profile={"min": 2, "opt": 2, "max": 2})
    session = opened(onnx_stack, static, tmp_path, shape="static")
    shape = session.facts()["input_shapes"][INPUT]
    assert str(shape).replace("'", "").replace(" ", "") == "[2,3,16,16]"
    np.testing.assert_allclose(result(session, images(2))["scores"], expected(images(2))["scores"], atol=1e-4)


def test_int8_stays_close_to_fp32(onnx_stack: Stack, source: Source, int8_file: Path, tmp_path: Path) -> None:
    session = opened(onnx_stack, replace(source, onnx=int8_file), tmp_path, precision="int8")
    found, wanted = result(session, images(2))["features"], expected(images(2))["features"]
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99
    assert not np.allclose(found, wanted, atol=1e-4)


def test_onnxruntime_nodes_name_the_onnx_nodes_they_came_from(source: Source, tmp_path: Path) -> None:

    graph = onnx.load(source.onnx).graph
    known = {node.name for node in graph.node} | {name for node in graph.node for name in node.output}
    convolutions = [node for node in nodes_of(onnxruntime.create(), source, tmp_path) if "Conv" in node.type]
    assert len(convolutions) == 2
    assert all(set(node.origin or (node.name,)) <= known for node in convolutions)
