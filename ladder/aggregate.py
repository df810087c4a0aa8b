"""From the files that rounds and audits left behind to the tables: results, ladder, audit, failures, summary.

Everything here is derived, so every table can be made again without measuring anything. The plan says what was to
be measured; whatever of it has no result stands in failures.csv.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ladder import attribution, statistics, summary, tables, utilisation
from ladder.errors import StepError
from ladder.failures import lost_round, unmeasured_peaks, without_result
from ladder.files import canonical_json, replacing, sha256, write_json, write_text
from ladder.matrix import Round
from ladder.records import (
    Row,
    audits_by_engine,
    by_settings,
    checked_latencies,
    device_of,
    engine_at,
    first_row,
    ladder_fields,
    ladder_key,
    lean,
    peaks_of,
    read_audit,
    read_if_made,
    read_round,
    round_place,
)
from ladder.report.text import ladder_markdown
from ladder.round_files import refuse, try_again
from ladder.summary_warnings import find_warnings

SCHEMA_VERSION = 1  # of summary.json; goes up when a key changes its meaning or goes away


def aggregate(plan: Mapping[str, Any], rounds: Iterable[Path], audits: Iterable[Path], destination: Path) -> Row:
    """Write results.csv, ladder.csv, audit.csv, failures.csv, summary.json and ladder.md; return the summary.

    ``plan`` is ``ladder.steps.plan``: ``{"ladders": [{"platform", "ladder", "model", "weights", "batches": [int],
    "rounds": int, "settings": {batch: digest}, "peaks": file, "rungs": [{"name", "precision", "engines": {batch:
    engine}, "source", "graph": file, ..}], "steps": [{"from", "to", "cause"}]}]}``; of the files those that are not
    there leave the columns empty that rest on them. ``rounds`` are the planned rounds' JSON files, each with its
    Parquet beside it; one that is not there, cannot be trusted or was measured with other settings than the plan's is
    told among the failures and is in no table, and the next call tries it again. ``audits`` are the engines' audit
    files, each with its pass file beside it. Raises StepError for an audit that cannot be trusted, and then writes no
    table.
    """
    found, lost = _read(path for path in dict.fromkeys(rounds) if path.exists())
    records, others = by_settings(sorted(found, key=round_place), plan["ladders"])
    results, pooled, unsteady, spoilt = _results(records)
    records = [record for record in records if record["path"] not in spoilt]
    lost |= spoilt
    for path in lost:
        refuse(path)
    for path in (record["path"] for record in others):
        other = f"{path} was measured with other settings than the configuration's"
        lost[path] = StepError(f"{other}; `snakemake -R round` measures again")
        try_again(path, other)
    audited = [read_audit(path) for path in audits if path.exists()]
    known = [*plan["ladders"], *results, *(audit["row"] for audit in audited)]
    labels = summary.weights((row["model"], row.get("weights")) for row in known)
    ladders = [ladder | {"weights": _weights(ladder, results) or labels[ladder["model"]]} for ladder in plan["ladders"]]
    peaks = {ladder["platform"]: read_if_made(ladder["peaks"]) for ladder in ladders}
    rows = [lost_round(path, error) for path, error in sorted(lost.items())]
    failures = [*without_result(ladders, records, rows, audited), *unmeasured_peaks(peaks)]
    _add_utilisation(results, records, ladders, audited, peaks)
    busy = summary.busy_runs(results)
    runs = pd.DataFrame(results, columns=list(attribution.COLUMNS))
    exclude = plan.get("exclude", tables.FLAGS)
    judged = {"steps": attribution.attribute, "totals": attribution.totals, "ranking": attribution.ranking}
    gains = {name: _plain(judge(runs, ladders, exclude)) for name, judge in judged.items()}
    destination = Path(destination)
    write_table(destination / "results.csv", tables.RESULTS, results)
    content = {
        "schema": SCHEMA_VERSION,
        "results_sha256": sha256(destination / "results.csv"),
        "weights": summary.weights((ladder["model"], ladder["weights"]) for ladder in ladders),
        "method": {
            "confidence_pct": 100 * (1 - statistics.ALPHA),
            "power_pct": 100 * statistics.POWER,
            "min_rounds": statistics.MIN_ROUNDS,
        },
        "protocol": plan.get("protocol"),
        "measured": summary.measured(results),
        "versions": summary.versions(records),
        "hosts": summary.hosts(records),
        "rungs": summary.rungs(records),
        "ladders": summary.ladders(ladders, gains, audited),
        "latency": pooled,
        "throughput": summary.throughput(results),
        "saturation": summary.saturation(summary.throughput(results)),
        "utilisation": summary.utilisation(results),
        "peaks": summary.peaks(records, peaks),
        "nodes": [row for audit in audited for row in summary.nodes(audit)],
        "failures": len(failures),
        "unsteady_runs": unsteady,
        "busy_runs": busy,
        "warnings": find_warnings(records, results, unsteady, busy, ladders, audited),
    }
    write_table(destination / "ladder.csv", tables.LADDER, gains["steps"])
    write_table(destination / "audit.csv", tables.AUDIT, [audit["row"] for audit in audited])
    write_table(destination / "failures.csv", tables.FAILURES, failures)
    write_json(destination / "summary.json", content)
    write_text(destination / "ladder.md", ladder_markdown(content))
    return content


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


def _read(paths: Iterable[Path]) -> tuple[list[Row], dict[Path, StepError]]:
    """The rounds' records, each only with what tables need, and why others cannot be used."""
    seen: dict[str, Any] = {}
    records, lost = [], {}
    for path in paths:
        try:
            records.append(lean(read_round(path), seen))
        except StepError as error:
            lost[path] = error
    return records, lost


def _results(records: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row], dict[Path, StepError]]:
    """Rows of results.csv; each rung's percentiles pooled over the rounds of a batch; runs that were unsteady.

    The last is why rounds are in none of them: their raw latencies are not those that were measured. ``records`` are
    sorted by ladder, batch and round. Raw latencies are held for one ladder and batch at a time.
    """
    rows: list[Row] = []
    pooled: list[Row] = []
    unsteady: list[Row] = []
    spoilt: dict[Path, StepError] = {}
    for _, group in groupby(records, key=lambda record: round_place(record)[:-1]):
        raw: dict[str, list[np.ndarray]] = defaultdict(list)
        for record in group:
            try:
                latencies = checked_latencies(record)
            except StepError as error:
                spoilt[record["path"]] = error
                continue
            for row in sorted(record["rows"], key=lambda row: row["position"]):
                ns = latencies[row["rung"]]
                figures = statistics.summarise(ns)
                row |= {**figures, "latency_ips": 1000 * row["batch"] / figures["median_ms"]}  # in place: held once
                rows.append(row)
                raw[row["rung"]].append(ns)
                if why := statistics.instability(ns):
                    unsteady.append(ladder_fields(row, "rung", "batch", "round") | {"why": why})
        head = first_row(record)
        for rung, runs in raw.items():
            counts = {"rung": rung, "rounds": len(runs), "iterations": sum(map(len, runs))}
            p50 = float(np.median(np.concatenate(runs))) / 1e6
            pooled.append(ladder_fields(head, "batch") | counts | {"p50_ms": p50} | statistics.pooled_percentiles(runs))
    return rows, pooled, unsteady, spoilt


def _weights(ladder: Mapping[str, Any], results: Sequence[Row]) -> str | None:
    """The weights label that the ladder's rounds recorded; None where nothing was measured."""
    found = {row["weights"] for row in results if ladder_key(row) == ladder_key(ladder)}
    if len(found) > 1:
        raise StepError(
            f"the rounds of {', '.join(ladder_key(ladder))} were measured with different weights, "
            f"{', '.join(sorted(found))}; delete the older ones and call again"
        )
    return found.pop() if found else None


def _add_utilisation(
    results: Sequence[Row],
    records: Sequence[Row],
    ladders: Sequence[Row],
    audited: Sequence[Row],
    peaks: Mapping[str, Row | None],
) -> None:
    """Add the columns of ``ladder.utilisation`` to the rows of results.csv."""
    devices = {round_place(record): device_of(record["host_state"]) for record in records}
    rungs = {(*ladder_key(ladder), rung["name"]): rung for ladder in ladders for rung in ladder["rungs"]}
    graphs = {rung["graph"]: read_if_made(rung["graph"]) for rung in rungs.values()}
    audits = audits_by_engine(audited)
    for row in results:
        if (rung := rungs.get(ladder_key(row, "rung"))) is None:
            raise StepError(
                f"the rounds of {', '.join(ladder_key(row))} hold a rung '{row['rung']}' that is not in the plan"
            )
        audit = audits.get((row["platform"], row["model"], engine_at(rung, row["batch"])), {})
        chosen = utilisation.choose(*peaks_of(row["platform"], devices[ladder_key(row, "batch", "round")], peaks))
        share, is_module = audit.get("flops_at_precision_pct"), rung["source"] == "module"
        row |= utilisation.columns(row, graphs[rung["graph"]], is_module, share, chosen)


def _plain(gains: pd.DataFrame) -> list[Row]:
    """Rows as plain values, None where attribution has none."""
    rows = gains.to_dict("records")
    return [{str(key): None if pd.isna(value) else value for key, value in row.items()} for row in rows]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write these columns of rows as CSV: None is empty, true and false in lower case, a dict or list is JSON.

    Raises KeyError where a row lacks a column.
    """
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(row[column]) for column in columns] for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return canonical_json(value) if isinstance(value, dict | list) else value
