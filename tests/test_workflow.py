"""The whole workflow on tiny models: what a call makes, what a later one repeats, and what it says when things fail.

The tests of this file share one folder and build on each other in their order.
"""

from __future__ import annotations

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper, numpy_helper
from workflow_run import (
    ENDINGS,
    KNOWN,
    LADDER,
    ROOT,
    TABLES,
    Workflow,
    copy_repository,
    identity_config,
    onnx_model,
    resnet_config,
    save_onnx,
    with_change,
)

from ladder import locks, tables
from ladder.errors import StepError
from ladder.files import digest, read_json, sha256
from ladder.workflow import merged


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def workflow(repository, tmp_path_factory):
    return Workflow(repository, tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def config(workflow):
    """Two ladders: a small ResNet-18 on four rungs; an identity on ONNX Runtime and a stack from outside."""
    config = merged(identity_config(workflow.folder, {"known": {}}), resnet_config())
    config["stacks"]["known"]["arguments"]["delay_ms"] = 300  # long enough to see what the workflow engine costs
    config["ladders"]["known"]["rungs"].insert(0, {"name": "onnxruntime-fp32", "stack": "onnxruntime-cpu"})
    config["ladders"]["known"]["steps"] = ["compilation"]
    return config


@pytest.fixture(scope="module")
def first(workflow, config, failing, other_models):
    return workflow.call(config).must()


@pytest.fixture(scope="module")
def beside():
    """Runs sittings in which no latency matters beside the first one, to save time."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def rounds(ladder, batches, numbers):
    model = {"resnet": "resnet", "known": "identity"}[ladder]
    return {f"results/cpu/rounds/{model}/{ladder}/b{batch}/{n}.json" for batch in batches for n in numbers}


RESNET_ROUNDS, KNOWN_ROUNDS = rounds("resnet", [1, 2], [1, 2]), rounds("known", [1], [1])


def raw_files(workflow):
    """Hash of every planned round's raw file; others were set aside for a configuration that may come back."""
    found = [path for path in workflow.folder.glob("results/cpu/rounds/**/*.parquet") if path.stem.isdigit()]
    return {str(path.relative_to(workflow.folder)): sha256(path) for path in found}


# ---- a first call and a second one ---------------------------------------------------------------------------


def test_a_call_prints_its_estimate_first_then_a_line_a_round(first):
    assert first.text.index("Plan: 5 rounds, 18 runs to measure, about ") < first.text.index("1 of ")
    for number in range(1, 6):
        assert f"round {number} of 5 done in " in first.text
    assert "; 0 left" in first.text


@pytest.mark.parametrize("name", ["results", "ladder", "audit", "failures"])
def test_tables_have_the_documented_columns(first, workflow, name):
    header = (workflow.folder / f"results/{name}.csv").read_text().splitlines()[0]
    assert header == ",".join(getattr(tables, name.upper()))


def test_there_is_a_row_for_every_run_step_and_engine_and_a_report(first, workflow):
    results = workflow.folder / "results"
    assert [len(workflow.table(f"{name}.csv")) for name in ("results", "ladder", "audit", "failures")] == [18, 7, 6, 0]
    assert read_json(results / "summary.json")["failures"] == 0
    assert "pytorch-fp32 → onnxruntime-fp32" in (results / "ladder.md").read_text()
    report = (results / "report.html").read_text()
    assert "<html" in report and "waterfall" in report


def test_every_row_has_its_raw_latencies(first, workflow):
    for row in workflow.table("results.csv"):
        raw = pq.read_table(workflow.folder / row["raw"]).to_pandas()
        latencies = raw[raw["rung"] == row["rung"]]["latency_ns"]
        assert len(latencies) == int(row["iterations"]) >= 6
        assert latencies.median() / 1e6 == pytest.approx(float(row["median_ms"]), rel=1e-12)


def test_one_fp32_onnx_file_feeds_every_stack(first, workflow):
    for model in ("resnet", "identity"):
        rows = [row for row in workflow.table("results.csv") if row["model"] == model]
        expected = {sha256(workflow.folder / f"artifacts/{model}/fp32.onnx")}
        assert {row["fp32_onnx_sha256"] for row in rows} == expected


def test_the_workflow_engine_is_silent_while_a_run_is_timed(first, workflow):
    """Under 1 % of a core. The kernel counts in ticks of 10 ms, so only a run of seconds can show so little."""
    rows = workflow.table("results.csv")
    assert all(row["parent_cpu_pct"] for row in rows)
    (long,) = [row for row in rows if row["rung"] == "known"]
    assert float(long["parent_cpu_pct"]) < 1


def test_a_second_call_runs_nothing_and_is_quick(first, workflow, config):
    call = workflow.call(config).must()
    assert "Nothing to be done" in call.text and call.jobs() == {} and "Warning: results/" not in call.text
    assert call.cpu_seconds < 8


def test_touched_and_explained_code_runs_nothing(first, workflow, config):
    modules = [*workflow.repository.glob("ladder/**/*.py"), *workflow.repository.glob("scripts/*.py")]
    before = {path: path.read_text() for path in modules}
    try:
        for path, text in before.items():
            path.write_text(text.replace('"""', '"""Said otherwise: ', 1) + "\n# why\n")
        for path in workflow.repository.rglob("*"):
            os.utime(path)
        assert workflow.plan(config) == {}
    finally:
        for path, text in before.items():
            path.write_text(text)


# ---- what a change of the configuration repeats ---------------------------------------------------------------


def resnet(config):
    return config["ladders"]["resnet"]


def engines(*names, model="resnet"):
    return {f"artifacts/cpu/{model}/{name}/engine" for name in names}


def audits(*names, model="resnet"):
    return {f"results/cpu/audit/{model}/{name}.json" for name in names}


ALL_ENGINES = ("pytorch-cpu-fp32", "onnxruntime-cpu-fp32", "openvino-cpu-fp32", "openvino-cpu-int8")

# change -> first outputs of the jobs it plans by rule, besides the tables and the report
CONFIGURATIONS = {
    "a batch in the profile": (lambda c: resnet(c).update(batches=[1, 2, 4]), {"round": rounds("resnet", [4], [1, 2])}),
    "more rounds": (lambda c: resnet(c).update(rounds=3), {"round": rounds("resnet", [1, 2], [3])}),
    "another step": (
        lambda c: resnet(c)["steps"].append({**LADDER["steps"][1], "from": "onnxruntime-fp32"}),
        {},
    ),
    "a step less": (lambda c: resnet(c)["steps"].pop(), {}),
    "limits": (lambda c: c.update(limits={"batches": 1, "rounds": 1}), {}),
    "another order": (lambda c: c.update(seed=1), {"round": RESNET_ROUNDS | KNOWN_ROUNDS}),
    "measure settings": (lambda c: c["measure"].update(warmup=4), {"round": RESNET_ROUNDS | KNOWN_ROUNDS}),
    "another rung": (
        lambda c: resnet(c)["rungs"].append({**LADDER["rungs"][1], "name": "new", "precision": "int8"}),
        {
            "engine": engines("onnxruntime-cpu-int8"),
            "audit_engine": audits("onnxruntime-cpu-int8"),
            "round": RESNET_ROUNDS,
        },
    ),
    "a rung less": (lambda c: (resnet(c)["rungs"].pop(), resnet(c)["steps"].pop()), {"round": RESNET_ROUNDS}),
    "options of its rungs": (
        lambda c: [rung.update(options={"new": 1}) for rung in resnet(c)["rungs"]],
        {
            "engine": engines(*(f"{name}-{digest({'new': 1})[:8]}" for name in ALL_ENGINES)),
            "audit_engine": audits(*(f"{name}-{digest({'new': 1})[:8]}" for name in ALL_ENGINES)),
            "round": RESNET_ROUNDS,
        },
    ),
    "threads of the platform": (
        lambda c: c.update(platforms={"cpu": {"device": "cpu", "threads": 3}}),
        {
            "engine": engines(*ALL_ENGINES) | engines("known-fp32", "onnxruntime-cpu-fp32", model="identity"),
            "audit_engine": audits(*ALL_ENGINES) | audits("known-fp32", "onnxruntime-cpu-fp32", model="identity"),
            "round": RESNET_ROUNDS | KNOWN_ROUNDS,
            "peaks": {"artifacts/cpu/peaks.json"},
        },
    ),
    "the profile": (
        lambda c: c["models"]["resnet"]["profile"].update(max=8),
        {"engine": engines(*ALL_ENGINES), "audit_engine": audits(*ALL_ENGINES), "round": RESNET_ROUNDS},
    ),
    "a threshold": (
        lambda c: c.update(parity={"int8": {"cosine": 0.5}}),
        {"audit_engine": audits("openvino-cpu-int8"), "round": RESNET_ROUNDS},
    ),
    "the calibration method": (
        lambda c: c["models"]["resnet"].update(conversion={"calibration_method": "entropy"}),
        {
            "precision": {"artifacts/resnet/int8.onnx"},
            "engine": engines("openvino-cpu-int8"),
            "audit_engine": audits("openvino-cpu-int8"),
            "round": RESNET_ROUNDS,
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plans(first, workflow, config):
    """The plan after each change; two at a time, since a plan keeps one processor busy."""
    changes = [with_change(config, change) for change, _ in CONFIGURATIONS.values()]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CONFIGURATIONS, pool.map(workflow.plan, changes), strict=True))


@pytest.mark.parametrize("change", CONFIGURATIONS)
def test_a_change_of_the_configuration_repeats_what_depends_on_it(plans, change):
    found, expected = plans[change], CONFIGURATIONS[change][1]
    assert set(found) == set(expected) | ENDINGS
    assert {rule: found[rule] for rule in expected} == expected


# ---- what a change of the code repeats ------------------------------------------------------------------------

MEASURED = {"resnet", "known"}
BUILT = {"engine", "audit_engine"}

# file -> rules that run again besides rounds, ladders whose rounds are looked at again
MODULES = {
    "ladder/statistics.py": (ENDINGS, set()),
    "ladder/attribution.py": (ENDINGS, set()),
    "ladder/utilisation.py": (ENDINGS, set()),
    "ladder/peaks.py": (ENDINGS | {"peaks"}, set()),
    "ladder/report/figures.py": (ENDINGS - {"aggregate"}, set()),
    "ladder/report/console.py": (set(), set()),
    "ladder/progress.py": (ENDINGS, set()),  # by which tables and pages say why they are not made
    "ladder/measure.py": (ENDINGS, MEASURED),
    "ladder/round.py": (ENDINGS, MEASURED),
    "ladder/stacks/openvino.py": (ENDINGS | BUILT, {"resnet"}),
    "ladder/audit.py": (ENDINGS | {"audit_engine"}, MEASURED),
    "ladder/parity.py": (ENDINGS | {"audit_engine"}, MEASURED),
    "ladder/precision.py": (ENDINGS | BUILT | {"precision"}, {"resnet"}),
    "ladder/inputs.py": (ENDINGS | BUILT | {"inputs", "export", "precision"}, MEASURED),
    "ladder/models/torchvision.py": (ENDINGS | BUILT | {"weights", "inputs", "export", "precision"}, {"resnet"}),
    "ladder/models/ultralytics.py": (set(), set()),
}
OTHER_FILES = {
    "known.py": (ENDINGS | BUILT, {"known"}),  # the stack from outside
    "unchanged": (set(), set()),  # the repository in another place
}
CHANGE = "\n\n_CHANGED = 1\n"


@pytest.fixture(scope="module")
def module_plans(first, workflow, config, tmp_path_factory):
    """The plan after a change in each file, by two equal repositories, and what the second one plans unchanged."""
    moved = Workflow(copy_repository(tmp_path_factory.mktemp("moved")), workflow.folder)
    unchanged = moved.plan(config)
    free: SimpleQueue[Workflow] = SimpleQueue()

    def plan(module):
        one = free.get()
        try:
            with one.changed(module, CHANGE):
                return one.plan(config)
        finally:
            free.put(one)

    with workflow.changed(workflow.folder / "known.py", CHANGE):
        outside = workflow.plan(config)
    free.put(workflow)
    free.put(moved)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(MODULES, pool.map(plan, MODULES), strict=True))
    return found | {"unchanged": unchanged, "known.py": outside}


@pytest.mark.parametrize("module", [*MODULES, *OTHER_FILES])
def test_a_change_in_a_file_repeats_what_depends_on_it(module_plans, module):
    rules, ladders = (MODULES | OTHER_FILES)[module]
    looked_at = {"resnet": RESNET_ROUNDS, "known": KNOWN_ROUNDS}
    expected = set().union(*(looked_at[ladder] for ladder in ladders))
    assert set(module_plans[module]) == rules | ({"round"} if ladders else set())
    assert module_plans[module].get("round", set()) == expected


def test_a_change_in_a_stack_repeats_its_engines_only(module_plans):
    assert module_plans["ladder/stacks/openvino.py"]["engine"] == engines("openvino-cpu-fp32", "openvino-cpu-int8")


def test_an_audit_rule_that_changes_no_verdict_measures_nothing_again(first, workflow, config):
    before = raw_files(workflow)
    audit = workflow.repository / "ladder/audit.py"
    audit.write_text(audit.read_text() + CHANGE)  # and stays, or all of it would be looked at once more
    call = workflow.call(config, *TABLES).must()
    assert call.jobs() == {"audit_engine": 6, "round": 5, "aggregate": 1}
    assert call.text.count(": kept, ") == 5
    assert raw_files(workflow) == before


# ---- engines --------------------------------------------------------------------------------------------------


def known_engine(workflow):
    (payload,) = workflow.folder.glob("artifacts/cpu/identity/known-*/engine")
    return payload


def test_an_engine_rebuilt_with_other_bytes_measures_nothing_again(first, workflow, config):
    before, payload = raw_files(workflow), known_engine(workflow)
    bytes_before, identity = payload.read_bytes(), (payload.parent / "id.json").read_bytes()
    call = workflow.call(config, "--forcerun", str(payload.relative_to(workflow.folder)), *TABLES).must()
    assert call.jobs() == {"engine": 1, "audit_engine": 1, "round": 1, "aggregate": 1}
    assert payload.read_bytes() != bytes_before and (payload.parent / "id.json").read_bytes() == identity
    assert "round 1: kept, " in call.text
    assert raw_files(workflow) == before


def test_an_engine_of_another_identity_is_measured_again(first, workflow, config):
    config["stacks"]["known"]["arguments"] |= {"version": 2, "delay_ms": 10}
    before = raw_files(workflow)
    call = workflow.call(config, *TABLES).must()
    assert call.jobs() == {"engine": 1, "audit_engine": 1, "round": 1, "aggregate": 1}
    again = {raw for raw, digest in raw_files(workflow).items() if before[raw] != digest}
    assert again == {record.replace(".json", ".parquet") for record in KNOWN_ROUNDS}


def test_a_configuration_that_comes_back_finds_its_measurements(first, workflow, config):
    now = raw_files(workflow)
    another = with_change(config, lambda c: c["ladders"]["known"]["rungs"].pop(0))
    another["ladders"]["known"]["steps"] = []
    workflow.call(another, *TABLES).must()
    assert raw_files(workflow) != now
    call = workflow.call(config, *TABLES).must()
    assert "round 1: kept, " in call.text and raw_files(workflow) == now


def test_a_round_asked_for_by_name_is_measured_again(first, workflow, config):
    before = raw_files(workflow)
    call = workflow.call(config, "--forcerun", *KNOWN_ROUNDS, *TABLES).must()
    assert call.jobs() == {"round": 1, "aggregate": 1}
    assert len(set(raw_files(workflow).items()) - set(before.items())) == 1


def test_a_tampered_engine_gives_no_result_and_the_next_call_builds_it_anew(first, workflow, config):
    payload = known_engine(workflow)
    payload.write_text("something else")
    config["ladders"]["known"]["rounds"] = 2
    workflow.call(config, *TABLES).must()
    (failure,) = workflow.table("failures.csv")
    assert (failure["rung"], failure["round"], failure["stage"]) == ("known", "2", "run")
    assert "was changed or cut short; the next call makes it anew" in failure["reason"]
    second = [r["rung"] for r in workflow.table("results.csv") if (r["ladder"], r["round"]) == ("known", "2")]
    assert second == ["onnxruntime-fp32"]
    call = workflow.call(config, *TABLES).must()
    assert call.jobs()["engine"] == 1 and payload.read_text() != "something else"
    assert workflow.table("failures.csv") == [] and len(workflow.table("results.csv")) == 20


# ---- failures -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing(beside, repository, tmp_path_factory):
    """One sitting in which things fail in every way, what the next call would try again, and one after repairs."""
    workflow = Workflow(repository, tmp_path_factory.mktemp("failing"))
    rungs = {
        "good": {},
        "killed": {"at_build": "killed"},
        "lacking": {"needs": "what-it-needs"},
        "slow": {"delay_ms": 2000},
        "nowhere": {},
        "elsewhere": {},
    }
    config = identity_config(workflow.folder, rungs)
    known, ladder = config["stacks"]["known"], config["ladders"]["known"]
    config["stacks"]["nowhere"] = {**KNOWN, "module": "ladder.stacks.nowhere"}
    config["stacks"]["elsewhere"] = {**known, "environment": "elsewhere"}
    config["environments"] = {"elsewhere": {"python": "/no/such/python"}}
    for rung in ladder["rungs"][-2:]:
        rung["stack"] = rung["name"]
    ladder["steps"] = ladder["steps"][:3]
    refused = identity_config(workflow.folder, {"good": {}, "refused": {"at_build": "refuse"}})["ladders"]["known"]
    config["ladders"]["refused"] = refused
    config["measure"]["timeout_seconds"] = 8

    def repair(config):
        (workflow.folder / "what-it-needs").touch()
        config["measure"]["timeout_seconds"] = 60
        config["ladders"]["known"]["rungs"] = [ladder["rungs"][i] for i in (0, 2, 3)]
        config["ladders"]["known"]["steps"] = [ladder["steps"][i] for i in (1, 2)]
        del config["ladders"]["refused"]

    def sit():
        call = workflow.call(config)
        return SimpleNamespace(
            call=call,
            failures=workflow.table("failures.csv"),
            results=workflow.table("results.csv"),
            report=(workflow.folder / "results/report.html").exists(),
            next=workflow.plan(config),
            audited=workflow.call(config, "--", "audit"),
            repaired=workflow.call(with_change(config, repair), *TABLES),
            left=workflow.table("failures.csv"),
        )

    return beside.submit(sit)


@pytest.mark.parametrize(
    ("rung", "stage", "permanent", "reason"),
    [
        ("killed", "engine", "false", "was ended by SIGKILL"),
        ("lacking", "engine", "false", "what-it-needs is missing; make it"),
        ("slow", "run", "false", "took longer than 8 s"),
        ("nowhere", "engine", "false", "there is no stack module 'ladder.stacks.nowhere'"),
        ("elsewhere", "environment", "false", "/no/such/python"),
        ("refused", "engine", "true", "the identity is not supported"),
    ],
)
def test_each_failure_is_one_row_with_its_reason(failing, rung, stage, permanent, reason):
    (row,) = [row for row in failing.result().failures if row["rung"] == rung]
    assert (row["stage"], row["permanent"]) == (stage, permanent)
    assert reason in row["reason"]


def test_what_did_not_fail_is_finished_and_the_call_ends_badly(failing):
    found = failing.result()
    assert "6 gave no result; results/failures.csv says why" in found.call.must(1).text
    assert len(found.failures) == 6
    assert sorted((row["ladder"], row["rung"]) for row in found.results) == [("known", "good"), ("refused", "good")]
    assert found.report


def test_the_audit_alone_ends_badly_too_and_says_why(failing):
    said = failing.result().audited.must(1).text
    assert "5 of 7 engines cannot be measured" in said and "what-it-needs is missing; make it" in said


def test_the_next_call_tries_again_what_may_pass_and_nothing_else(failing):
    again = failing.result().next
    names = {path.split("/")[3].rsplit("-", 1)[0] for path in again["engine"]}
    assert len(again["engine"]) == 4 and names <= {"known-fp32", "nowhere", "elsewhere"}, again["engine"]
    assert again["round"] == KNOWN_ROUNDS
    assert set(again) == ENDINGS | {"environment", "engine", "audit_engine", "round"}


def test_after_the_causes_are_removed_all_is_well(failing):
    found = failing.result()
    found.repaired.must()
    assert found.left == []


# ---- any model ------------------------------------------------------------------------------------------------


def two_inputs(path):
    """``sum`` [n, length] of ``a`` and of ``b`` times a matrix: two inputs, two dynamic axes."""
    a, b, total = (helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", "length", 8]) for x in ("a", "b", "total"))
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["c"], "product"),
        helper.make_node("Add", ["a", "c"], ["total"], "sum"),
    ]
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32), "w")
    save_onnx(path, nodes, [a, b], [total], [weights])


@pytest.fixture(scope="module")
def other_models(beside, repository, tmp_path_factory):
    """One round each of an ONNX file, of a BERT and of another detector: nothing but configuration."""
    workflow = Workflow(repository, tmp_path_factory.mktemp("models"))
    two_inputs(workflow.folder / "two.onnx")

    def generated(dtype, **ranges):
        inputs = {name: {"dtype": dtype, "low": low, "high": high} for name, (low, high) in ranges.items()}
        return {"generated": {"samples": 2, "inputs": inputs}}

    common = {"weights": {"seeded": 0}, "profile": {"max": 2}}
    bert = {"source": "transformers", "architecture": "bert-tiny", "axes": {"sequence": 16}, "data": "tokens", **common}
    yolo = {"source": "ultralytics", "architecture": "yolov8n.yaml", "input": [64, 96], "data": "pictures", **common}
    config = {
        "models": {
            "two": onnx_model("two.onnx", {"n": "batch", "length": 5}, "floats"),
            "bert": bert,
            "yolov8n": {**yolo, "task": "detection"},
        },
        "data": {
            "pictures": {"pictures": "ultralytics"},
            "floats": generated("float32", a=(-1, 1), b=(-1, 1)),
            "tokens": generated("int64", input_ids=(0, 30522), attention_mask=(1, 2), token_type_ids=(0, 2)),
        },
        "ladders": {
            "others": {
                "platform": "cpu",
                "models": ["two", "bert", "yolov8n"],
                "batches": [1],
                "rounds": 1,
                "rungs": LADDER["rungs"][1:3],
                "steps": ["compilation"],
            }
        },
        "measure": {"max_seconds": 0.1, "throughput_seconds": 0},
    }
    return beside.submit(lambda: (workflow.call(config, *TABLES), workflow))


def test_any_model_runs_by_configuration_alone(other_models):
    call, workflow = other_models.result()
    call.must()
    assert {(row["model"], row["rung"]) for row in workflow.table("results.csv")} == {
        (model, rung) for model in ("two", "bert", "yolov8n") for rung in ("onnxruntime-fp32", "openvino-fp32")
    }
    assert {row["verdict"] for row in workflow.table("audit.csv")} == {"pass"}


# ---- what is refused ------------------------------------------------------------------------------------------


def made(folder):
    return {path.name for path in folder.iterdir()} & {"artifacts", "results", ".ladder"}


def test_a_bad_configuration_ends_before_any_job_with_every_fault(config, repository, tmp_path):
    def spoil(config):
        config["ladders"]["resnet"]["batches"] = [1, 16]
        config["ladders"]["known"]["rungs"][1]["stack"] = "knwon"
        config["measure"]["max_secnds"] = 1

    identity_config(tmp_path, {"known": {}})  # the files that the configuration names
    fresh = Workflow(repository, tmp_path)
    spoiled = with_change(config, spoil)
    (line,) = fault_lines(fresh.call(spoiled))
    assert "measure: unknown key 'max_secnds'; did you mean 'max_seconds'?" in line
    del spoiled["measure"]["max_secnds"]
    lines = fault_lines(fresh.call(spoiled))
    assert len(lines) == 2
    assert "ladders.known.rungs.known.stack: 'knwon' is unknown (did you mean 'known'?)" in lines[0]
    assert "16 outside models.resnet.profile (1..4); set profile: {min: 1, opt: 1, max: 16}" in lines[1]
    assert not made(tmp_path)


def fault_lines(call):
    assert call.status not in (0, None) and "Traceback" not in call.text
    head, _, faults = call.text.partition("The configuration is wrong; nothing was run.\n")
    assert "Job stats" not in head
    return re.findall(r"^  (\S.*)$", faults, re.M)


def test_a_call_without_a_limit_of_the_host_is_refused(config, repository, tmp_path):
    identity_config(tmp_path, {"known": {}})  # the files that the configuration names
    call = Workflow(repository, tmp_path).call(config, "--workflow-profile", "none", "--cores", "1")
    assert call.status != 0 and "start with --resources host=100" in call.text
    assert not made(tmp_path) & {"artifacts", "results"}


def test_a_lock_of_the_host_that_cannot_be_had_ends_the_call_before_any_job(config, repository, tmp_path):
    identity_config(tmp_path, {"known": {}})
    (tmp_path / "host.lock").mkdir()
    call = Workflow(repository, tmp_path).call(config)
    assert call.status != 0 and "Traceback" not in call.text
    assert "host.lock: Is a directory" in call.text and "set LADDER_HOST_LOCK to a file" in call.text
    assert not made(tmp_path) & {"artifacts", "results"}


def test_a_lock_of_the_host_below_a_file_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(locks, "HOST_LOCK", tmp_path / "file/host.lock")
    with pytest.raises(StepError, match="file/host.lock: .*set LADDER_HOST_LOCK"):
        locks.open_host_lock()


def test_what_cannot_go_well_and_what_takes_long_is_said_before_the_first_job(tmp_path):
    """No GPU to be seen, no package index to be reached; the step of the environment says so in the end."""
    pip = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": ""}
    fresh = Workflow(ROOT, tmp_path, CUDA_VISIBLE_DEVICES="-1", PIP_FIND_LINKS="", **pip)
    config = identity_config(tmp_path, {"known": {}}, platform="gpu")
    config |= {
        "platform": "gpu",
        "platforms": {"gpu": {"device": "cuda"}},
        "environments": {"mine": {"lock": "my.txt"}},
    }
    config["stacks"]["known"] |= {"device": "cuda", "environment": "mine"}
    (tmp_path / "my.txt").write_text("numpy==2.4.6\n")
    warning = "Warning: platform gpu cannot be measured on this host: "
    config["environments"]["absent"] = {"python": "/no/such/python"}
    config["stacks"]["unread"] = {**config["stacks"]["known"], "environment": "absent"}
    config["ladders"]["unread"] = config["ladders"]["known"] | {"rungs": [{"name": "unread", "stack": "unread"}]}
    planned = fresh.call(config, "-n").must().text
    assert warning in planned
    assert "environments.absent.python: /no/such/python is not an interpreter that runs on this host" in planned
    call = fresh.call(config, "--", "artifacts/gpu/identity/known-fp32/id.json").must()
    before, _, after = call.text.partition("Select jobs to execute")
    assert warning in before
    assert "environment mine: installing 1 package of my.txt from pip's package index into .venvs/mine" in before
    assert "a package index could not be reached (http://127.0.0.1:9/simple): NewConnectionError(" in after


def test_a_key_that_stands_twice_is_refused(repository, tmp_path):
    (tmp_path / "my.yaml").write_text("platform: cpu\nseed: 0\nseed: 1\n")
    (line,) = fault_lines(Workflow(repository, tmp_path).call([tmp_path / "my.yaml"]))
    assert "my.yaml, line 3: 'seed' stands in line 2 too" in line


def test_tables_from_elsewhere_are_warned_of_once(config, repository, tmp_path):
    identity_config(tmp_path, {"known": {}})
    (tmp_path / "results").mkdir()
    (tmp_path / "results/ladder.csv").touch()
    text = Workflow(repository, tmp_path).call(config, "--dry-run").must().text
    assert text.count("Warning: results/ has tables") == 1 and "snakemake -R aggregate" in text


def test_what_may_be_kept_is_not_promised_to_be_measured(repository, tmp_path):
    fresh = Workflow(repository, tmp_path)
    config = identity_config(tmp_path, {"known": {}}, rounds=2)
    new, kept = "2 rounds, 2 runs to measure, about ", "of the 2 that have a record, those whose artifacts and settings"
    before = fresh.call(config, "-n").must().text
    assert f"All ladders from nothing: {new}" in before and f"Of these: {new}" in before and kept not in before
    assert f"Plan: {new}" in fresh.call(config, *TABLES).must().text
    for record in tmp_path.glob("results/cpu/rounds/**/[12].json"):
        told = json.loads(record.read_text())
        record.write_text(json.dumps(told | {"warnings": ["other programs were busy then"]}))
    planned = fresh.call(config, "-n", "--forcerun", "engine").must().text
    assert f"Of these: up to {new}" in planned and kept in planned.partition("Of these: ")[2]
    again = fresh.call(config, "--forcerun", "engine", *TABLES).must().text
    assert f"Plan: up to {new}" in again and again.count("kept, it was measured with just these") == 2
    assert "other programs were busy then" not in again
    forced = fresh.call(config, "-n", "--forcerun", "round").must().text
    assert f"Of these: {new}" in forced and kept not in forced
    assert "Of these: " not in fresh.call(config, "-n", *TABLES).must().text


def test_a_space_may_stand_in_every_path(tmp_path):
    fresh = Workflow(copy_repository(tmp_path / "the repository"), tmp_path / "my work")
    python = tmp_path / "my python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    config = identity_config(fresh.folder, {"known": {}})
    config["environments"] = {"weights": {"python": str(python)}}  # a name that models' files have too
    config["stacks"]["known"]["environment"] = "weights"
    fresh.call(config, *TABLES).must()
    assert fresh.table("failures.csv") == [] and len(fresh.table("results.csv")) == 1


# ---- targets and presets --------------------------------------------------------------------------------------


def test_the_target_of_a_stack_makes_the_tables_of_its_ladders(first, workflow, config):
    call = workflow.call(config, "--", "pytorch", "openvino", "onnxruntime").must()
    assert "smallest findable" in call.text
    assert call.jobs().get("round") is None and call.jobs()["aggregate"] == 3
    assert {row["ladder"] for row in workflow.table("pytorch/ladder.csv")} == {"resnet"}
    assert {row["ladder"] for row in workflow.table("onnxruntime/ladder.csv")} == {"resnet", "known"}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("tensort", "There is no target tensort; did you mean tensorrt?"),
        ("xyzzy", "There is no target xyzzy"),
        ("tensorrt", "Nothing to do for tensorrt: no ladder of platform cpu has such a stack\n  nvidia has, for "),
    ],
)
def test_a_target_that_nothing_makes_is_named_before_anything_runs(workflow, target, told):
    for mode in ([], ["-n"]):
        call = workflow.call([ROOT / "config.yaml"], *mode, "--config", "platform=cpu", "--", target).must(1)
        assert told in call.text and "Traceback" not in call.text and not call.jobs()


def test_the_targets_audit_and_report_go_as_far_as_they_say(config, repository, tmp_path):
    fresh = Workflow(repository, tmp_path)
    identity_config(tmp_path, {"known": {}})  # the files that the configuration names
    artifacts = {"weights", "inputs", "export", "precision", "engine", "audit_engine"}
    assert set(fresh.plan(config, "audit")) == artifacts
    assert set(fresh.plan(config, "report")) == artifacts | {"round", "peaks", "aggregate", "pages", "report"}


def test_snakemake_finds_nothing_to_lint(repository, tmp_path):
    Workflow(repository, tmp_path).call([ROOT / "config.yaml"], "--lint").must()


CPU = ["onnxruntime-cpu-fp32", "openvino-cpu-fp32", "openvino-cpu-int8", "pytorch-cpu-fp32"]

# preset and platform (or short) -> engines of each of its models, models, rounds
PRESETS = {
    ("gpu-bench", "h200"): (["pytorch-cuda-fp32", "tensorrt-fp32", "tensorrt-fp16"], 1, 3 * 8),
    ("gpu-bench", "mi300x"): (
        [
            f"{stack}-static-b{batch}"
            for stack in ("pytorch-rocm-fp32", "onnxruntime-migraphx-fp32")
            + ("migraphx-fp32", "migraphx-fp16", "migraphx-int8-fp16")
            for batch in (1, 4, 8)
        ],
        1,
        3 * 8,
    ),
    ("deep-gap", "h200"): (
        ["pytorch-cuda-tf32-conv-OPTIONS", "pytorch-cuda-tf32-conv", "pytorch-cuda-fp32", "pytorch-cuda-fp16"]
        + ["tensorrt-fp32", "tensorrt-fp16", "tensorrt-int8", "tensorrt-int8-fp16"],
        3,
        3 * 11 * 10,
    ),
    ("beyond-tops", "h200"): (
        ["pytorch-cuda-fp32", "onnxruntime-cuda-fp32", "onnxruntime-tensorrt-fp32"]
        + ["tensorrt-fp32", "tensorrt-fp16", "tensorrt-int8"],
        1,
        4 * 8,
    ),
    ("gpu-bench", "short"): (CPU, 1, 2 * 2),
    ("deep-gap", "short"): (["pytorch-cpu-fp32", "onnxruntime-cpu-fp32", "onnxruntime-cpu-int8"], 1, 2 * 2),
    ("beyond-tops", "short"): (CPU, 1, 2 * 2),
}


@pytest.fixture(scope="module")
def preset_plans(repository, tmp_path_factory):
    def plan(name):
        preset, platform = name
        files = [repository / f"presets/{preset}.yaml"]
        if platform == "short":
            files, arguments = [*files, repository / "presets/short.yaml"], ()
        else:
            arguments = ("--config", f"platform={platform}")
        fresh = Workflow(repository, tmp_path_factory.mktemp("preset"))
        return fresh.call(files, "--dry-run", "--quiet", "host", *arguments).must()

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PRESETS, pool.map(plan, PRESETS), strict=True))


@pytest.mark.parametrize("name", PRESETS, ids="-".join)
def test_presets_plan_their_whole_protocol(preset_plans, name):
    engines, models, planned = PRESETS[name]
    jobs = preset_plans[name].jobs()
    assert f"All ladders from nothing: {planned} rounds" in preset_plans[name].text
    assert (jobs["round"], jobs["engine"], jobs["audit_engine"]) == (
        planned,
        models * len(engines),
        models * len(engines),
    )
    built = set(re.findall(r"output: artifacts/[^/]+/[^/]+/([^/]+)/engine,", preset_plans[name].text))
    assert {re.sub(r"-[0-9a-f]{8}$", "-OPTIONS", engine) for engine in built} == set(engines)
