"""Shares of peaks and what a rung is bound by: pure figures, then the tables made from a made-up run."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

import onnx
import pytest
import small_onnx
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from ladder import graph, summary, utilisation
from ladder.aggregate import aggregate
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.peaks import DATASHEETS, Datasheet
from ladder.report.text import peaks_note
from ladder.utilisation import Peaks, bound, choose, columns, least_bytes, peak_tflops, precisions, unfused_bytes

SHEET = Datasheet({"fp32": 50.0, "fp16": 1000.0, "int8": 2000.0}, 5000.0, "a datasheet")
PEAKS = choose({"tflops": {"fp32": 40.0, "fp16": 800.0}, "bandwidth_gb_s": 4000.0}, SHEET)
ELEMENTS = {
    "weights": {"fp32": 1_000_000, "int64": 10},
    "inputs_outputs": {"fp32": 200_000},
    "activations": {"fp32": 30_000_000, "int64": 5},
}
GRAPH = {"flops": {"total": 8_000_000_000}, "elements": ELEMENTS}
CLOCKS = {"throughput_ips": 1000.0, "median_ms": 4.0, "device_busy_ms": 3.0}
RUN = {"precision": "fp32", "batch": 4, "device": "cuda", **CLOCKS}


def test_the_measured_peak_comes_before_the_datasheets():
    assert PEAKS.tflops == {"fp32": 40.0, "fp16": 800.0, "int8": 2000.0} and PEAKS.bandwidth_gb_s == 4000.0
    sources = {"fp32": "measured", "fp16": "measured", "int8": "datasheet", "bandwidth": "measured"}
    assert PEAKS.sources == sources
    assert choose(None, None) == Peaks({}, None, {})
    assert choose(None, SHEET).sources == dict.fromkeys([*SHEET.tflops, "bandwidth"], "datasheet")


def test_a_slow_product_of_the_library_does_not_stand_for_the_device():
    h200 = DATASHEETS["NVIDIA H200"]
    rates = {"fp32": 54.0, "tf32": 371.0, "fp16": 682.0, "bf16": 703.0, "int8": 949.0}  # measured on 2026-11-30
    chosen = choose({"tflops": rates, "bandwidth_gb_s": 4204.0}, h200)
    assert chosen.tflops == rates | {"int8": 1979} and chosen.bandwidth_gb_s == 4204.0
    assert chosen.sources == dict.fromkeys([*rates, "bandwidth"], "measured") | {"int8": "datasheet"}
    assert choose({"tflops": rates, "bandwidth_gb_s": 4204.0}, None).tflops == rates
    told = peaks_note(
        {"device": "NVIDIA H200", "measured": {"tflops": rates, "bandwidth_gb_s": 4204.0}, "datasheet": asdict(h200)}
    )
    assert "int8 949 TFLOPS (below 60 % of the datasheet's figure, which counts instead), memory" in told
    assert told.count("counts instead") == 1


@pytest.mark.parametrize(
    ("requested", "share", "parts"),
    [
        ("fp32", 100.0, {"fp32": 1}),
        ("fp32", None, {"fp32": 1}),
        ("fp16", None, {"fp16": 1}),
        ("tf32-conv", None, {"tf32": 1}),
        ("int8", 75.0, {"int8": 0.75, "fp32": 0.25}),
        ("int8-fp16", 75.0, {"int8": 0.75, "fp16": 0.25}),
        ("int8", 0.0, {"fp32": 1}),
    ],
)
def test_flops_run_in_what_the_audit_saw(requested, share, parts):
    assert precisions(requested, share) == parts


@given(share=st.floats(0, 100), slow=st.floats(1e-3, 1e3), factor=st.floats(1, 100))
def test_the_peak_of_a_mixture_lies_between_its_parts(share, slow, factor):
    peaks = {"fp32": slow, "int8": slow * factor}
    mixed = peak_tflops(peaks, precisions("int8", share))
    assert slow * (1 - 1e-9) <= mixed <= slow * factor * (1 + 1e-9)


def test_a_mixture_with_an_unknown_peak_has_none():
    assert peak_tflops({"fp32": 1.0}, {"fp32": 0.9, "int8": 0.1}) is None


def test_bytes_of_a_launch():
    assert least_bytes(ELEMENTS, "fp32", 4) == 4 * 1_000_000 + 80 + 4 * 4 * 200_000
    assert least_bytes(ELEMENTS, "int8", 4) == 1_000_000 + 80 + 4 * 200_000
    assert unfused_bytes(ELEMENTS, 4) == 4 * 1_000_000 + 80 + 4 * (4 * 30_000_000 + 40)
    assert unfused_bytes(ELEMENTS, 4, "fp16") == 2 * 1_000_000 + 80 + 4 * (2 * 30_000_000 + 40)


def test_columns_of_a_run():
    found = columns(RUN, GRAPH, False, 100.0, PEAKS)
    assert tuple(found) == utilisation.COLUMNS
    assert found["achieved_tflops"] == pytest.approx(8.0)
    assert found["peak_compute_pct"] == pytest.approx(20.0)
    assert found["peak_bandwidth_pct"] == pytest.approx(100 * 250 * 7_200_080 / 4e12)
    assert found["unfused_bandwidth_pct"] == pytest.approx(100 * 250 * 484_000_240 / 4e12)
    assert found["host_share_pct"] == pytest.approx(25.0)
    assert (found["peak_source"], found["bound"]) == ("measured", "other")


def test_an_int8_run_takes_its_peak_from_the_datasheet_and_says_so():
    found = columns({**RUN, "precision": "int8"}, GRAPH, False, 50.0, PEAKS)
    assert found["peak_source"] == "measured and datasheet"
    assert found["peak_compute_pct"] == pytest.approx(100 * 8 * (0.5 / 2000 + 0.5 / 40))


@pytest.mark.parametrize(
    ("change", "graph", "peaks", "empty"),
    [
        ({}, None, PEAKS, {"achieved_tflops", "peak_compute_pct", "peak_bandwidth_pct", "unfused_bandwidth_pct"}),
        ({"throughput_ips": None}, GRAPH, PEAKS, {"achieved_tflops", "peak_compute_pct", "peak_bandwidth_pct"}),
        ({}, GRAPH, choose(None, None), {"peak_compute_pct", "peak_bandwidth_pct", "peak_source"}),
        ({}, {**GRAPH, "elements": None}, PEAKS, {"peak_bandwidth_pct", "unfused_bandwidth_pct"}),
        ({"device_busy_ms": None}, GRAPH, PEAKS, {"host_share_pct"}),
        ({"device": "cpu"}, GRAPH, PEAKS, {"host_share_pct"}),
    ],
)
def test_what_is_not_known_is_empty(change, graph, peaks, empty):
    found = columns(RUN | change, graph, False, None, peaks)
    assert {column for column in empty if found[column] is None} == empty
    assert found["bound"] in (("other",) if change == {"device": "cpu"} else ("unclear",))


def test_nothing_known_has_no_bound():
    found = columns({**RUN, "device_busy_ms": None}, None, False, None, choose(None, None))
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("compute", "least", "unfused", "host", "on_cpu", "expected"),
    [
        (60.0, 1.0, 20.0, 70.0, False, "host"),  # the device waits, whatever a full queue could reach
        (60.0, 1.0, 90.0, 10.0, False, "compute"),
        (60.0, 70.0, 90.0, 10.0, False, "bandwidth"),
        (60.0, 1.0, 90.0, None, False, "compute"),  # so busy a device cannot wait for its host
        (20.0, 1.0, 40.0, 10.0, False, "other"),
        (20.0, 1.0, 60.0, 10.0, False, "unclear"),  # fused or cached, or not
        (20.0, 1.0, 40.0, None, False, "unclear"),  # the host may be to blame
        (20.0, 1.0, 40.0, None, True, "other"),
        (None, 1.0, 40.0, 10.0, False, "unclear"),
        (None, None, None, 10.0, False, "unclear"),
        (None, None, None, None, False, None),
    ],
)
def test_what_a_rung_is_bound_by(compute, least, unfused, host, on_cpu, expected):
    assert bound(compute, least, unfused, host, on_cpu) == expected


# ---- elements of a graph ----------------------------------------------------------------------------------------


def test_elements_of_a_small_graph(tmp_path):
    path = small_onnx.convnet(tmp_path / "fp32.onnx")
    observed = graph.observe(path, graph.samples_of(small_onnx.data(tmp_path / "data.npz"))[:1])
    found = graph.write(path, path, tmp_path / "graph.json", "fp32", observed)["elements"]
    model = onnx.load(path)
    used = {name for node in model.graph.node for name in node.input}
    floats = [t for t in model.graph.initializer if t.name in used and t.data_type == onnx.TensorProto.FLOAT]
    assert found["weights"]["fp32"] == sum(onnx.numpy_helper.to_array(tensor).size for tensor in floats)
    assert least_bytes(found, "fp32", 1) <= unfused_bytes(found, 1)
    assert read_json(tmp_path / "graph.json")["elements"] == found


def test_a_shape_that_was_not_seen_leaves_the_elements_unknown(tmp_path):
    model = onnx.load(small_onnx.convnet(tmp_path / "fp32.onnx"))
    assert graph.describe(model, model, "fp32", graph.Observed({}, {}))["elements"] is None


# ---- the tables -------------------------------------------------------------------------------------------------

GPU = synthetic.GPU_LADDER | {"batches": [8]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan, rounds = synthetic.write_run(Path("results"), [GPU])
    return plan, rounds, synthetic.write_audits(Path("results"), GPU)


def rows_of(name: str) -> list[dict[str, str]]:
    with open(Path("results") / f"{name}.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_every_run_has_its_utilisation_and_the_summary_its_medians(run):
    plan, rounds, audits = run
    summary = aggregate(plan, rounds, audits, Path("results"))
    for row in rows_of("results"):
        ips = float(row["throughput_ips"])
        assert float(row["achieved_tflops"]) == pytest.approx(ips * 8e9 / 1e12)
        assert float(row["peak_compute_pct"]) == pytest.approx(ips * 8e9 / 40e12 * 100)
        assert row["peak_source"] == "measured" and row["bound"]
    by_rung = {entry["rung"]: entry for entry in summary["utilisation"]}
    assert list(by_rung) == ["eager", "graph", "tensorrt", "tensorrt-graph"]
    assert (by_rung["eager"]["bound"], by_rung["tensorrt-graph"]["bound"]) == ("host", "compute")
    (peaks,) = summary["peaks"]
    assert peaks["device"] == "Synthetic GPU" and peaks["datasheet"] is None
    assert peaks["measured"]["tflops"] == {"fp32": 40.0, "fp16": 600.0}


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        (["host"] * 8, "host"),
        (["other", "host"] * 4, "host or other"),
        (["unclear", "compute", "unclear"], "unclear or compute"),
        (["host", None], "host"),
        ([None, None], None),
    ],
)
def test_a_rung_whose_rounds_are_bound_by_different_things_says_so(bounds, told):
    row = {"platform": "gpu", "model": "net", "ladder": "l", "rung": "eager", "batch": 4}
    rows = [row | dict.fromkeys(utilisation.COLUMNS) | {"bound": each} for each in bounds]
    (entry,) = summary.utilisation(rows)
    assert (entry["rounds"], entry["bound"]) == (len(bounds), told)


def test_peaks_that_could_not_be_measured_are_a_failure_and_the_datasheet_serves(run):
    plan, rounds, audits = run
    why = {"stage": "peaks", "permanent": False, "reason": "no device", "log": "logs/peaks.log"}
    write_json(Path(GPU["peaks"]), {"status": "failed", **why})
    for path in rounds:
        record = read_json(path)
        gpu = record["host_state"]["gpu"] | {"name": "NVIDIA H200"}
        write_json(path, record | {"host_state": record["host_state"] | {"gpu": gpu}})
    summary = aggregate(plan, rounds, audits, Path("results"))
    (failure,) = rows_of("failures")
    assert (failure["platform"], failure["model"], failure["stage"]) == ("synthetic-gpu", "", "peaks")
    assert {row["peak_source"] for row in rows_of("results")} == {"datasheet"}
    assert summary["peaks"][0]["measured"] is None and "H200" in summary["peaks"][0]["datasheet"]["source"]


def test_without_graphs_and_peaks_the_columns_are_empty_and_nothing_fails(run):
    plan, rounds, audits = run
    for path in Path("artifacts").rglob("*.json"):
        path.write_text("") if "graph" in path.name else path.unlink()
    aggregate(plan, rounds, audits, Path("results"))
    assert rows_of("failures") == []
    for row in rows_of("results"):
        assert row["achieved_tflops"] == row["peak_compute_pct"] == row["peak_source"] == ""
        assert row["bound"] in ("host", "unclear")


def test_a_rung_that_is_not_in_the_plan_is_refused(run):
    plan, rounds, audits = run
    shorter = {**GPU, "rungs": GPU["rungs"][1:], "steps": []}
    with pytest.raises(StepError, match="hold a rung 'eager' that is not in the plan"):
        aggregate({"ladders": [shorter]}, rounds, audits, Path("results"))
