"""The measurements in the repository: what documents quote of them, and that they can be compared."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from ladder import statistics, tables
from ladder.files import read_json, sha256
from ladder.records import read_latencies
from ladder.report.build import build
from ladder.report.read import raw_file, read_table
from ladder.telemetry import raw, summary
from ladder.telemetry.base import Process, Sample

ROOT = Path(__file__).parent.parent
H200 = ROOT / "docs/measurements/h200"
NEWEST, FORMER = H200 / "2026-12-settled/h200", H200 / "2026-12/h200"  # FORMER: its energy, and what is said of it
RESNET50, OF_RESNET50 = H200 / "2026-12-resnet50/h200", "resnet50/resnet"
MEASURED = sorted(path.parent for path in (ROOT / "docs/measurements").glob("*/20*/summary.json"))
LADDERS = sorted(path.parent for path in (ROOT / "docs/measurements").rglob("ladder.csv"))


def test_the_readmes_table_is_the_measured_one():
    quoted = re.compile(r"\| \S+ → |All causes together, |Interaction of ")
    shown = [line for line in (ROOT / "README.md").read_text().splitlines() if quoted.match(line)]
    measured = (NEWEST.parent / "ladder.md").read_text().splitlines()
    assert len(shown) >= 7 and set(shown) <= set(measured)
    (header,) = [line for line in measured if line.startswith("**yolo11n, batch 1 ")]
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
    names = ("docs/measurements/h200/2026-12-settled", "docs/measurements/cpu/2026-12-01-settled")
    for document in ("docs/cross_stack.md", "docs/measurements/h200/README.md"):
        assert f"{{results: [{names[0]}, {names[1]}], reference: cpu}}" in said(document)
    folders = [ROOT / name for name in names]
    gpu, cpu = (read_json(folder / "summary.json")["protocol"] for folder in folders)
    assert all(gpu["inputs"][model] == size for model, size in cpu.pop("inputs").items())
    assert cpu == {name: gpu[name] for name in cpu}


def test_idle_power_of_the_committed_samples_is_that_of_rest_or_none():
    found: dict[tuple[str, str], float] = {}
    down, up = [], []  # power before runs of samples that say "idle", by whether the clock had come down
    runs = 0
    for path in sorted(H200.rglob("*.telemetry.parquet")):
        latencies = path.with_name(path.name.replace(".telemetry", ""))
        record = read_json(latencies.with_suffix(".json")) if latencies.with_suffix(".json").is_file() else None
        told: dict[str, list[Sample]] = defaultdict(list)
        for row in raw.read(latencies):
            processes = row["processes"] and [Process(**each) for each in row["processes"]]
            told[row.pop("rung")].append(Sample(**row | {"processes": processes}))
        for rung, samples in told.items():
            runs += 1
            opening = (  # the first look left no records
                record["details"][rung]["phases"]["opening_ns"]
                if record
                else next(sample.at_ns for sample in samples if sample.processes)
            )
            idle = [sample for sample in samples if sample.at_ns < opening]
            if (power_w := summary._idle_power(idle, samples)) is not None:
                found[str(path.relative_to(H200)), rung] = power_w
            for sample in idle:
                if sample.sm_clock_mhz and sample.clock_reasons is not None:
                    assert sample.sm_clock_mhz > 570 or "idle" in sample.clock_reasons
                    if "idle" in sample.clock_reasons:
                        (down if sample.sm_clock_mhz <= 570 else up).append(sample.power_w)
    assert found == {
        ("2026-11-30/rounds/1.telemetry.parquet", "tensorrt-fp32"): 79.093,
        ("2026-12-01/rounds/8.telemetry.parquet", "tensorrt-fp32"): 79.858,
    }
    assert min(up) >= 124 and max(up) <= 130
    text = said("docs/method.md")
    said_of_up = f'({runs} runs), {len(up)} samples before runs say "idle" at the full 1980 MHz and draw 124 to 130 W'
    assert said_of_up in text
    assert f"all {len(down)} at 570 MHz or less" in text and "79.1 and 79.9 W" in text


@pytest.mark.parametrize("folder", MEASURED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_summary_says_what_the_rounds_are_bound_by(folder):
    bounds: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for row in read_table(folder / "results.csv", tables.RESULTS):
        bounds[row["ladder"], row["rung"], int(row["batch"])].add(row["bound"])
    told = read_json(folder / "summary.json")["utilisation"]
    assert {(e["ladder"], e["rung"], e["batch"]): set(e["bound"].split(" or ")) for e in told} == bounds


# From here on figures are computed without the project's own statistics and telemetry.


def said(document: str) -> str:
    """A document without its line breaks."""
    return " ".join((ROOT / document).read_text().split())


def rows(path: Path) -> list[dict[str, str]]:
    """A table of whichever version: some have fewer columns than this one writes."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def medians_ms(folder: Path, raw: str) -> dict[str, float]:
    """The run medians of a round by rung; ``raw`` as in results.csv."""
    table = pq.read_table(raw_file(folder, raw)).to_pandas()
    return {rung: float(np.median(ns)) / 1e6 for rung, ns in table.groupby("rung").latency_ns}


def run_medians_ms(measured: Path, batch: int, ladder: str = "yolo11n/headline") -> dict[str, np.ndarray]:
    """The run medians of a measurement by rung, in the order of its rounds."""
    folder = measured / f"rounds/{ladder}/b{batch}"
    rounds = [medians_ms(folder, str(folder / f"{number}.parquet")) for number in range(1, 9)]
    return {rung: np.array([each[rung] for each in rounds]) for rung in rounds[0]}


@pytest.mark.parametrize("folder", LADDERS, ids=lambda folder: str(folder.relative_to(ROOT / "docs/measurements")))
def test_gains_and_intervals_are_those_of_the_raw_latencies(folder):
    runs = rows(folder / "results.csv")
    raws = {(row["ladder"], row["batch"], row["round"]): row["raw"] for row in runs}
    medians = {place: medians_ms(folder, raw) for place, raw in raws.items()}
    for step in rows(folder / "ladder.csv"):
        of_step = [each for place, each in medians.items() if place[:2] == (step["ladder"], step["batch"])]
        pairs = [
            (each[step["from"]], each[step["to"]]) for each in of_step if {step["from"], step["to"]} <= each.keys()
        ]
        assert len(pairs) == int(step["rounds"]) and step.get("rounds_excluded", "0") == "0"
        if not pairs:
            continue
        log_ratios = -np.diff(np.log(pairs)).ravel()
        interval = stats.ttest_1samp(log_ratios, 0).confidence_interval(0.99)
        expected = [100 * (1 - np.exp(-each)) for each in (log_ratios.mean(), interval.low, interval.high)]
        assert [float(step[name]) for name in ("gain_pct", "ci_low_pct", "ci_high_pct")] == pytest.approx(expected)
        held = "faster" if interval.low > 0 else "slower" if interval.high < 0 else "within noise"
        assert step["verdict"] == held


def single_rounds(measured: Path, batch: int, ladder: str = "yolo11n/headline") -> tuple[str, str]:
    """What a graph gains stock PyTorch in single rounds, %, and how many times as fast the whole ladder makes it."""
    ms = run_medians_ms(measured, batch, ladder)
    gains = 100 * (1 - ms["pytorch-fp32-graph"] / ms["pytorch-fp32"])
    factors = ms["pytorch-fp32"] / ms["tensorrt-fp16-graph"]
    return f"{gains.min():.0f} to {gains.max():.0f}", f"{factors.min():.1f} to {factors.max():.1f}"


def test_what_the_text_says_of_spreads_and_of_single_rounds():
    text, readme = said("docs/measurements/h200/README.md"), said("README.md")
    for of_batch_1 in (run_medians_ms(NEWEST, 1), run_medians_ms(FORMER, 1), run_medians_ms(RESNET50, 1, OF_RESNET50)):
        spread = {rung: 100 * ms.std(ddof=1) / ms.mean() for rung, ms in of_batch_1.items()}
        told = [
            f"{spread['pytorch-fp32-graph']:.2f} %",
            f"TensorRT's FP32 graph {spread['tensorrt-fp32-graph']:.2f} %, its FP16 graph "
            f"{spread['tensorrt-fp16-graph']:.2f} %, enqueued {spread['tensorrt-fp32']:.2f} %, stock PyTorch "
            f"{spread['pytorch-fp32']:.0f} %",
        ]
        assert f"PyTorch's graph {told[0]}, {told[1]}" in text
    gains, factors = zip(*(single_rounds(NEWEST, batch) for batch in (1, 4, 8, 16)), strict=True)
    assert (
        f"By round a graph gains {gains[0]} % at batch 1, and all causes together are a factor of {factors[0]}; at "
        f"batch 4 {gains[1]} % and {factors[1]}; at batch 8 {gains[2]} % and {factors[2]}; at batch 16"
    ) in text
    assert f"7.8 of 7.9 ms, {gains[3]} % and {factors[3]}." in text
    assert f"the graph gained {gains[0]} % and everything together made it {factors[0]} times as fast" in readme
    gains, factors = zip(*(single_rounds(FORMER, batch) for batch in (1, 4, 8)), strict=True)
    assert (
        f"By round a graph gains {gains[0]} % at batch 1, and all causes together are a factor of {factors[0]}; at "
        f"batch 4 {gains[1]} % and {factors[1]}; at batch 8 {gains[2]} % and {factors[2]}."
    ) in text
    low, high = np.split(np.sort(run_medians_ms(FORMER, 1)["pytorch-fp32"]), [5])
    assert f"{low[0]:.1f} to {low[-1]:.1f} ms in five rounds" in text
    assert f"{high[0]:.1f} to {high[-1]:.1f} in three" in text


NAMES = {"pytorch-fp32": "PyTorch", "tensorrt-fp32": "TensorRT", "tensorrt-fp16-graph": "TensorRT's FP16 graph"}
NAMES |= {"pytorch-fp32-graph": "PyTorch's graph", "tensorrt-fp32-graph": "TensorRT's graph"}


def step_line(*passes: dict[str, str]) -> str:
    """A step as the text shows it, with its gain in each of the passes."""
    cells = []
    for row in passes:
        gain, low, high = (float(row[column]) for column in ("gain_pct", "ci_low_pct", "ci_high_pct"))
        cells.append(f"{gain:.1f} % ({low:.1f} to {high:.1f})".replace("-", "−"))
    step = f"{NAMES[passes[-1]['from']]} → {NAMES[passes[-1]['to']]}"
    return f"| {passes[-1]['batch']} | {step} | {passes[-1]['cause']} | {' | '.join(cells)} |"


def test_the_two_passes_stand_side_by_side_as_their_tables_say():
    text, readme = said("docs/measurements/h200/README.md"), said("README.md")
    passes = [
        {(row["batch"], row["from"], row["to"]): row for row in rows(measured.parent / "ladder.csv")}
        for measured in (FORMER, NEWEST)
    ]
    apart = {}
    for place in passes[0]:
        assert step_line(*(each[place] for each in passes)) in text
        apart[place] = abs(float(passes[1][place]["gain_pct"]) - float(passes[0][place]["gain_pct"]))
    assert {(batch, start) for (batch, start, _), points in apart.items() if points > 5} == {("8", "pytorch-fp32")}
    assert max(points for (_, start, _), points in apart.items() if start != "pytorch-fp32") < 2
    assert "repeats within 2 points" in readme and "Only the steps from stock PyTorch at batch 8" in text


def test_what_the_text_says_of_resnet50():
    text, readme = said("docs/measurements/h200/README.md"), said("README.md")
    steps = {(row["batch"], row["from"], row["to"]): row for row in rows(RESNET50.parent / "ladder.csv")}
    assert len(steps) == 10 and all(step_line(row) in text for row in steps.values())
    compiled = [float(steps[b, "pytorch-fp32-graph", "tensorrt-fp32-graph"]["gain_pct"]) for b in ("1", "32")]
    assert f"takes {compiled[1]:.1f} % off PyTorch's graph there, but is [{-compiled[0]:.1f} % slower at" in readme
    ms = {batch: {r: of.mean() for r, of in run_medians_ms(RESNET50, batch, OF_RESNET50).items()} for batch in (1, 32)}
    assert f"takes {ms[1]['tensorrt-fp32-graph']:.2f} ms and PyTorch's graph {ms[1]['pytorch-fp32-graph']:.2f}" in text
    assert f"{ms[32]['pytorch-fp32-graph'] / ms[32]['tensorrt-fp32-graph']:.2f} times as fast as PyTorch's" in text
    faster = [of["tensorrt-fp32-graph"] / of["tensorrt-fp16-graph"] for of in ms.values()]
    assert "{:.1f} times as fast at batch 1 and {:.1f} times at 32".format(*faster) in text
    gains, factors = zip(*(single_rounds(RESNET50, batch, OF_RESNET50) for batch in (1, 32)), strict=True)
    assert f"By round a graph gains {gains[0]} %, and all causes together are a factor of {factors[0]}".lower() in text
    assert f"11.5 of 11.7 ms, {gains[1]} % and {factors[1]}." in text
    at_32 = defaultdict(list)
    for row in rows(RESNET50.parent / "results.csv"):
        assert (row["throttled"], row["contended"], row["peak_source"]) == ("none", "none", "datasheet")
        if row["batch"] == "32":
            at_32[row["rung"]].append((float(row["achieved_tflops"]), float(row["peak_compute_pct"])))
    fp32, fp16 = (np.median(at_32[f"tensorrt-{precision}-graph"], axis=0) for precision in ("fp32", "fp16"))
    assert f"FP32 engine reaches {fp32[0]:.1f} TFLOPS and the FP16 one {fp16[0]:.0f}" in text
    assert f"{fp32[1]:.1f} % for TensorRT's FP32 graph at batch 32, {fp16[1]:.1f} % for FP16" in text
    seconds = [
        read_json(RESNET50 / f"engines/resnet50/tensorrt-weak-{p}/build.json")["seconds"] for p in ("fp32", "fp16")
    ]
    assert "{:.0f} s in FP32 and {:.0f} s in FP16".format(*seconds) in text


def test_the_hosts_two_paces_are_those_of_its_processor():
    text = said("docs/measurements/h200/README.md")
    timed = pq.read_table(NEWEST.parent / "host_pace.parquet").to_pandas()
    for phase, limit_ms, words in (
        ("plain Python", 3.3, "{fast[0]:.2f} ms or, in {share:.0f} % of {number} loops, {slow[0]:.2f} ms"),
        ("free", 5.5, "{fast[0]:.2f} and {fast[1]:.2f} ms at the faster pace, {slow[0]:.2f} and {slow[1]:.2f} at the"),
    ):
        of_phase = timed[timed.phase == phase]
        is_slow = of_phase.wall_ns > 1e6 * limit_ms
        slow, fast = (of_phase[which][["wall_ns", "cpu_ns"]].median().to_numpy() / 1e6 for which in (is_slow, ~is_slow))
        assert slow[1] == pytest.approx(slow[0], rel=0.01)  # it works all the time: nothing is waited for
        share = 100 * is_slow.mean()
        assert words.format(fast=fast, slow=slow, share=share, number=len(of_phase)) in text


def test_energy_is_what_counter_and_power_readings_give_and_the_text_says():
    text = said("docs/measurements/h200/README.md")
    labels = {"pytorch-fp32": "stock PyTorch", "pytorch-fp32-graph": "its graph"}
    labels |= {"tensorrt-fp32-graph": "TensorRT FP32", "tensorrt-fp16-graph": "TensorRT FP16"}
    folder, found = FORMER / "rounds/yolo11n/energy/b1", {rung: [] for rung in labels}
    for number in (1, 2):
        record = read_json(folder / f"{number}.json")
        samples = pq.read_table(folder / f"{number}.telemetry.parquet").to_pandas()
        for row in record["rows"]:
            start, end = record["details"][row["rung"]]["phases"]["throughput_ns"]
            of_pass = samples[(samples.rung == row["rung"]) & samples.at_ns.between(start, end)]
            counted = of_pass[of_pass.energy_j.notna()].iloc[-2:]  # the last two looks at the counter
            counter_w = counted.energy_j.diff().iloc[-1] / (counted.at_ns.diff().iloc[-1] / 1e9)
            read_w = of_pass[of_pass.at_ns > (start + end) / 2].power_w.mean()
            assert row["power_w"] == pytest.approx(counter_w, rel=0.08)  # looks 2 s apart, steps of 0.1 s
            assert row["power_w"] == pytest.approx(read_w, rel=0.03)
            assert row["energy_j_per_image"] == pytest.approx(row["power_w"] / row["throughput_ips"])
            found[row["rung"]].append((row["energy_j_per_image"], row["power_w"]))
    for rung, label in labels.items():
        (first_j, first_w), (second_j, second_w) = found[rung]
        digits = 2 if rung == "pytorch-fp32" else 3
        joules = f"{first_j:.{digits}f} and {second_j:.{digits}f}"
        assert f"| {label} | {joules} | {first_w:.0f} and {second_w:.0f} |" in text


@pytest.mark.parametrize(("measured", "launch_ms"), [(NEWEST, 0.73), (FORMER, 0.70)], ids=["newest", "former"])
def test_the_text_counts_the_layers_of_the_fp16_engine_as_its_audit_lists_them(measured, launch_ms):
    nodes = read_json(measured / "audit/yolo11n/tensorrt-weak-fp16.json")["nodes"]
    precisions = [node["precision"] for node in nodes]
    conversions = [node for node in nodes if node["type"] in ("Reformat", "MyelinReformat")]
    computing = [node for node in nodes if node not in conversions and node["precision"].startswith("fp")]
    at = [node for node in computing if node["precision"] == "fp16"]
    of_all, of_at, of_conversions = (sum(node["time_ms"] for node in each) for each in (nodes, at, conversions))
    text = said("docs/measurements/h200/README.md")
    for claim in (
        f"all of its {len(nodes)} layers. {precisions.count('fp16')} are FP16, {precisions.count('fp32')} FP32, "
        f"{precisions.count('int32')} work on integers. Of the {len(computing)} that compute {len(at)} are FP16 "
        f"({100 * len(at) / len(computing):.1f} %)",
        f"{100 * of_at / of_all:.1f} % of a profiled pass; {100 * of_conversions / of_all:.1f} % went into "
        f"{len(conversions)} layers that only change type or layout",
        f"took {of_all:.2f} ms where a launch takes {launch_ms:.2f}",
    ):
        assert claim in text
    assert np.median(run_medians_ms(measured, 1)["tensorrt-fp16-graph"]) == pytest.approx(launch_ms, abs=0.005)


def test_the_unfused_traffic_of_the_fp16_engine_is_what_the_text_says():
    shares = [
        np.median(
            [
                float(row["unfused_bandwidth_pct"])
                for row in rows(H200 / "2026-12/results.csv")
                if (row["rung"], row["batch"]) == ("tensorrt-fp16-graph", batch)
            ]
        )
        for batch in ("4", "8")
    ]
    text = said("docs/measurements/h200/README.md")
    assert f"({shares[0]:.0f} and {shares[1]:.0f} % of the bandwidth peak)" in text
    assert f"half of that, {shares[0] / 2:.0f} and {shares[1] / 2:.0f} %" in text


def test_slow_launches_go_with_a_slow_host_between_them_as_the_text_says():
    found, between_at_1 = [], []
    for batch in (1, 4, 8):
        slow, between_ms = [], []
        for number in range(1, 9):
            path = FORMER / f"rounds/yolo11n/headline/b{batch}/{number}.parquet"
            latencies = pq.read_table(path).to_pandas()
            ms = latencies[latencies.rung == "pytorch-fp32"].latency_ns / 1e6
            ((start, end),) = read_json(path.with_suffix(".json"))["details"]["pytorch-fp32"]["phases"]["loops_ns"]
            slow.append((ms > 5.5).mean())
            between_ms.append((end - start) / 1e6 / len(ms) - ms.mean())
        found.append(stats.spearmanr(slow, between_ms).statistic)
        between_at_1 = between_at_1 or between_ms
    text = said("docs/measurements/h200/README.md")
    assert f"(at batch 1 {min(between_at_1):.2f} to {max(between_at_1):.2f} ms" in text
    assert "eight rounds {:.2f}, {:.2f} and {:.2f} at batches 1, 4 and 8".format(*found) in text


def test_what_the_workflow_used_is_what_the_method_says():
    text = said("docs/method.md")
    used = {
        folder: np.array(
            [float(row["parent_cpu_pct"]) for row in rows(ROOT / "docs/measurements" / folder / "results.csv")]
        )
        for folder in ("cpu/2026-12-01", *(f"h200/2026-12{name}" for name in ("-01", "", "-settled", "-resnet50")))
    }
    cpu, *gpus = used.values()
    assert f"{cpu.min():.2f} to {cpu.max():.2f} % (median {np.median(cpu):.2f})" in text
    for pct in gpus:
        spread = (
            f"{pct.min():.0f} to {pct.max():.1f} % (median {np.median(pct):.2f}; {(pct >= 1).sum()} of {len(pct)} runs"
        )
        assert spread in text


def test_the_peaks_in_the_method_are_those_measured():
    text = said("docs/method.md")
    found = [read_json(path) for path in sorted(H200.glob("20*/peaks.json"))]
    assert len(found) == 4
    for precision in ("tf32", "fp16", "bf16", "int8"):
        rates = [each["tflops"][precision] for each in found]
        assert f"{min(rates):.0f} to {max(rates):.0f} ({precision})" in text
    rates, copies = [each["tflops"]["fp32"] for each in found], [each["bandwidth_gb_s"] for each in found]
    assert f"{min(rates):.1f} to {max(rates):.1f} (fp32)" in text
    assert f"{min(copies):.0f} to {max(copies):.0f} GB/s" in text
