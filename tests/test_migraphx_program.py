"""What instructions of MIGraphX say of precision and place, from listings written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.stacks.migraphx_program import Instruction, nodes, on_the_host

FLOAT = ("float", "half", "bf16", "double")


def program(*instructions: tuple[str, str, list[int]]) -> list[Instruction]:
    return [Instruction(name, kind, tuple(inputs)) for name, kind, inputs in instructions]


QUANTISED = program(
    ("@param", "float", []),
    ("@literal", "int8", []),
    ("@literal", "float", []),
    ("quantizelinear", "int8", [0, 2]),
    ("dequantizelinear", "float", [3, 2]),
    ("dequantizelinear", "float", [1, 2]),
    ("transpose", "float", [5]),
    ("convolution", "float", [4, 6]),
    ("@return", "float", [7]),
)


def found(
    before: list[Instruction], kernels: tuple[str, ...] = (), target: str = "ref", softmax: bool = False
) -> dict[str, str | None]:
    compiled = program(*((name, "float", []) for name in kernels))
    return {node.type: node.precision for node in nodes(before, compiled, target, softmax)}


@pytest.mark.parametrize(
    ("kernels", "precision"),
    [
        (("mlir_quant_convolution_dequantizelinear", "gpu::quant_gemm"), "int8"),
        (("mlir_convolution_add",), "fp32"),
        (("mlir_quant_convolution", "mlir_convolution_add"), None),  # which of them it is nobody tells
        (("add_kernel",), None),
    ],
)
def test_a_product_between_q_and_dq_is_what_all_kernels_of_its_kind_are(
    kernels: tuple[str, ...], precision: str | None
) -> None:
    assert found(QUANTISED, kernels, "gpu")["convolution"] == precision
    told = {node.type: node.evidence for node in nodes(QUANTISED, program(), "gpu", True)}
    assert told["convolution"] is None and told["QuantizeLinear"] == "program"


def test_a_product_of_other_values_is_not_asked_of_the_kernels() -> None:
    plain = program(("@param", "half", []), ("@literal", "half", []), ("dot", "half", [0, 1]))
    assert found(plain, ("mlir_quant_dot",), "gpu") == {"dot": "fp16"}
    explicit = program(("@param", "int8", []), ("@literal", "int8", []), ("quant_dot", "int32", [0, 1]))
    assert found(explicit, (), "gpu") == found(explicit) == {"quant_dot": "int8"}
    assert found(explicit, (), "cpu") == {"quant_dot": "fp32"}


def test_constants_views_and_tuples() -> None:
    listing = program(
        ("@param", "half", []),
        ("@literal", "half", []),
        ("relu", "half", [1]),  # of a constant alone
        ("reshape", "half", [0]),
        ("topk", "tuple", [3]),
        ("get_tuple_elem", "half", [4]),
        ("greater", "bool", [5, 2]),
        ("gather", "int64", [0]),
        ("if", "tuple", [6]),
    )
    assert found(listing) == {"topk": None, "greater": "fp16", "gather": "fp16", "if": None}
    assert [node.name for node in nodes(listing, [], "ref", False)] == ["main:@4", "main:@6", "main:@7", "main:@8"]


def test_what_the_gpu_target_leaves_to_the_host_is_named() -> None:
    compiled = program(
        ("@param", "float", []),
        ("gpu::code_object", "float", [0]),
        ("hip::copy_from_gpu", "float", [1]),
        ("hip::sync_stream", "float", [2]),
        ("nonmaxsuppression", "int64", [3]),
        ("if", "tuple", [3]),
        ("hip::copy_to_gpu", "int64", [4]),
        ("@return", "int64", [3]),
    )
    assert on_the_host(compiled) == ["main:@4 (nonmaxsuppression)"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["convolution", "dot", "relu", "softmax", "convert", "reshape", "dequantizelinear"]),
            st.sampled_from(FLOAT),
            st.integers(0, 9),
        ),
        max_size=10,
    ),
    st.booleans(),
)
def test_no_target_makes_a_program_more_than_it_says(chain: list[tuple[str, str, int]], softmax: bool) -> None:
    """The cpu target is FP32 all through; ref has the program's own types; no gpu has INT8 without a kernel."""
    listing = program(("@param", "float", []))
    for name, kind, before in chain:
        listing.append(Instruction(name, kind, (min(before, len(listing) - 1),)))
    shown = sum(name not in ("reshape",) for name, *_ in chain)
    for target in ("ref", "cpu", "gpu"):
        made = nodes(listing, [], target, softmax)
        assert len(made) == shown and {node.provider for node in made} <= {target}
        allowed = {"cpu": {"fp32"}, "ref": {"fp32", "fp16", "bf16", "fp64"}}.get(
            target, {"fp32", "fp16", "bf16", "fp64", None}
        )
        assert {node.precision for node in made} <= allowed
        assert all((node.evidence is None) == (node.precision is None) for node in made)
