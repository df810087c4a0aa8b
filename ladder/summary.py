"""The sections of summary.json, each from records, rows of tables or audits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np

from ladder.files import canonical_json
from ladder.preflight import BUSY_LIMIT
from ladder.records import (
    LADDER_KEY,
    Row,
    audits_by_engine,
    device_of,
    engine_at,
    first_row,
    ladder_fields,
    ladder_key,
    peaks_of,
)
from ladder.statistics import MIN_ROUNDS

SATURATION_SHARE = 0.95  # of the highest median throughput seen
AUDITED = (  # what of a rung's audit stands beside its figures
    "verdict", "reason",
    "flops_at_precision_pct", "nodes_at_precision_pct", "time_at_precision_pct",
)  # fmt: skip


def weights(labels: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """The label of each model: the first that is known."""
    found: dict[str, str | None] = {}
    for model, label in labels:
        found[model] = found.get(model) or label
    return found


def measured(results: Sequence[Row]) -> Row:
    """When the first and the last run started (None without any), how many runs there were and in how many sittings."""
    started = [row["started_at"] for row in results]
    sittings = {row["sitting"] for row in results}
    ends = {"first": min(started, default=None), "last": max(started, default=None)}
    return ends | {"runs": len(results), "sittings": len(sittings)}


def versions(records: Sequence[Row]) -> dict[str, Any]:
    """What the rungs' own processes said of their runtimes, by platform and package."""
    states: dict[str, list[Row]] = defaultdict(list)
    for record in records:
        states[first_row(record)["platform"]] += [detail["identity"] for detail in record["details"].values()]
    return {platform: _together(held) for platform, held in states.items()}


def hosts(records: Sequence[Row]) -> list[Row]:
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


def rungs(records: Sequence[Row]) -> list[Row]:
    """What each rung's runtime said of itself when it was opened: versions, and settings read back."""
    details: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for record in records:
        for rung, detail in record["details"].items():
            details[*ladder_key(first_row(record)), rung].append(detail)
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


def ladders(ladders: Sequence[Row], gains: Mapping[str, Sequence[Row]], audited: Sequence[Row]) -> list[Row]:
    """Ladders by batch in the plan's order, each with its rungs and what their audits found, and its part of ``gains``.

    These are rows of ``ladder.attribution`` under the names that they have there: steps, totals, ranking.
    """
    gains_at = {name: _by_place(rows) for name, rows in gains.items()}
    audits = audits_by_engine(audited)

    def rungs(ladder: Row, batch: int) -> Iterator[Row]:
        for rung in ladder["rungs"]:
            engine = engine_at(rung, batch)
            audit = audits.get((ladder["platform"], ladder["model"], engine), dict.fromkeys(AUDITED))
            asked = {"name": rung["name"], "engine": engine, "requested_precision": rung["precision"]}
            yield asked | {key: audit[key] for key in AUDITED}

    found = []
    for ladder in ladders:
        for batch in ladder["batches"]:
            place = (*ladder_key(ladder), batch)
            held = {name: rows[place] for name, rows in gains_at.items()}
            found.append(
                ladder_fields(ladder, "weights") | {"batch": batch, "rungs": list(rungs(ladder, batch)), **held}
            )
    return found


def _by_place(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by ladder and batch, each without what says where it belongs."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        told = {key: value for key, value in row.items() if key not in (*LADDER_KEY, "weights", "batch")}
        found[ladder_key(row, "batch")].append(told)
    return found


def throughput(results: Sequence[Row]) -> list[Row]:
    """Images/s of each rung and batch over its rounds."""
    readings: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in results:
        if row["throughput_ips"] is not None:
            readings[ladder_key(row, "rung", "batch")].append(row["throughput_ips"])
    return [
        dict(zip((*LADDER_KEY, "rung", "batch"), place, strict=True))
        | {"rounds": len(ips), "median_ips": float(np.median(ips)), "min_ips": min(ips), "max_ips": max(ips)}
        for place, ips in sorted(readings.items())
    ]


def saturation(throughput: Sequence[Row]) -> list[Row]:
    """The batch at which each rung saturates: the smallest that reaches 95 % of its highest median throughput.

    Only a larger batch can show that there is no more to gain: where none was measured, ``batch`` is None, not reached.
    ``lowest_batch`` and ``highest_batch`` are what noise leaves of it: the smallest batch that may reach the 95 %, and
    the smallest that surely does, the largest one if none.
    """
    points = []
    for place, group in groupby(throughput, key=lambda row: ladder_key(row, "rung")):
        rows = list(group)
        highest, largest = max(row["median_ips"] for row in rows), rows[-1]["batch"]
        reached = next(row["batch"] for row in rows if row["median_ips"] >= SATURATION_SHARE * highest)
        points.append(
            dict(zip((*LADDER_KEY, "rung"), place, strict=True))
            | {
                "batch": reached if reached < largest else None,
                "lowest_batch": next(row["batch"] for row in rows if _reaches(row, rows) is not False),
                "highest_batch": next((row["batch"] for row in rows if _reaches(row, rows)), largest),
                "highest_ips": highest,
                "batches": len(rows),
                "largest_batch": largest,
            }
        )
    return points


def _reaches(row: Row, rows: Sequence[Row]) -> bool | None:
    """Whether a batch reaches 95 % of every other one's throughput; None where noise leaves that open.

    Rounds of two batches are no pairs. They are told apart where every round of one lies beyond every round of the
    other, the clearest case of Mann and Whitney's test: of equals with 6 rounds each it comes once in 924 times.
    """
    others = [other for other in rows if other is not row and min(other["rounds"], row["rounds"]) >= MIN_ROUNDS]
    if any(row["max_ips"] < SATURATION_SHARE * other["min_ips"] for other in others):
        return False
    told = len(others) == len(rows) - 1
    return True if told and all(row["min_ips"] >= SATURATION_SHARE * other["max_ips"] for other in others) else None


def utilisation(results: Sequence[Row]) -> list[Row]:
    """The utilisation of each rung and batch: medians over its rounds, and what held it back in them."""
    found = []
    shares = ("peak_compute_pct", "peak_bandwidth_pct", "unfused_bandwidth_pct", "host_share_pct")
    for place, group in groupby(sorted(results, key=_rung_and_batch), _rung_and_batch):
        rows = list(group)
        medians = {column: _median([row[column] for row in rows]) for column in ("achieved_tflops", *shares)}
        found.append(
            dict(zip((*LADDER_KEY, "rung", "batch"), place, strict=True))
            | {"rounds": len(rows), **medians, "peak_source": rows[0]["peak_source"], "bound": _bounds(rows)}
        )
    return found


def _bounds(rows: Sequence[Row]) -> str | None:
    """What rounds are bound by, that of most of them first: a median could be of two kinds of round and be neither."""
    rounds = Counter(row["bound"] for row in rows if row["bound"])
    return " or ".join(sorted(rounds, key=lambda each: (-rounds[each], each))) or None


def _rung_and_batch(row: Row) -> tuple[Any, ...]:
    return ladder_key(row, "rung", "batch")


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def peaks(records: Sequence[Row], peaks: Mapping[str, Row | None]) -> list[Row]:
    """What is known of the peaks of each platform's device: as measured, and as its datasheet says."""
    devices = {(first_row(record)["platform"], device_of(record["host_state"])): None for record in records}
    found = []
    for platform, device in devices:
        measured, datasheet = peaks_of(platform, device, peaks)
        found.append(
            {
                "platform": platform,
                "device": device,
                "measured": measured and {key: value for key, value in measured.items() if key != "status"},
                "datasheet": datasheet and asdict(datasheet),
            }
        )
    return found


def nodes(audit: Row) -> list[Row]:
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


def busy_runs(results: Sequence[Row]) -> list[Row]:
    """Runs before which other programs kept more than ``BUSY_LIMIT`` busy."""
    return [
        ladder_fields(row, "rung", "batch", "round") | {"load_before": row["load_before"]}
        for row in results
        if (row["load_before"] or 0) > BUSY_LIMIT
    ]
