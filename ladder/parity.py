"""Whether an engine still computes the model: figures against the reference, and what they mean. numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ladder.errors import StepError

Arrays = Mapping[str, np.ndarray]

# Why these. ``relative`` is the largest single error over the RMS of what it belongs to.
# fp32: only the order of summation differs, which costs about 1e-4; a wrong layout, axis or epsilon costs 1e-1 and more.
# tf32, fp16: 10 bits of fraction round by 2^-11 = 5e-4 a value; bf16: 7 bits, 2^-8 = 4e-3. The largest of some 1e5 to 1e6
# outputs, through tens of layers, is two orders above that, most of all for scores, whose RMS is small: so the cosine,
# which weighs all outputs, is the strict bound, and ``relative`` only stops outliers.
# int8: single outputs may move by more than the RMS in a model that is as good as before, so no bound on the largest
# error. A cosine of 0.95 is a signal-to-noise ratio of 10 dB, and boxes must mostly be found again.
DEFAULT_THRESHOLDS: dict[str, dict[str, float]] = {
    "fp32": {"relative": 1e-2, "cosine": 0.9999, "matched_pct": 99.0},
    "tf32": {"relative": 0.5, "cosine": 0.999, "matched_pct": 95.0},
    "tf32-conv": {"relative": 0.5, "cosine": 0.999, "matched_pct": 95.0},
    "fp16": {"relative": 0.5, "cosine": 0.999, "matched_pct": 95.0},
    "bf16": {"relative": 1.0, "cosine": 0.99, "matched_pct": 90.0},
    "int8": {"cosine": 0.95, "matched_pct": 80.0},
    "int8-fp16": {"cosine": 0.95, "matched_pct": 80.0},
}
SEEDED_COSINE = 0.9  # random weights have no accuracy to lose, but a broken engine is still broken

CONFIDENCE = 0.25  # of a box that counts, and
MOST_BOXES = 300  # how many at most: what ultralytics' predict keeps by default
IOU = 0.5
_SMALLEST = float(np.finfo(np.float32).tiny)  # stands for the RMS of an output that is zero throughout


def compare(outputs: Arrays, reference: Arrays, task: str) -> dict[str, Any]:
    """Figures of ``outputs`` against ``reference``, both [samples, ...] by output name; the worst sample counts.

    ``finite``: no NaN or infinity in any output. ``max_abs``: largest absolute error. ``relative``: largest error over
    the RMS of the reference's same output and sample. ``cosine``: similarity to it (1 = same direction).

    With task ``detection``, an output [samples, 4 + classes, anchors] has its boxes (centre x, centre y, width, height)
    and its scores judged apart, each against its own RMS and cosine: ``boxes_relative``, ``scores_relative``. And
    ``matched_pct``: the boxes that count are those whose highest score is at least CONFIDENCE, the MOST_BOXES highest of
    a sample, without non-maximum suppression; one is matched if the other side has a box of the same class that counts
    with an intersection over union of at least IOU. It is the share of matched boxes of both sides together, all
    samples; None where neither side has any. These are None for other outputs.

    Figures that need finite outputs are None without them. Raises StepError for missing outputs, other shapes, or a
    reference that is not finite.
    """
    figures: dict[str, Any] = dict.fromkeys(
        ("max_abs", "relative", "cosine", "boxes_relative", "scores_relative", "matched_pct")
    )
    _check(outputs, reference)
    figures["finite"] = all(bool(np.isfinite(outputs[name]).all()) for name in reference)
    if not figures["finite"]:
        return figures
    parts = [part for name in reference for part in _parts(outputs[name], reference[name], task)]
    measured = [(kind, *_errors(found, right)) for kind, found, right in parts]
    figures["max_abs"] = max(largest for _, largest, _, _ in measured)
    figures["relative"] = max(relative for _, _, relative, _ in measured)
    figures["cosine"] = min(cosine for _, _, _, cosine in measured)
    for wanted in ("boxes", "scores"):
        found = [relative for kind, _, relative, _ in measured if kind == wanted]
        figures[f"{wanted}_relative"] = max(found, default=None)
    if task == "detection":
        detectors = [name for name in reference if _is_detector(reference[name])]
        figures["matched_pct"] = _matched_pct([(outputs[name], reference[name]) for name in detectors])
    return figures


def judge(figures: Mapping[str, Any], thresholds: Mapping[str, float], seeded: bool) -> tuple[str, str | None]:
    """``("pass" | "warn" | "exclude", reason)`` for figures of ``compare`` and one precision's thresholds.

    ``thresholds`` holds the largest ``relative``, the least ``cosine`` and the least ``matched_pct``; each may be
    missing. A figure that is None is not judged. With seeded weights only values that are not finite and a cosine below
    SEEDED_COSINE exclude; the rest warns.
    """
    if not figures["finite"]:
        return "exclude", "outputs hold NaN or infinity"
    if seeded and figures["cosine"] < SEEDED_COSINE:
        return "exclude", f"cosine {figures['cosine']:.4g} to the reference, below {SEEDED_COSINE} even for seeded weights"
    faults = []
    if (limit := thresholds.get("relative")) is not None and figures["relative"] > limit:
        faults.append(f"largest error {figures['relative']:.3g} of the reference's RMS, above {limit:g}")
    if (limit := thresholds.get("cosine")) is not None and figures["cosine"] < limit:
        faults.append(f"cosine {figures['cosine']:.6g} to the reference, below {limit:g}")
    limit, matched = thresholds.get("matched_pct"), figures["matched_pct"]
    if limit is not None and matched is not None and matched < limit:
        faults.append(f"{matched:.1f} % of boxes matched at IoU {IOU}, below {limit:g} %")
    if not faults:
        return "pass", None
    return ("warn" if seeded else "exclude"), "; ".join(faults)


def _check(outputs: Arrays, reference: Arrays) -> None:
    for name, right in reference.items():
        if name not in outputs:
            raise StepError(f"the engine has no output '{name}'; it has {', '.join(outputs)}", permanent=True)
        if outputs[name].shape != right.shape:
            raise StepError(
                f"output '{name}' has the shape {list(outputs[name].shape)}, the reference {list(right.shape)}",
                permanent=True,
            )
        if not np.isfinite(right).all():
            raise StepError(f"output '{name}' of the reference holds NaN or infinity", permanent=True)


def _is_detector(output: np.ndarray) -> bool:
    return output.ndim == 3 and 4 < output.shape[1] < output.shape[2]


def _parts(found: np.ndarray, right: np.ndarray, task: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    if task == "detection" and _is_detector(right):
        yield "boxes", found[:, :4], right[:, :4]
        yield "scores", found[:, 4:], right[:, 4:]
    else:
        yield "whole", found, right


def _errors(found: np.ndarray, right: np.ndarray) -> tuple[float, float, float]:
    """Largest absolute error, largest error over the sample's RMS, least cosine."""
    samples = len(right)
    a, b = (array.reshape(samples, -1).astype(np.float64) for array in (found, right))
    largest = np.abs(a - b).max(axis=1)
    rms = np.sqrt(np.square(b).mean(axis=1))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    same = largest == 0  # also where both are zero throughout, which has no direction
    cosine = np.where(same, 1.0, (a * b).sum(axis=1) / np.where(lengths > 0, lengths, 1.0))
    return float(largest.max()), float((largest / np.maximum(rms, _SMALLEST)).max()), float(cosine.min())


def _matched_pct(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float | None:
    matched = counted = 0
    for found, right in pairs:
        for one, other in zip(found, right, strict=True):
            (boxes, classes), (other_boxes, other_classes) = _selected(one), _selected(other)
            overlaps = (_iou(boxes, other_boxes) >= IOU) & (classes[:, None] == other_classes[None, :])
            matched += int(overlaps.any(axis=1).sum() + overlaps.any(axis=0).sum())
            counted += len(boxes) + len(other_boxes)
    return 100 * matched / counted if counted else None


def _selected(output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes that count, [n, 4] as left, top, right, bottom, and their classes, of one sample [4 + classes, anchors]."""
    scores = output[4:].max(axis=0)
    order = np.argsort(-scores, kind="stable")[:MOST_BOXES]
    kept = order[scores[order] >= CONFIDENCE]
    x, y, width, height = output[:4, kept].astype(np.float64)
    corners = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
    return corners, output[4:, kept].argmax(axis=0)


def _iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union of each box with each other, [n, m]; 0 where a box has no area."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
