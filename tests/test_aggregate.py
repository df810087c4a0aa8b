from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from synthetic import change, table

from ladder import tables
from ladder.aggregate import aggregate, planned_files
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.records import device_of, read_latencies
from ladder.report.text import saturation_point
from ladder.summary import saturation
from ladder.summary_warnings import find_warnings, ranged


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A whole run with two batches of 8 rounds, never changed."""
    return synthetic.small_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(measured, tmp_path):
    """A copy of the run that a test may change: plan, rounds, audits and where the tables go."""
    return synthetic.copy_of(measured, tmp_path)


def test_tables_have_their_columns_and_one_row_a_run(run):
    plan, rounds, audits, out = run
    summary = aggregate(plan, rounds, audits, out)
    assert summary["results_sha256"] == sha256(out / "results.csv")
    for name in ("results", "ladder", "audit", "failures"):
        with open(out / f"{name}.csv", encoding="utf-8") as stream:
            assert stream.readline().strip().split(",") == list(getattr(tables, name.upper()))
    assert len(table(out, "results.csv")) == 2 * 8 * 5
    assert len(table(out, "ladder.csv")) == 2 * 4
    assert len(table(out, "audit.csv")) == 5
    assert table(out, "failures.csv") == []


def test_latency_columns_come_from_the_raw_latencies(run):
    plan, rounds, audits, out = run
    aggregate(plan, rounds, audits, out)
    row = next(r for r in table(out, "results.csv") if r["batch"] == "4" and r["rung"] == "onnxruntime-int8")
    raw = rounds[0].parents[1] / "b4" / f"{row['round']}.parquet"
    ms = read_latencies(raw)["onnxruntime-int8"] / 1e6
    assert float(row["median_ms"]) == pytest.approx(np.median(ms))
    assert float(row["min_ms"]) == ms.min()
    assert float(row["latency_ips"]) == pytest.approx(4000 / np.median(ms))


def test_what_was_not_read_is_empty_and_never_zero(run):
    plan, rounds, audits, out = run
    aggregate(plan, rounds, audits, out)
    row = table(out, "results.csv")[0]
    assert row["device_mem_mb"] == row["allocator_mem_mb"] == row["device_span_ms"] == ""
    assert row["p90_ms"] != "" and row["p95_ms"] == row["p99_ms"] == ""  # 30 iterations are too few for p95


def test_percentiles_are_pooled_over_rounds(run):
    plan, rounds, audits, out = run
    summary = aggregate(plan, rounds, audits, out)
    pooled = next(p for p in summary["latency"] if p["rung"] == "openvino-fp32" and p["batch"] == 1)
    every = np.concatenate([read_latencies(p.with_suffix(".parquet"))["openvino-fp32"] for p in rounds[:8]]) / 1e6
    assert (pooled["rounds"], pooled["iterations"]) == (8, 240)
    assert pooled["p50_ms"] == pytest.approx(np.median(every))
    assert pooled["p99_ms"] == pytest.approx(np.percentile(every, 99))


def test_ladder_has_the_planned_steps_with_verdicts_and_the_recorded_weights(run):
    plan, rounds, audits, out = run
    aggregate(plan, rounds, audits, out)
    found = {(r["batch"], r["from"], r["to"]): r for r in table(out, "ladder.csv")}
    assert list(found) == [(b, s["from"], s["to"]) for b in ("1", "4") for s in synthetic.SMALL["steps"]]
    assert found["1", "pytorch-fp32", "onnxruntime-fp32"]["verdict"] == "faster"
    assert found["1", "openvino-fp32", "openvino-int8"]["verdict"] == "within noise"
    assert {r["weights"] for r in found.values()} == {"seeded(0)"}
    assert {r["interaction_ms"] for r in found.values()} == {""}


def test_tables_can_be_made_again_and_come_out_the_same(run):
    plan, rounds, audits, out = run
    aggregate(plan, rounds, audits, out)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    aggregate(plan, reversed(rounds), audits, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def test_raw_latencies_are_sorted_into_arrival_order(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rungs = pa.array(["b", "a", "b", "a", "b"]).dictionary_encode()
    order, ns = pa.array([2, 1, 0, 0, 1], pa.int32()), pa.array([12, 1, 10, 0, 11], pa.int64())
    pq.write_table(pa.table({"rung": rungs, "iteration": order, "latency_ns": ns}), tmp_path / "raw.parquet")
    found = read_latencies(tmp_path / "raw.parquet")
    assert {rung: values.tolist() for rung, values in found.items()} == {"b": [10, 11, 12], "a": [0, 1]}


def test_a_round_without_any_result_has_an_empty_raw_file(tmp_path):
    synthetic.write_raw(tmp_path / "raw.parquet", [])
    assert read_latencies(tmp_path / "raw.parquet") == {}


def test_an_audit_that_cannot_be_trusted_is_named(run):
    plan, rounds, audits, out = run
    audits[0].write_text("")
    with pytest.raises(StepError, match="not an audit") as error:
        aggregate(plan, rounds, audits, out)
    assert str(audits[0]) in str(error.value)


def test_an_audit_that_died_is_a_failed_row(run):
    plan, rounds, audits, out = run
    audits[0].write_text("")
    why = {"stage": "audit", "permanent": False, "reason": "was ended by SIGKILL", "log": "logs/audit.log"}
    write_json(audits[0].with_suffix(".pass.json"), {"status": "failed", **why})
    aggregate(plan, rounds, audits, out)
    row = table(out, "audit.csv")[0]
    assert (row["platform"], row["model"], row["engine"]) == ("synthetic-cpu", "yolo11n", audits[0].stem)
    assert (row["verdict"], row["reason"], row["nodes"]) == ("failed", "was ended by SIGKILL", "")
    assert [r["reason"] for r in table(out, "failures.csv")] == ["was ended by SIGKILL"]


def test_a_round_of_another_plan_is_refused(run):
    plan, rounds, audits, out = run
    with pytest.raises(StepError, match="ladder 'cpu', which is not in the plan"):
        aggregate({"ladders": [synthetic.SMALL | {"ladder": "other"}]}, rounds, audits, out)


def test_a_round_measured_with_other_settings_is_a_failure_and_in_no_other_table(run):
    plan, rounds, audits, out = run
    change(rounds[0], settings="34" * 32)
    record = read_json(rounds[9])
    del record["settings"]  # as rounds were written before they told them
    record["rows"] = [row | {"rung": f"{row['rung']}-old"} for row in record["rows"]]
    write_json(rounds[9], record)
    summary = aggregate(plan, rounds, audits, out)
    assert {(r["batch"], r["round"]) for r in table(out, "failures.csv")} == {("1", "1"), ("4", "2")}
    for row in table(out, "failures.csv"):
        assert (row["rung"], row["stage"], row["permanent"]) == ("", "round", "false")
        assert "with other settings than the configuration's; `snakemake -R round` measures again" in row["reason"]
    kept = {(r["batch"], r["round"]) for r in table(out, "results.csv")}
    assert len(kept) == 14 and not kept & {("1", "1"), ("4", "2")}
    assert {r["rounds"] for r in table(out, "ladder.csv")} == {"7"}
    assert summary["measured"]["runs"] == 70 and {p["rounds"] for p in summary["latency"]} == {7}


def test_settings_that_changed_for_one_batch_leave_the_other(run):
    plan, rounds, audits, out = run
    ladder = synthetic.SMALL | {
        "settings": {1: synthetic.SETTINGS, 4: "56" * 32}
    }  # numbers, as the plan has them in Python
    aggregate({"ladders": [ladder]}, rounds, audits, out)
    assert {r["batch"] for r in table(out, "results.csv")} == {"1"}
    assert len(table(out, "failures.csv")) == 8


def test_rounds_with_different_weights_are_refused(run):
    plan, rounds, audits, out = run
    record = read_json(rounds[3])
    change(rounds[3], rows=[row | {"weights": "seeded(1)"} for row in record["rows"]])
    with pytest.raises(StepError, match=r"different weights, seeded\(0\), seeded\(1\)"):
        aggregate(plan, rounds, audits, out)


def test_a_run_that_failed_is_one_row(run):
    plan, rounds, audits, out = run
    synthetic.write_round(out.parent / "results", synthetic.SMALL, 4, 3, 30, failed={"openvino-int8": "run"})
    summary = aggregate(plan, rounds, audits, out)
    (row,) = table(out, "failures.csv")
    assert row == {
        "platform": "synthetic-cpu", "model": "yolo11n", "ladder": "cpu", "rung": "openvino-int8", "batch": "4",
        "round": "3", "stage": "run", "permanent": "false", "reason": "run broke", "log": "logs/x.log",
    }  # fmt: skip
    assert summary["failures"] == 1
    steps = {(r["batch"], r["to"]): r["rounds"] for r in table(out, "ladder.csv")}
    assert (steps["4", "openvino-int8"], steps["4", "onnxruntime-int8"]) == ("7", "8")


def test_a_rung_that_could_not_be_made_is_one_row_with_its_present_reason(run):
    plan, rounds, audits, out = run
    for batch in synthetic.SMALL["batches"]:
        for number in range(1, 9):
            synthetic.write_round(
                out.parent / "results", synthetic.SMALL, batch, number, 30, failed={"openvino-int8": "engine"}
            )
    broken = next(path for path in audits if path.stem == "openvino-int8")
    why = {"stage": "engine", "permanent": True, "reason": "an operator is unknown", "log": "logs/engine.log"}
    write_json(broken.with_suffix(".pass.json"), {"status": "failed", "verdict": "failed", **why})
    aggregate(plan, rounds, audits, out)
    (row,) = table(out, "failures.csv")
    assert (row["rung"], row["batch"], row["round"]) == ("openvino-int8", "", "")
    assert (row["stage"], row["reason"], row["permanent"]) == ("engine", "an operator is unknown", "true")
    assert [r["verdict"] for r in table(out, "ladder.csv") if r["to"] == "openvino-int8"] == ["too few rounds"] * 2


def test_a_static_engine_that_failed_at_one_batch_is_a_row_of_that_batch(run):
    plan, rounds, audits, out = run
    rungs = [r | {"engines": {"1": "pytorch-fp32", "4": r["name"]}} for r in synthetic.SMALL["rungs"]]
    broken = next(path for path in audits if path.stem == "openvino-int8")
    change(broken.with_suffix(".pass.json"), verdict="exclude", reason="not finite", permanent=True)
    aggregate({"ladders": [synthetic.SMALL | {"rungs": rungs}]}, rounds, audits, out)
    (row,) = table(out, "failures.csv")
    assert (row["rung"], row["batch"], row["stage"]) == ("openvino-int8", "4", "audit")


def test_what_was_planned_and_is_nowhere_is_a_failure(run):
    plan, rounds, audits, out = run
    rounds[-1].unlink()
    record = read_json(rounds[0])
    change(rounds[0], rows=[row for row in record["rows"] if row["rung"] != "pytorch-fp32"])
    aggregate(plan, rounds, audits, out)
    by_rung = {row["rung"]: row for row in table(out, "failures.csv")}
    assert by_rung["pytorch-fp32"]["round"] == "1" and "does not mention" in by_rung["pytorch-fp32"]["reason"]
    assert by_rung[""]["batch"] == "4" and "1 of 8 planned rounds have no file (8)" in by_rung[""]["reason"]


def test_a_run_without_any_result_still_gives_all_tables(run):
    plan, rounds, audits, out = run
    everything = dict.fromkeys((rung["name"] for rung in synthetic.SMALL["rungs"]), "export")
    for batch in synthetic.SMALL["batches"]:
        for number in range(1, 9):
            synthetic.write_round(out.parent / "results", synthetic.SMALL, batch, number, 30, failed=everything)
    summary = aggregate(plan, rounds, audits, out)
    assert len(table(out, "failures.csv")) == 2 * 5
    assert {row["verdict"] for row in table(out, "ladder.csv")} == {"too few rounds"}
    assert summary["measured"]["first"] is None
    # the audits know the weights, else the model's section may; nobody else does
    assert summary["weights"] == {"yolo11n": "seeded(0)"}
    told = [plan, plan | {"ladders": [ladder | {"weights": "seeded(7)"} for ladder in plan["ladders"]]}]
    lines = []
    for each in told:
        aggregate(each, rounds, [], out)
        lines.append((out / "ladder.md").read_text().splitlines()[0])
    assert "weights not known: nothing was built or measured" in lines[0] and "weights seeded(7): random" in lines[1]


def point(batch, rounds):
    ends = {"rounds": len(rounds), "median_ips": np.median(rounds), "min_ips": min(rounds), "max_ips": max(rounds)}
    return {"platform": "p", "model": "m", "ladder": "l", "rung": "r", "batch": batch, **ends}


@pytest.mark.parametrize(
    ("ips", "batch"),
    [
        ({1: 10}, None),  # a single batch shows nothing
        ({1: 10, 2: 20, 4: 40}, None),  # still rising
        ({1: 10, 2: 20, 4: 21, 8: 21}, 2),  # 20 reaches 95 % of 21
        ({1: 10, 2: 20, 4: 15}, 2),  # falls again
        ({1: 20, 2: 20}, 1),
        ({1: 18.9, 2: 20, 4: 20}, 2),  # 94.5 % is not enough
        ({1: 10, 8: 100, 16: 105}, 8),
    ],
)
def test_saturation_is_the_smallest_batch_at_95_percent_if_a_larger_one_was_measured(ips, batch):
    (mark,) = saturation([point(b, [value] * 6) for b, value in ips.items()])
    assert mark["batch"] == batch
    assert (mark["highest_ips"], mark["largest_batch"]) == (max(ips.values()), max(ips))
    assert mark["lowest_batch"] == mark["highest_batch"] == batch or batch is None  # without noise


@pytest.mark.parametrize(
    ("ips", "batch", "lowest", "highest", "words"),
    [
        ({1: (10, 11), 2: (38, 42), 4: (39, 41), 8: (36, 44)}, 2, 2, 8, "batch 2; noise leaves 2 to beyond 8"),
        ({1: (10, 11), 2: (35, 38), 4: (39.5, 41), 8: (39.5, 41)}, 4, 2, 4, "batch 4; noise leaves 2 to 4"),
        ({1: (10, 11), 2: (30, 40), 4: (39, 41)}, None, 2, 4, "not reached up to batch 4; noise leaves 2 to beyond 4"),
        ({1: (10, 11), 2: (20, 22), 4: (39, 41)}, None, 4, 4, "not reached up to batch 4"),
        ({4: (39, 41)}, None, 4, 4, "not known: only batch 4 was measured"),
    ],
)
def test_noise_leaves_several_saturation_points(ips, batch, lowest, highest, words):
    (mark,) = saturation([point(b, np.linspace(*ends, 6)) for b, ends in ips.items()])
    assert (mark["batch"], mark["lowest_batch"], mark["highest_batch"]) == (batch, lowest, highest)
    assert saturation_point(mark) == words


def test_too_few_rounds_tell_no_batches_apart():
    (mark,) = saturation([point(b, [ips] * 5) for b, ips in {1: 10, 2: 40, 4: 40}.items()])
    assert (mark["lowest_batch"], mark["batch"], mark["highest_batch"]) == (1, 2, 4)


@given(st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=9), min_size=1, max_size=5))
def test_what_noise_leaves_holds_the_saturation_point(rounds):
    (mark,) = saturation([point(2**index, held) for index, held in enumerate(rounds)])
    reached = mark["batch"] or mark["largest_batch"]
    assert 1 <= mark["lowest_batch"] <= reached <= mark["highest_batch"] <= mark["largest_batch"]


def test_a_saturation_point_that_noise_does_not_leave_is_rare():
    """The third batch saturates: 97 % of the fourth one's throughput, the second 93 %. No number here was measured."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(2000):
        ips = [value * rng.lognormal(0, 0.03, 6) for value in (50, 93, 97, 100)]
        (mark,) = saturation([point(2**index, held) for index, held in enumerate(ips)])
        wrong += not mark["lowest_batch"] <= 4 <= mark["highest_batch"]
    assert wrong <= 20


def test_flags_that_a_gpu_did_not_tell_are_warned_of(run):
    plan, rounds, audits, out = run
    for path in rounds[:2]:
        rows = [row | {"device": "cuda", "throttled": "none", "contended": None} for row in read_json(path)["rows"]]
        change(path, rows=rows)
    found = [w for w in aggregate(plan, rounds, audits, out)["warnings"] if w["kind"] == "device"]
    assert [(w["warning"].partition(":")[0], w["scope"]) for w in found] == [
        ("whether the device was contended is not known", "10 of 10 runs on a GPU")
    ]


def test_warnings_that_differ_in_figures_only_are_one(run):
    plan, rounds, audits, out = run
    warnings = aggregate(plan, rounds, audits, out)["warnings"]
    (busy,) = [w for w in warnings if w["kind"] == "host"]
    assert busy["warning"] == "other programs kept 0.6 to 1.2 CPUs busy before the round: latencies may be unsteady"
    assert busy["scope"] == "4 of 16 rounds"
    (audit,) = [w for w in warnings if w["kind"] == "audit"]
    assert audit["warning"].startswith("yolo11n, onnxruntime-int8: requested int8, but only")
    assert all("was unsteady" in w["warning"] for w in warnings if w["kind"] == "unsteady")
    assert {w["kind"] for w in warnings} == {"host", "audit", "unsteady"}


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["load 1.5"], "load 1.5"),
        (["load 10 of 2", "load 9.5 of 2", "load 12 of 2"], "load 9.5 to 12 of 2"),
        (["governor 'ondemand'"] * 2, "governor 'ondemand'"),
        (["2 threads on 1.0 CPUs", "2 threads on 1 CPUs"], "2 threads on 1.0 CPUs"),
    ],
)
def test_figures_of_merged_warnings_are_ranges(texts, one):
    assert ranged(texts) == one


def test_rungs_of_a_ladder_say_what_their_audits_found(run):
    plan, rounds, audits, out = run
    for entry in aggregate(plan, rounds, audits, out)["ladders"]:
        by_name = {rung["name"]: rung for rung in entry["rungs"]}
        assert list(by_name) == [rung["name"] for rung in synthetic.SMALL["rungs"]]
        warned = by_name["onnxruntime-int8"]
        assert (warned["engine"], warned["verdict"]) == ("onnxruntime-int8", "warn")
        assert (warned["requested_precision"], warned["flops_at_precision_pct"]) == ("int8", 0.31)
        assert by_name["openvino-int8"]["verdict"] == "pass" and by_name["openvino-int8"]["reason"] is None
    for entry in aggregate(plan, rounds, [], out)["ladders"]:
        assert {rung["verdict"] for rung in entry["rungs"]} == {None}


def test_a_busy_workflow_and_changed_files_are_warned_of(run):
    plan, rounds, audits, out = run
    record = read_json(rounds[0])
    rows = [row | {"parent_cpu_pct": 3.5, "fp32_onnx_sha256": "ff" * 32} for row in record["rows"]]
    change(rounds[0], rows=rows)
    said = {w["warning"]: w["scope"] for w in aggregate(plan, rounds, audits, out)["warnings"]}
    made_of = "the workflow itself (Snakemake, the round's process and, on a GPU, its sampler)"
    assert said[f"{made_of} used up to 3.5 % of a core during a run; below 1 % is wanted"] == "5 of 80 runs"
    assert any("do not agree in fp32_onnx_sha256" in text for text in said)


def test_a_wrapper_around_another_build_of_the_compiler_is_warned_of():
    place = {"platform": "p", "model": "m", "ladder": "x"}
    ends = (("onnxruntime", "raw", "wrapper"), ("raw", "fp16", "precision"))
    steps = [dict(zip(("from", "to", "cause"), each, strict=True)) for each in ends]

    def warned(wrapped, own):
        identities = {
            "onnxruntime": {"python": "3.12", "onnxruntime": "1.27.1", **wrapped}, "raw": {"python": "3.11", **own},
            "fp16": {"libmigraphx": "libmigraphx.so.1"},
        }  # fmt: skip
        details = {rung: {"identity": identity} for rung, identity in identities.items()}
        record = {"rows": [place | {"batch": 1, "round": 1}], "failures": [], "warnings": [], "path": Path("r")}
        ladder = place | {"steps": steps, "rungs": []}
        return find_warnings([record | {"details": details}] * 2, [], [], [], [ladder], [])

    build = {"libmigraphx": "libmigraphx.so.2015000"}
    assert warned(build, build) == warned({}, build) == warned(build, {}) == []
    (warning,) = warned(build, {"libmigraphx": "libmigraphx.so.2014000"})
    assert warning == {
        "kind": "files",
        "warning": "p, m, x: onnxruntime and raw ran in two builds of libmigraphx: libmigraphx.so.2015000 and "
        "libmigraphx.so.2014000, so that 'wrapper' is not the only cause of their step",
        "scope": "2 rounds",
    }


def test_runs_and_audit_of_one_rung_from_several_engines_are_warned_of(run):
    plan, rounds, audits, out = run
    assert [w for w in aggregate(plan, rounds, audits, out)["warnings"] if w["kind"] == "files"] == []
    record = read_json(rounds[0])
    rebuilt = {"openvino-int8": {"artifact_sha256": "ab" * 32}}
    change(rounds[0], rows=[row | rebuilt.get(row["rung"], {}) for row in record["rows"]])
    audit = next(path for path in audits if path.stem == "openvino-fp32")
    change(audit, row=read_json(audit)["row"] | {"artifact_sha256": "ef" * 32})
    said = [w["warning"] for w in aggregate(plan, rounds, audits, out)["warnings"] if w["kind"] == "files"]
    disagree = "its runs and its audit do not agree in artifact_sha256"
    assert sorted(said) == [
        f"yolo11n, cpu, openvino-fp32, batch 1: {disagree}: cdcdcdcdcdcd, efefefefefef (audited)",
        f"yolo11n, cpu, openvino-fp32, batch 4: {disagree}: cdcdcdcdcdcd, efefefefefef (audited)",
        f"yolo11n, cpu, openvino-int8, batch 1: {disagree}: abababababab, cdcdcdcdcdcd",
    ]
    assert all(text in (out / "ladder.md").read_text() for text in said)


def test_runs_beside_busy_programs_are_counted_and_named(run):
    plan, rounds, audits, out = run
    for path, load in zip(rounds[:3], (0.5, 0.6, 1.9), strict=True):
        rows = read_json(path)["rows"]
        change(path, rows=[row | ({"load_before": load} if row["rung"] == "openvino-fp32" else {}) for row in rows])
    summary = aggregate(plan, rounds, audits, out)
    assert [(run["round"], run["load_before"]) for run in summary["busy_runs"]] == [(2, 0.6), (3, 1.9)]
    (busy,) = [w for w in summary["warnings"] if w["kind"] == "busy"]
    assert busy["scope"] == "2 of 8 runs"
    assert busy["warning"] == (
        "yolo11n, cpu, openvino-fp32, batch 1 ran on a busy host; before round 3 other programs kept 1.9 CPUs busy"
    )
    assert "⚠ 2 of 80 runs began beside busy programs (see the report's warnings)" in (out / "ladder.md").read_text()


def test_flagged_runs_stay_in_the_table_leave_the_verdicts_and_are_told(run):
    plan, rounds, audits, out = run
    for path in rounds[:3]:
        rows = read_json(path)["rows"]
        flags = {"openvino-int8": {"throttled": "software power cap"}, "openvino-fp32": {"contended": "none"}}
        change(path, rows=[row | flags.get(row["rung"], {}) for row in rows])
    summary = aggregate(plan, rounds, audits, out)
    assert len(table(out, "results.csv")) == 80
    assert {row["throttled"] for row in table(out, "results.csv")} == {"", "software power cap"}
    steps = {(r["batch"], r["to"]): r for r in table(out, "ladder.csv")}
    assert (steps["1", "openvino-int8"]["rounds"], steps["1", "openvino-int8"]["rounds_excluded"]) == ("5", "3")
    assert (steps["1", "openvino-fp32"]["rounds"], steps["1", "openvino-fp32"]["rounds_excluded"]) == ("8", "0")
    said = {w["warning"]: w["scope"] for w in summary["warnings"] if w["kind"] == "device"}
    text = "yolo11n, cpu, openvino-int8, batch 1 was throttled; in round 1: software power cap"
    assert said == {text: "3 of 8 runs"}
    markdown = (out / "ladder.md").read_text()
    assert text in markdown
    assert "openvino-fp32 → openvino-int8: 3 rounds left out, in which the device was throttled" in markdown
    kept = aggregate(plan | {"exclude": ["contended"]}, rounds, audits, out)
    assert {step["rounds_excluded"] for entry in kept["ladders"] for step in entry["steps"]} == {0}


def test_a_throughput_pass_that_was_throttled_is_warned_of_and_leaves_the_verdicts_alone(run):
    plan, rounds, audits, out = run
    rows = read_json(rounds[0])["rows"]
    change(
        rounds[0], rows=[row | {"throughput_throttled": "power cap"} for row in rows if row["rung"] == "openvino-int8"]
    )
    summary = aggregate(plan, rounds[:1], audits, out)
    (said,) = [w for w in summary["warnings"] if w["kind"] == "throughput"]
    assert said["warning"].endswith("are of lower clocks; in round 1: power cap") and said["scope"] == "1 of 1 runs"
    assert not [step for step in summary["ladders"][0]["steps"] if step["rounds_excluded"]]


def test_a_round_whose_throughput_is_far_off_the_others_is_warned_of(run):
    plan, rounds, audits, out = run
    first = plan["ladders"][0]["batches"][0]
    chosen = [path for path in rounds if read_json(path)["rows"][0]["batch"] == first]
    medians = {
        row["rung"]: row["median_ips"]
        for row in aggregate(plan, rounds, audits, out)["throughput"]
        if row["batch"] == first
    }
    assert not [w for w in read_json(out / "summary.json")["warnings"] if w["kind"] == "throughput"]
    off = {"openvino-int8": 1 / 17, "openvino-fp32": 0.6}
    change(
        chosen[1],
        rows=[
            row | {"throughput_ips": off.get(row["rung"], 1) * medians[row["rung"]]}
            for row in read_json(chosen[1])["rows"]
        ],
    )
    (said,) = [w for w in aggregate(plan, rounds, audits, out)["warnings"] if w["kind"] == "throughput"]
    assert said["scope"] == "1 of 8 runs"
    assert re.search(r"openvino-int8, batch 1 gave \S+ images/s in round 2, less than half the median", said["warning"])


def test_versions_and_host_state_are_told_once_or_with_all_their_values(run):
    plan, rounds, audits, out = run
    record = read_json(rounds[0])
    record["details"]["openvino-fp32"]["identity"] = {"openvino": "2099.2"}
    change(rounds[0], details=record["details"], host_state=record["host_state"] | {"memory_mb": 15000.0})
    summary = aggregate(plan, rounds, audits, out)
    assert summary["versions"]["synthetic-cpu"]["torch"] == "2.99.0+cu199"
    openvino = summary["versions"]["synthetic-cpu"]["openvino"]
    assert sorted(openvino) == ["2099.1.0-22982-e213a147257-releases/2099/1", "2099.2"]
    (host,) = summary["hosts"]
    assert host["rounds"] == 16
    assert host["state"]["memory_mb"] == {"min": 15000.0, "max": 16000.0}
    assert host["state"]["kernel"] == "6.99.0" and host["state"]["governor"] is None
    rung = next(r for r in summary["rungs"] if r["rung"] == "pytorch-fp32")
    assert rung["facts"]["tf32.matmul"] is False


def test_nodes_are_counted_by_type_and_precision(run):
    plan, rounds, audits, out = run
    nodes = aggregate(plan, rounds, audits, out)["nodes"]
    held = [n for n in nodes if n["engine"] == "pytorch-fp32"]
    assert sum(n["nodes"] for n in held) == 240
    assert all(n["time_ms"] is None for n in held)
    assert {n["precision"] for n in held if n["type"] == "Split"} == {"unknown"}
    timed = [n for n in nodes if n["engine"] == "openvino-int8"]
    assert all(n["time_ms"] > 0 for n in timed)


def test_markdown_says_what_a_reader_needs(run):
    plan, rounds, audits, out = run
    aggregate(plan, rounds, audits, out)
    text = (out / "ladder.md").read_text()
    for needed in (
        "seeded(0): random weights, timing only", "synthetic-cpu", "Synthetic CPU @ 2.00GHz", "onnxruntime 1.99.0",
        "2030-01-01", "80 runs in 1 sitting", "| faster |", "| within noise |", "99 % interval", "smallest findable",
        "onnxruntime-fp32 → onnxruntime-int8 ⚠", "| int8: 0.3 % |", "| int8: 77.0 % |", "; 8 rounds",
        "⚠ onnxruntime-int8: requested int8, but only 0.3 % of the FLOPs run in it", "⚠ other programs kept",
    ):  # fmt: skip
        assert needed in text.replace("\u00a0", " ")
    assert "Git Hash" not in text and "Build Info" not in text  # build strings are for the page on the environment
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    assert len(rows) == 2 * (2 + 4)


def test_every_column_and_key_is_described(run):
    described = (Path(__file__).parents[1] / "docs" / "tables.md").read_text(encoding="utf-8")
    parts = {part.partition(":")[0].strip(): part for part in described.split("\n## ")[1:]}
    for name in ("results", "ladder", "audit", "failures"):
        first_cells = [line.split("|")[1] for line in parts[f"{name}.csv"].splitlines() if line.startswith("| `")]
        named = [column for cell in first_cells for column in re.findall("`(.+?)`", cell)]
        assert sorted(named) == sorted(getattr(tables, name.upper()))
    plan, rounds, audits, out = run
    keys = re.findall(r"^\| `(\w+)` \|", parts["summary.json"], flags=re.MULTILINE)
    assert sorted(keys) == sorted(aggregate(plan, rounds, audits, out))


def test_the_script_finds_the_planned_files_by_itself(run):
    plan, rounds, audits, out = run
    root = out.parent
    assert {root / path for path in planned_files(plan)[0]} == set(rounds)
    assert {root / path for path in planned_files(plan)[1]} == set(audits)
    script = Path(__file__).parents[1] / "scripts" / "aggregate.py"
    write_json(root / "plan.json", plan)
    command = [sys.executable, str(script), "--plan", "plan.json", "--output-dir", "results"]
    subprocess.run(command, cwd=root, check=True)
    assert len(table(root / "results", "results.csv")) == 80


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        (
            "aggregate",
            ["--plan", "plan.json"],
            r"tables: not made: \S+/audit/\S+.json: not an audit .*delete .*",
        ),
        ("pages", ["--results", "nowhere", "--captions", "."], "pages: not made: nowhere/.* is missing; .*"),
        ("documents", ["--document", "gpu-bench", "--results", "nowhere"], "documents: not made: nowhere/.*"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_one_sentence_on_the_terminal_and_in_the_log(run, script, arguments, said):
    plan, rounds, audits, out = run
    audits[0].write_text("")
    write_json(out.parent / "plan.json", plan)
    command = [sys.executable, str(Path(__file__).parents[1] / f"scripts/{script}.py"), *arguments]
    done = subprocess.run([*command, "--output-dir", str(out)], cwd=out.parent, capture_output=True, text=True)
    assert done.returncode == 1 and re.fullmatch(said + "\n", done.stdout)
    assert done.stderr == done.stdout.partition("not made: ")[2]


PEAK = """
import json, resource, sys, time
from pathlib import Path
from ladder.aggregate import aggregate
folder = Path(sys.argv[1])
plan = json.loads((folder / "plan.json").read_text())
rounds = sorted((folder / "results").rglob("rounds/**/*.json"))
start = time.process_time()  # of this one thread: other load on the machine must not decide
aggregate(plan, rounds, [], folder / "tables")
print(json.dumps([time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


@pytest.mark.slow
def test_ten_thousand_runs_of_a_thousand_latencies_take_under_20_s_and_little_memory(tmp_path):
    """10,000 runs are 80 MB of latencies; ten times the runs must not need ten times the memory."""
    figures = {}
    for runs in (1_000, 10_000):
        ladder = synthetic.CPU_LADDER | {"rounds": 20, "batches": list(range(1, runs // 100 + 1))}
        ladder |= {"rungs": [rung | {"engines": {}} for rung in ladder["rungs"]]}
        plan, rounds = synthetic.write_run(tmp_path / str(runs) / "results", [ladder], 1000)
        assert len(rounds) * 5 == runs
        write_json(tmp_path / str(runs) / "plan.json", plan)
        command = [sys.executable, "-c", PEAK, str(tmp_path / str(runs))]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True)
        figures[runs] = json.loads(done.stdout)
    assert figures[10_000][0] < 20
    assert figures[10_000][1] < figures[1_000][1] + 150


def test_a_gpu_that_tells_no_name_has_no_datasheet():
    assert device_of({"gpu": {"driver": "6.12"}, "processor": "x"}) is None
    assert device_of({"gpu": {"name": "NVIDIA L4"}, "processor": "x"}) == "NVIDIA L4"
    assert device_of({"processor": "x"}) == "x"
