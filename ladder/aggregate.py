"""From the files that rounds and audits left behind to the tables: results, ladder, audit, failures, summary.

Everything here is derived, so every table can be made again without measuring anything. The plan says what was to
be measured; whatever of it has no result stands in failures.csv.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet

from ladder import attribution, statistics, tables, utilisation
from ladder.errors import StepError
from ladder.files import canonical_json, read_json, sha256, write_json, write_text
from ladder.matrix import Round
from ladder.peaks import DATASHEETS, Datasheet
from ladder.report.text import ladder_markdown

SCHEMA_VERSION = 1  # of summary.json; goes up when a key changes its meaning or goes away
DERIVED = (
    "median_ms", "mean_ms", "std_ms", "min_ms", "p90_ms", "p95_ms", "p99_ms", "latency_ips", *utilisation.COLUMNS
)  # fmt: skip
RECORDED = tuple(column for column in tables.RESULTS if column not in DERIVED)
LADDER_KEY = ("platform", "model", "ladder")
SATURATION_SHARE = 0.95  # of the highest median throughput seen
PARENT_CPU_LIMIT_PCT = 1.0  # of a core
BUSY_CPUS = 0.5  # a quiet host reads 0 to 0.05, a single busy program 1
AUDITED = (  # what of a rung's audit stands beside its figures
    "requested_precision", "verdict", "reason",
    "flops_at_precision_pct", "nodes_at_precision_pct", "time_at_precision_pct",
)  # fmt: skip
NUMBER = re.compile(r"\d+(?:\.\d+)?")

Row = dict[str, Any]


def aggregate(plan: Mapping[str, Any], rounds: Iterable[Path], audits: Iterable[Path], destination: Path) -> Row:
    """Write results.csv, ladder.csv, audit.csv, failures.csv, summary.json and ladder.md; return the summary.

    ``plan`` is ``Matrix.plan()``: ``{"ladders": [{"platform", "ladder", "model", "batches": [int], "rounds": int,
    "settings": {batch: digest}, "peaks": file, "rungs": [{"name", "engines": {batch: engine}, "source", "graph":
    file, ..}], "steps": [{"from", "to", "cause"}]}]}``; of the files those that are not there leave the columns empty
    that rest on them. ``rounds`` are the planned rounds' JSON files, each with its Parquet beside it; one that is not
    there, or was measured with other settings than the plan's, is told among the failures and is in no table.
    ``audits`` are the engines' audit files, each with its pass file beside it. Raises StepError for a file that cannot
    be trusted, and then writes nothing.
    """
    every = sorted((_read_round(path) for path in dict.fromkeys(rounds) if path.exists()), key=_place)
    records, others = _by_settings(every, plan["ladders"])
    results, pooled, unsteady = _results(records)
    ladders = [ladder | {"weights": _weights(ladder, results)} for ladder in plan["ladders"]]
    audited = [_read_audit(path) for path in audits]
    peaks = {ladder["platform"]: _read_if_made(ladder["peaks"]) for ladder in ladders}
    failures = [*_failures(ladders, records, others, audited), *_unmeasured(peaks)]
    results = _with_utilisation(results, records, ladders, audited, peaks)
    busy = _busy(results)
    steps = _steps(results, ladders, plan.get("exclude", tables.FLAGS))
    summary = {
        "schema": SCHEMA_VERSION,
        "weights": _known([(ladder["model"], ladder["weights"]) for ladder in ladders]),
        "method": {
            "confidence_pct": 100 * (1 - statistics.ALPHA),
            "power_pct": 100 * statistics.POWER,
            "min_rounds": statistics.MIN_ROUNDS,
        },
        "measured": _span(results),
        "versions": _versions(records),
        "hosts": _hosts(records),
        "rungs": _rungs(records),
        "ladders": _nested(ladders, steps, audited),
        "latency": pooled,
        "throughput": _throughput(results),
        "saturation": _saturation(_throughput(results)),
        "utilisation": _utilisation(results),
        "peaks": _peaks(records, peaks),
        "nodes": [row for audit in audited for row in _nodes(audit)],
        "failures": len(failures),
        "unsteady_runs": unsteady,
        "busy_runs": busy,
        "warnings": _warnings(records, results, unsteady, busy, ladders, audited),
    }
    destination = Path(destination)
    write_table(destination / "results.csv", tables.RESULTS, results)
    write_table(destination / "ladder.csv", tables.LADDER, steps)
    write_table(destination / "audit.csv", tables.AUDIT, [audit["row"] for audit in audited])
    write_table(destination / "failures.csv", tables.FAILURES, failures)
    write_json(destination / "summary.json", summary)
    write_text(destination / "ladder.md", ladder_markdown(summary))
    return summary


def planned_files(plan: Mapping[str, Any]) -> tuple[list[Path], list[Path]]:
    """The records of the planned rounds and the audits of the planned engines, whether they are there or not."""
    rounds = [
        Path(Round(ladder["model"], ladder["ladder"], batch, number, ladder["platform"]).record)
        for ladder in plan["ladders"]
        for batch in ladder["batches"]
        for number in range(1, ladder["rounds"] + 1)
    ]
    engines = {
        (ladder["platform"], ladder["model"], engine)
        for ladder in plan["ladders"]
        for rung in ladder["rungs"]
        for engine in rung["engines"].values()
    }
    audits = [Path(f"results/{platform}/audit/{model}/{engine}.json") for platform, model, engine in sorted(engines)]
    return rounds, audits


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write these columns of rows as CSV: None is empty, true and false in lower case, a dict or list is JSON.

    Raises KeyError where a row lacks a column.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    write_text(path, text.getvalue())


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return canonical_json(value) if isinstance(value, dict | list) else value


def read_latencies(path: Path) -> dict[str, np.ndarray]:
    """Raw latencies of one round by rung: int64 nanoseconds in arrival order. Raises StepError if unreadable."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read(["rung", "iteration", "latency_ns"], use_threads=False)
        rungs = table.column("rung").combine_chunks().dictionary_encode()
        iteration, latency = (table.column(name).to_numpy() for name in ("iteration", "latency_ns"))
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise StepError(f"{path}: cannot read raw latencies ({error}); delete the round's files to repeat it") from None
    codes = rungs.indices.to_numpy()
    order = np.lexsort((iteration, codes))
    bounds = np.searchsorted(codes[order], np.arange(len(rungs.dictionary) + 1))
    parts = np.split(latency[order], bounds[1:-1])
    return dict(zip(rungs.dictionary.to_pylist(), parts, strict=False))


def _read_round(path: Path) -> Row:
    """One round's record and its path. Raises StepError where it is not whole."""
    try:
        record = read_json(path)
        missing = {
            key for key in ("rows", "failures", "details", "host_state", "warnings", "raw_sha256") if key not in record
        }
        missing |= {column for row in record["rows"] for column in RECORDED if column not in row}
        missing |= {column for row in record["failures"] for column in tables.FAILURES if column not in row}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"{path}: not a round's record ({error!r}); delete it to repeat the round") from None
    if missing:
        raise StepError(f"{path}: a round's record without {', '.join(sorted(missing))}; delete it to repeat the round")
    if not record["rows"] and not record["failures"]:
        raise StepError(f"{path}: holds neither results nor failures; delete it to repeat the round")
    return record | {"path": path}


def _by_settings(records: Sequence[Row], ladders: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rounds measured with the plan's settings, and the others: a record that does not tell its own is one."""
    planned = {_key(ladder) for ladder in ladders}
    wanted = {(*_key(ladder), int(batch)): told for ladder in ladders for batch, told in ladder["settings"].items()}
    found: tuple[list[Row], list[Row]] = ([], [])
    for record in records:
        head = _head(record)
        if _key(head) not in planned:
            raise StepError(f"{record['path']}: a round of ladder '{head['ladder']}', which is not in the plan")
        told = record.get("settings")
        found[told is None or told != wanted.get(_key(head, "batch"))].append(record)
    return found


def _head(record: Row) -> Row:
    """Any row of the round: all of them share platform, model, ladder, batch and round."""
    return (record["rows"] or record["failures"])[0]


def _place(record: Row) -> tuple[Any, ...]:
    return tuple(_head(record)[key] for key in (*LADDER_KEY, "batch", "round"))


def _key(row: Mapping[str, Any], *more: str) -> tuple[Any, ...]:
    return tuple(row[key] for key in (*LADDER_KEY, *more))


def _about(row: Mapping[str, Any], *more: str) -> Row:
    return {key: row[key] for key in (*LADDER_KEY, *more)}


def _results(records: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Rows of results.csv; each rung's percentiles pooled over the rounds of a batch; runs that were unsteady.

    ``records`` are sorted by ladder, batch and round. Raw latencies are held for one ladder and batch at a time.
    """
    rows: list[Row] = []
    pooled: list[Row] = []
    unsteady: list[Row] = []
    seen: set[tuple[Any, ...]] = set()
    for _, group in groupby(records, key=lambda record: _place(record)[:-1]):
        raw: dict[str, list[np.ndarray]] = defaultdict(list)
        for record in group:
            latencies = _latencies(record)
            for row in sorted(record["rows"], key=lambda row: row["position"]):
                if (run := _key(row, "batch", "round", "rung")) in seen:
                    raise StepError(f"{record['path']}: a second result of {', '.join(map(str, run))}; list it once")
                seen.add(run)
                ns = latencies.get(row["rung"], np.empty(0))
                if len(ns) != row["iterations"] or not len(ns):
                    raise StepError(
                        f"{record['path']}: rung '{row['rung']}' has {row['iterations']} timed iterations, but the "
                        f"Parquet beside it {len(ns)}; delete the round's files to repeat it"
                    )
                figures = statistics.summarise(ns)
                rows.append({**row, **figures, "latency_ips": 1000 * row["batch"] / figures["median_ms"]})
                raw[row["rung"]].append(ns)
                if why := statistics.instability(ns):
                    unsteady.append(_about(row, "rung", "batch", "round") | {"why": why})
        head = _head(record)
        for rung, runs in raw.items():
            counts = {"rung": rung, "rounds": len(runs), "iterations": sum(map(len, runs))}
            p50 = float(np.median(np.concatenate(runs))) / 1e6
            pooled.append(_about(head, "batch") | counts | {"p50_ms": p50} | statistics.pooled_percentiles(runs))
    return rows, pooled, unsteady


def _latencies(record: Row) -> dict[str, np.ndarray]:
    """A round's raw latencies by rung. Raises StepError where they are not the ones that it was written with."""
    raw = record["path"].with_suffix(".parquet")
    if not record["rows"]:
        return {}
    try:
        found = sha256(raw)
    except OSError as error:
        raise StepError(f"{raw}: cannot read raw latencies ({error}); delete the round's files to repeat it") from None
    if found != record["raw_sha256"]:
        raise StepError(
            f"{raw}: not the raw latencies that were measured (sha256 {found[:12]}, the round's record says "
            f"{str(record['raw_sha256'])[:12]}); delete the round's files to measure it again"
        )
    return read_latencies(raw)


def _busy(results: Sequence[Row]) -> list[Row]:
    """Runs before which other programs kept more than ``BUSY_CPUS`` busy."""
    return [
        _about(row, "rung", "batch", "round") | {"load_before": row["load_before"]}
        for row in results
        if (row["load_before"] or 0) > BUSY_CPUS
    ]


def _weights(ladder: Mapping[str, Any], results: Sequence[Row]) -> str | None:
    """The weights label that the ladder's rounds recorded; None where nothing was measured."""
    found = {row["weights"] for row in results if _key(row) == _key(ladder)}
    if len(found) > 1:
        raise StepError(
            f"the rounds of {', '.join(_key(ladder))} were measured with different weights, "
            f"{', '.join(sorted(found))}; delete the older ones and call again"
        )
    return found.pop() if found else None


def _known(labels: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """The label of each model: of any of its ladders that was measured."""
    found: dict[str, str | None] = {}
    for model, label in labels:
        found[model] = found.get(model) or label
    return found


def _read_audit(path: Path) -> Row:
    """One engine's audit: row of audit.csv, executed nodes, verdict. Raises StepError where it is not whole."""
    try:
        verdict = {"verdict": "failed"} | read_json(path.with_suffix(".pass.json"))
        verdict = {key: verdict[key] for key in ("verdict", "stage", "permanent", "reason", "log")}
        if verdict["verdict"] == "failed" and not path.stat().st_size:  # the audit died and could not say more
            place = {"platform": path.parts[-4], "model": path.parts[-2], "engine": path.stem}
            audit: Row = {"row": place | {"verdict": "failed", "reason": verdict["reason"]}, "nodes": []}
        else:
            audit = read_json(path)
        return {"row": dict.fromkeys(tables.AUDIT) | audit["row"], "nodes": audit["nodes"], "pass": verdict}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"{path}: not an audit ({error!r}); delete it to repeat the audit") from None


def _nodes(audit: Row) -> list[Row]:
    """Executed nodes of one engine counted by type and precision; time_ms is None where any of them has none."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for node in audit["nodes"]:
        found[node["type"], node["precision"] or "unknown"].append(node)
    about = {key: audit["row"][key] for key in ("platform", "model", "engine")}
    rows = []
    for (kind, precision), held in found.items():
        time_ms = _sum([node["time_ms"] for node in held])
        rows.append(about | {"type": kind, "precision": precision, "nodes": len(held), "time_ms": time_ms})
    return rows


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _failures(
    ladders: Sequence[Row], records: Sequence[Row], others: Sequence[Row], audited: Sequence[Row]
) -> list[Row]:
    """One row for every rung, batch or run that gave no result, each with its reason.

    What failed before the run (export, build, audit) holds for all rounds, and is told once, as it stands now: a round
    that has nothing to measure is not repeated only because the reason is another. ``others`` are the rounds measured
    with other settings.
    """
    planned = {_key(ladder): ladder for ladder in ladders}
    rows = [row for ladder in ladders for row in _kept_out(ladder, audited)]
    kept_out = {(*_key(row, "rung"), batch) for row in rows for batch in _batches(row, planned[_key(row)])}
    seen: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        head = _head(record)
        seen[_key(head, "batch")] += 1
        for row in record["failures"]:
            if row["stage"] == "run":
                rows.append(row)
            elif _key(row, "rung", "batch") not in kept_out:
                rows.append(row | {"round": None})
        told = {row["rung"] for row in (*record["rows"], *record["failures"])}
        for rung in planned[_key(head)]["rungs"]:
            if rung["name"] not in told:
                about = _about(head, "batch", "round") | {"rung": rung["name"]}
                rows.append(_unexplained(about, f"{record['path']} does not mention this rung"))
    for record in others:
        about = _about(_head(record), "batch", "round")
        seen[_key(about, "batch")] += 1
        reason = f"{record['path']} was measured with other settings than the configuration's"
        rows.append(_unexplained(about, f"{reason}; `snakemake -R round` measures again"))
    for ladder in ladders:
        for batch in ladder["batches"]:
            about = _about(ladder) | {"batch": batch}
            if (lacking := ladder["rounds"] - seen[_key(about, "batch")]) > 0:
                rows.append(_unexplained(about, f"{lacking} of {ladder['rounds']} planned rounds have no file"))
    unique = {tuple(row[key] for key in tables.FAILURES if key != "log"): row for row in reversed(rows)}
    return list(reversed(unique.values()))


def _kept_out(ladder: Row, audited: Sequence[Row]) -> Iterator[Row]:
    """A row for each rung whose engine was not made or not let through; batch is empty where that holds for all."""
    verdicts = {
        audit["row"]["engine"]: audit["pass"]
        for audit in audited
        if all(audit["row"][key] == ladder[key] for key in ("platform", "model"))
    }
    for rung in ladder["rungs"]:
        failed = {}
        for batch, engine in rung["engines"].items():
            verdict = verdicts.get(engine, {"verdict": None})
            if verdict["verdict"] in ("exclude", "failed"):
                failed[int(batch)] = {key: verdict[key] for key in ("stage", "permanent", "reason", "log")}
        about = dict.fromkeys(tables.FAILURES) | _about(ladder) | {"rung": rung["name"]}
        same = all(why == next(iter(failed.values())) for why in failed.values())
        if failed and same and len(failed) == len(rung["engines"]):
            yield about | next(iter(failed.values()))
        else:
            yield from (about | {"batch": batch} | why for batch, why in failed.items())


def _batches(row: Row, ladder: Row) -> list[int]:
    return ladder["batches"] if row["batch"] is None else [row["batch"]]


def _unexplained(about: Row, reason: str) -> Row:
    return dict.fromkeys(tables.FAILURES) | about | {"stage": "run", "permanent": False, "reason": reason}


def _steps(results: Sequence[Row], ladders: Sequence[Row], exclude: Sequence[str]) -> list[Row]:
    """Rows of ladder.csv as plain values, None where attribution has none."""
    runs = pd.DataFrame(results, columns=list(tables.RESULTS))
    rows = attribution.attribute(runs, ladders, exclude).to_dict("records")
    return [{str(key): None if pd.isna(value) else value for key, value in row.items()} for row in rows]


def _nested(ladders: Sequence[Row], steps: Sequence[Row], audited: Sequence[Row]) -> list[Row]:
    """Ladders by batch, each with its rungs and what their audits found, and its steps, in the plan's order."""
    by_place: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in steps:
        step = {key: value for key, value in row.items() if key not in (*LADDER_KEY, "weights", "batch")}
        by_place[_key(row, "batch")].append(step)
    audits = _audits(audited)

    def rungs(ladder: Row, batch: int) -> Iterator[Row]:
        for rung in ladder["rungs"]:
            engine = _engine(rung, batch)
            audit = audits.get((ladder["platform"], ladder["model"], engine), dict.fromkeys(AUDITED))
            yield {"name": rung["name"], "engine": engine} | {key: audit[key] for key in AUDITED}

    return [
        _about(ladder, "weights")
        | {"batch": batch, "rungs": list(rungs(ladder, batch)), "steps": by_place[(*_key(ladder), batch)]}
        for ladder in ladders
        for batch in ladder["batches"]
    ]


def _audits(audited: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Rows of audit.csv by platform, model and engine."""
    return {tuple(audit["row"][key] for key in ("platform", "model", "engine")): audit["row"] for audit in audited}


def _engine(rung: Row, batch: int) -> str | None:
    """The engine of a planned rung at a batch size; JSON has turned the plan's numbers into text."""
    return {int(number): name for number, name in rung["engines"].items()}.get(batch)


def _read_if_made(path: str | None) -> Row | None:
    """A JSON file that a step may not have made: None where it is not there, or empty since that step failed."""
    return read_json(Path(path)) if path and Path(path).is_file() and Path(path).stat().st_size else None


def _unmeasured(peaks: Mapping[str, Row | None]) -> list[Row]:
    """A row for each platform whose peaks could not be measured."""
    return [
        dict.fromkeys(tables.FAILURES)
        | {"platform": platform}
        | {key: found[key] for key in ("stage", "permanent", "reason", "log")}
        for platform, found in peaks.items()
        if found and found["status"] != "ok" and found["stage"] == "peaks"  # a rung tells of its own environment
    ]


def _device(state: Row) -> str | None:
    """The name that a datasheet goes by."""
    return (state.get("gpu") or {"name": state.get("processor")})["name"]


def _chosen(platform: str, device: str | None, peaks: Mapping[str, Row | None]) -> tuple[Row | None, Datasheet | None]:
    """The measured peaks and the datasheet of a device, None where there are none."""
    found = peaks[platform]
    return (found if found and found["status"] == "ok" else None), DATASHEETS.get(device or "")


def _with_utilisation(
    results: Sequence[Row],
    records: Sequence[Row],
    ladders: Sequence[Row],
    audited: Sequence[Row],
    peaks: Mapping[str, Row | None],
) -> list[Row]:
    """The rows of results.csv with the columns of ``ladder.utilisation``."""
    devices = {_place(record): _device(record["host_state"]) for record in records}
    rungs = {(*_key(ladder), rung["name"]): rung for ladder in ladders for rung in ladder["rungs"]}
    graphs = {rung["graph"]: _read_if_made(rung["graph"]) for rung in rungs.values()}
    audits = _audits(audited)
    rows = []
    for row in results:
        if (rung := rungs.get(_key(row, "rung"))) is None:
            raise StepError(f"the rounds of {', '.join(_key(row))} hold a rung '{row['rung']}' that is not in the plan")
        audit = audits.get((row["platform"], row["model"], _engine(rung, row["batch"])), {})
        chosen = utilisation.choose(*_chosen(row["platform"], devices[_key(row, "batch", "round")], peaks))
        share, is_module = audit.get("flops_at_precision_pct"), rung["source"] == "module"
        rows.append(row | utilisation.columns(row, graphs[rung["graph"]], is_module, share, chosen))
    return rows


def _utilisation(results: Sequence[Row]) -> list[Row]:
    """The utilisation of each rung and batch: medians over its rounds, and what they say of its bound."""
    found = []
    shares = ("peak_compute_pct", "peak_bandwidth_pct", "unfused_bandwidth_pct", "host_share_pct")
    for place, group in groupby(sorted(results, key=_rung_and_batch), _rung_and_batch):
        rows = list(group)
        medians = {column: _median([row[column] for row in rows]) for column in ("achieved_tflops", *shares)}
        compute, least, unfused, host = (medians[share] for share in shares)
        bound = utilisation.bound(compute, least, unfused, host, rows[0]["device"] == "cpu")
        found.append(
            dict(zip((*LADDER_KEY, "rung", "batch"), place, strict=True))
            | {"rounds": len(rows), **medians, "peak_source": rows[0]["peak_source"], "bound": bound}
        )
    return found


def _rung_and_batch(row: Row) -> tuple[Any, ...]:
    return _key(row, "rung", "batch")


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _peaks(records: Sequence[Row], peaks: Mapping[str, Row | None]) -> list[Row]:
    """What is known of the peaks of each platform's device: as measured, and as its datasheet says."""
    devices = {(_head(record)["platform"], _device(record["host_state"])): None for record in records}
    found = []
    for platform, device in devices:
        measured, datasheet = _chosen(platform, device, peaks)
        found.append(
            {
                "platform": platform,
                "device": device,
                "measured": measured and {key: value for key, value in measured.items() if key != "status"},
                "datasheet": datasheet and asdict(datasheet),
            }
        )
    return found


def _throughput(results: Sequence[Row]) -> list[Row]:
    """Images/s of each rung and batch over its rounds."""
    readings: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in results:
        if row["throughput_ips"] is not None:
            readings[_key(row, "rung", "batch")].append(row["throughput_ips"])
    return [
        dict(zip((*LADDER_KEY, "rung", "batch"), place, strict=True))
        | {"rounds": len(ips), "median_ips": float(np.median(ips)), "min_ips": min(ips), "max_ips": max(ips)}
        for place, ips in sorted(readings.items())
    ]


def _saturation(throughput: Sequence[Row]) -> list[Row]:
    """The batch at which each rung saturates: the smallest that reaches 95 % of its highest median throughput.

    Only a larger batch can show that there is no more to gain: where none was measured, ``batch`` is None, not reached.
    """
    points = []
    for place, group in groupby(throughput, key=lambda row: _key(row, "rung")):
        rows = list(group)
        highest = max(row["median_ips"] for row in rows)
        reached = next(row["batch"] for row in rows if row["median_ips"] >= SATURATION_SHARE * highest)
        points.append(
            dict(zip((*LADDER_KEY, "rung"), place, strict=True))
            | {
                "batch": reached if reached < rows[-1]["batch"] else None,
                "highest_ips": highest,
                "largest_batch": rows[-1]["batch"],
            }
        )
    return points


def _span(results: Sequence[Row]) -> Row:
    """When the first and the last run started (None without any), how many runs there were and in how many sittings."""
    started = [row["started_at"] for row in results]
    sittings = {row["sitting"] for row in results}
    ends = {"first": min(started, default=None), "last": max(started, default=None)}
    return ends | {"runs": len(results), "sittings": len(sittings)}


def _versions(records: Sequence[Row]) -> dict[str, Any]:
    """What the rungs' own processes said of their runtimes, by platform and package."""
    states: dict[str, list[Row]] = defaultdict(list)
    for record in records:
        states[_head(record)["platform"]] += [detail["identity"] for detail in record["details"].values()]
    return {platform: _together(held) for platform, held in states.items()}


def _hosts(records: Sequence[Row]) -> list[Row]:
    """The state of each host over the rounds it measured."""
    states: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for record in records:
        for row in record["rows"][:1]:
            states[row["platform"], row["host"], row["device_uuid"]].append(record["host_state"])
    return [
        dict(zip(("platform", "host", "device_uuid"), key, strict=True))
        | {"rounds": len(held), "state": _together(held)}
        for key, held in states.items()
    ]


def _rungs(records: Sequence[Row]) -> list[Row]:
    """What each rung's runtime said of itself when it was opened: versions, and settings read back."""
    details: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for record in records:
        for rung, detail in record["details"].items():
            details[*_key(_head(record)), rung].append(detail)
    return [
        dict(zip((*LADDER_KEY, "rung"), key, strict=True))
        | {part: _together([detail[part] for detail in held]) for part in ("identity", "facts")}
        for key, held in details.items()
    ]


def _together(states: Sequence[Row]) -> Row:
    """Readings of the same things, by dotted name: one value where all agree, else a range or all values."""
    seen: dict[str, dict[str, Any]] = defaultdict(dict)
    for state in states:
        for key, value in _flat(state):
            seen[key].setdefault(canonical_json(value), value)
    return {key: _told(list(values.values())) for key, values in seen.items()}


def _flat(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _told(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {"min": min(values), "max": max(values)}
    return values


def _warnings(
    records: Sequence[Row],
    results: Sequence[Row],
    unsteady: Sequence[Row],
    busy: Sequence[Row],
    ladders: Sequence[Row],
    audited: Sequence[Row],
) -> list[Row]:
    """What a reader has to know before trusting the tables, each with the rounds, runs or engines it concerns.

    ``kind`` is ``host`` (said before or in a round), ``workflow``, ``files``, ``device``, ``audit``, ``busy`` or
    ``unsteady``.
    """
    of_rounds: dict[str, dict[Path, str]] = defaultdict(dict)
    for record in records:
        for text in record["warnings"]:
            of_rounds[NUMBER.sub("#", text)][record["path"]] = text
    found = [
        _warning("host", _ranged(list(texts.values())), f"{len(texts)} of {len(records)} rounds")
        for texts in of_rounds.values()
    ]
    dear = [row["parent_cpu_pct"] for row in results if (row["parent_cpu_pct"] or 0) >= PARENT_CPU_LIMIT_PCT]
    if dear:
        text = f"the workflow itself used up to {max(dear):.1f} % of a core during a run; below 1 % is wanted"
        found.append(_warning("workflow", text, f"{len(dear)} of {len(results)} runs"))
    for key, what in (("model", "fp32_onnx_sha256"), ("platform", "device_uuid")):
        for name, group in groupby(sorted(results, key=lambda row: row[key]), key=lambda row: row[key]):
            held = sorted({row[what] for row in group if row[what] is not None})
            if len(held) > 1:
                text = f"{name}: the runs do not agree in {what}: {', '.join(held)}"
                found.append(_warning("files", text, f"{len(held)} values"))
    of_rung = {_key(runs[0], "rung", "batch"): runs for runs in _by_rung(results)}
    found += _several_artifacts(of_rung, ladders, audited)
    for flag in tables.FLAGS:
        for runs in of_rung.values():
            if flagged := [row for row in runs if attribution.flagged(row[flag])]:
                row = flagged[0]
                text = f"{_named(row)} was {flag}; in round {row['round']}: {row[flag]}"
                found.append(_warning("device", text, f"{len(flagged)} of {len(runs)} runs"))
    for row in (audit["row"] for audit in audited):
        if row["verdict"] == "warn":
            found.append(_warning("audit", f"{row['model']}, {row['engine']}: {row['reason']}", "engine"))
    for runs in _by_rung(busy):
        highest = max(runs, key=lambda run: run["load_before"])
        text = f"{_named(highest)} ran on a busy host; before round {highest['round']} other programs kept "
        text += f"{highest['load_before']:.1f} CPUs busy"
        found.append(_warning("busy", text, f"{len(runs)} of {len(of_rung[_key(highest, 'rung', 'batch')])} runs"))
    for runs in _by_rung(unsteady):
        text = f"{_named(runs[0])} was unsteady; in round {runs[0]['round']} {runs[0]['why'][0]}"
        found.append(_warning("unsteady", text, f"{len(runs)} of {len(of_rung[_key(runs[0], 'rung', 'batch')])} runs"))
    return found


def _several_artifacts(
    of_rung: Mapping[tuple[Any, ...], Sequence[Row]], ladders: Sequence[Row], audited: Sequence[Row]
) -> Iterator[Row]:
    """A warning for each rung and batch whose runs and audit were not all of one file: one name, several engines."""
    audits = _audits(audited)
    rungs = {(*_key(ladder), rung["name"]): rung for ladder in ladders for rung in ladder["rungs"]}
    for place, runs in of_rung.items():
        row = runs[0]
        audit = audits.get((row["platform"], row["model"], _engine(rungs[place[:-1]], row["batch"])), {})
        ran: set[str] = {run["artifact_sha256"] for run in runs if run["artifact_sha256"]}
        held = ran | ({audited_one} if (audited_one := audit.get("artifact_sha256")) else set())
        if len(held) > 1:
            told = ", ".join(sorted(each[:12] + ("" if each in ran else " (audited)") for each in held))
            text = f"{_named(row)}: its runs and its audit do not agree in artifact_sha256: {told}"
            yield _warning("files", text, f"{len(held)} values")


def _by_rung(runs: Sequence[Row]) -> Iterator[list[Row]]:
    """Runs of the same rung and batch, in the order in which they come."""
    held: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for run in runs:
        held[_key(run, "rung", "batch")].append(run)
    yield from held.values()


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['ladder']}, {row['rung']}, batch {row['batch']}"


def _warning(kind: str, text: str, scope: str) -> Row:
    return {"kind": kind, "warning": text, "scope": scope}


def _ranged(texts: Sequence[str]) -> str:
    """Texts that differ in their figures only as one, e.g. ``load is 0.7 to 1.3``."""
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ends = [(min(column, key=float), max(column, key=float)) for column in columns]
    figures = iter([low if float(low) == float(high) else f"{low} to {high}" for low, high in ends])
    return NUMBER.sub(lambda _: next(figures), texts[0])
