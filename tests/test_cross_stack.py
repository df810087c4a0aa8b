"""Several hosts side by side: what is compared, what corresponds, what is refused. No number here was measured."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats
from snakemake_interface_common.exceptions import WorkflowError

from ladder import host_faults, statistics, steps, storage, tables
from ladder.cross_stack import Role, Source, admit, compare, conflicts, merged, read_source, refusal, role_of
from ladder.errors import StepError
from ladder.files import sha256, write_json
from ladder.report.cross_stack import cross_stack_page, role_name

REPOSITORY = Path(__file__).parents[1]
CAPTION = REPOSITORY / "docs" / "captions" / "cross_stack.rst"
PROTOCOL = {
    "measure": {"warmup": 3, "iterations": None, "max_seconds": 2.5},
    "timing_code": "c0de",
    "inputs": {"yolo11n": {"height": 640, "width": 640}},
}
# rung -> factors, invented ms by platform
RUNGS = {
    "cpu": {
        "pytorch": ({"compiler": "none"}, 80.0),
        "openvino": ({"compiler": "openvino"}, 45.0),
        "openvino-int8": ({"compiler": "openvino", "precision": "int8"}, 30.0),
    },
    "gpu": {
        "pytorch": ({"compiler": "none"}, 5.0),
        "pytorch-graph": ({"compiler": "none", "launch": "graph"}, 2.0),
        "tensorrt": ({"compiler": "tensorrt"}, 1.9),
        "tensorrt-graph": ({"compiler": "tensorrt", "launch": "graph"}, 1.6),
        "tensorrt-static-graph": ({"compiler": "tensorrt", "launch": "graph", "shape": "static"}, 1.2),
    },
}


def row(platform, rung, number, ms, /, **changed):
    """A row of results.csv as text, in whatever columns this needs."""
    factors = {"precision": "fp32", "launch": "eager", "shape": "dynamic", "transfers": "excluded", "options": "{}"}
    watts = {} if platform == "cpu" else {"power_w": 200.0, "ips_per_w": 1000 / ms / 200}
    values = {
        **dict.fromkeys(tables.RESULTS, ""), "platform": platform, "host": f"{platform}-host",
        "device_uuid": f"{platform}-uuid", "device": "cpu" if platform == "cpu" else "cuda", "model": "yolo11n",
        "weights": "seeded(0)", "ladder": platform, "rung": rung, "stack": rung, **factors, "batch": 1, "round": number,
        "sitting": "20300101T000000-1", "started_at": f"2030-01-01T00:00:{number:02}.000+00:00", "iterations": 50,
        "median_ms": ms, "throughput_ips": 1000 / ms, "peak_compute_pct": 7.5, "throttled": "none",
        "fp32_onnx_sha256": "ab" * 32, "artifact_sha256": "cd" * 32, **watts, **changed,
    }  # fmt: skip
    return {key: str(value) for key, value in values.items()}


def source(platform, /, rounds=8, protocol=PROTOCOL, name=None, **changed):
    rng = np.random.default_rng(len(platform))
    rows = [
        row(platform, rung, number, ms * rng.lognormal(0, 0.02), **factors | changed)
        for rung, (factors, ms) in RUNGS[platform].items()
        for number in range(1, rounds + 1)
    ]
    host = {"platform": platform, "host": rows[0]["host"], "device_uuid": rows[0]["device_uuid"], "rounds": rounds}
    state = {"processor": f"{platform} processor", "kernel": "6.1", "physical_cores": 2}
    verdicts = [
        {
            "name": rung,
            "requested_precision": factors.get("precision", "fp32"),
            "verdict": "pass",
            "reason": None,
            "flops_at_precision_pct": 100.0,
            "nodes_at_precision_pct": 99.0,
        }
        for rung, (factors, _) in RUNGS[platform].items()
    ]
    place = {"platform": platform, "model": "yolo11n", "ladder": platform, "batch": 1}
    summary = {
        "protocol": protocol, "hosts": [host | {"state": state}], "versions": {platform: {"torch": "2.99.0+cpu"}},
        "results_sha256": "",
        "ladders": [place | {"rungs": verdicts}], "warnings": [], "unsteady_runs": [], "busy_runs": [], "failures": 0,
        "measured": {
            "first": min(r["started_at"] for r in rows), "last": max(r["started_at"] for r in rows),
            "runs": len(rows), "sittings": 1,
        },
    }  # fmt: skip
    return Source(name or platform, rows, summary, "")


def of(found, role, platform):
    return next(r for r in found.rows if Role(*(r[k] for k in Role._fields)) == role and r["platform"] == platform)


FASTEST = Role("fp32", "any", "any", "excluded")


# --- the interval of two samples that are no pairs ---

samples = arrays.arrays(float, st.integers(2, 12), elements=st.floats(-3, 3, width=32))


@settings(max_examples=60, deadline=None)
@given(samples, samples)
def test_the_interval_is_scipys_and_turns_around(first, second):
    found, back = statistics.welch_interval(first, second), statistics.welch_interval(second, first)
    assert found.low <= found.mean <= found.high
    assert np.allclose([-back.high, -back.low], [found.low, found.high], atol=1e-12)
    if min(np.ptp(first), np.ptp(second)) > 1e-3:
        expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(1 - statistics.ALPHA)
        assert np.allclose([found.low, found.high], expected, rtol=1e-6, atol=1e-9)
    wider = statistics.welch_interval(first, second, statistics.ALPHA / 2)
    assert wider.low <= found.low and found.high <= wider.high


def test_no_spread_gives_an_interval_of_no_width():
    assert statistics.welch_interval([1.0, 1.0], [3.0, 3.0]) == (-2, -2, -2)


@pytest.mark.parametrize(("sizes", "spread"), [((8, 8), 1), ((6, 8), 10), ((8, 6), 10)])
@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_the_same_twice_is_told_apart_in_one_row_of_a_hundred_at_most(sizes, spread, tails):
    rng = np.random.default_rng(1)
    draw = rng.standard_normal if tails == "normal" else lambda shape: rng.standard_t(3, shape)
    found = statistics.welch_interval(spread * draw((40_000, sizes[0])), draw((40_000, sizes[1])))
    false = np.mean((found.low > 0) | (found.high < 0))
    assert 0.003 < false < statistics.ALPHA + 0.0025  # one standard error is 0.0005


# --- which rungs correspond ---


def test_rungs_correspond_by_what_they_are():
    found = compare([source("cpu"), source("gpu")])
    stock = Role("fp32", "eager", "stock", "excluded")
    assert of(found, stock, "gpu")["rung"] == of(found, stock, "cpu")["rung"] == "pytorch"
    assert of(found, stock, "gpu")["ratio"] == pytest.approx(16, rel=0.1)
    assert of(found, Role("fp32", "graph", "compiled", "excluded"), "gpu")["rung"] == "tensorrt-static-graph"
    assert (of(found, FASTEST, "gpu")["rung"], of(found, FASTEST, "cpu")["rung"]) == (
        "tensorrt-static-graph", "openvino",
    )  # fmt: skip
    alone = of(found, Role("fp32", "graph", "stock", "excluded"), "gpu")
    assert alone["reference"] is alone["ratio"] is alone["verdict"] is None
    assert [r["precision"] for r in found.rows] == sorted(r["precision"] for r in found.rows)
    assert {tuple(r) for r in found.rows} and set(found.rows[0]) == set(tables.CROSS_STACK)


def test_options_are_not_stock_and_transfers_are_a_role_of_their_own():
    factors = {"precision": "fp32", "launch": "eager", "compiler": "none", "options": "{}", "transfers": "excluded"}
    assert role_of(factors).kind == "stock"
    assert role_of(factors | {"options": '{"channels_last":true}'}).kind == "tuned"
    assert role_of(factors | {"compiler": "inductor", "options": '{"mode":"max"}'}).kind == "compiled"
    included = role_of(factors | {"transfers": "included"})
    assert included != role_of(factors)
    assert role_name(included._asdict()) == "fp32, eager, stock, with transfers"


def test_a_rung_whose_audit_warns_is_the_last_choice():
    gpu = source("gpu")
    gpu.summary["ladders"][0]["rungs"][-1]["verdict"] = "warn"
    found = of(compare([source("cpu"), gpu]), FASTEST, "gpu")
    assert (found["rung"], found["audit_verdict"]) == ("tensorrt-graph", "pass")
    gpu.summary["ladders"][0]["rungs"].pop()  # nothing is known of its audit
    assert of(compare([source("cpu"), gpu]), FASTEST, "gpu")["rung"] == "tensorrt-graph"


def test_what_an_audit_did_not_let_through_is_refused():
    gpu = source("gpu")
    gpu.summary["ladders"][0]["rungs"][-1]["verdict"] = "exclude"
    found = compare([gpu, source("cpu")])
    assert of(found, FASTEST, "gpu")["rung"] == "tensorrt-graph"
    (refused,) = found.refused
    assert (refused["field"], refused["found"], refused["expected"], refused["runs"]) == (
        "audit", "exclude (tensorrt-static-graph)", "pass", 8,
    )  # fmt: skip
    assert "see the reason in audit.csv" in refusal(refused)


def test_the_best_of_several_has_an_interval_that_allows_for_the_choice():
    gpu, cpu = source("gpu"), source("cpu")
    found = compare([cpu, gpu])
    best, alone = of(found, FASTEST, "gpu"), of(found, Role("fp32", "eager", "stock", "excluded"), "gpu")
    assert (best["candidates"], alone["candidates"], of(found, FASTEST, "cpu")["candidates"]) == (5, 1, 2)
    logs = [np.log([float(r["median_ms"]) for r in s.rows if r["rung"] == rung])
            for s, rung in ((cpu, "openvino"), (gpu, "tensorrt-static-graph"))]  # fmt: skip
    interval = statistics.welch_interval(*logs, statistics.ALPHA / 10)
    assert np.allclose(np.log([best["ratio_low"], best["ratio_high"]]), [interval.low, interval.high])
    interval = statistics.paired_interval(logs[1], statistics.ALPHA / 5)
    assert np.allclose(np.log([best["median_low_ms"], best["median_high_ms"]]), [interval.low, interval.high])


@pytest.mark.parametrize("rungs", [1, 5])
def test_the_fastest_of_equals_is_told_apart_in_one_row_of_a_hundred_at_most(rungs):
    medians = np.random.default_rng(1).standard_normal((20_000, rungs, 8))
    fastest = np.take_along_axis(medians, medians.mean(axis=2).argmin(axis=1)[:, None, None], axis=1)[:, 0]
    other = np.random.default_rng(2).standard_normal((20_000, 8))
    found = statistics.welch_interval(fastest, other, statistics.ALPHA / rungs)
    assert np.mean((found.low > 0) | (found.high < 0)) < statistics.ALPHA + 0.0025


# --- how they stand ---


def test_a_row_says_what_a_reader_chooses_by():
    found = compare([source("cpu"), source("gpu")], reference="cpu")
    gpu, cpu = of(found, FASTEST, "gpu"), of(found, FASTEST, "cpu")
    assert gpu["ratio_low"] < gpu["ratio"] < gpu["ratio_high"] and gpu["verdict"] == "faster"
    assert gpu["ratio"] == pytest.approx(cpu["median_ms"] / gpu["median_ms"])
    assert gpu["median_low_ms"] < gpu["median_ms"] < gpu["median_high_ms"]
    assert gpu["ips_per_w"] == pytest.approx(gpu["throughput_ips"] / 200, rel=0.02)
    assert cpu["ips_per_w"] is cpu["power_w"] is cpu["ratio"] is None  # a CPU has no energy, never 0
    assert (gpu["device_name"], gpu["rounds"], gpu["peak_compute_pct"]) == ("gpu processor", 8, 7.5)
    turned = of(compare([source("cpu"), source("gpu")], reference="gpu"), FASTEST, "cpu")
    assert turned["ratio"] == pytest.approx(1 / gpu["ratio"]) and turned["verdict"] == "slower"


def test_flagged_runs_do_not_count_and_few_rounds_give_no_verdict():
    gpu = source("gpu")
    for r in gpu.rows:
        if r["round"] in ("1", "2", "3"):
            r |= {"throttled": "thermal", "median_ms": "900.0"}
    found = of(compare([source("cpu"), gpu]), FASTEST, "gpu")
    assert (found["rounds"], found["rounds_excluded"], found["verdict"]) == (5, 3, "too few rounds")
    assert found["median_ms"] < 2
    single = of(compare([source("cpu"), source("gpu", rounds=1)]), FASTEST, "gpu")
    assert single["ratio"] > 1 and single["ratio_low"] is single["median_low_ms"] is None


# --- what is refused ---


@pytest.mark.parametrize(
    ("changed", "field", "told"),
    [
        (
            {"fp32_onnx_sha256": "ef" * 32},
            "fp32_onnx_sha256",
            f"is {'ef' * 32}, {'ab' * 32} on cpu (cpu) (40 runs); start",
        ),
        ({"weights": "seeded(1)"}, "weights", "is seeded(1), seeded(0) on cpu"),
        ({"inputs": {"yolo11n": {"height": 320, "width": 640}}}, "input", "is height 320, width 640, height 640"),
        ({"measure": PROTOCOL["measure"] | {"warmup": 20}}, "measure.warmup", "is 20, 3 on cpu"),
        ({"timing_code": "f00d"}, "timing_code", "is f00d, c0de on cpu"),
        ({"fp32_onnx_sha256": ""}, "fp32_onnx_sha256", "unknown (40 runs)"),
        ({"inputs": {}}, "input", "unknown (40 runs)"),
    ],
)
def test_what_differs_is_refused_by_name(changed, field, told):
    of_protocol = {key: value for key, value in changed.items() if key in PROTOCOL}
    of_rows = {key: value for key, value in changed.items() if key not in PROTOCOL}
    with pytest.raises(StepError, match="nothing can be compared") as error:
        compare([source("cpu"), source("gpu", protocol=PROTOCOL | of_protocol, **of_rows)])
    assert f"gpu on gpu-host (gpu), yolo11n: {field} {told}" in str(error.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(0, 0.0, True), (0, -0.0, True), (3, 3.0, True), (None, 0, False), (None, None, True), (0.1 + 0.2, 0.3, False),
     (2**53 + 1, float(2**53), False), ([1, 2.0], [1.0, 2], True)],
)  # fmt: skip
def test_settings_are_compared_as_values_not_as_text(one, other, same):
    cpu, gpu = (
        source(platform, protocol=PROTOCOL | {"measure": PROTOCOL["measure"] | {"pause_seconds": value}})
        for platform, value in (("cpu", one), ("gpu", other))
    )
    refused = {row["field"] for row in admit(merged([cpu, gpu]))[1]}
    assert refused == (set() if same else {"measure.pause_seconds"})


def test_every_difference_is_named_and_an_unknown_protocol_hides_none():
    old = source("gpu", protocol=None, fp32_onnx_sha256="ef" * 32)
    admitted, refused = admit(merged([old, source("cpu")]))
    assert {run.side.platform for run in admitted} == {"cpu"}
    assert [(r["field"], r["found"], r["runs"]) for r in refused] == [
        ("fp32_onnx_sha256", "ef" * 32, 40), ("protocol", None, 40),
    ]  # fmt: skip
    assert "protocol unknown (40 runs); its tables do not say how it was timed" in refusal(refused[1])
    assert set(refused[0]) == set(tables.CROSS_STACK_REFUSED)


def test_the_rest_is_made():
    other = source("gpu", protocol=None, name="old", platform="old", device_uuid="other")
    found = compare([source("cpu"), other, source("gpu")])
    assert {r["platform"] for r in found.rows} == {"cpu", "gpu"}
    assert {r["platform"] for r in found.refused} == {"old"}


def test_nothing_to_compare_ends_in_one_clear_error(tmp_path):
    for reference in (None, "cpu"):
        with pytest.raises(StepError, match="name the folders of several hosts' results .*; this host's own are the"):
            compare([], reference)
    with pytest.raises(StepError, match="results of one device alone, cpu on cpu-host, in cpu; name the folder"):
        compare([source("cpu")])
    with pytest.raises(StepError, match=r"alone, cpu on cpu-host, in cpu \(named twice\); name"):
        compare([source("cpu"), source("cpu")])
    with pytest.raises(StepError, match="in cpu and copy; every run in copy is in another of them too; name"):
        compare([source("cpu", name="cpu"), source("cpu", name="copy", protocol=None)])
    with pytest.raises(StepError, match=r"no other has a rung of the .* role as cpu on cpu-host \(cpu\); give the lad"):
        compare([source("cpu"), source("gpu", batch=2)])
    with pytest.raises(StepError, match=r"gpu on gpu-host \(gpu\): every run was throttled or contended; measure it"):
        compare([source("cpu"), source("gpu", throttled="power cap")])
    with pytest.raises(StepError, match="no result of platform 'tpu'; there are: cpu; name one of them"):
        compare([source("cpu")], reference="tpu")
    with pytest.raises(StepError, match="bring its results.csv and summary.json"):
        read_source(tmp_path)
    (tmp_path / "results.csv").write_text("host,model\nx,y\n")
    with pytest.raises(StepError, match="has no column .*median_ms"):
        read_source(tmp_path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("median_ms", "inf"), ("median_ms", "nan"), ("median_ms", "0"), ("median_ms", ""), ("power_w", "0"),
     ("ips_per_w", "nan"), ("throughput_ips", "-1"), ("peak_compute_pct", "inf"), ("median_ms", "1,5"),
     ("batch", "1.0"), ("options", "{mode: x}")],
)  # fmt: skip
def test_a_figure_that_none_measured_is_an_error(column, value):
    with pytest.raises(StepError, match=r"results.csv: a run \(host gpu-host, platform gpu, .*\) with"):
        merged([source("gpu", **{column: value})])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda summary: [], "is not what the workflow wrote"),
        (lambda summary: {"protocol": PROTOCOL}, "is not what the workflow wrote"),
        (lambda summary: {k: v for k, v in summary.items() if k != "versions"}, "does not tell versions"),
        (
            lambda summary: summary | {"measured": summary["measured"] | {"first": "2029-01-01"}},
            "tells of other runs than results.csv beside it: first 2029-01-01, not 2030-01-01",
        ),
    ],
)
def test_a_summary_of_another_call_is_an_error(tmp_path, change, told):
    folder = write(tmp_path / "größe 機", source("gpu")).parent
    assert read_source(folder).summary
    write_json(folder / "summary.json", change(source("gpu").summary))
    with pytest.raises(StepError, match=rf"summary.json {told}.*; bring it and results.csv from the same call"):
        read_source(folder)


def test_tables_of_an_earlier_version_can_be_read(tmp_path):
    old = source("gpu", protocol=None)
    later = {"energy_j_per_image", "power_w", "ips_per_w", "throttled", "contended", "peak_compute_pct"}
    rows = [{key: value for key, value in each.items() if key not in later} for each in old.rows]
    summary = {"measured": old.summary["measured"]}
    read = read_source(write(tmp_path / "old", Source("old", rows, summary, "")).parent)
    with pytest.raises(StepError, match="protocol unknown"):
        compare([source("cpu"), read])


@pytest.mark.parametrize("cut", [lambda cells: cells[:-1], lambda cells: [*cells, "x"]])
def test_a_row_cut_short_is_an_error(tmp_path, cut):
    table = write(tmp_path / "gpu", source("gpu"))
    lines = table.read_text(encoding="utf-8").splitlines()
    lines[4] = ",".join(cut(lines[4].split(",")))
    table.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(StepError, match="row 5 of results.csv has not as many cells as its header"):
        read_source(table.parent)


def test_a_figure_changed_in_the_only_copy_is_an_error(tmp_path):
    table = write(tmp_path / "gpu", source("gpu"))
    first = source("gpu").rows[0]["median_ms"]
    table.write_text(table.read_text(encoding="utf-8").replace(first, "1.5"), encoding="utf-8", newline="")
    with pytest.raises(StepError, match=r"gpu/summary.json was made with another results.csv .* bring it and results"):
        read_source(table.parent)


def test_tables_without_a_hash_are_compared_and_told(tmp_path):
    gpu = source("gpu")
    del gpu.summary["results_sha256"]
    read = read_source(write(tmp_path / "gpu", gpu).parent)
    (note,) = compare([source("cpu"), read, read]).notes
    assert note.startswith(f"Nothing shows whether {read.name}/results.csv is as it was made: its summary.json")


@pytest.mark.parametrize(
    ("separator", "encoding", "told"),
    [
        (",", "utf-8-sig", "begins with a byte order mark"),
        (";", "utf-8", "has semicolons between its cells"),
        ("\t", "utf-8", "has tabs between its cells"),
    ],
)
def test_a_table_that_a_spreadsheet_saved_again_is_named(tmp_path, separator, encoding, told):
    table = write(tmp_path / "gpu", source("gpu"))
    with open(table, newline="", encoding="utf-8") as stream:
        rows = [[cell.replace(".", ",") for cell in row] for row in csv.reader(stream)]
    with open(table, "w", newline="", encoding=encoding) as stream:
        csv.writer(stream, delimiter=separator).writerows(rows)
    with pytest.raises(StepError, match=f"gpu/results.csv {told}.*: another program, .* has saved it again; bring"):
        read_source(table.parent)


# --- what a platform lacks ---


def lacked(*sources):
    return [(r["platform"], r["precision"], r["why"]) for r in compare(sources).lacking]


def rung_of(held, name):
    return next(rung for rung in held.summary["ladders"][0]["rungs"] if rung["name"] == name)


def test_a_precision_that_only_another_platform_has_is_named():
    assert lacked(source("cpu"), source("gpu")) == [("gpu", "int8", "no rung asks for it")]
    gpu = source("gpu")
    gpu.summary["ladders"][0]["rungs"].append({"name": "tensorrt-int8", "requested_precision": None, "verdict": None})
    told = "no rung asks for it, as far as is known: tensorrt-int8 not audited"
    assert lacked(source("cpu"), gpu) == [("gpu", "int8", told)]


@pytest.mark.parametrize(
    ("verdict", "reason", "why"),
    [
        ("failed", "no kernel for it", "gpu-fp16 was not let through: no kernel for it"),
        ("pass", None, "gpu-fp16 gave no result; failures.csv of its host says why"),
    ],
)
def test_a_precision_that_gave_nothing_anywhere_is_named_with_its_reason(verdict, reason, why):
    gpu = source("gpu")
    rung = {"name": "gpu-fp16", "requested_precision": "fp16", "verdict": verdict, "reason": reason}
    gpu.summary["ladders"][0]["rungs"].append(rung)
    assert lacked(source("cpu"), gpu) == [
        ("gpu", "int8", "no rung asks for it"), ("cpu", "fp16", "no rung asks for it"), ("gpu", "fp16", why),
    ]  # fmt: skip


def test_a_rung_without_a_run_is_named_with_the_reasons_of_its_failures():
    gpu = source("gpu")
    rung = {"name": "gpu-fp16", "requested_precision": "fp16", "verdict": "pass", "reason": None}
    gpu.summary["ladders"][0]["rungs"].append(rung)
    about = {"platform": "gpu", "model": "yolo11n", "ladder": "gpu", "rung": "gpu-fp16", "batch": "1"}
    rows = [about | {"round": str(number), "reason": "out of memory"} for number in (1, 2)]
    rows += [about | {"batch": "", "reason": "it timed out"}, about | {"batch": "4", "reason": "another batch"}]
    rows += [about | {key: "other", "reason": f"of another {key}"} for key in ("rung", "model", "ladder")]
    told = ("gpu", "fp16", "gpu-fp16 gave no result: out of memory; it timed out")
    assert told in lacked(source("cpu"), replace(gpu, failures=rows))


def test_failures_are_read_where_they_were_brought_along(tmp_path):
    table = write(tmp_path / "gpu", source("gpu"))
    assert read_source(table.parent).failures == ()
    (table.parent / "failures.csv").write_text(",".join(tables.FAILURES) + "\ngpu,yolo11n,gpu,a,1,2,run,true,broke,\n")
    assert [row["reason"] for row in read_source(table.parent).failures] == ["broke"]


def test_the_reference_is_named_by_its_device_in_the_rows_that_are_compared_with_it():
    first, second = (source("gpu", name=name, host=name, device_uuid=f"{name}-uuid") for name in ("here", "there"))
    rows = compare([first, second]).rows
    assert {(row["host"], row["reference"]) for row in rows} == {("here", None), ("there", "gpu, here, here-uuid")}


def test_a_precision_whose_runs_do_not_count_is_named():
    cpu = source("cpu")
    for each in cpu.rows:
        each["throttled"] = "thermal" if each["rung"] == "openvino-int8" else "none"
    assert ("cpu", "int8", "openvino-int8 was throttled or contended in every run") in lacked(cpu, source("gpu"))
    rung_of(cpu, "openvino-int8").update(verdict="exclude", reason="parity")
    assert ("cpu", "int8", "openvino-int8 was not let through: parity") in lacked(cpu, source("gpu"))
    for each in (rows := source("cpu")).rows:
        each["fp32_onnx_sha256"] = "ef" * 32 if each["rung"] == "openvino-int8" else "ab" * 32
    assert ("cpu", "int8", "openvino-int8 is refused") in lacked(rows, source("gpu"))


def test_a_batch_that_a_platform_does_not_have_is_named():
    more = source("gpu", name="more", batch=4, ladder="more")
    more.summary["ladders"][0] |= {"batch": 4, "ladder": "more"}
    found = compare([source("cpu"), source("gpu"), more]).lacking
    assert [(r["platform"], r["why"]) for r in found if r["batch"] == 4] == [
        ("cpu", "its ladders do not have this model at this batch")
    ]


# --- merging ---


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["cpu", "gpu"]), max_size=4), st.randoms())
def test_the_same_file_twice_changes_nothing(again, random):
    once = [source("cpu"), source("gpu")]
    twice = once + [source(platform, name="a copy") for platform in again]
    for each in twice[2:]:
        random.shuffle(each.rows)
    assert compare(twice) == compare(once)


@pytest.mark.parametrize(
    ("column", "value"),
    [("median_ms", "1.0"), ("power_w", "100"), ("throttled", "thermal"), ("precision", "fp16"), ("options", '{"a":1}'),
     ("transfers", "included"), ("weights", "seeded(1)")],
)  # fmt: skip
def test_two_results_of_one_run_are_an_error(column, value):
    other = source("gpu", name="other")
    other.rows[0][column] = value
    for both in ([source("gpu"), other], [other, source("gpu")]):
        with pytest.raises(StepError, match=f"say different things of one run .*: {column}"):
            merged(both)


def test_two_audits_or_protocols_of_one_run_are_an_error():
    other = source("gpu", name="other")
    other.summary["ladders"][0]["rungs"][0]["verdict"] = "warn"
    with pytest.raises(StepError, match="other and gpu say different things .*: audit; bring"):
        merged([source("gpu"), other])
    with pytest.raises(StepError, match="other and gpu say different things .*: timing_code; bring"):
        merged([source("gpu"), source("gpu", name="other", protocol=PROTOCOL | {"timing_code": "f00d"})])


def test_a_copy_without_a_summary_hides_none_that_has_one():
    cpu, gpu = source("cpu"), source("gpu")
    bare = Source("bare", gpu.rows, {}, "")
    assert compare([cpu, bare, gpu]) == compare([cpu, gpu, bare]) == compare([cpu, gpu])


def test_further_rounds_of_another_sitting_count_too():
    again = source("gpu", name="again", sitting="20300102T000000-1")
    assert of(compare([source("cpu"), source("gpu"), again]), FASTEST, "gpu")["rounds"] == 16


def test_rounds_of_another_engine_or_version_are_not_pooled():
    rebuilt = source("gpu", name="rebuilt", sitting="20300102T000000-1", artifact_sha256="ef" * 32)
    found = of(compare([source("cpu"), source("gpu"), rebuilt]), FASTEST, "gpu")
    assert (found["rounds"], found["candidates"]) == (8, 10)
    updated = source("gpu", name="updated", sitting="20300102T000000-1")
    updated.summary["versions"]["gpu"] = {"torch": "3.0"}
    result = compare([source("cpu"), source("gpu"), updated])
    assert of(result, FASTEST, "gpu")["rounds"] == 8
    (note,) = result.notes
    assert note.startswith("gpu on gpu-host ran in different versions, not pooled: ")
    assert note.endswith(': {"torch":"2.99.0+cpu"} (gpu) and {"torch":"3.0"} (updated)')


def test_a_host_name_of_two_machines_is_told():
    first, second = source("cpu", host="vm"), source("gpu", host="vm")
    assert conflicts([first, first]) == []
    (line,) = conflicts([first, second])
    assert line == (
        "The host name vm stands for different machines: cpu (processor cpu processor); gpu (processor gpu processor)"
    )
    first.summary["hosts"][0]["state"]["machine"] = "x86_64"  # which the other does not tell
    second.summary["hosts"][0]["state"]["kernel"] = "6.2"
    again = source("gpu", host="vm", name="again")
    (line,) = conflicts([first, second, again, second])
    assert line.partition("machines: ")[2] == (
        "cpu (processor cpu processor, kernel 6.1); gpu (processor gpu processor, kernel 6.2); "
        "again (processor gpu processor, kernel 6.1)"
    )


@pytest.mark.parametrize("written", ["{}/gpu", "{}/gpu/", "gpu", "./gpu/", "../{.name}/gpu", "s3://bucket/gpu/"])
def test_a_folder_is_named_as_it_was_given(tmp_path, monkeypatch, written):
    monkeypatch.chdir(tmp_path)
    table, name = write(Path("gpu"), source("gpu")), written.format(tmp_path)
    found = read_source(Path("gpu"), name)
    assert found.name == name
    found.rows[0]["median_ms"] = "fast"
    with pytest.raises(StepError) as of_a_row:
        merged([found])
    table.write_text("")
    with pytest.raises(StepError) as of_a_table:
        read_source(Path("gpu"), name)
    assert str(of_a_row.value).startswith(f"{name.rstrip('/')}/results.csv: a run (host gpu-host")
    assert str(of_a_table.value).startswith(f"{name.rstrip('/')}/summary.json tells of other runs")


def test_two_gpus_of_one_host_are_no_conflict_unless_both_are_its_first():
    def pair(*numbers):
        held = [source("gpu", device_uuid=f"GPU-{place}") for place in range(2)]
        for each, number in zip(held, numbers, strict=True):
            each.summary["hosts"][0]["state"]["gpu_state.index"] = number
        return conflicts(held)

    assert pair(0, 1) == []
    said = ["The host name gpu-host stands for several cuda devices: GPU-0 (gpu), GPU-1 (gpu)"]
    assert pair(0, 0) == pair(None, 1) == pair(None, None) == said


def test_runs_that_tell_no_device_are_told():
    later = source("gpu", device_uuid="", sitting="20300102T000000-1")
    assert conflicts([source("gpu", device_uuid="")]) == []
    assert conflicts([source("gpu", device_uuid=""), later]) == [
        "The runs of 2 sittings on gpu-host tell no device_uuid: they count as one device's"
    ]


# --- the page, the script, the configuration, the documents ---


def test_the_page_shows_every_platform_and_every_refusal():
    old = source("gpu", protocol=None, name="old", platform="old <b>", device_uuid="other")
    old.rows[:] = [r | {"fp32_onnx_sha256": "ef" * 32} for r in old.rows]
    found = compare([source("cpu"), source("gpu"), old])
    html = cross_stack_page(found, CAPTION)
    text = html.replace("\u00a0", " ")
    for needed in (
        "yolo11n, batch 1", "fp32, fastest", "fp32, eager, stock", "tensorrt-static-graph", "seeded(0): random weights",
        "images/s/W", "times as fast", "cpu processor, 2 cores", "torch 2.99.0", "Reference: cpu", "old &lt;b&gt;",
        "efefefefefef", "unknown",
    ):  # fmt: skip
        assert needed in text, needed
    outside_scripts = re.sub("<script.*?</script>", "", html, flags=re.DOTALL)
    assert "src=" not in outside_scripts and "href=" not in outside_scripts
    specs = [json.loads(spec) for spec in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html)]
    assert len(specs) == 3
    for spec in specs:
        assert "<svg" in vl_convert.vegalite_to_svg(spec | {"width": 400})


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_the_page_is_never_wider_than_its_window(tmp_path):
    brought = [source("cpu"), source("gpu", options='{"mode": "max-autotune"}')]
    (tmp_path / "page.html").write_text(cross_stack_page(compare(brought), CAPTION), encoding="utf-8")
    widths = (1400, 1200, 1001, 800, 701, 390)
    frames = "".join(f'<iframe src="page.html" style="width:{width}px; border:0"></iframe>' for width in widths)
    over = "({innerWidth, document: {documentElement: page}}) => [innerWidth, page.scrollWidth - page.clientWidth]"
    script = f"<script>onload = () => document.title = JSON.stringify(Array.from(frames, {over}))</script>"
    (tmp_path / "frames.html").write_text(f"<!DOCTYPE html><title></title>{frames}{script}")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --allow-file-access-from-files --virtual-time-budget=30000"
    address = (tmp_path / "frames.html").as_uri()
    command = ["chromium", *flags.split(), "--dump-dom", f"--user-data-dir={tmp_path / 'profile'}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert json.loads(re.search("<title>(.*?)</title>", done.stdout)[1]) == [[width, 0] for width in widths]


def test_two_folders_of_one_platform_and_host_name_are_told_apart():
    near, far = (source("cpu", name=f"/data/{name}/results", device_uuid=name) for name in ("near", "far"))
    found = compare([near, source("gpu"), far], "cpu")
    html = cross_stack_page(found, CAPTION).replace("\u00a0", " ")
    for needed in (
        "Reference: cpu on cpu-host (near/results), from /data/near/results. ",
        "times as fast as cpu on cpu-host (near/results)",
        "Platform cpu on cpu-host (far/results): ", "Platform gpu: ",
    ):  # fmt: skip
        assert needed in html, needed
    own = source("cpu", name="results", device_uuid="own")
    html = cross_stack_page(compare([far, source("gpu"), own], "cpu"), CAPTION)
    assert "Reference: cpu on cpu-host (far/results), from" in html and "cpu on cpu-host (results): " in html
    several = [source("gpu", name="one folder", device_uuid=f"GPU-{place}") for place in "01"]
    html = cross_stack_page(compare([*several, source("cpu")]), CAPTION)
    assert "Reference: gpu on gpu-host (GPU-0), from one folder. " in html and "gpu on gpu-host (GPU-1)" in html
    rebuilt = source("gpu", name="rebuilt", sitting="20300102T000000-1", artifact_sha256="ef" * 32)
    html = cross_stack_page(compare([source("cpu"), source("gpu"), rebuilt]), CAPTION)
    assert "tensorrt-static-graph (gpu)" in html and "pytorch (cpu)" not in html
    with pytest.raises(StepError) as error:
        compare([near, far, source("gpu", weights="seeded(1)")], "gpu")
    assert (
        "found were results of cpu on cpu-host (/data/near/results), cpu on cpu-host (/data/far/results), gpu on "
        in (str(error.value))
    )


def test_the_page_says_at_its_top_what_it_was_made_from_and_what_is_refused():
    old = source("gpu", protocol=None, name="old", platform="old", device_uuid="other")
    gpu = Source("gpu", *(getattr(source("gpu"), each) for each in ("rows", "summary")), "12" * 32)
    gpu.summary["unsteady_runs"].append({})
    html = cross_stack_page(compare([source("cpu"), gpu, old]), CAPTION)
    top = html.partition('<ul class="context">')[2].partition("</ul>")[0]
    for needed in (
        "gpu (results.csv 121212121212…), old (results.csv ",
        "⚠ Refused: old on gpu-host (old), yolo11n: protocol (40 runs); see Refused below",
        "gpu: ⚠ 1 of 40 runs were unsteady (named in gpu/summary.json)",
    ):
        assert needed in top, needed
    assert "report" not in top


def test_the_page_tells_driver_sittings_energy_and_lacking_precisions_of_each_platform():
    gpu, again = source("gpu"), source("gpu", name="again", sitting="20300102T000000-1", energy_missing="no counter")
    gpu.summary["hosts"][0]["state"]["gpu.driver"] = "580.1"
    for row in gpu.rows:
        row["energy_j_per_image"] = "0.2"
    again.summary["hosts"][0]["state"]["gpu.driver"] = "580.2"
    again.summary["versions"]["gpu"] = {"torch": "2.99.1"}
    text = cross_stack_page(compare([source("cpu"), gpu, again]), CAPTION).replace("\u00a0", " ")
    for needed in (
        ">580.1 and 580.2<", ">torch 2.99.0+cpu and 2.99.1<", ">2030-01-01: 80 runs in 2 sittings<", ">gpu, again<",
        ">2030-01-01: 24 runs in 1 sitting<", ">not measured in 40 of 80 runs: no counter<",
        ">not measured: a CPU&#39;s is not read<", "gpu has no int8: no rung asks for it.",
        "No images/s/W of cpu: why stands under Platforms, energy.",
    ):  # fmt: skip
        assert needed in text, needed


def test_shares_of_different_kinds_of_peaks_say_so():
    same = [source(name, peak_source="measured") for name in ("cpu", "gpu")]
    other = source("gpu", peak_source="datasheet")
    pages = [cross_stack_page(compare(found), CAPTION) for found in (same, [same[0], other])]
    alike, unlike = (page.replace("\u00a0", " ") for page in pages)
    assert "7.5 %" in alike and "7.5 % (" not in alike
    assert "7.5 % (measured)" in unlike and "7.5 % (datasheet)" in unlike


def write(folder: Path, held: Source) -> Path:
    folder.mkdir(parents=True)
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(held.rows[0]))
        writer.writeheader()
        writer.writerows(held.rows)
    hashed = {"results_sha256": sha256(folder / "results.csv")} if "results_sha256" in held.summary else {}
    write_json(folder / "summary.json", held.summary | hashed)
    return folder / "results.csv"


def test_the_script_makes_tables_and_page_or_says_why_not(tmp_path):
    script = REPOSITORY / "scripts" / "cross_stack.py"
    tables_of = [write(tmp_path / name, source(name)) for name in ("cpu", "gpu")]
    outputs = ["--output", "a.csv", "--refused", "b.csv", "--page", "c.html", "--caption", CAPTION, "--log", "d.log"]

    def call(*results):
        command = [sys.executable, script, "--own", "--results", *results, *outputs]
        command += ["--folders", *(f"s3://bucket/{table.parent.name}" for table in results)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = call(*tables_of, *tables_of)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    assert tuple(reader.fieldnames) == tables.CROSS_STACK
    found = {(r["platform"], r["power_w"], r["source"]) for r in rows}
    assert found == {("cpu", "", "s3://bucket/cpu"), ("gpu", "200.0", "s3://bucket/gpu")}
    assert (tmp_path / "b.csv").read_text() == ",".join(tables.CROSS_STACK_REFUSED) + "\n"
    assert (tmp_path / "c.html").stat().st_size > 10_000
    alone = call(tables_of[0])
    assert alone.returncode == 1 and alone.stderr.startswith(
        "nothing to compare: there are results of one device alone"
    )
    other = call(tables_of[0], write(tmp_path / "other", source("gpu", fp32_onnx_sha256="ef" * 32)))
    said, _, where = other.stderr.strip().rpartition("\n")
    assert other.returncode == 1 and where == "This is kept in d.log"
    assert said.endswith("There is no page now: c.html, a.csv, b.csv of an earlier call are removed")
    assert not any((tmp_path / name).exists() for name in ("a.csv", "b.csv", "c.html"))
    assert (tmp_path / "d.log").read_text() == said + "\n" and f"fp32_onnx_sha256 is {'ef' * 32}" in said
    (tmp_path / "gpu" / "summary.json").write_text(json.dumps(source("gpu", rounds=1).summary))
    assert "tells of other runs than results.csv beside it: runs 5, not 40" in call(*tables_of).stderr


def test_the_workflow_sets_folders_side_by_side_and_plans_no_round(tmp_path):
    for name in ("cpu", "gpu"):
        write(tmp_path / name, source(name))
    # this host's own, which are not taken unless they are named: of another version, so that none can stand beside them
    write(tmp_path / "results", source("cpu", name="own", sitting="own", protocol=PROTOCOL | {"timing_code": "f00d"}))

    def call(folders, *more):
        given = ("--config", f"cross_stack={{results: [{folders}], reference: cpu}}", *more, "--", "cross_stack")
        command = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile", *given]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout

    assert "Cross-stack: results/cross_stack.html, results/cross_stack.csv" in call(f"{tmp_path}/cpu, gpu/")
    assert (tmp_path / "results" / "cross_stack.html").is_file()
    assert not (tmp_path / "artifacts").exists()
    assert "Nothing to be done" in call(f"{tmp_path}/cpu, gpu/", "-n")
    wrong = call("cpu, gone, 'nosuch://bucket/h200'").partition("The configuration is wrong; nothing was run.\n")[2]
    assert wrong.splitlines() == [
        f"  cross_stack.results: 'gone' is not a folder here ({tmp_path})",
        "  cross_stack.results: 'nosuch://bucket/h200/results.csv' is taken by no storage plugin in .venv, or by "
        "several; docs/cross_stack.md says how to install one",
        "  results/cross_stack.html is of an earlier call; it says what it was made from",
    ]
    assert "nothing to compare: there are results of one device alone" in call("cpu")
    assert not (tmp_path / "results" / "cross_stack.html").exists()
    with_own = call("results/, cpu, gpu")
    assert (
        "cpu on cpu-host (cpu), yolo11n: timing_code is c0de, f00d on cpu (results/)" in with_own
        and "the others can be compared with each other: leave results/ out of cross_stack.results" in with_own
        and "There is no page now" in with_own
    )
    assert "Cross-stack: results/cross_stack.html" in call("cpu, gpu, results")  # the reference is the first named
    assert (
        "(results), yolo11n: timing_code is f00d, c0de on cpu (cpu)" in (tmp_path / "logs/cross_stack.log").read_text()
    )
    assert not (tmp_path / "artifacts").exists()  # naming them makes none of them anew
    assert "Nothing to be done" in call("cpu, gpu, results", "-n")
    for name in ("results.csv", "summary.json"):
        shutil.copy(tmp_path / "cpu" / name, tmp_path / "results")
    assert "Nothing to be done" not in call("cpu, gpu, results", "-n")


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("gone", "'gone' is not a folder here"),
        ("gpu/results.csv", "'gpu/results.csv' is a file; name the folder that holds results.csv and summary.json"),
        ("results/", "'results/' is this host's own and has no results.csv yet; measure first (make bench)"),
        ("empty", "'empty' has no results.csv that can be read; bring results.csv and summary.json"),
        ("gpu{a}", "'gpu{a}' has braces or <>, which Snakemake takes for names of its own; name a link to it"),
        ("<gpu>", "'<gpu>' has braces or <>"),
        ("s3://bucket/gpu/", "'s3://bucket/gpu/summary.json' is not there"),
        ("gpu/", None),
        ("s3://bucket/whole", None),
    ],
)
def test_folders_that_cannot_be_read_are_told_before_any_job(tmp_path, monkeypatch, folder, told):
    monkeypatch.chdir(tmp_path)
    for name in ("gpu", "gpu{a}", "<gpu>"):
        write(tmp_path / name, source("gpu"))
    (tmp_path / "empty").mkdir()
    stored = {f"s3://bucket/{path}" for path in ("gpu/results.csv", "whole/results.csv", "whole/summary.json")}
    matrix = SimpleNamespace(config=SimpleNamespace(cross_stack=SimpleNamespace(results=["gpu", folder])))
    faults = list(host_faults.brought_faults(matrix, lambda url: None if url in stored else "is not there"))
    assert [fault.startswith(f"cross_stack.results: {told}") for fault in faults] == [True] * (told is not None)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (True, None),
        (False, "is not there, or may not be read"),
        (OSError("no\nroute"), "cannot be read: no route"),
        (WorkflowError("No storage provider found"), "is taken by no storage plugin in .venv, or by several"),
    ],
)
def test_what_a_storage_answers_is_one_line(answer, told):
    class Registry:
        def infer_provider(self, url):
            if isinstance(answer, WorkflowError):
                raise answer

        def __call__(self, url):
            return SimpleNamespace(flags={"storage_object": self})

        def exists(self):
            if isinstance(answer, OSError):
                raise answer
            return answer

    found = storage.fault(SimpleNamespace(storage_registry=Registry()), "s3://bucket/gpu/results.csv")
    assert (found or "").startswith(told or "") and (found is None) == (told is None)


def test_this_hosts_own_folder_is_no_input_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = ["results", "./results/", str(tmp_path / "results"), "a/../results"]
    named = [*own, "results2", "a/results", "s3://bucket/results"]
    matrix = SimpleNamespace(config=SimpleNamespace(cross_stack=SimpleNamespace(results=named)))
    assert steps.own_folders(matrix) == own
    assert steps.brought(matrix, "results.csv") == [f"{folder}/results.csv" for folder in named[len(own) :]]


def test_every_column_is_described():
    described = (REPOSITORY / "docs" / "tables.md").read_text(encoding="utf-8")
    parts = {part.partition(":")[0].strip(): part for part in described.split("\n## ")[1:]}
    for name in ("cross_stack", "cross_stack_refused"):
        first_cells = [line.split("|")[1] for line in parts[f"{name}.csv"].splitlines() if line.startswith("| `")]
        named = [column for cell in first_cells for column in re.findall("`(.+?)`", cell)]
        assert sorted(named) == sorted(getattr(tables, name.upper()))
