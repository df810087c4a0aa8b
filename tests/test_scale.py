"""Planning and tables grow no faster than they must: operations are counted, and costs compared side by side."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections import Counter
from pathlib import Path

import pytest
import synthetic

from ladder import aggregate as tables_of
from ladder import config, progress, records, specs, steps
from ladder.files import read_json
from ladder.matrix import Matrix
from ladder.step import json_file

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import scale  # noqa: E402


def matrix(rounds: int) -> Matrix:
    raw = scale.configuration(rounds)
    return Matrix(config.load(raw), raw)


def of_rounds(function, plan: Matrix) -> list:
    return [function(plan, round.model, round.ladder, round.batch) for round in plan.rounds()]


def test_rounds_of_a_ladder_and_batch_share_what_they_are_told(tmp_path, monkeypatch):
    """A thousand rounds are planned like forty: one specification, one file and one list of inputs for each 25."""
    monkeypatch.chdir(tmp_path)
    described = Counter()
    rung = steps._round_rung
    monkeypatch.setattr(steps, "_round_rung", lambda *given: described.update(["rungs"]) or rung(*given))
    plan = matrix(1000)
    assert len(plan.rounds()) == 1000
    files = {specs.file_of(spec) for spec in of_rounds(steps.round_spec, plan)}
    assert len(files) == len(list(specs.FOLDER.iterdir())) == 40
    assert described["rungs"] == 40 * scale.RUNS_A_ROUND
    inputs = of_rounds(steps.round_inputs, plan)
    assert len({id(each) for each in inputs}) == 40
    assert len(inputs[0]["identities"]) + len(inputs[0]["files"]) == scale.INPUTS_A_ROUND
    steps.plan(plan, list(plan.ladders))
    assert described["rungs"] == 40 * scale.RUNS_A_ROUND


def test_a_specification_is_a_file_named_by_what_it_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(specs, "_planned", set())
    first = specs.file_of({"b": [1, 2.5, None], "a": "é"})
    assert read_json(Path(first)) == {"a": "é", "b": [1, 2.5, None]}
    assert specs.file_of({"a": "é", "b": [1, 2.5, None]}) == first != specs.file_of({"a": "e", "b": [1, 2.5, None]})
    (specs.FOLDER / "0123456789abcdef.json").write_text("{}")  # of an earlier plan
    specs.remove_others()
    assert sorted(map(str, specs.FOLDER.iterdir())) == sorted(map(str, specs._planned))
    with pytest.raises(ValueError):
        specs.file_of(float("nan"))


def test_a_specification_that_was_changed_is_planned_anew_and_never_followed(tmp_path, monkeypatch):
    """Whether edited by hand or cut short: a round would be measured otherwise than its record says."""
    monkeypatch.chdir(tmp_path)
    told = {"measure": {"warmup": 10}, "batches": {1: "a", 4: "b", 16: "c"}}
    path = Path(specs.file_of(told))
    planned = path.read_text()
    for changed in (planned.replace("10", "11"), planned[:-9] + "}", planned[:20]):
        path.write_text(changed)
        with pytest.raises(ArgumentTypeError, match="was changed after it was planned"):
            json_file(str(path))
        (tmp_path / "copy.json").write_text(planned.replace("10", "11"))
        assert json_file("copy.json")["measure"] == {"warmup": 11}  # a step may be run by hand with something else
        monkeypatch.setattr(specs, "_planned", set())
        assert Path(specs.file_of(told)) == path and path.read_text() == planned
        assert json_file(str(path))["batches"] == {"1": "a", "4": "b", "16": "c"}


def test_planning_costs_little_more_than_trivial_jobs_in_the_same_graph(tmp_path):
    """CPU time beside the same number of trivial jobs with as many inputs. docs/scale.md says how much at full size.

    Three times is allowed here: at 40 rounds what every call costs weighs more.
    """
    ours = scale.Planned(tmp_path / "ours", ROOT / "Snakefile", scale.configuration(40))
    cost, text = ours.plan()
    jobs = scale.planned_jobs(text)
    assert jobs["round"] == 40
    trivial = scale.trivial(tmp_path / "trivial", jobs["total"], jobs["total"] - 41, scale.INPUTS_A_ROUND)
    beside, text = trivial.plan()
    assert scale.planned_jobs(text) == {"all": 1, "source": jobs["total"] - 41, "job": 40, "total": jobs["total"]}
    assert cost.cpu_seconds < 3 * beside.cpu_seconds
    told = [file.read_text() for file in (tmp_path / "ours/.ladder/specs").iterdir()]
    assert len(told) == len(set(told))


def test_a_command_names_a_file_instead_of_holding_what_a_step_is_told(tmp_path):
    ours = scale.Planned(tmp_path / "ours", ROOT / "Snakefile", scale.configuration(40))
    record = "results/cpu/rounds/net0/threads1/b1/1.json"
    _, text = ours.plan("--quiet", "host", "--printshellcmds", "--", record)
    command = next(line for line in text.splitlines() if "scripts/round.py" in line.replace("$SCRIPTS", "scripts"))
    assert len(command) < 400
    words = command.split()
    spec = read_json(tmp_path / "ours" / words[words.index("--spec") + 1])
    assert (spec["ladder"], spec["batch"], words[words.index("--round") + 1]) == ("threads1", 1, "1")
    assert max(len(line) for line in text.splitlines() if "--spec" in line) < 1000


def test_raw_latencies_are_held_for_one_ladder_and_batch_at_a_time(tmp_path, monkeypatch):
    """Four batches of three rounds: never more than a batch's latencies at once, each file opened once."""
    ladder = synthetic.CPU_LADDER | {"rounds": 3}
    plan, rounds = synthetic.write_run(tmp_path / "results", [ladder], 30)
    audits = synthetic.write_audits(tmp_path / "results", ladder)
    alive: list[int] = []
    read, opened = records.read_latencies, []

    class Counted(dict):
        def __del__(self):
            alive.pop()

    def counted(path: Path) -> dict:
        opened.append(path)
        alive.append(1)
        assert len(alive) <= 3
        return Counted(read(path))

    monkeypatch.setattr(records, "read_latencies", counted)
    monkeypatch.chdir(tmp_path)
    tables_of.aggregate(plan, rounds, audits, tmp_path / "tables")
    assert len(opened) == len(set(opened)) == 12


def test_what_rounds_have_in_common_is_held_once(tmp_path):
    ladder = synthetic.CPU_LADDER | {"rounds": 2, "batches": [1]}
    _, paths = synthetic.write_run(tmp_path / "results", [ladder], 30)
    seen: dict = {}
    first, second = (records.lean(records.read_round(path), seen) for path in paths)
    assert first["host_state"] is second["host_state"]
    for rung, detail in first["details"].items():
        assert detail["identity"] is second["details"][rung]["identity"]
    assert first["rows"][0]["artifact_sha256"] is second["rows"][0]["artifact_sha256"]


def test_the_time_left_follows_the_pace_without_reading_every_round_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = 2_000_000_000.0
    monkeypatch.setattr(progress.time, "time_ns", lambda: int(now * 1e9))
    progress.start(4, 20, None)
    now += 60
    assert progress.finish_round(60) == "round 1 of 4 done in 60 s; 3 left, about 3 min"
    now += 30
    monkeypatch.setattr(progress.os, "getpid", lambda: 1)
    assert progress.finish_round(30) == "round 2 of 4 done in 30 s; 2 left, about 2 min"  # 45 s a round
    assert all(path.stat().st_size == 0 for path in progress._DONE.iterdir())
    monkeypatch.setattr(
        progress.Path, "glob", lambda folder, pattern: [folder / "taken away by a job of a killed call"]
    )
    progress.start(4, 20, None)
