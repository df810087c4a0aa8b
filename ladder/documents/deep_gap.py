"""DEEP-GAP's two files: benchmark_results_final.csv and gpu_telemetry_full_run.csv.

Columns and how each is computed: github.com/kpalania1/deep-gap-gpu-inference-benchmark, arXiv 2604.14552.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ladder.documents.runs import Round, Row, Run

COLUMNS = (
    "timestamp_utc", "device", "sweep_id", "repeat_id", "model", "batch_size", "threads", "iters", "warmup_iters",
    "median_ms", "mean_ms", "std_latency_ms", "p99_latency_ms", "throughput_ips",
    "hostname", "os", "kernel", "arch", "cpu_model", "cpu_sockets", "cpu_cores_per_socket", "cpu_threads_per_core",
    "cpu_logical_cpus", "mem_total_mb", "python_version", "torch_version", "cuda_available", "torchvision_version",
    "gpu_peak_mem_mb",
)  # fmt: skip
TELEMETRY_COLUMNS = (
    "timestamp", "index", "name", "temperature.gpu", "power.draw", "pstate", "clocks.sm", "clocks.mem",
    "utilization.gpu", "utilization.memory", "memory.used",
)  # fmt: skip


def rows(round: Round) -> list[dict[str, Any]]:
    """Rows of benchmark_results_final.csv, one a repeat. Times are ms, memory MiB, as in the document.

    The clock is the device's, between events around each launch; of a CPU the host's, as there. A run on a GPU without
    that clock leaves its columns empty. ``std_latency_ms`` has n in its denominator and ``p99_latency_ms`` is
    interpolated however few launches there are, as there.
    """
    host, found = round.host_state, []
    for run in round.runs:
        row = run.row
        shared = {
            "timestamp_utc": row["started_at"].removesuffix("+00:00"),
            "device": row["device"],
            "sweep_id": row["round"],
            "model": f"{row['model']}_{row['rung']}",
            "batch_size": row["batch"],
            "threads": row["threads"],
            "warmup_iters": row["warmup"],
            "hostname": row["host"],
            "os": host["os"],
            "kernel": host["kernel"],
            "arch": host["machine"],
            "cpu_model": host["processor"],
            "cpu_sockets": host["sockets"],
            "cpu_cores_per_socket": host["cores_per_socket"],
            "cpu_threads_per_core": host["threads_per_core"],
            "cpu_logical_cpus": host["logical_cpus"],
            "mem_total_mb": _mib(host["memory_mb"], 0),
            "python_version": run.identity.get("python"),
            "torch_version": run.identity.get("torch") or run.exporters.get("torch"),
            "cuda_available": host["gpu"] is not None if "gpu" in host else None,
            "torchvision_version": run.exporters.get("torchvision"),
            "gpu_peak_mem_mb": _peak_memory(round.samples, row["rung"]),
        }
        for repeat, launches_ms in enumerate(_launches_ms(run), 1):
            found.append(shared | {"repeat_id": repeat} | _figures(launches_ms, int(row["batch"])))
    return found


def telemetry(round: Round) -> list[dict[str, Any]]:
    """Rows of gpu_telemetry_full_run.csv, one a sample: nvidia-smi's fields in its units (°C, W, MHz, %, MiB), UTC."""
    state = round.host_state.get("gpu_state") or {}
    return [
        {
            "timestamp": _moment(sample["unix_ns"]),
            "index": state.get("index"),
            "name": (round.host_state.get("gpu") or {}).get("name"),
            "temperature.gpu": sample["temperature_c"],
            "power.draw": sample["power_w"],
            "pstate": sample["performance_state"],
            "clocks.sm": sample["sm_clock_mhz"],
            "clocks.mem": sample["memory_clock_mhz"],
            "utilization.gpu": sample["gpu_pct"],
            "utilization.memory": sample["memory_pct"],
            "memory.used": _mib(sample["memory_used_mb"], 0),
        }
        for sample in sorted(round.samples, key=lambda sample: sample["unix_ns"])
    ]


def _launches_ms(run: Run) -> Sequence[Sequence[float] | np.ndarray]:
    if run.row["device"] == "cpu":
        return run.latencies_ms
    return [repeat.get("device_span_ms", ()) for repeat in run.device_ms]


def _figures(launches_ms: Sequence[float] | np.ndarray, batch: int) -> dict[str, float | int]:
    if not len(launches_ms):
        return {}
    median_ms = float(np.median(launches_ms))
    return {
        "iters": len(launches_ms),
        "median_ms": median_ms,
        "mean_ms": float(np.mean(launches_ms)),
        "std_latency_ms": float(np.std(launches_ms)),
        "p99_latency_ms": float(np.percentile(launches_ms, 99)),
        "throughput_ips": 1000 * batch / median_ms,
    }


def _peak_memory(samples: Sequence[Row], rung: str) -> float | None:
    """Of the whole device while the rung's process was watched, MiB."""
    used = [s["memory_used_mb"] for s in samples if s["rung"] == rung and s["memory_used_mb"] is not None]
    return _mib(max(used), 1) if used else None


def _mib(mb: float | None, digits: int) -> float | None:
    """MB (10^6 bytes) as MiB (2^20 bytes), which both of its files call MB."""
    return None if mb is None else round(mb * 1e6 / 2**20, digits or None)


def _moment(unix_ns: int) -> str:
    """As nvidia-smi writes it, e.g. ``2026/11/30 10:15:00.123``."""
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
