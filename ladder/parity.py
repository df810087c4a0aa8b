"""Whether an engine still computes the model: figures against the reference, and what they mean. numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ladder.errors import StepError

Arrays = Mapping[str, np.ndarray]

# Meant to stop broken engines; what accuracy a use can spare is for its configuration to say. Measured, as cosine and
# matched boxes, on four trained models (YOLOv8n at 320, PP-OCRv4's text detector, recogniser and classifier):
# fp32, optimised: 1.000000, largest error below 1e-3 of the RMS (only the order of summation differs; a wrong axis,
# layout or epsilon costs 1e-1 and more). fp16: 0.9998 to 1, 100 %; TF32 has the same 10 bits of fraction.
# bf16 (7 bits): 0.970 to 0.9998, 96 %. int8: 0.94 to 0.98, 89 %; the text detector broke, at 0.13.
# Only fp32 bounds the largest error: in outputs that are nearly all zero (masks, softmax over thousands of classes)
# a single value is off by 7 times the RMS in FP16 and 77 times in BF16, with the same result.
DEFAULT_THRESHOLDS: dict[str, dict[str, float]] = {
    "fp32": {"relative": 1e-2, "cosine": 0.9999, "matched_pct": 99.0},
    "tf32": {"cosine": 0.999, "matched_pct": 95.0},
    "tf32-conv": {"cosine": 0.999, "matched_pct": 95.0},
    "fp16": {"cosine": 0.999, "matched_pct": 95.0},
    "bf16": {"cosine": 0.95, "matched_pct": 90.0},
    "int8": {"cosine": 0.9, "matched_pct": 75.0},
    "int8-fp16": {"cosine": 0.9, "matched_pct": 75.0},
}
BROKEN_COSINE = 0.5  # of one sample: zeros, or memory that nothing wrote, are near 0; no precision comes near it
QUIET_SHARE = 0.01  # of an output's RMS: a sample below shows nothing, and its values are rounding errors
SEEDED_COSINE = 0.9  # random weights have no accuracy to lose, but a broken engine is still broken

CONFIDENCE = 0.25  # of a box that counts, and
MOST_BOXES = 300  # how many at most: what ultralytics' predict keeps by default
IOU = 0.5
_SMALLEST = float(np.finfo(np.float32).tiny)  # stands for the RMS of an output that is zero throughout


def compare(outputs: Arrays, reference: Arrays, task: str) -> dict[str, Any]:
    """Figures of ``outputs`` against ``reference``, both [samples, ...] by output name; the worst output counts.

    ``finite``: no NaN or infinity in any output. ``max_abs``: largest absolute error. ``relative``: largest error over
    the RMS of the reference's same output. ``cosine``: similarity to it (1 = same direction). RMS and cosine are over
    all samples together, since a sample that shows nothing has an output of rounding errors.

    With task ``detection``, an output [samples, 4 + classes, anchors] has its boxes (centre x, centre y, width, height)
    and its scores measured apart, each with its own RMS and cosine: ``boxes_relative``, ``scores_relative``. And
    ``matched_pct``: the boxes that count are those whose highest score is at least CONFIDENCE, at most the MOST_BOXES
    highest of a sample, without non-maximum suppression; one is matched if the other side has a box of the same class
    that counts with an intersection over union of at least IOU. It is the share of matched boxes of both sides and all
    samples together; None where there are none. These three are None for other outputs.

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
    missing. A detector's ``relative`` is that of its boxes: nearly all scores are nearly zero, so the largest error of
    one says little over their RMS; they are judged by cosine and matched boxes. A figure that is None is not judged.
    With seeded weights only values that are not finite and a cosine below SEEDED_COSINE exclude; the rest warns.
    """
    if not figures["finite"]:
        return "exclude", "outputs hold NaN or infinity"
    if seeded and figures["cosine"] < SEEDED_COSINE:
        return "exclude", f"cosine {figures['cosine']:.4g} to the reference, below {SEEDED_COSINE} (seeded weights)"
    faults = []
    detects = figures["boxes_relative"] is not None
    relative = figures["boxes_relative" if detects else "relative"]
    if (limit := thresholds.get("relative")) is not None and relative > limit:
        what = "largest error of a box" if detects else "largest error"
        faults.append(f"{what} {relative:.3g} of the reference's RMS, above {limit:g}")
    if (limit := thresholds.get("cosine")) is not None and figures["cosine"] < limit:
        faults.append(f"cosine {figures['cosine']:.6g} to the reference, below {limit:g}")
    limit, matched = thresholds.get("matched_pct"), figures["matched_pct"]
    if limit is not None and matched is not None and matched < limit:
        faults.append(f"{matched:.1f} % of boxes matched at IoU {IOU}, below {limit:g} %")
    if not faults:
        return "pass", None
    return ("warn" if seeded else "exclude"), "; ".join(faults)


def refuse_broken(outputs: Arrays, reference: Arrays, batch: int) -> None:
    """Raises StepError where a sample of ``outputs`` [batch, ...] is nothing like the reference's.

    Looser than ``judge``, which an engine has passed: it tells a batch that is computed from one that is not.
    """
    _check(outputs, reference)
    for name, right in reference.items():
        found = outputs[name]
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise StepError(f"output '{name}' at batch {batch} holds NaN or infinity")
        quiet = QUIET_SHARE * float(np.sqrt(np.square(right.astype(np.float64)).mean()))
        for place, (one, other) in enumerate(zip(found, right, strict=True)):
            if float(np.sqrt(np.square(other.astype(np.float64)).mean())) <= quiet:
                continue
            cosine = _errors(one, other)[2]
            if cosine < BROKEN_COSINE:
                raise StepError(
                    f"at batch {batch} output '{name}' of sample {place + 1} is not the model's: cosine {cosine:.3g} "
                    "to the reference; the stack computes this batch wrongly, so its latency means nothing"
                )


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
    """Largest absolute error, the same over the RMS of ``right``, cosine."""
    a, b = (array.ravel().astype(np.float64) for array in (found, right))
    largest = float(np.abs(a - b).max())
    rms = max(float(np.sqrt(np.square(b).mean())), _SMALLEST)
    if largest == 0:  # also where both are zero throughout, which has no direction
        return 0.0, 0.0, 1.0
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return largest, largest / rms, float(a @ b) / lengths if lengths else 0.0


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
