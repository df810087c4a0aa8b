"""Reduced-precision ONNX files: converted as asked, accepted only when they run, the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import small_onnx
from onnx import TensorProto

from ladder import graph, precision
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.step import attempts_path

SCRIPT = Path(__file__).parent.parent / "scripts" / "precision.py"


class Folder:
    """A small FP32 model and its calibration data, each with its id, as the steps before leave them."""

    def __init__(self, path: Path, scale: float = 1.0):
        self.path = path
        self.fp32 = small_onnx.convnet(path / "fp32.onnx", scale)
        self.calibration = small_onnx.data(path / "calibration.npz")
        for file in (self.fp32, self.calibration):
            write_json(file.with_name(f"{file.stem}.id.json"), {"status": "ok", "sha256": sha256(file)})
        self.observed = graph.observe(self.fp32, graph.samples_of(self.calibration))

    def convert(self, name: str, **options) -> dict:
        return precision.convert(self.fp32, self.calibration, name, options, self.observed, self.path / f"{name}.onnx")

    def counted(self, name: str, **options) -> dict:
        model = onnx.load(self.path / f"{name}.onnx")
        return graph.describe(onnx.load(self.fp32), model, name, self.observed, precision.DEFAULTS | options)

    def script(self, name: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        outputs = {"onnx": f"{name}.onnx", "id": f"{name}.id.json", "graph": f"{name}.graph.json"}
        outputs["scales"] = f"{name}.scales.json"
        command = [sys.executable, SCRIPT, "--precision", name, "--onnx", self.fp32, "--calibration", self.calibration]
        for key, file in outputs.items():
            command += [f"--output-{key}", self.path / file]
        return subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=True)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def outputs(path: Path, calibration: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with np.load(calibration) as arrays:
        return session.run(None, dict(arrays))[0]


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "int8-fp16"])
def test_a_converted_model_says_what_it_is(folder, name):
    identity = folder.convert(name)
    path = folder.path / f"{name}.onnx"
    assert identity["status"] == "ok" and identity["precision"] == name
    assert identity["sha256"] == sha256(path) and identity["source_sha256"] == sha256(folder.fp32)
    assert identity["calibration_sha256"] == sha256(folder.calibration)
    assert identity["options"] == precision.DEFAULTS and set(identity["versions"]) >= {"nvidia-modelopt", "onnxruntime"}
    model = onnx.load(path)
    onnx.checker.check_model(model)
    kinds = [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)]
    assert kinds == [TensorProto.FLOAT, TensorProto.FLOAT] and not model.graph.value_info
    assert identity["opset"] == {"fp16": 17, "bf16": 22}.get(name, 19)
    found = folder.counted(name)
    assert found["nodes"] == 12 and found["flops"]["at_precision_pct"] > 99
    if name != "bf16":  # ONNX Runtime has no BF16 convolution on the CPU
        right = outputs(folder.fp32, folder.calibration)
        error = np.abs(outputs(path, folder.calibration) - right).max() / np.sqrt((right**2).mean())
        assert 0 < error < (0.05 if "int8" in name else 0.005)


def test_the_rest_of_int8_is_fp32_and_of_int8_fp16_is_fp16(folder):
    for name, rest in (("int8", "fp32"), ("int8-fp16", "fp16")):
        folder.convert(name)
        found = folder.counted(name)["precisions"]
        assert found["int8"] >= 3 and found[rest] > 0
        assert not found.keys() - {"int8", rest, "none"}


def test_a_node_whose_values_are_large_stays_fp32(tmp_path):
    folder = Folder(tmp_path, scale=1e4)
    folder.convert("fp16")
    detail = {each["name"]: each for each in folder.counted("fp16")["detail"]}
    assert detail["/wide/Mul"]["precision"] == detail["/wide/Mul_1"]["precision"] == "fp32"
    assert detail["/wide/Mul"]["reason"] == "range" and detail["/conv1/Conv"]["precision"] == "fp16"
    folder.convert("fp16", data_max=1e5)
    assert not folder.counted("fp16", data_max=1e5)["kept"]["range"]


def test_values_that_overflow_are_refused(tmp_path):
    folder = Folder(tmp_path, scale=6e4)
    with pytest.raises(StepError, match="tensor 'm' of the fp16 model holds NaN or infinity") as caught:
        folder.convert("fp16", data_max=1e9)
    assert caught.value.permanent and not (folder.path / "fp16.onnx").exists()


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_exclusions_mean_exactly_the_nodes_they_name(folder, name):
    options = {"exclude_nodes": ["/conv1/Conv"], "exclude_ops": ["Gemm"]}
    folder.convert(name, **options)
    detail = {each["name"]: each for each in folder.counted(name, **options)["detail"]}
    assert detail["/conv1/Conv"]["precision"] == detail["/fc/Gemm"]["precision"] == "fp32"
    assert detail["/conv1/Conv"]["reason"] == detail["/fc/Gemm"]["reason"] == "exclusion"
    assert detail["/conv2/Conv"]["at_precision"]
    folder.convert("fp16", exclude_nodes=["/wide/Mul"])  # ModelOpt's pattern would fit /wide/Mul_1 as well
    detail = {each["name"]: each for each in folder.counted("fp16", exclude_nodes=["/wide/Mul"])["detail"]}
    assert detail["/wide/Mul"]["precision"] == "fp32" and detail["/wide/Mul_1"]["precision"] == "fp16"


@pytest.mark.parametrize(("key", "value"), [("exclude_nodes", "/conv9/Conv"), ("exclude_ops", "Softmx")])
def test_an_exclusion_that_fits_nothing_is_an_error(folder, key, value):
    with pytest.raises(StepError, match=f"conversion.{key}: the FP32 graph has no {value}"):
        folder.convert("fp16", **{key: [value]})


def test_a_model_with_nothing_to_quantise_is_not_called_int8(folder):
    ops = ["Conv", "Gemm", "Mul", "GlobalAveragePool"]
    with pytest.raises(StepError, match="int8 by name only"):
        folder.convert("int8", exclude_ops=ops)


def test_scales_are_those_of_the_graph_and_of_the_data(folder):
    folder.convert("int8")
    found = precision.scales(onnx.load(folder.path / "int8.onnx"))
    largest = folder.observed.ranges["x"]
    assert found["x"]["scale"] == pytest.approx([largest / 127]) and found["x"]["zero_point"] == [0]
    weights = next(value for key, value in found.items() if key.startswith("w2"))
    assert len(weights["scale"]) == 32 and weights["axis"] == 0


def test_entropy_says_whether_it_made_a_difference(folder):
    identity = folder.convert("int8", calibration_method="entropy")
    same = sha256(folder.path / "int8.onnx") == folder.convert("int8")["sha256"]
    assert identity["entropy_differs_from_max"] is not same


@pytest.mark.parametrize("name", ["fp16", "int8-fp16"])
def test_another_process_writes_the_same_bytes(folder, name):
    here = folder.convert(name)
    folder.script(name, {"PYTHONHASHSEED": "7"})
    assert read_json(folder.path / f"{name}.id.json") == here
    kept = read_json(folder.path / f"{name}.scales.json")
    assert kept["ranges"]["x"] == folder.observed.ranges["x"] if name == "fp16" else kept["scales"]["x_cast_to_fp16"]
    assert read_json(folder.path / f"{name}.graph.json")["nodes"] == 12


def test_a_failure_before_is_passed_on_without_a_try_of_its_own(folder):
    failed = {"status": "failed", "stage": "export", "reason": "no such model", "permanent": True, "log": "x.log"}
    write_json(folder.path / "fp32.id.json", failed)
    folder.script("fp16")
    assert read_json(folder.path / "fp16.id.json") == failed
    assert not attempts_path(folder.path / "fp16.id.json").exists()
    for file in ("fp16.onnx", "fp16.graph.json", "fp16.scales.json"):
        assert (folder.path / file).stat().st_size == 0


def test_a_file_that_was_changed_is_not_converted(folder):
    small_onnx.data(folder.calibration, samples=2)
    folder.script("fp16")
    record = read_json(folder.path / "fp16.id.json")
    assert record["status"] == "failed" and "was changed or cut short; the next call makes it anew" in record["reason"]


@pytest.mark.slow
def test_ranges_measured_sample_by_sample_convert_as_autocasts_own_do(tmp_path):
    from modelopt.onnx.autocast import convert_to_mixed_precision

    folder = Folder(tmp_path, scale=1e4)
    folder.convert("fp16")
    plain = convert_to_mixed_precision(
        str(folder.fp32),
        low_precision_type="fp16",
        keep_io_types=True,
        data_max=512,
        calibration_data=str(folder.calibration),
        providers=["cpu"],
    )
    ours = onnx.load(folder.path / "fp16.onnx")
    assert graph.without_value_info(plain).SerializeToString() == ours.SerializeToString()
