"""The job that measures: every rung of a ladder once, back to back, on a host held alone.

Each rung runs in a fresh process of its own environment, in a seeded random order, so that both sides
of a step were measured seconds apart on the same device and drift cancels in the pairing.
"""

from __future__ import annotations

import json
import os
import platform
import random
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ladder import dependencies, devices, fingerprint, out_of_memory, preflight, process, telemetry
from ladder.errors import StepError
from ladder.files import digest, read_json, replacing, sha256, write_json
from ladder.round_files import finished, set_aside, taken_back, try_again
from ladder.step import id_path_of
from ladder.telemetry import raw as telemetry_raw
from ladder.telemetry import sampler, summary
from ladder.telemetry.base import Reader, Sample, counter_period_s

_NO_LATENCIES = np.empty((0, 2), np.int64)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Run:
    """What one rung's process left behind, and what was seen of it from outside."""

    result: dict[str, Any]
    latencies_ns: np.ndarray  # [iterations, 2]: repeat, ns
    columns: dict[str, Any]  # of results.csv
    samples: list[Sample]
    warnings: list[str]


def order(rungs: list[str], *place: Any) -> list[str]:
    """The rungs in the random order of one round: the same for the same ``place``, seed and what names the round."""
    shuffled = sorted(rungs)
    random.Random("/".join(map(str, place))).shuffle(shuffled)
    return shuffled


def measure_round(
    spec: dict[str, Any],
    output: Path,
    raw: Path,
    log: Path,
    declared: Path | None = None,
    gpus: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure one round and write its record and its raw latencies; return the record.

    A finished round whose key (everything it depends on, by content) is the same is kept as it is. One with another key
    is set aside under its key, and taken back when the configuration that it was measured for comes back. What was
    seen of a GPU meanwhile stands beside the latencies (``ladder.telemetry.raw``). Where this host is not like the one
    that ``declared`` tells of, nothing is measured. ``gpus``: those that the round may run on, best first, by number or
    UUID; none: the first that this process sees (``ladder.devices``). ``say`` is given a line for each run that ended.
    """
    upstream = {rung["rung"]["name"]: _upstream(rung) for rung in spec["rungs"]}
    # why a rung could not be had may be told differently each time; that it could not is what matters
    inputs = read_json(id_path_of(Path(spec["inputs"])))
    told = {name: u if u["failed"] is None else "failed" for name, u in upstream.items()}
    key = digest([spec, inputs.get("sha256"), told])
    kept = finished(output, raw, key)
    if kept is not None:
        return {**kept, "kept": True}
    set_aside(output, raw)
    if (kept := taken_back(output, raw, key)) is not None:
        return {**kept, "kept": True}
    unusable = fingerprint.difference(declared)
    sitting = os.environ.get("LADDER_SITTING", "by hand")
    ran_out = out_of_memory.Seen(output.parents[1], sitting)
    device = spec["device"]
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    tables: list[pa.Table] = []
    samples: dict[str, list[Sample]] = {}
    details: dict[str, Any] = {}
    by_name = {rung["rung"]["name"]: rung for rung in spec["rungs"]}
    waiting = "waiting: another round or workflow of this host is measuring or building"
    log.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as holding, open(log, "w", encoding="utf-8") as log_stream:
        alone, gpu = spec["exclusive_host"], None
        try:
            gpu = holding.enter_context(
                devices.held(device, gpus, output.parents[1], exclusive_host=alone, waiting=waiting)
            )
        except StepError as error:
            unusable = unusable or str(error)
        if (kept := finished(output, raw, key)) is not None:  # by a job of a killed call, which was waited for
            return {**kept, "kept": True}
        if unusable:
            for rung in upstream.values():
                rung["failed"] = rung["failed"] or {"stage": "run", "permanent": False, "reason": unusable}
        host = {**preflight.host_state(device, gpu), "exclusive_host": alone}
        threads = max(rung["rung"]["threads"] for rung in spec["rungs"])
        warnings = preflight.warnings(host, preflight.busy_cpus(), threads)
        place = (spec["seed"], spec["model"]["name"], spec["ladder"], spec["batch"], spec["round"])
        for position, name in enumerate(order(list(by_name), *place)):
            rung = by_name[name]
            if (failed := upstream[name]["failed"]) is not None:
                failures.append(_failure(spec, name, failed))
                continue
            if (before := ran_out.below(name, spec["batch"])) is not None:
                reason = (
                    f"not tried after its run at batch {before['batch']} in this sitting failed with "
                    f'"{before["reason"]}"; another call tries again'
                )
                failures.append(_failure(spec, name, {"stage": "run", "permanent": False, "reason": reason}))
                continue
            run = _run(spec, rung, gpu, log_stream)
            result = run.result
            samples[name] = run.samples
            warnings += run.warnings
            if result["status"] != "ok":
                if out_of_memory.is_told_by(result["reason"]):
                    ran_out.note(name, spec["batch"], result["reason"])
                failures.append(_failure(spec, name, {"stage": "run", "log": str(log), **result}))
                say(f"{name}: no result: {result['reason']}")
                continue
            rows.append(
                {
                    "platform": spec["platform"],
                    "host": platform.node(),
                    "device_uuid": gpu or fingerprint.device_uuid(device),
                    "model": spec["model"]["name"],
                    "weights": upstream[name]["weights"],
                    "ladder": spec["ladder"],
                    "rung": name,
                    **{k: v for k, v in rung["rung"].items() if k != "name"},
                    "options": json.dumps(rung["rung"]["options"], sort_keys=True),
                    "batch": spec["batch"],
                    "round": spec["round"],
                    "position": position,
                    "sitting": sitting,
                    **result["row"],
                    **run.columns,
                    "fp32_onnx_sha256": upstream[name]["fp32_onnx_sha256"],
                    "artifact_sha256": _artifact_sha256(rung, upstream[name]),
                    "raw": str(raw),
                }
            )
            details[name] = {key: result[key] for key in ("facts", "identity", "phases", "device_ms")}
            tables.append(_table(name, run.latencies_ns))
            say(f"{name}: {np.median(run.latencies_ns[:, 1]) / 1e6:.4g} ms, median of {len(run.latencies_ns)} launches")
        with replacing(raw) as temporary:
            pq.write_table(pa.concat_tables(tables) if tables else _table("", _NO_LATENCIES), temporary)
        telemetry_raw.write(raw, samples)
        record = {
            "key": key,
            "settings": spec["settings"],
            "raw_sha256": sha256(raw),
            "rows": rows,
            "failures": failures,
            "details": details,
            "host_state": host,
            "warnings": warnings,
        }
        if any(not failure["permanent"] and failure["stage"] == "run" for failure in failures):
            try_again(output, sitting)
        write_json(output, record)
    return {**record, "kept": False}


def _upstream(rung: dict[str, Any]) -> dict[str, Any]:
    """What a rung's artifacts say of themselves, and why it cannot run, if it cannot."""
    export, engine, verdict = (read_json(Path(rung[k])) for k in ("export_id", "engine_id", "pass"))
    failed = None
    if verdict["status"] != "ok" or verdict["verdict"] == "exclude":
        failed = {k: verdict[k] for k in ("stage", "reason", "permanent", "log")}
    return {
        "failed": failed,
        "verdict": verdict,
        "engine": engine,
        "weights": export.get("weights"),
        "weights_sha256": export.get("weights_sha256"),
        "fp32_onnx_sha256": export.get("sha256"),
    }


def _artifact_sha256(rung: dict[str, Any], upstream: dict[str, Any]) -> str | None:
    """Hash of what the rung ran from: its engine, else its ONNX file, else the weights of its module."""
    built = read_json(Path(rung["build"]))["sha256"]
    return built or upstream["engine"].get("onnx_sha256") or upstream["weights_sha256"]


def _run(spec: dict[str, Any], rung: dict[str, Any], uuid: str | None, log: Any) -> Run:
    """Start one rung's process on the CPU or the GPU with this UUID, and wait; one that cannot be watched fails it."""
    try:
        gpu = None if spec["device"] == "cpu" else telemetry.open_reader(spec["device"], uuid)
        return _watched_run(spec, rung, gpu, log)
    except StepError as error:
        failed = {"status": "failed", "permanent": error.permanent, "reason": str(error)}
        return Run(failed, _NO_LATENCIES, {}, [], [])


def _watched_run(spec: dict[str, Any], rung: dict[str, Any], gpu: Reader | None, log: Any) -> Run:
    timeout = spec["measure"]["timeout_seconds"]
    with tempfile.TemporaryDirectory(prefix="ladder-run-") as folder:
        spec_file = Path(folder) / "run.json"
        write_json(
            spec_file,
            {
                **{
                    k: rung[k]
                    for k in ("rung", "stack", "engine", "build", "export_id", "onnx", "weights", "weights_id")
                },
                **{k: spec[k] for k in ("model", "batch", "inputs", "reference", "measure", "profile")},
            },
        )
        print(f"--- {rung['rung']['name']}", file=log, flush=True)
        has_energy = spec["measure"]["throughput_seconds"] >= summary.ENERGY_SECONDS
        counter_s = counter_period_s(gpu) if gpu and has_energy else None
        samples_file = Path(folder) / "samples.jsonl"
        warnings = []
        with _sampling(spec, gpu, samples_file, log) as watching:
            cooldown_s = preflight.cool_down(gpu, spec["telemetry"]["cooldown_below_c"]) if gpu else None
            time.sleep(spec["measure"]["pause_seconds"])
            busy = preflight.busy_cpus()
            with _watch_cost(watching) as cost:
                try:
                    code: int | str | None = _run_to_end(
                        [rung["python"], str(dependencies.ROOT / "scripts/run.py"), str(spec_file)],
                        env=_environment(rung["rung"]["threads"], gpu),
                        log=log,
                        timeout=timeout,
                    )
                except OSError as error:
                    code = f"cannot start {rung['python']}: {error.strerror}; see environments in the configuration"
            if watching and watching.poll() is not None:
                ended = f"the GPU's sampler ended (exit status {watching.returncode}) before its run"
                warnings.append(f"{ended}; what it did not see is empty")
        result_file = spec_file.with_suffix(".result.json")
        if result_file.is_file():
            result = read_json(result_file)
        else:
            result = {"status": "failed", "permanent": False, "reason": _death(code, timeout)}
        latencies = spec_file.with_suffix(".latencies.npy")
        values = np.load(latencies) if latencies.is_file() else _NO_LATENCIES
        samples = sampler.read_samples(samples_file) if gpu else []
    columns = {"load_before": busy, **cost, "cooldown_s": cooldown_s, **dict.fromkeys(summary.COLUMNS)}
    if gpu and result["status"] == "ok":
        result["phases"]["counter_period_s"] = counter_s
        period_s, ips = spec["telemetry"]["period_seconds"], result["row"]["throughput_ips"]
        columns |= summary.summarise(samples, result["phases"], ips, period_s)
    return Run(result, values, columns, samples, warnings)


def _sampling(spec: dict[str, Any], gpu: Reader | None, samples: Path, log: Any) -> Any:
    """A context with a sampler of the GPU writing to ``samples``; with nothing where there is none."""
    if gpu is None:
        return nullcontext()
    return sampler.sampling(gpu, spec["device"], spec["telemetry"]["period_seconds"], samples, log)


def _run_to_end(command: list[str], env: dict[str, str], log: Any, timeout: float) -> int | None:
    """Exit status of a run; None where it took longer (s). Nothing that it started goes on beside the next one."""
    run = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0
    )
    try:
        return run.wait() if _ends_within(run, timeout) else None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def _ends_within(run: subprocess.Popen, timeout: float) -> bool:
    """Wait for a process as long as that (s) and say whether it ended.

    ``Popen.wait`` with a timeout looks 20 times a second, which takes 0.2 % of a core beside what is timed; the kernel
    tells by itself.
    """
    try:
        ended = os.pidfd_open(run.pid)
    except (AttributeError, OSError):  # not Linux, or older than 5.3
        with suppress(subprocess.TimeoutExpired):
            run.wait(timeout)
        return run.returncode is not None
    try:
        watching = select.poll()
        watching.register(ended, select.POLLIN)
        return bool(watching.poll(1000 * timeout))
    finally:
        os.close(ended)


def _environment(threads: int, gpu: Reader | None) -> dict[str, str]:
    """The caller's variables but those that tune a runtime, with the rung's threads, and the watched GPU alone."""
    own = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    return process.environment() | own | (gpu.visible() if gpu else {}) | process.as_parent()


@contextmanager
def _watch_cost(watching: subprocess.Popen | None) -> Iterator[dict[str, Any]]:
    """Fill in ``parent_cpu_pct``: CPU time of workflow engine, this process and the sampler, % of one core."""
    cost: dict[str, Any] = {"parent_cpu_pct": None}
    processes = [os.getppid(), os.getpid(), *([watching.pid] if watching else [])]
    before, start = [process.cpu_seconds(pid) for pid in processes], time.monotonic()
    yield cost
    after, seconds = [process.cpu_seconds(pid) for pid in processes], time.monotonic() - start
    used = [b - a for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    if len(used) == len(processes):
        cost["parent_cpu_pct"] = round(100 * sum(used) / seconds, 3)


def _death(code: int | str | None, timeout: float) -> str:
    if isinstance(code, str):
        return code
    if code is None:
        return f"took longer than {timeout:g} s and was stopped; raise measure.timeout_seconds if it is only slow"
    if code == -9:
        return "was killed (signal 9), most often by the system because memory ran out; try a smaller batch"
    return f"died with {'signal ' + str(-code) if code < 0 else 'exit status ' + str(code)}; its log has the details"


def _failure(spec: dict[str, Any], rung: str, why: dict[str, Any]) -> dict[str, Any]:
    return {
        "platform": spec["platform"],
        "model": spec["model"]["name"],
        "ladder": spec["ladder"],
        "rung": rung,
        "batch": spec["batch"],
        "round": spec["round"],
        **{k: why.get(k) for k in ("stage", "permanent", "reason", "log")},
    }


def _table(rung: str, latencies: np.ndarray) -> pa.Table:
    """Latencies [iterations, 2] (repeat, ns) as the rows of the raw file, in arrival order."""
    return pa.table(
        {
            "rung": pa.array([rung] * len(latencies), pa.string()).dictionary_encode(),
            "repeat": pa.array(latencies[:, 0].astype(np.int16)),
            "iteration": pa.array(np.arange(len(latencies), dtype=np.int32)),
            "latency_ns": pa.array(latencies[:, 1]),
        }
    )
