"""A made-up run of the pipeline for the tests of tables and report: no number in it was measured."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ladder import tables
from ladder.files import read_json, sha256, write_json
from ladder.records import RECORDED

# rung -> (factors that differ from CPU defaults, invented ms per launch, invented ms per image)
CPU_RUNGS = {
    "pytorch-fp32": ({"api": "pytorch", "compiler": "none"}, 30.0, 80.0),
    "onnxruntime-fp32": ({"api": "onnxruntime", "compiler": "onnxruntime"}, 4.0, 60.0),
    "onnxruntime-int8": ({"api": "onnxruntime", "compiler": "onnxruntime", "precision": "int8"}, 5.0, 41.0),
    "openvino-fp32": ({"api": "openvino", "compiler": "openvino"}, 6.0, 62.0),
    "openvino-int8": ({"api": "openvino", "compiler": "openvino", "precision": "int8"}, 6.3, 61.5),
}
GPU_RUNGS = {
    "eager": ({"device": "cuda", "api": "pytorch", "compiler": "none"}, 4.5, 0.35),
    "graph": ({"device": "cuda", "api": "pytorch", "compiler": "none", "launch": "graph"}, 0.9, 0.34),
    "tensorrt": ({"device": "cuda", "api": "tensorrt", "compiler": "tensorrt"}, 0.8, 0.2),
    "tensorrt-graph": ({"device": "cuda", "api": "tensorrt", "compiler": "tensorrt", "launch": "graph"}, 0.35, 0.2),
}


def _steps(*steps: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"from": a, "to": b, "cause": cause} for a, b, cause in steps]


def _rungs(model: str, rungs: dict[str, Any], batches: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "engines": dict.fromkeys(batches, name),
            "precision": factors.get("precision", "fp32"),
            "source": "module" if factors["api"] == "pytorch" else "onnx",
            "graph": f"artifacts/{model}/{factors.get('precision', 'fp32')}.graph.json",
        }
        for name, (factors, _, _) in rungs.items()
    ]


SETTINGS = "12" * 32  # what a round of any batch was asked, as a digest

CPU_LADDER = {
    "platform": "synthetic-cpu",
    "ladder": "cpu",
    "model": "yolo11n",
    "batches": [1, 2, 4, 8],
    "rounds": 8,
    "settings": {str(batch): SETTINGS for batch in range(1, 101)},
    "peaks": "artifacts/synthetic-cpu/peaks.json",
    "rungs": _rungs("yolo11n", CPU_RUNGS, ("1", "2", "4", "8")),
    "steps": _steps(
        ("pytorch-fp32", "onnxruntime-fp32", "compilation"),
        ("onnxruntime-fp32", "onnxruntime-int8", "precision"),
        ("pytorch-fp32", "openvino-fp32", "compilation"),
        ("openvino-fp32", "openvino-int8", "precision"),
    ),
}
SMALL = CPU_LADDER | {"batches": [1, 4]}  # of 8 rounds
GPU_LADDER = {
    "platform": "synthetic-gpu",
    "ladder": "orders",
    "model": "resnet18",
    "batches": [1, 8],
    "rounds": 8,
    "settings": {str(batch): SETTINGS for batch in range(1, 101)},
    "peaks": "artifacts/synthetic-gpu/peaks.json",
    "rungs": _rungs("resnet18", GPU_RUNGS, ("1", "8")),
    "steps": _steps(
        ("eager", "graph", "launch"),
        ("graph", "tensorrt-graph", "compilation"),
        ("eager", "tensorrt", "compilation"),
        ("tensorrt", "tensorrt-graph", "launch"),
    ),
}
RUNGS = {"cpu": CPU_RUNGS, "orders": GPU_RUNGS}
WEIGHTS = {"yolo11n": "seeded(0)", "resnet18": "pretrained sha256:f37072fd"}


def write_run(folder: Path, ladders: list[dict[str, Any]], iterations: int = 30) -> tuple[dict[str, Any], list[Path]]:
    """Write every round of the ladders under ``folder``, and artifacts beside it; return the plan and the rounds."""
    for ladder in ladders:
        _write_artifacts(folder.parent, ladder)
    paths = [
        write_round(folder, ladder, batch, number, iterations)
        for ladder in ladders
        for batch in ladder["batches"]
        for number in range(1, ladder["rounds"] + 1)
    ]
    return {"ladders": ladders}, paths


PEAKS = {
    "cpu": {"device": "Synthetic CPU @ 2.00GHz", "tflops": {"fp32": 0.125}, "missing": {"int8": "a plain loop"}},
    "cuda": {"device": "Synthetic GPU", "tflops": {"fp32": 40.0, "fp16": 600.0}, "missing": {}},
}


def _write_artifacts(folder: Path, ladder: dict[str, Any]) -> None:
    """What an ONNX file says of 8 GFLOPs and 20 MB of FP32 weights, and measured peaks."""
    for graph in {rung["graph"] for rung in ladder["rungs"]}:
        elements = {"weights": {"fp32": 5_000_000}, "inputs_outputs": {"fp32": 2_000_000}}
        elements |= {"activations": {"fp32": 100_000_000, "int64": 700}}
        write_json(folder / graph, {"precision": "fp32", "flops": {"total": 8_000_000_000}, "elements": elements})
    device = "cuda" if "gpu" in ladder["platform"] else "cpu"
    further = {"torch": "2.99.0", "threads": 2, "sizes": {"fp32": 2048}, "copy_bytes": 2**29, "load_before": 0.1}
    bandwidth = {"cpu": 20.0, "cuda": 4000.0}[device]
    write_json(folder / ladder["peaks"], {"status": "ok", **PEAKS[device], "bandwidth_gb_s": bandwidth, **further})


def write_round(
    folder: Path, ladder: dict[str, Any], batch: int, number: int, iterations: int, failed: dict[str, str] | None = None
) -> Path:
    """Write one round; ``failed`` maps rungs without result to their stage."""
    rng = np.random.default_rng([batch, number, len(ladder["ladder"])])
    place = f"{ladder['platform']}/rounds/{ladder['model']}/{ladder['ladder']}/b{batch}/{number}"
    path = folder / f"{place}.json"
    rungs = [rung["name"] for rung in ladder["rungs"]]
    rows, failures, parts, details = [], [], [], {}
    drift = rng.lognormal(0, 0.04)  # what all rungs of a round share
    for position, name in enumerate(rng.permutation(rungs).tolist()):
        if failed and name in failed:
            why = {"stage": failed[name], "permanent": False, "reason": f"{failed[name]} broke", "log": "logs/x.log"}
            about = {key: ladder[key] for key in ("platform", "model", "ladder")}
            failures.append(about | {"rung": name, "batch": batch, "round": number} | why)
            continue
        factors, launch_ms, image_ms = RUNGS[ladder["ladder"]][name]
        center = drift * rng.lognormal(0, 0.01) * (launch_ms + image_ms * batch * (1 + 0.02 * batch))
        latencies = center * rng.lognormal(0, 0.02, iterations) * np.where(rng.random(iterations) < 0.01, 2.2, 1)
        if number == 1:
            latencies *= 1 + 0.3 * np.exp(-np.arange(iterations) / 4)  # warm-up residue
        ns = (latencies * 1e6).astype(np.int64)
        parts.append((name, ns))
        rows.append(_row(ladder, name, factors, batch, number, position, ns, f"{folder.name}/{place}.parquet"))
        details[name] = _detail(factors)
    write_raw(path.with_suffix(".parquet"), parts)
    write_json(
        path,
        {
            "key": "synthetic",
            "settings": SETTINGS,
            "raw_sha256": sha256(path.with_suffix(".parquet")),
            "rows": rows,
            "failures": failures,
            "details": details,
            "host_state": _host_state(ladder["platform"]),
            "warnings": [f"other programs kept {number / 5:.1f} CPUs busy before the round: latencies may be unsteady"]
            if number % 3 == 0
            else [],
        },
    )
    return path


def write_raw(path: Path, parts: list[tuple[str, np.ndarray]]) -> None:
    names = [name for name, ns in parts for _ in ns]
    table = pa.table(
        {
            "rung": pa.array(names, pa.string()).dictionary_encode(),
            "repeat": pa.array(np.zeros(len(names), np.int16)),
            "iteration": pa.array(np.concatenate([np.arange(len(ns)) for _, ns in parts] or [[]]).astype(np.int32)),
            "latency_ns": pa.array(np.concatenate([ns for _, ns in parts] or [[]]).astype(np.int64)),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _row(
    ladder: dict[str, Any],
    rung: str,
    factors: dict[str, str],
    batch: int,
    number: int,
    position: int,
    ns: np.ndarray,
    raw: str,
) -> dict[str, Any]:
    defaults = {"device": "cpu", "precision": "fp32", "launch": "eager", "shape": "dynamic", "transfers": "excluded"}
    row = dict.fromkeys(RECORDED)
    return row | {
        **{key: ladder[key] for key in ("platform", "model", "ladder")},
        "host": "synthetic",
        "device_uuid": f"{ladder['platform']}-0",
        "weights": WEIGHTS[ladder["model"]],
        "rung": rung,
        "stack": f"{factors['api']}-{factors.get('device', 'cpu')}",
        **defaults,
        **factors,
        "threads": 2,
        "options": json.dumps({}),
        "batch": batch,
        "round": number,
        "position": position,
        "sitting": "20300101T000000-1",
        "started_at": f"2030-01-01T{number:02d}:{position:02d}:00.000+00:00",
        "warmup": 3,
        "iterations": len(ns),
        "stopped_by": "time",
        "device_busy_ms": float(ns.min() / 1e6 * (0.97 if "launch" in factors else 0.3))
        if "device" in factors
        else None,
        "throughput_ips": float(batch / np.mean(ns) * 1e9 * 1.04),
        "process_mem_mb": 410.5,
        "load_before": 0.4,
        "parent_cpu_pct": 0.2,
        "fp32_onnx_sha256": "ab" * 32,
        "artifact_sha256": "cd" * 32,
        "raw": raw,
    }


def _detail(factors: dict[str, str]) -> dict[str, Any]:
    versions = {
        "pytorch": {"torch": "2.99.0+cu199", "torch_git": "5c48" * 10, "mkldnn": f"v3.99.0 (Git Hash {'80af' * 10})"},
        "onnxruntime": {"onnxruntime": "1.99.0", "onnxruntime_build": "ORT Build Info: git-branch=HEAD, fp8=1"},
        "openvino": {"openvino": "2099.1.0-22982-e213a147257-releases/2099/1"},
    }
    identity = versions.get(factors["api"], {"tensorrt": "10.99.0"})
    facts = {"threads": 2, "provider": factors["api"], "tf32": {"matmul": False}}
    device_ms = [{"device_span_ms": [1.5, 1.25, 2.0]}] if "device" in factors else [{}]
    return {"identity": identity | {"python": "3.99.0"}, "facts": facts, "device_ms": device_ms}


def _host_state(platform: str) -> dict[str, Any]:
    state: dict[str, Any] = {
        "machine": "x86_64",
        "processor": "Synthetic CPU @ 2.00GHz",
        "physical_cores": 2,
        "logical_cpus": 4,
        "sockets": 1,
        "cores_per_socket": 2,
        "threads_per_core": 2,
        "kernel": "6.99.0",
        "os": "Synthetic Linux",
        "governor": None,
        "cpu_quota": None,
        "on_battery": False,
        "memory_mb": 16000.0,
    }
    if "gpu" in platform:
        state["gpu"] = {"name": "Synthetic GPU", "compute_capability": "9.0", "driver": "599.01"}
        state["gpu_state"] = {"index": 0}
    return state


TYPES = ("Conv", "Mul", "Sigmoid", "Concat", "Add", "Reshape", "Split", "Resize", "MaxPool", "Transpose", "Softmax")


def write_audits(folder: Path, ladder: dict[str, Any]) -> list[Path]:
    """One audit for each rung's engine; torch tells no time a node, and ONNX Runtime's INT8 hardly runs in INT8."""
    paths = []
    for name, (factors, _, image_ms) in RUNGS[ladder["ladder"]].items():
        rng = np.random.default_rng(len(name))
        low = factors.get("precision", "fp32")
        nodes = []
        for index in range(240):
            kind = TYPES[int(rng.exponential(2.5)) % len(TYPES)]
            precision = low if kind in ("Conv", "Add", "Concat") else "fp32"
            if kind == "Reshape":
                precision = "int64"
            if factors["api"] == "pytorch" and kind == "Split":
                precision = None
            time = None if factors["api"] == "pytorch" else float(rng.exponential(image_ms / 240))
            nodes.append(
                {"name": f"n{index}", "type": kind, "precision": precision, "provider": "CPU", "time_ms": time}
            )
        at = sum(node["precision"] == low for node in nodes)
        row = dict.fromkeys(tables.AUDIT) | {
            **{key: ladder[key] for key in ("platform", "model")},
            "weights": WEIGHTS[ladder["model"]],
            "engine": name,
            "stack": factors["api"],
            "requested_precision": low,
            "verdict": "warn" if name == "onnxruntime-int8" else "pass",
            "reason": "requested int8, but only 0.3 % of the FLOPs run in it" if name == "onnxruntime-int8" else None,
            "flops_at_precision_pct": {"onnxruntime-int8": 0.31, "openvino-int8": 76.96}.get(name),
            "nodes": len(nodes),
            "nodes_at_precision": at,
            "nodes_at_precision_pct": 100 * at / len(nodes),
            "nodes_unknown": sum(node["precision"] is None for node in nodes),
            "precisions": {"fp32": 100, low: at},
            "providers": {"CPU": 240},
            "parity_finite": True,
            "parity_max_abs": 0.0123456,
            "parity_relative": 1.5e-5,
            "parity_cosine": 0.99999,
            "parity_matched_pct": 92.1 if low == "int8" else 100.0,
            "fp32_onnx_sha256": "ab" * 32,
        }
        path = folder / ladder["platform"] / "audit" / ladder["model"] / f"{name}.json"
        write_json(path, {"row": row, "nodes": nodes})
        keeps = {"stage": "audit", "permanent": False, "reason": None, "log": None}
        write_json(path.with_suffix(".pass.json"), {"status": "ok", "verdict": row["verdict"], **keeps})
        paths.append(path)
    return paths


def small_run(root: Path) -> tuple[Path, dict[str, Any], list[Path], list[Path]]:
    """A whole run of SMALL below ``root``: that, its plan, rounds and audits."""
    plan, rounds = write_run(root / "results", [SMALL])
    return root, plan, rounds, write_audits(root / "results", SMALL)


def copy_of(run: tuple[Path, dict[str, Any], list[Path], list[Path]], destination: Path) -> tuple[Any, ...]:
    """A copy of a run that a test may change: plan, rounds, audits and where the tables go."""
    root, plan, rounds, audits = run
    shutil.copytree(root, destination, dirs_exist_ok=True)
    moved = [[destination / path.relative_to(root) for path in paths] for paths in (rounds, audits)]
    return plan, *moved, destination / "tables"


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / name, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def change(path: Path, **keys) -> None:
    write_json(path, read_json(path) | keys)
