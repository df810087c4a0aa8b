"""How much of its device a rung uses and what its time goes to: rates beside peaks. Pure.

The roofline model (Williams, Waterman & Patterson, Communications of the ACM 52(4), 2009) bounds a program by two
roofs, arithmetic and memory traffic. Arithmetic is counted; traffic without counters of the device is only bounded:

- the least: every weight once a launch, every input and output once, all in the requested precision;
- unfused: what each node of the graph takes and gives, as if caches and fusion kept nothing on the chip.

So the least traffic can show that memory holds a rung back, the unfused traffic that it does not, and in between it is
not known. The unfused traffic of an engine that its builder made narrower is that of the FP32 file: the audit tells the
precision of its layers, not their sizes. Shares of peaks are taken in the throughput pass, in which launches do not
wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.audit import RESTS, TARGETS
from ladder.peaks import Datasheet

HALF = 50.0  # %: what takes more than half of the time takes more than everything else together
# Of the datasheet's rate: a product below it shows what PyTorch's code reaches, not what the device can do. On an H200
# fp32, tf32, fp16 and bf16 products reach 65 to 81 %, and int8, which PyTorch leaves to one kernel of cuBLASLt, 47 %.
FAIR_SHARE = 0.6
FLOAT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "int8": 1}
MEASURED, DATASHEET = "measured", "datasheet"
COLUMNS = (
    "achieved_tflops", "peak_compute_pct", "peak_bandwidth_pct", "unfused_bandwidth_pct", "host_share_pct",
    "peak_source", "bound",
)  # fmt: skip

Elements = Mapping[str, Mapping[str, int]]  # ladder.graph's: by what they are, and by type


@dataclass(frozen=True)
class Peaks:
    """The peaks that shares are taken of, and where each comes from."""

    tflops: dict[str, float]
    bandwidth_gb_s: float | None
    sources: dict[str, str]  # by precision, and of "bandwidth"


def choose(measured: Mapping[str, Any] | None, datasheet: Datasheet | None) -> Peaks:
    """The measured peak where there is one, since a rung can reach it; else the datasheet's.

    The datasheet's too where the measured rate is below ``FAIR_SHARE`` of it: a rung would look nearer to the device's
    limit than it is. Its share is a lower bound then.
    """
    tflops: dict[str, float] = dict(datasheet.tflops) if datasheet else {}
    bandwidth = datasheet.bandwidth_gb_s if datasheet else None
    sources = dict.fromkeys([*tflops, *(["bandwidth"] if datasheet else [])], DATASHEET)
    if measured:
        fair = {name: rate for name, rate in measured["tflops"].items() if is_fair(rate, tflops.get(name))}
        tflops |= fair
        bandwidth = measured["bandwidth_gb_s"]
        sources |= dict.fromkeys([*fair, "bandwidth"], MEASURED)
    return Peaks(tflops, bandwidth, sources)


def is_fair(measured: float, datasheet: float | None) -> bool:
    """Whether a measured rate may stand for what the device can do; without a datasheet there is nothing better."""
    return datasheet is None or measured >= FAIR_SHARE * datasheet


def precisions(requested: str, share_pct: float | None) -> dict[str, float]:
    """Which part of the FLOPs runs in which precision: ``share_pct`` of them in the one requested, the rest above it.

    Where the audit does not know the share (None), all: the highest rate there may be, so a share of it is a lower
    bound.
    """
    rest = RESTS.get(requested, ("fp32",))[0]
    at = 1.0 if share_pct is None else share_pct / 100
    parts = {rest: 1 - at}
    parts[TARGETS.get(requested, requested)] = parts.get(TARGETS.get(requested, requested), 0.0) + at
    return {precision: part for precision, part in parts.items() if part > 0}


def peak_tflops(peaks: Mapping[str, float], parts: Mapping[str, float]) -> float | None:
    """The rate of a mixture at full speed: its parts' times add up. None where the peak of one is not known."""
    if any(not peaks.get(precision) for precision in parts):
        return None
    return 1 / sum(part / peaks[precision] for precision, part in parts.items())


def least_bytes(elements: Elements, requested: str, batch: int) -> float:
    """The least that a launch reads and writes: weights once, inputs and outputs once, in the requested precision."""
    weights, ends = (_bytes(elements[what], requested) for what in ("weights", "inputs_outputs"))
    return weights + batch * ends


def unfused_bytes(elements: Elements, batch: int, requested: str | None = None) -> float:
    """What a launch reads and writes where each node goes to memory: in the types of the file.

    With ``requested`` floats are as wide as that: a module is converted as a whole, and has no file of its own.
    """
    weights, activations = (_bytes(elements[what], requested) for what in ("weights", "activations"))
    return weights + batch * activations


def _bytes(elements: Mapping[str, int], requested: str | None) -> float:
    widest = FLOAT_BYTES[TARGETS.get(requested, requested)] if requested else 8
    return sum(
        count * (min(FLOAT_BYTES[kind], widest) if kind in FLOAT_BYTES else np.dtype(kind).itemsize)
        for kind, count in elements.items()
    )


def columns(
    run: Mapping[str, Any], graph: Mapping[str, Any] | None, is_module: bool, share_pct: float | None, peaks: Peaks
) -> dict[str, Any]:
    """COLUMNS for a row of results.csv; None for whatever follows from something that is not known.

    ``graph`` is what ``ladder.graph`` wrote of the ONNX file that the rung computes, the FP32 one for a module;
    ``share_pct`` the share of its FLOPs that the audit saw in the requested precision.
    """
    requested, batch = run["precision"], run["batch"]
    launches = run["throughput_ips"] / batch if run["throughput_ips"] else None  # a second
    parts = precisions(requested, share_pct)
    achieved = compute = least = unfused = None
    if graph and graph["flops"]["total"] and launches:
        achieved = graph["flops"]["total"] * batch * launches / 1e12
        peak = peak_tflops(peaks.tflops, parts)
        compute = 100 * achieved / peak if peak else None
    if graph and graph["elements"] and launches and peaks.bandwidth_gb_s:
        per_byte = 100 * launches / (peaks.bandwidth_gb_s * 1e9)
        least = least_bytes(graph["elements"], requested, batch) * per_byte
        unfused = unfused_bytes(graph["elements"], batch, requested if is_module else None) * per_byte
    on_cpu = run["device"] == "cpu"
    host = None if on_cpu else host_share_pct(run["median_ms"], run["device_busy_ms"])
    used = [*(parts if compute is not None else ()), *(["bandwidth"] if least is not None else ())]
    return {
        "achieved_tflops": achieved,
        "peak_compute_pct": compute,
        "peak_bandwidth_pct": least,
        "unfused_bandwidth_pct": unfused,
        "host_share_pct": host,
        "peak_source": " and ".join(sorted({peaks.sources[each] for each in used}, reverse=True)) or None,
        "bound": bound(compute, least, unfused, host, on_cpu),
    }


def host_share_pct(median_ms: float, device_busy_ms: float | None) -> float | None:
    """Share of a launch's latency in which the device has nothing to do; below 0 where its own clock says more."""
    return None if device_busy_ms is None else 100 * (1 - device_busy_ms / median_ms)


def bound(
    compute: float | None, least: float | None, unfused: float | None, host: float | None, on_cpu: bool
) -> str | None:
    """What takes more than half of the time, by the shares in %.

    ``host``: the device waits for it. ``compute``, ``bandwidth``: the arithmetic, or the least traffic, at its peak.
    ``other``: none of these, even if all traffic went to memory: kernels too small to fill the device, or slow ones.
    ``unclear``: a share that could decide is not known, or only the unfused traffic would take so long. None: nothing
    is known.
    """
    if compute is None and least is None and host is None:
        return None
    if host is not None and host > HALF:
        return "host"
    reached = {name: share for name, share in (("compute", compute), ("bandwidth", least)) if share and share > HALF}
    if reached:
        return max(reached, key=lambda name: reached[name])
    known = compute is not None and unfused is not None and (on_cpu or host is not None)
    return "other" if known and unfused is not None and unfused <= HALF else "unclear"
