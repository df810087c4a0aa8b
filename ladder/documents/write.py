"""Writes a document's own files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ladder import tables
from ladder.documents import FILES, beyond_tops, deep_gap, gpu_bench
from ladder.documents.runs import rounds_of
from ladder.files import read_json, write_json, write_text
from ladder.report.read import read_table


def write(document: str, results: Path, destination: Path) -> None:
    """Write the ``FILES`` of a document from the folder of tables and the rounds that these name.

    Raises StepError where one of them cannot be read.
    """
    runs = read_table(results / "results.csv", tables.RESULTS)
    paths = [destination / name for name in FILES[document]]
    if document == "gpu-bench":
        _write_csv(paths[0], gpu_bench.COLUMNS, gpu_bench.rows(runs))
    elif document == "deep-gap":
        rows, samples = [], []
        for round in rounds_of(results, runs):
            rows += deep_gap.rows(round)
            samples += deep_gap.telemetry(round)
        _write_csv(paths[0], deep_gap.COLUMNS, rows)
        _write_csv(paths[1], deep_gap.TELEMETRY_COLUMNS, samples)
    else:
        summary = read_json(results / "summary.json")
        failures = read_table(results / "failures.csv", tables.FAILURES)
        write_json(paths[0], beyond_tops.report(summary, runs, failures))
        write_text(paths[1], beyond_tops.saturation(summary))


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write these columns of rows; None is empty. Raises ValueError where a row has others."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
