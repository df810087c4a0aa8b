"""Which flags a precision needs of each version; the names are those that the versions have."""

from __future__ import annotations

import pytest

from ladder.errors import StepError
from ladder.stacks.tensorrt_flags import Choice, Offer, choose

# read from the packages: 8.6.1 and TensorRT-RTX 1.7.1; 10 and 11 from their documentation. Only what matters here.
EIGHT = Offer(
    "TensorRT 8.6.1",
    frozenset({"EXPLICIT_BATCH", "EXPLICIT_PRECISION"}),
    frozenset({"FP16", "INT8", "TF32", "OBEY_PRECISION_CONSTRAINTS", "FP8"}),
    frozenset({"CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"}),
)
TEN = Offer(
    "TensorRT 10.9",
    frozenset({"EXPLICIT_BATCH", "STRONGLY_TYPED"}),
    frozenset({"FP16", "BF16", "INT8", "TF32", "FP8"}),
    EIGHT.tactic_sources,
)
ELEVEN = Offer("TensorRT 11.4", frozenset({"STRONGLY_TYPED"}), frozenset({"TF32", "REFIT"}), frozenset())
UNTYPED_ELEVEN = Offer("TensorRT 11.4", frozenset(), ELEVEN.builder_flags, frozenset())  # typed without saying so
OFF = ("CUBLAS", "CUBLAS_LT", "CUDNN")


@pytest.mark.parametrize(
    ("precision", "typing", "offer", "expected"),
    [
        ("fp32", "weak", EIGHT, Choice(("EXPLICIT_BATCH",), (), ("TF32",), OFF)),
        ("tf32", "weak", EIGHT, Choice(("EXPLICIT_BATCH",), ("TF32",), (), OFF)),
        ("fp16", "weak", EIGHT, Choice(("EXPLICIT_BATCH",), ("FP16",), ("TF32",), OFF)),
        ("int8", "weak", EIGHT, Choice(("EXPLICIT_BATCH",), ("INT8",), ("TF32",), OFF)),
        ("int8-fp16", "weak", EIGHT, Choice(("EXPLICIT_BATCH",), ("INT8", "FP16"), ("TF32",), OFF)),
        ("bf16", "weak", TEN, Choice(("EXPLICIT_BATCH",), ("BF16",), ("TF32",), OFF)),
        ("int8-fp16", "strong", TEN, Choice(("EXPLICIT_BATCH", "STRONGLY_TYPED"), (), ("TF32",), OFF)),
        ("fp16", "strong", ELEVEN, Choice(("STRONGLY_TYPED",), (), ("TF32",), ())),
        ("tf32", "strong", ELEVEN, Choice(("STRONGLY_TYPED",), ("TF32",), (), ())),
        ("bf16", "strong", UNTYPED_ELEVEN, Choice((), (), ("TF32",), ())),
    ],
)
def test_each_precision_has_its_flags(precision: str, typing: str, offer: Offer, expected: Choice) -> None:
    assert choose(precision, typing, offer) == expected


@pytest.mark.parametrize(
    ("precision", "typing", "offer", "message"),
    [
        ("fp16", "strong", EIGHT, "8.6.1 has no strongly typed networks: use the stack tensorrt-weak"),
        ("fp16", "weak", ELEVEN, "11.4 builds strongly typed networks only: use the stack tensorrt,"),
        ("bf16", "weak", EIGHT, "8.6.1 has no bf16: it lacks the flag BF16"),
        ("tf32-conv", "weak", TEN, "10.9 has no precision tf32-conv, only fp32, tf32, fp16, bf16, int8, int8-fp16"),
        ("fp32", "mild", TEN, "typing must be strong or weak, not 'mild'"),
    ],
)
def test_what_a_version_lacks_is_refused_for_good(precision: str, typing: str, offer: Offer, message: str) -> None:
    with pytest.raises(StepError, match=message) as caught:
        choose(precision, typing, offer)
    assert caught.value.permanent


@pytest.mark.parametrize("offer", [EIGHT, TEN, ELEVEN])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16"])
def test_no_version_is_told_a_flag_it_does_not_have(offer: Offer, precision: str) -> None:
    for typing in ("strong", "weak"):
        try:
            choice = choose(precision, typing, offer)
        except StepError:
            continue
        assert {*choice.set_flags, *choice.cleared_flags} <= offer.builder_flags
        assert {*choice.network_flags} <= offer.network_flags
        assert {*choice.tactics_off} <= offer.tactic_sources
        assert "TF32" in (choice.set_flags if precision == "tf32" else choice.cleared_flags)
