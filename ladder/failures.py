"""What of the plan has no result, and why: the rows of failures.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ladder import tables
from ladder.records import Row, first_row, ladder_fields, ladder_key


def without_result(
    ladders: Sequence[Row], records: Sequence[Row], others: Sequence[Row], audited: Sequence[Row]
) -> list[Row]:
    """One row for every rung, batch or run that gave no result, each with its reason.

    What failed before the run (export, build, audit) holds for all rounds, and is told once, as it stands now: a round
    that has nothing to measure is not repeated only because the reason is another. ``others`` are the rounds measured
    with other settings.
    """
    planned = {ladder_key(ladder): ladder for ladder in ladders}
    rows = [row for ladder in ladders for row in _kept_out(ladder, audited)]
    kept_out = {(*ladder_key(row, "rung"), batch) for row in rows for batch in _batches(row, planned[ladder_key(row)])}
    seen: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        head = first_row(record)
        seen[ladder_key(head, "batch")] += 1
        for row in record["failures"]:
            if row["stage"] == "run":
                rows.append(row)
            elif ladder_key(row, "rung", "batch") not in kept_out:
                rows.append(row | {"round": None})
        told = {row["rung"] for row in (*record["rows"], *record["failures"])}
        for rung in planned[ladder_key(head)]["rungs"]:
            if rung["name"] not in told:
                about = ladder_fields(head, "batch", "round") | {"rung": rung["name"]}
                rows.append(_unexplained(about, f"{record['path']} does not mention this rung"))
    for record in others:
        about = ladder_fields(first_row(record), "batch", "round")
        seen[ladder_key(about, "batch")] += 1
        reason = f"{record['path']} was measured with other settings than the configuration's"
        rows.append(_unexplained(about, f"{reason}; `snakemake -R round` measures again"))
    for ladder in ladders:
        for batch in ladder["batches"]:
            about = ladder_fields(ladder) | {"batch": batch}
            if (lacking := ladder["rounds"] - seen[ladder_key(about, "batch")]) > 0:
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
        about = dict.fromkeys(tables.FAILURES) | ladder_fields(ladder) | {"rung": rung["name"]}
        same = all(why == next(iter(failed.values())) for why in failed.values())
        if failed and same and len(failed) == len(rung["engines"]):
            yield about | next(iter(failed.values()))
        else:
            yield from (about | {"batch": batch} | why for batch, why in failed.items())


def _batches(row: Row, ladder: Row) -> list[int]:
    return ladder["batches"] if row["batch"] is None else [row["batch"]]


def _unexplained(about: Row, reason: str) -> Row:
    return dict.fromkeys(tables.FAILURES) | about | {"stage": "run", "permanent": False, "reason": reason}


def unmeasured_peaks(peaks: Mapping[str, Row | None]) -> list[Row]:
    """A row for each platform whose peaks could not be measured."""
    return [
        dict.fromkeys(tables.FAILURES)
        | {"platform": platform}
        | {key: found[key] for key in ("stage", "permanent", "reason", "log")}
        for platform, found in peaks.items()
        if found and found["status"] != "ok" and found["stage"] == "peaks"  # a rung tells of its own environment
    ]
