"""What of the plan has no result, and why: the rows of failures.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ladder import tables
from ladder.errors import StepError
from ladder.records import Row, first_row, ladder_fields, ladder_key, place_of
from ladder.step import UpstreamFailed

_NO_AUDIT = {
    "verdict": "failed",
    "stage": "audit",
    "permanent": False,
    "reason": "was not audited: that job, or one before it, did not run or was lost",
    "log": None,
}


def without_result(
    ladders: Sequence[Row], records: Sequence[Row], lost: Sequence[Row], audited: Sequence[Row]
) -> list[Row]:
    """One row for every rung, batch or run that gave no result, each with its reason.

    What failed before the run (export, build, audit) holds for all rounds, and is told once, as it stands now: a round
    that has nothing to measure is not repeated only because the reason is another. ``lost`` are the rows of rounds that
    have a file, but one that no table can use (``lost_round``).
    """
    planned = {ladder_key(ladder): ladder for ladder in ladders}
    rows = [row for ladder in ladders for row in _kept_out(ladder, audited)]
    kept_out = {(*ladder_key(row, "rung"), batch) for row in rows for batch in _batches(row, planned[ladder_key(row)])}
    found = {ladder_key(row, "batch", "round") for row in (*map(first_row, records), *lost)}
    for record in records:
        head = first_row(record)
        for row in record["failures"]:
            if row["stage"] == "run":
                rows.append(row)
            elif ladder_key(row, "rung", "batch") not in kept_out:
                rows.append(row | {"round": None})
        told = {row["rung"] for row in (*record["rows"], *record["failures"])}
        for rung in planned[ladder_key(head)]["rungs"]:
            if rung["name"] not in told:
                about = ladder_fields(head, "batch", "round") | {"rung": rung["name"]}
                rows.append(_unexplained(about, "run", f"{record['path']} does not mention this rung"))
    rows += lost
    for ladder in ladders:
        for batch in ladder["batches"]:
            about = ladder_fields(ladder) | {"batch": batch}
            planned_rounds = range(1, ladder["rounds"] + 1)
            if lacking := [number for number in planned_rounds if (*ladder_key(about, "batch"), number) not in found]:
                numbers = ", ".join(map(str, lacking))
                reason = f"{len(lacking)} of {len(planned_rounds)} planned rounds have no file ({numbers})"
                rows.append(_unexplained(about, "round", f"{reason}: their jobs did not run or were lost"))
    unique = {tuple(row[key] for key in tables.FAILURES if key != "log"): row for row in reversed(rows)}
    return list(reversed(unique.values()))


def lost_round(path: Path, error: StepError) -> Row:
    """The row of a round whose record is at this path and cannot be used, or says that its job could not go on."""
    told = error.record if isinstance(error, UpstreamFailed) else {}
    return _unexplained(place_of(path), "round", str(error)) | told


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
            verdict = verdicts.get(engine, _NO_AUDIT)
            if verdict["verdict"] in tables.KEPT_OUT:
                failed[int(batch)] = {key: verdict[key] for key in ("stage", "permanent", "reason", "log")}
        about = dict.fromkeys(tables.FAILURES) | ladder_fields(ladder) | {"rung": rung["name"]}
        same = all(why == next(iter(failed.values())) for why in failed.values())
        if failed and same and len(failed) == len(rung["engines"]):
            yield about | next(iter(failed.values()))
        else:
            yield from (about | {"batch": batch} | why for batch, why in failed.items())


def _batches(row: Row, ladder: Row) -> list[int]:
    return ladder["batches"] if row["batch"] is None else [row["batch"]]


def _unexplained(about: Row, stage: str, reason: str) -> Row:
    return dict.fromkeys(tables.FAILURES) | about | {"stage": stage, "permanent": False, "reason": reason}


def unmeasured_peaks(peaks: Mapping[str, Row | None]) -> list[Row]:
    """A row for each platform whose peaks could not be measured."""
    return [
        dict.fromkeys(tables.FAILURES)
        | {"platform": platform}
        | {key: found[key] for key in ("stage", "permanent", "reason", "log")}
        for platform, found in peaks.items()
        if found and found["status"] != "ok" and found["stage"] == "peaks"  # a rung tells of its own environment
    ]
