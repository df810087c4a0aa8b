"""Rounds that are lost, damaged or disturbed: tables are made from what there is, and what may pass is tried again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import synthetic
from synthetic import change, table
from test_round import measured, own_host_lock, spec  # noqa: F401
from workflow_run import TABLES, Workflow, copy_repository, identity_config

from ladder import round_files
from ladder.aggregate import aggregate
from ladder.disturbed import disturbed
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json
from ladder.records import place_of, read_latencies
from ladder.step import attempts_path
from ladder.tables import RESULTS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return synthetic.small_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(whole, tmp_path):
    """A copy of a whole run that a test may damage: plan, rounds, audits and where the tables go."""
    return synthetic.copy_of(whole, tmp_path)


def copy_round(path: Path, destination: Path) -> None:
    for suffix in (".json", ".parquet"):
        shutil.copy(path.with_suffix(suffix), destination.with_suffix(suffix))


def respoil(path: Path, parts: list) -> None:
    """Other raw latencies, and a record that calls them its own."""
    synthetic.write_raw(path.with_suffix(".parquet"), parts)
    change(path, raw_sha256=sha256(path.with_suffix(".parquet")))


def halve(path: Path) -> None:
    raw = path.with_suffix(".parquet")
    synthetic.write_raw(raw, [(rung, ns // 2) for rung, ns in read_latencies(raw).items()])


# ---- a damaged round ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_text('{"rows": ['), "not a round's record"),
        (lambda path: path.write_text("[]"), "not a round's record"),
        (lambda path: write_json(path, {"rows": [], "failures": []}), "without details, host_state, raw_sha256"),
        (lambda path: change(path, rows=[], failures=[]), "neither results nor failures"),
        (lambda path: path.with_suffix(".parquet").write_bytes(b"PAR1"), "not the raw latencies that were measured"),
        (lambda path: change(path, raw_sha256=None), "not the raw latencies that were measured"),
        (halve, "not the raw latencies that were measured"),
        (lambda path: path.with_suffix(".parquet").unlink(), "cannot read raw latencies"),
        (lambda path: respoil(path, []), "has 30 timed iterations"),
        (lambda path: change(path, rows=[{"rung": "x"}]), "without activations_mb"),
        (lambda path: copy_round(path.with_name("2.json"), path), "another round than its name says"),
    ],
)
def test_a_damaged_round_is_a_failure_and_in_no_other_table(run, spoil, said):
    plan, rounds, audits, out = run
    spoil(rounds[0])
    summary = aggregate(plan, rounds, audits, out)
    (row,) = table(out, "failures.csv")
    assert (row["ladder"], row["rung"], row["batch"], row["round"]) == ("cpu", "", "1", "1")
    assert (row["stage"], row["permanent"]) == ("round", "false")
    assert said in row["reason"] and "measured again by the next call" in row["reason"]
    assert len(table(out, "results.csv")) == 75 and summary["failures"] == 1
    assert {(r["batch"], r["rounds"]) for r in table(out, "ladder.csv")} == {("1", "7"), ("4", "8")}
    assert {p["rounds"] for p in summary["latency"] if p["batch"] == 1} == {7}
    assert attempts_path(rounds[0]).exists()  # the planner counts its lines
    assert not attempts_path(rounds[1]).exists()


def test_a_round_is_known_by_its_path():
    path = Path("results/a/rounds/m/l/b4/12.json")
    assert place_of(path) == {"platform": "a", "model": "m", "ladder": "l", "batch": 4, "round": 12}


def test_a_record_that_tables_refused_is_neither_kept_nor_set_aside(spec, measured, tmp_path):  # noqa: F811
    measured(spec)
    output = tmp_path / "1.json"
    change(output, details={})  # its key and its raw latencies still fit
    assert measured(spec)["kept"]
    round_files.refuse(output)
    again = measured(spec)
    assert not again["kept"] and again["details"]
    assert measured(spec)["kept"]
    assert not list(tmp_path.glob("1.*.json"))


def test_rungs_that_nobody_audited_and_rounds_that_nobody_measured_are_failures(run):
    """As where an engine's job was lost at every try: what needs it never ran."""
    plan, rounds, audits, out = run
    for path in audits[:1] + rounds[8:]:
        path.unlink()
    aggregate(plan, rounds, audits, out)
    unaudited, unmeasured = table(out, "failures.csv")
    assert (unaudited["rung"], unaudited["stage"], unaudited["batch"]) == (audits[0].stem, "audit", "")
    assert unmeasured["batch"] == "4" and "8 of 8 planned rounds have no file (1, 2, 3, " in unmeasured["reason"]


# ---- a round whose job cannot go on -----------------------------------------------------------------------------


def round_script(folder: Path, spec: dict, **how) -> subprocess.Popen:  # noqa: F811
    """scripts/round.py, started by itself on what the fixtures made."""
    write_json(folder / "spec.json", spec)
    place = folder / "results/cpu/rounds/identity/known/b2"
    arguments = ["--spec", folder / "spec.json", "--round", 1, "--log", folder / "1.log"]
    arguments += ["--output", place / "1.json", "--raw", place / "1.parquet"]
    command = [sys.executable, ROOT / "scripts/round.py", *arguments]
    environment = {"LADDER_HOST_LOCK": str(folder / "host.lock"), "PATH": "/usr/bin:/bin"}
    return subprocess.Popen([*map(str, command)], cwd=folder, env=environment, text=True, **how)


def test_a_round_that_cannot_go_on_leaves_a_failed_record_and_is_tried_again(spec, tmp_path):  # noqa: F811
    verdict = Path(spec["rungs"][0]["pass"])
    verdict.write_text("{cut sh")
    job = round_script(tmp_path, spec, stdout=subprocess.PIPE)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0 and "round 1: no result: JSONDecodeError" in said
    record = tmp_path / "results/cpu/rounds/identity/known/b2/1.json"
    assert "Traceback" in (tmp_path / "1.log").read_text() and attempts_path(record).exists()
    failed = read_json(record)
    assert (failed["status"], failed["stage"], failed["permanent"]) == ("failed", "round", False)
    ladder = {"platform": "cpu", "ladder": "known", "model": "identity", "batches": [2], "rounds": 1, "steps": []}
    plan = {"ladders": [ladder | {"settings": {2: "1"}, "peaks": None, "rungs": []}]}
    aggregate(plan, [record], [], tmp_path / "tables")
    (row,) = table(tmp_path / "tables", "failures.csv")
    assert row["reason"].startswith("JSONDecodeError: ") and row["log"] == str(tmp_path / "1.log")
    assert (row["batch"], row["round"], row["stage"]) == ("2", "1", "round")
    write_json(verdict, read_json(Path(spec["rungs"][1]["pass"])))
    assert round_script(tmp_path, spec, stdout=subprocess.DEVNULL).wait(60) == 0
    assert len(read_json(record)["rows"]) == 2


def test_a_round_that_was_measured_survives_a_later_job_that_cannot_go_on(spec, measured, tmp_path):  # noqa: F811
    first, files = measured(spec), (tmp_path / "1.json", tmp_path / "1.parquet")
    round_files.give_up(*files, tmp_path / "1.log", OSError(28, "No space left on device"))
    assert "No space left on device" in read_json(files[0])["reason"]
    again = measured(spec)
    assert again["kept"] and again["rows"] == first["rows"]
    assert sha256(files[1]) == first["raw_sha256"]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_round_that_is_stopped_leaves_no_record(spec, tmp_path, by):  # noqa: F811
    spec["rungs"] = spec["rungs"][:1]
    spec["rungs"][0]["rung"]["options"]["at_run"] = "hang"
    job = round_script(tmp_path, spec, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not ((tmp_path / "1.log").exists() and "---" in (tmp_path / "1.log").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(by)
    assert job.wait(60) != 0
    assert not list((tmp_path / "results").rglob("1.*"))


def test_jobs_that_die_hold_no_table_back_and_the_next_call_does_them(tmp_path):
    """A killed round, beside one of another ladder: tables in the same call, which ends badly; then a removed round."""
    workflow = Workflow(copy_repository(tmp_path / "repository"), tmp_path / "work")
    config = identity_config(workflow.folder, {"a": {}, "b": {"delay_ms": 2}}, rounds=2)
    config["ladders"]["other"] = config["ladders"]["known"] | {"rounds": 1}
    config["environments"] = {"unused": {"python": sys.executable}}  # without PyTorch, no peaks: they take long
    config["stacks"]["pytorch-cpu"] = {"environment": "unused"}
    dying = "\n\nif Path('dies').exists():\n    order = lambda *at: os.kill(os.getpid(), 9) if at[-1] == 2 else 'ab'\n"
    with workflow.changed("ladder/round.py", dying):
        (workflow.folder / "dies").touch()
        workflow.call(config, *TABLES).must(1)
        (failure,) = workflow.table("failures.csv")
        assert (failure["ladder"], failure["stage"]) == ("known", "round")
        assert "1 of 2 planned rounds have no file (2)" in failure["reason"]
        measured = {(row["ladder"], row["round"]) for row in workflow.table("results.csv")}  # noqa: F811
        assert measured == {("known", "1"), ("other", "1")}
        (workflow.folder / "dies").unlink()
        assert workflow.call(config, *TABLES).must().jobs() == {"round": 1, "aggregate": 1}
        assert workflow.table("failures.csv") == [] and len(workflow.table("results.csv")) == 6
        assert workflow.call(config, *TABLES).must().jobs() == {}
        gone = workflow.folder / "results/cpu/rounds/identity/known/b1/1.json"
        gone.unlink()
        assert workflow.plan(config)["round"] == {str(gone.relative_to(workflow.folder))}


# ---- disturbed rounds -------------------------------------------------------------------------------------------


def ran(number: int, rung: str = "a", **cells: str) -> dict[str, str]:
    quiet = dict.fromkeys(RESULTS, "") | {"throttled": "none", "contended": "none", "load_before": "0.05"}
    return quiet | {"rung": rung, "raw": f"results/cpu/rounds/m/l/b1/{number}.parquet"} | cells


def test_a_round_is_disturbed_by_what_is_seen_beside_it_and_by_no_latency():
    rows = [
        ran(1, median_ms="1", std_ms="900"),
        ran(2, throttled="sw_power_cap"),
        ran(2, rung="b", load_before="0.51"),
        ran(3, contended="[4711]"),
        ran(4, load_before="0.5"),
        ran(5, throttled="", contended="", load_before=""),  # not read is not disturbed
    ]
    found = disturbed(rows)
    assert [path.name for path in found] == ["2.json", "3.json"]
    assert found[Path("results/cpu/rounds/m/l/b1/2.json")] == [
        "a: throttled (sw_power_cap)",
        "b: other programs kept 0.5 CPUs busy before it",
    ]
    assert [path.name for path in disturbed(rows[1:2] + rows[3:4], ["contended"])] == ["3.json"]


def test_the_script_prints_what_snakemake_takes_and_no_more(run):
    plan, rounds, audits, out = run
    aggregate(plan, rounds, audits, out.parent / "results")

    def printed():
        command = [sys.executable, str(ROOT / "scripts/disturbed.py")]
        return subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=True)

    quiet = printed()
    assert (quiet.stdout, quiet.stderr) == ("", "disturbed rounds: 0\n")
    record = read_json(rounds[2])
    busy = [row | {"load_before": 1.2 if row["position"] else 0.1} for row in record["rows"]]
    change(rounds[2], rows=busy)
    aggregate(plan, rounds, audits, out.parent / "results")
    found = printed()
    assert found.stdout == f"{rounds[2].relative_to(out.parent)}\n"
    assert found.stderr.count("1.2 CPUs busy before it") == 4 and found.stderr.endswith("disturbed rounds: 1\n")


def test_without_tables_there_is_nothing_to_say_which_rounds_were_disturbed(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/disturbed.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "make the tables first" in done.stderr and done.stdout == ""


def test_a_failed_record_is_no_measurement(tmp_path):
    path = tmp_path / "results/cpu/rounds/m/l/b1/1.json"
    path.parent.mkdir(parents=True)
    round_files.give_up(path, path.with_suffix(".parquet"), tmp_path / "x.log", StepError("a reason"))
    assert round_files.finished(path, path.with_suffix(".parquet"), "any") is None
