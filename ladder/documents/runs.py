"""What the rounds behind results.csv hold of each run beyond its row: launches, samples, versions, the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ladder.files import read_json
from ladder.matrix import export_file
from ladder.records import place_of, read_round
from ladder.report.read import raw_file
from ladder.telemetry import raw as telemetry_raw

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    row: Mapping[str, str]  # of results.csv, as text
    identity: Row  # versions as its process told them
    exporters: Row  # versions that exported its model, empty where that cannot be told any more
    latencies_ms: list[np.ndarray]  # by the host's clock: one array [iterations] a repeat
    device_ms: list[Mapping[str, list[float]]]  # by the device's clocks, one a repeat; see stacks.base.Session


@dataclass(frozen=True)
class Round:
    host_state: Row
    runs: list[Run]  # in the order in which they ran
    samples: Sequence[Row]  # of the device, with ``rung``; fields as in telemetry.base.Sample


def rounds_of(folder: Path, results: Sequence[Mapping[str, str]]) -> Iterator[Round]:
    """The rounds of rows of a folder's results.csv in the order in which they began, one held at a time.

    Their files are looked for in that folder (``ladder.report.read.raw_file``). Raises StepError for one that is not
    there or not whole.
    """
    in_order = sorted(results, key=lambda row: row["started_at"])
    first = {row["raw"]: row["started_at"] for row in reversed(in_order)}
    for raw, rows in groupby(sorted(in_order, key=lambda row: (first[row["raw"]], row["raw"])), lambda row: row["raw"]):
        path = raw_file(folder, raw)
        record = read_round(path.with_suffix(".json"), place_of(Path(raw)))
        latencies = _latencies_ms(path)
        runs = [
            Run(
                row,
                record["details"][row["rung"]]["identity"],
                _exporters(row),
                latencies[row["rung"]],
                record["details"][row["rung"]]["device_ms"],
            )
            for row in rows
        ]
        yield Round(record["host_state"], runs, telemetry_raw.read(path))


def _exporters(row: Mapping[str, str]) -> Row:
    """Versions of what exported a run's model: told by the file's id, as long as the file is still that one."""
    path = Path(export_file(row["model"], "fp32.id.json"))
    identity = read_json(path) if path.is_file() else {}
    return identity["exporters"] if identity.get("sha256") == row["fp32_onnx_sha256"] else {}


def _latencies_ms(raw: Path) -> dict[str, list[np.ndarray]]:
    """A round's raw latencies by rung and repeat, in arrival order."""
    table = pq.read_table(raw, columns=["rung", "repeat", "latency_ns"])
    rungs, repeats, ns = (table.column(name).to_numpy() for name in table.column_names)
    return {
        rung: [ns[(rungs == rung) & (repeats == repeat)] / 1e6 for repeat in np.unique(repeats[rungs == rung])]
        for rung in np.unique(rungs)
    }
