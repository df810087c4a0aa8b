"""Parity: what the figures say of known errors, and which of them exclude an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder import parity
from ladder.errors import StepError


def detector(boxes: list[tuple[float, ...]], scores: list[list[float]], anchors: int = 40) -> np.ndarray:
    """One sample [4 + classes, anchors]; anchors without a box have a score of 0.01."""
    output = np.full((4 + len(scores[0]), anchors), 0.01, np.float32)
    output[:4] = np.array([[320.0], [320.0], [50.0], [50.0]])
    for i, (box, score) in enumerate(zip(boxes, scores, strict=True)):
        output[:, i] = (*box, *score)
    return output


def detection(found: list[np.ndarray], right: list[np.ndarray]) -> dict:
    return parity.compare({"output0": np.stack(found)}, {"output0": np.stack(right)}, "detection")


ONE_BOX = detector([(100, 100, 50, 50)], [[0.9, 0.1]])


def test_equal_outputs_have_no_error():
    outputs = {"a": np.ones((2, 3), np.float32), "b": np.zeros((2, 5), np.float32)}
    figures = parity.compare(outputs, outputs, "generic")
    assert figures["finite"] and figures["max_abs"] == figures["relative"] == 0 and figures["cosine"] == 1
    assert figures["matched_pct"] is None
    assert parity.judge(figures, parity.DEFAULT_THRESHOLDS["fp32"], seeded=False) == ("pass", None)


def test_error_is_relative_to_the_rms_of_its_own_output():
    right = {"big": np.full((2, 4), 1000.0), "small": np.full((2, 4), 0.5)}
    found = {"big": right["big"] + 1, "small": right["small"] + 0.25}
    figures = parity.compare(found, right, "generic")
    assert figures["max_abs"] == 1 and figures["relative"] == pytest.approx(0.5)


def test_a_sample_that_shows_nothing_is_not_judged_by_its_rounding_errors():
    right = np.array([[0.5, 1.0, 0.7], [1e-7, 0, 0]])
    found = right + np.array([[0, 0, 0], [0, 1e-7, 2e-7]])
    figures = parity.compare({"a": found}, {"a": right}, "generic")
    assert figures["relative"] < 1e-6 and figures["cosine"] > 0.999999


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20), st.floats(0.1, 10))
def test_cosine_ignores_scale_and_relative_does_not(values, scale):
    right = np.array([values]) + 200.0
    figures = parity.compare({"a": right * scale}, {"a": right}, "generic")
    assert figures["cosine"] == pytest.approx(1)
    assert figures["relative"] == pytest.approx(abs(scale - 1) * right.max() / np.sqrt((right**2).mean()), abs=1e-9)


def test_an_error_in_an_output_of_zeros_is_beyond_every_bound():
    zeros = np.zeros((1, 4), np.float32)
    figures = parity.compare({"a": zeros + 1e-3}, {"a": zeros}, "generic")
    assert figures["relative"] > 1e30 and figures["cosine"] == 0
    assert parity.judge(figures, {"relative": 1e9}, seeded=False)[0] == "exclude"


def test_the_worst_output_counts():
    right = {"a": np.ones((3, 4)), "b": np.ones((3, 4))}
    assert parity.compare(right | {"b": -right["b"]}, right, "generic")["cosine"] == pytest.approx(-1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_not_finite_exclude_and_have_no_figures(bad):
    right = np.ones((1, 4))
    found = right.copy()
    found[0, 2] = bad
    figures = parity.compare({"a": found}, {"a": right}, "generic")
    assert figures["finite"] is False and figures["max_abs"] is None and figures["cosine"] is None
    assert parity.judge(figures, {}, seeded=True)[0] == "exclude"


def test_integer_outputs_are_compared():
    figures = parity.compare({"a": np.array([[1, 2, 4]])}, {"a": np.array([[1, 2, 3]])}, "generic")
    assert figures["max_abs"] == 1


def test_boxes_and_scores_are_judged_apart():
    found = ONE_BOX.copy()
    found[4:] += 0.05  # lost in the boxes' hundreds of pixels when judged together
    figures = detection([found], [ONE_BOX])
    rms = np.sqrt((ONE_BOX[4:].astype(float) ** 2).mean())
    assert figures["boxes_relative"] == 0 and figures["scores_relative"] == pytest.approx(0.05 / rms, rel=1e-5)
    assert figures["relative"] == figures["scores_relative"]
    assert parity.compare({"a": found[None]}, {"a": ONE_BOX[None]}, "generic")["relative"] < 1e-3


def test_no_box_above_the_threshold_is_no_match_and_not_a_full_one():
    empty = np.full((6, 40), 0.01, np.float32)
    assert detection([empty], [empty])["matched_pct"] is None


def test_boxes_match_by_overlap_and_class():
    shifted = detector([(110, 100, 50, 50)], [[0.9, 0.1]])  # IoU 40 / 60
    gone = detector([(140, 100, 50, 50)], [[0.9, 0.1]])
    other_class = detector([(100, 100, 50, 50)], [[0.1, 0.9]])
    assert detection([ONE_BOX], [ONE_BOX])["matched_pct"] == 100
    assert detection([shifted], [ONE_BOX])["matched_pct"] == 100
    assert detection([gone], [ONE_BOX])["matched_pct"] == 0
    assert detection([other_class], [ONE_BOX])["matched_pct"] == 0


def test_a_box_on_one_side_only_is_not_matched():
    two = detector([(100, 100, 50, 50), (300, 300, 80, 80)], [[0.9, 0.1], [0.8, 0.1]])
    assert detection([two], [ONE_BOX])["matched_pct"] == pytest.approx(100 * 2 / 3)
    assert detection([ONE_BOX], [two])["matched_pct"] == pytest.approx(100 * 2 / 3)


def test_only_the_highest_scores_count():
    anchors = parity.MOST_BOXES + 100
    crowd = detector([(100, 100, 50, 50)] * anchors, [[0.9, 0.1]] * parity.MOST_BOXES + [[0.5, 0.1]] * 100, anchors)
    moved = crowd.copy()
    moved[0, parity.MOST_BOXES :] += 1000
    assert detection([moved], [crowd])["matched_pct"] == 100


def test_seeded_weights_exclude_only_for_a_low_cosine():
    figures = {"finite": True, "relative": 3.0, "boxes_relative": None, "cosine": 0.97, "matched_pct": 10.0}
    bounds = {"relative": 0.5, "cosine": 0.99, "matched_pct": 90.0}
    verdict, reason = parity.judge(figures, bounds, seeded=True)
    assert verdict == "warn" and "cosine" in reason and "boxes matched" in reason and "RMS" in reason
    assert parity.judge(figures, bounds, seeded=False)[0] == "exclude"
    assert parity.judge(figures | {"cosine": 0.89}, bounds, seeded=True)[0] == "exclude"


def test_a_detectors_largest_error_is_that_of_its_boxes():
    figures = {"finite": True, "relative": 3.0, "boxes_relative": 0.1, "cosine": 1.0, "matched_pct": None}
    assert parity.judge(figures, {"relative": 0.2}, seeded=False)[0] == "pass"
    verdict, reason = parity.judge(figures, {"relative": 0.05}, seeded=False)
    assert verdict == "exclude" and reason == "largest error of a box 0.1 of the reference's RMS, above 0.05"


def test_missing_thresholds_and_figures_are_not_judged():
    figures = {"finite": True, "relative": 3.0, "boxes_relative": None, "cosine": 0.97, "matched_pct": None}
    assert parity.judge(figures, {"matched_pct": 90.0}, seeded=False) == ("pass", None)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [({"b": np.ones((1, 2))}, "no output 'a'"), ({"a": np.ones((1, 3))}, "shape")],
)
def test_other_outputs_than_the_reference_has_are_an_error(outputs, message):
    with pytest.raises(StepError, match=message):
        parity.compare(outputs, {"a": np.ones((1, 2))}, "generic")


def test_a_reference_that_is_not_finite_proves_nothing():
    with pytest.raises(StepError, match="reference holds NaN"):
        parity.compare({"a": np.ones((1, 2))}, {"a": np.full((1, 2), np.nan)}, "generic")


def test_the_documented_bounds_are_the_built_in_ones():
    text = (Path(__file__).parent.parent / "docs/audit.md").read_text()
    table = text[text.index("| precision | relative") :].split("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    documented = {}
    for names, *bounds in rows[1:]:
        values = dict(zip(("relative", "cosine", "matched_pct"), bounds, strict=True))
        for name in names.split(", "):
            documented[name] = {key: float(value) for key, value in values.items() if value != "–"}
    assert documented == parity.DEFAULT_THRESHOLDS


def test_a_sample_that_was_not_computed_is_found_and_one_that_shows_nothing_is_not_judged():
    right = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    right[2] = 1e-6  # shows nothing
    found = right + 0.3 * np.random.default_rng(1).normal(size=right.shape).astype(np.float32)  # as rough as INT8 gets
    parity.refuse_broken({"y": found}, {"y": right}, 3)
    found[1] = 0
    with pytest.raises(StepError, match="of sample 2 is not the model's: cosine 0 "):
        parity.refuse_broken({"y": found}, {"y": right}, 3)
    found[1] = np.nan
    with pytest.raises(StepError, match="NaN"):
        parity.refuse_broken({"y": found}, {"y": right}, 3)
