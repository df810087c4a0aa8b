"""The measurements in the repository: what documents quote of them, and that they can be compared."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ladder import statistics, tables
from ladder.files import read_json, sha256
from ladder.records import read_latencies
from ladder.report.build import build
from ladder.report.read import raw_file, read_table

ROOT = Path(__file__).parent.parent
MEASURED = sorted(path.parent for path in (ROOT / "docs/measurements").glob("*/20*/summary.json"))


def test_the_readmes_table_is_the_measured_one():
    quoted = re.compile(r"\| \S+ → |All causes together, |Interaction of ")
    shown = [line for line in (ROOT / "README.md").read_text().splitlines() if quoted.match(line)]
    measured = (ROOT / "docs/measurements/h200/2026-12/ladder.md").read_text().splitlines()
    assert len(shown) >= 7 and set(shown) <= set(measured)
    (header,) = [line for line in measured if line.startswith("**yolo11n, batch 1")]
    assert header in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_raw_latencies_are_those_the_records_were_written_with(folder):
    records = [path for path in sorted(folder.rglob("*.json")) if "rounds" in path.parts]
    assert records
    for path in records:
        record, raw = read_json(path), path.with_suffix(".parquet")
        assert record["raw_sha256"] == sha256(raw)
        assert {row["rung"] for row in record["rows"]} == set(pq.read_table(raw).column("rung").unique().to_pylist())


@pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_results_are_those_the_summary_was_made_with_and_the_raw_latencies_give(folder):
    assert read_json(folder / "summary.json")["results_sha256"] == sha256(folder / "results.csv")
    for row in read_table(folder / "results.csv", tables.RESULTS):
        latencies = read_latencies(raw_file(folder, row["raw"]))[row["rung"]]
        assert float(row["median_ms"]) == statistics.summarise(latencies)["median_ms"]


@pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_pages_can_be_made_of_them_where_they_are(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(build(folder, ROOT / "docs/captions", tmp_path)) > 1


def test_the_gpus_and_the_cpus_results_stand_side_by_side():
    folders = [ROOT / "docs/measurements" / each for each in ("h200/2026-12", "cpu/2026-12-01")]  # as in the documents
    gpu, cpu = (read_json(folder / "summary.json")["protocol"] for folder in folders)
    assert all(gpu["inputs"][model] == size for model, size in cpu.pop("inputs").items())
    assert cpu == {name: gpu[name] for name in cpu}
