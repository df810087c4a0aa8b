"""Reading what rounds, audits and other steps left behind, and refusing what cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from ladder import tables, utilisation
from ladder.errors import StepError
from ladder.files import canonical_json, read_json, sha256
from ladder.peaks import Datasheet, datasheet
from ladder.step import UpstreamFailed

DERIVED = (
    "median_ms", "mean_ms", "std_ms", "min_ms", "p90_ms", "p95_ms", "p99_ms", "latency_ips", *utilisation.COLUMNS
)  # fmt: skip
RECORDED = tuple(column for column in tables.RESULTS if column not in DERIVED)
LADDER_KEY = ("platform", "model", "ladder")
AGAIN = "its round is measured again by the next call, or once its files are deleted"

Row = dict[str, Any]


def read_round(path: Path, place: Row | None = None) -> Row:
    """One round's record and its path. Raises StepError where it is not whole or not of the round that it is named by.

    ``place`` is that round (``place_of``) where the path, of a copy, does not name it.
    Raises UpstreamFailed, with the failed record, where the round's job could not go on.
    """
    try:
        record = read_json(path)
        if record.get("status") == "failed":
            raise UpstreamFailed({key: record[key] for key in ("stage", "permanent", "reason", "log")})
        missing = {
            key for key in ("rows", "failures", "details", "host_state", "warnings", "raw_sha256") if key not in record
        }
        missing |= {column for row in record["rows"] for column in RECORDED if column not in row}
        missing |= {column for row in record["failures"] for column in tables.FAILURES if column not in row}
        place = place or place_of(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StepError(f"{path}: not a round's record ({error!r}); {AGAIN}") from None
    if missing:
        raise StepError(f"{path}: a round's record without {', '.join(sorted(missing))}; {AGAIN}")
    if not record["rows"] and not record["failures"]:
        raise StepError(f"{path}: holds neither results nor failures; {AGAIN}")
    for row in (*record["rows"], *record["failures"]):
        if (found := ladder_fields(row, "batch", "round")) != place:
            told = ", ".join(map(str, found.values()))
            raise StepError(f"{path}: holds another round than its name says, {told}; {AGAIN}")
    return record | {"path": path}


def place_of(path: Path) -> Row:
    """Platform, model, ladder, batch and round of a record's path, as ``ladder.matrix.Round`` makes it."""
    platform, _, model, ladder, batch, number = path.with_suffix("").parts[-6:]
    fields = {"platform": platform, "model": model, "ladder": ladder}
    return {**fields, "batch": int(batch.removeprefix("b")), "round": int(number)}


def lean(record: Row, seen: dict[str, Any]) -> Row:
    """A round's record without what no table needs; what it has in common with those ``seen`` before is held once.

    Thousands of rounds repeat the same names, hashes, versions and host.
    """
    rows = [{intern(key): intern(v) if isinstance(v, str) else v for key, v in row.items()} for row in record["rows"]]
    details = {
        intern(rung): {part: _once(detail[part], seen) for part in ("identity", "facts")}
        for rung, detail in record["details"].items()
    }
    return record | {"rows": rows, "details": details, "host_state": _once(record["host_state"], seen)}


def _once(value: Any, seen: dict[str, Any]) -> Any:
    return seen.setdefault(canonical_json(value), value)


def by_settings(records: Sequence[Row], ladders: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rounds measured with the plan's settings, and the others: a record that does not tell its own is one.

    Raises StepError for a round of a ladder that is not in the plan.
    """
    planned = {ladder_key(ladder) for ladder in ladders}
    wanted = {
        (*ladder_key(ladder), int(batch)): told for ladder in ladders for batch, told in ladder["settings"].items()
    }
    found: tuple[list[Row], list[Row]] = ([], [])
    for record in records:
        head = first_row(record)
        if ladder_key(head) not in planned:
            raise StepError(f"{record['path']}: a round of ladder '{head['ladder']}', which is not in the plan")
        told = record.get("settings")
        found[told is None or told != wanted.get(ladder_key(head, "batch"))].append(record)
    return found


def first_row(record: Row) -> Row:
    """Any row of the round: all of them share platform, model, ladder, batch and round."""
    return (record["rows"] or record["failures"])[0]


def round_place(record: Row) -> tuple[Any, ...]:
    """What rounds are sorted by: platform, model, ladder, batch and round."""
    return tuple(first_row(record)[key] for key in (*LADDER_KEY, "batch", "round"))


def ladder_key(row: Mapping[str, Any], *more: str) -> tuple[Any, ...]:
    """The values of platform, model, ladder and the columns ``more``. Raises KeyError where the row lacks one."""
    return tuple(row[key] for key in (*LADDER_KEY, *more))


def ladder_fields(row: Mapping[str, Any], *more: str) -> Row:
    """As ``ladder_key``, by column."""
    return {key: row[key] for key in (*LADDER_KEY, *more)}


def checked_latencies(record: Row) -> dict[str, np.ndarray]:
    """A round's raw latencies by rung. Raises StepError where they are not the ones that it was written with.

    As ``read_latencies``; empty for a round without results.
    """
    raw = record["path"].with_suffix(".parquet")
    if not record["rows"]:
        return {}
    try:
        found = sha256(raw)
    except OSError as error:
        raise StepError(f"{raw}: cannot read raw latencies ({error}); {AGAIN}") from None
    if found != record["raw_sha256"]:
        raise StepError(
            f"{raw}: not the raw latencies that were measured (sha256 {found[:12]}, the round's record says "
            f"{str(record['raw_sha256'])[:12]}); {AGAIN}"
        )
    latencies = read_latencies(raw)
    for row in record["rows"]:
        number = len(latencies.get(row["rung"], ()))
        if number != row["iterations"] or not number:
            raise StepError(
                f"{record['path']}: rung '{row['rung']}' has {row['iterations']} timed iterations, but the Parquet "
                f"beside it {number}; {AGAIN}"
            )
    return latencies


def read_latencies(path: Path) -> dict[str, np.ndarray]:
    """Raw latencies of one round by rung: int64 nanoseconds in arrival order. Raises StepError if unreadable."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read(["rung", "iteration", "latency_ns"], use_threads=False)
        rungs = table.column("rung").combine_chunks().dictionary_encode()
        iteration, latency = (table.column(name).to_numpy() for name in ("iteration", "latency_ns"))
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise StepError(f"{path}: cannot read raw latencies ({error}); {AGAIN}") from None
    codes = rungs.indices.to_numpy()
    order = np.lexsort((iteration, codes))
    bounds = np.searchsorted(codes[order], np.arange(len(rungs.dictionary) + 1))
    parts = np.split(latency[order], bounds[1:-1])
    return dict(zip(rungs.dictionary.to_pylist(), parts, strict=False))


def read_audit(path: Path) -> Row:
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


def audits_by_engine(audited: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Rows of audit.csv by platform, model and engine."""
    return {tuple(audit["row"][key] for key in ("platform", "model", "engine")): audit["row"] for audit in audited}


def engine_at(rung: Row, batch: int) -> str | None:
    """The engine of a planned rung at a batch size; JSON has turned the plan's numbers into text."""
    return {int(number): name for number, name in rung["engines"].items()}.get(batch)


def read_if_made(path: str | None) -> Row | None:
    """A JSON file that a step may not have made: None where it is not there, or empty since that step failed.

    Raises ValueError where it holds something else than JSON.
    """
    return read_json(Path(path)) if path and Path(path).is_file() and Path(path).stat().st_size else None


def device_of(state: Row) -> str | None:
    """The name that a datasheet goes by, from a round's host state: of the GPU, else of the processor; None untold."""
    return (state.get("gpu") or {"name": state.get("processor")}).get("name")


def peaks_of(platform: str, device: str | None, peaks: Mapping[str, Row | None]) -> tuple[Row | None, Datasheet | None]:
    """The measured peaks and the datasheet of a device, None where there are none.

    ``peaks`` are what the peaks' step left, by platform. Raises KeyError for a platform that is not among them.
    """
    found = peaks[platform]
    return (found if found and found["status"] == "ok" else None), datasheet(device)
