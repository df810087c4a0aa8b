"""What TensorRT's own texts say of a layer; the samples are described in tests/data/tensorrt/README.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ladder.stacks.tensorrt_inspector import Layer, completed, from_inspector, from_report

DATA = Path(__file__).parent / "data" / "tensorrt"
# as TensorRT 8.6 logs it of a finished engine
SHORT_REPORT = """Engine Layer Information:
Layer(Reformat): Copy for /a/Conv + /a/Relu, Tactic: 0x00000000000003ea, x (Float[-1,3,64,64]) -> y (Half[-1,3:8,64,64])
Layer(CaskConvolution): /a/Conv + /a/Relu, Tactic: 0x9d9fdb5fd9945f64, y (Half[-1,3:8,64,64]) -> z (Float[-1,16,32,32])
Layer(Fill): /b/Range, Tactic: 0x0000000000000000,  -> n (Int32[80])
Layer(PointWiseV2): PWN(/c/Mul), Tactic: 0x0000000000000009, z (Float[-1,16,32,32]) -> q (Int8[-1,16:4,32,32])
"""


def sample(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def by_type(layers: list[Layer]) -> dict[str, Layer]:
    """The last layer of each type."""
    return {layer.type: layer for layer in layers}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_dynamic_engine_of_8_6_tells_its_products_alone(precision: str) -> None:
    """Every tensor is "N/A due to dynamic shapes": weights and tactics tell, and the rest stays unknown."""
    layers = from_inspector(sample(f"8.6-{precision}-dynamic.inspector.json"), tf32=False)
    told = {layer.type: (layer.precision, layer.evidence) for layer in layers}
    assert told["CaskConvolution"] == told["CaskGemmConvolution"] == (precision, "weights")
    assert told["CaskGemmMatrixMultiply"] == (precision, "tactic")
    for unknown in ("PointWiseV2", "Reformat", "ElementWise", "CaskPooling", "CaskSoftMaxV2"):
        assert told[unknown] == (None, None)
    assert not any(layer.typed for layer in layers)
    assert {"Constant", "NoOp"}.isdisjoint(told)


def test_layers_name_the_onnx_nodes_they_come_from() -> None:
    text = sample("8.6-fp16-dynamic.inspector.json")
    with pytest.raises(json.JSONDecodeError):  # the separators between the names are raw
        json.loads(text)
    pointwise = by_type(from_inspector(text, tf32=False))["PointWiseV2"]
    assert pointwise.origin == ("/model.0/act/Sigmoid", "/model.0/act/Mul")


@pytest.mark.parametrize(("text", "expected"), [("fp16", "fp16"), ("int8", "int8")])
def test_a_build_report_tells_dynamic_engines_wholly(text: str, expected: str) -> None:
    layers = from_report(sample(f"rtx-1.7-{text}-dynamic.report.txt"), tf32=False)
    assert all(layer.precision and layer.typed for layer in layers)
    assert {layer.precision for layer in layers if layer.type in ("correlation", "gemm")} == {expected}
    assert {"signal", "wait", "shape_call"}.isdisjoint({layer.type for layer in layers})
    assert by_type(layers)["Reformat"].name.startswith("__myl_Move_")


def test_an_int8_convolution_that_writes_floats_is_int8_and_what_quantises_is_not() -> None:
    layers = from_report(sample("rtx-1.7-int8-dynamic.report.txt"), tf32=False)
    convolution = next(layer for layer in layers if layer.name == "/model.0/conv/Conv_myl0_5")
    assert convolution.precision == "int8"
    quantiser = next(layer for layer in layers if layer.name.startswith("__myl_MulMinMaxRounCast"))
    assert quantiser.precision == "fp32"


def test_a_product_has_one_place() -> None:
    """Myelin names a convolution in the kernels before and after it too; its FLOPs are where it is computed."""
    layers = from_report(sample("rtx-1.7-int8-dynamic.report.txt"), tf32=False)
    places = [layer.type for layer in layers if "/model.0/conv/Conv" in layer.origin]
    assert places == ["correlation"]
    quantiser = next(layer for layer in layers if layer.name.startswith("__myl_MulMinMaxRounCast"))
    assert quantiser.origin == ("images_QuantizeLinear",)


def test_the_short_report_tells_types_too() -> None:
    found = [(layer.name, layer.type, layer.precision) for layer in from_report(SHORT_REPORT, tf32=False)]
    assert found == [
        ("Copy for /a/Conv + /a/Relu", "Reformat", "fp32"),
        ("/a/Conv + /a/Relu", "CaskConvolution", "fp16"),
        ("/b/Range", "Fill", "int32"),
        ("PWN(/c/Mul)", "PointWiseV2", "fp32"),
    ]


def inspected(tactic: str, kind: str = "CaskConvolution", tf32: bool = False, **tensor: str) -> Layer:
    """One layer with one tensor in and out, as the inspector tells it."""
    layer = {
        "Name": "layer",
        "LayerType": kind,
        "Inputs": [{"Name": "x", **tensor}],
        "Outputs": [{"Name": "y", **tensor}],
        "TacticName": tactic,
    }
    (found,) = from_inspector(json.dumps({"Layers": [layer]}), tf32)
    return found


TEN_FP16 = {"Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}
TEN_FP32 = {"Format/Datatype": "Row major linear FP32 format"}
ELEVEN_FP16 = {"Format": "Channel major format", "Datatype": "Half"}
UNKNOWN = {"Format/Datatype": "N/A due to dynamic shapes"}


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (inspected("", **TEN_FP16), ("fp16", "tensors")),
        (inspected("", **ELEVEN_FP16), ("fp16", "tensors")),
        (inspected("", "PointWiseV2", **TEN_FP32), ("fp32", "tensors")),
        (inspected("", **UNKNOWN), (None, None)),
        (inspected("sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32_nchw_vect_c_32", **UNKNOWN), ("int8", "tactic")),
        (inspected("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc", **UNKNOWN), ("bf16", "tactic")),
        (inspected("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc", **UNKNOWN), ("tf32", "tactic")),
        (inspected("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc", **TEN_FP32), ("tf32", "tactic")),
        (inspected("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchw", tf32=True, **TEN_FP32), ("fp32", "tensors")),
        (inspected("", tf32=True, **TEN_FP32), (None, None)),
        (inspected("", "PointWiseV2", tf32=True, **TEN_FP32), ("fp32", "tensors")),
        (inspected("", "Myelin", **TEN_FP16), (None, None)),
    ],
)
def test_what_tells_the_precision_of_a_layer(layer: Layer, expected: tuple[str | None, str | None]) -> None:
    assert (layer.precision, layer.evidence) == expected


def test_what_one_text_leaves_open_another_completes_for_the_same_layer_only() -> None:
    def layer(name: str, precision: str | None = None, tactic: str = "", kind: str = "PointWise") -> Layer:
        return Layer(name, kind, precision, None, precision is not None, tactic, ())

    ours = [layer("a"), layer("b", tactic="t1"), layer("c", "fp32"), layer("d"), layer("e", tactic="t1"), layer("f")]
    others = [
        layer("a", "fp16"),
        layer("b", "fp16", tactic="t2"),  # another kernel
        layer("c", "fp16"),  # already known
        layer("d", "fp16", kind="Reformat"),  # another layer
        layer("e", "fp16"),  # this text names no tactics
    ]
    found = [(each.precision, each.evidence) for each in completed(ours, others, "static twin")]
    assert found == [
        ("fp16", "static twin"),
        (None, None),
        ("fp32", None),
        (None, None),
        ("fp16", "static twin"),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("__myl_Move_myl0_4", "", "Reformat"),
        ("__myl_ReshCast_myl0_9", "[ONNX Layer: y_cast_to_fp32]", "Reformat"),
        ("__myl_Tran_myl0_4", "[ONNX Layer: /Transpose]", "kgen"),
        ("__myl_CastAdd_myl0_4", "", "kgen"),
    ],
)
def test_a_kernel_that_only_casts_or_moves_for_no_node_is_a_reformat(name: str, metadata: str, expected: str) -> None:
    tensor = "{ Name: x, Dimensions: [-1,5], Datatype: Half, Format: (Linear) Row major linear format }"
    line = f"Name: {name}, LayerType: kgen, Inputs: [ {tensor}], Constants: [], Outputs: [ {tensor}], TacticName: , "
    (layer,) = from_report(f"Layers:\n{line}StreamId: 0, Metadata: {metadata}", tf32=False)
    assert (layer.type, layer.precision) == (expected, "fp16")
