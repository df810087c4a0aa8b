"""Bad configuration ends before any job, one line a fault, naming key, value and what is allowed."""

from __future__ import annotations

import copy
import datetime
import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from snakemake.cli import parse_config
from snakemake.utils import update_config

from ladder import causes, config
from ladder.errors import ConfigError
from ladder.workflow import forgotten, merged, read_yaml, repeated_keys

ROOT = Path(__file__).parent.parent
DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())


def faults(change):
    raw = copy.deepcopy(DEFAULT)
    change(raw)
    with pytest.raises(ConfigError) as caught:
        config.load(raw)
    return caught.value.faults


def ladder(raw):
    return raw["ladders"]["cpu"]


def rung(raw, name):
    return next(r for r in ladder(raw)["rungs"] if r["name"] == name)


A_STACK = {"module": "mine.py", "device": "cpu", "api": "mine", "compiler": "mine"}

FULL = DEFAULT | {"stacks": {"mine": {**A_STACK, "arguments": {"x": [1]}}}, "parity": {"fp32": {"cosine": 0.9}}}


def test_the_default_configuration_is_valid():
    assert list(config.load(DEFAULT).ladders) == ["cpu", "nvidia", "amd"]


@pytest.mark.parametrize("preset", ["gpu-bench", "deep-gap", "beyond-tops"])
def test_presets_are_valid_alone_and_cut_short(preset):
    raw = yaml.safe_load((ROOT / f"presets/{preset}.yaml").read_text())
    short = yaml.safe_load((ROOT / "presets/short.yaml").read_text())
    config.load(raw)
    assert config.load(merged(raw, short)).platform == "cpu"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: rung(r, "pytorch-fp32").update(stack="pytorch-cpuu"), ["did you mean 'pytorch-cpu'"]),
        (lambda r: r["measure"].update(max_secnds=3), ["measure", "max_secnds", "did you mean 'max_seconds'"]),
        (lambda r: ladder(r).update(batchs=[1]), ["ladders.cpu", "batchs", "did you mean 'batches'"]),
        (lambda r: ladder(r)["steps"][0].update(form="x"), ["form", "did you mean 'from'"]),
        (lambda r: r.update(modles={}), ["top level", "modles", "did you mean 'models'"]),
        (lambda r: ladder(r).update(batches=[1, 16]), ["16 outside", "profile: {min: 1, opt: 1, max: 16}"]),
        (lambda r: ladder(r).update(rungs=[]), ["ladders.cpu.rungs", "empty"]),
        (lambda r: r["ladders"].clear(), ["ladders", "empty"]),
        (lambda r: ladder(r).update(batches=[]), ["ladders.cpu.batches", "empty"]),
        (lambda r: ladder(r)["rungs"].append(dict(rung(r, "pytorch-fp32"))), ["'pytorch-fp32' stands 2 times"]),
        (lambda r: ladder(r)["batches"].append(1), ["'1' stands 2 times"]),
        (
            lambda r: r["models"]["yolo11n"].update(weights={"url": "http://h/x", "sha256": "abc"}, architecture=None),
            ["weights.sha256", "abc", "64 hexadecimal"],
        ),
        (lambda r: r["models"]["yolo11n"].update(weights={"path": "x.pt"}), ["x.pt", "pickle", "sha256"]),
        (lambda r: r["models"]["yolo11n"].update(weights={}), ["exactly one of seeded, path, url, pretrained"]),
        (lambda r: r["models"]["yolo11n"]["profile"].update(min=9), ["min <= opt <= max"]),
        (lambda r: r["models"]["yolo11n"].update(opset="x"), ["models.yolo11n.opset", '"x"']),
        (lambda r: r["models"]["yolo11n"].update(data="photos"), ["models.yolo11n.data", "photos", "pictures"]),
        (lambda r: rung(r, "onnxruntime-int8").update(precision="fp8"), ["precision", '"fp8"', "'int8'"]),
        (lambda r: rung(r, "openvino-int8").update(precision="int8-fp16"), ["not offered by openvino-cpu"]),
        (lambda r: rung(r, "pytorch-fp32").update(launch="graph"), ["'graph' is not offered by pytorch-cpu"]),
        (lambda r: r.update(platform="gpu"), ["platform", "'gpu'", "cpu"]),
        (lambda r: ladder(r)["steps"][0].update(to="onnx"), ["'onnx' is unknown"]),
        (lambda r: ladder(r)["steps"][0].update(cause="compile"), ["cause", '"compile"', "'compilation'"]),
        (lambda r: ladder(r).update(steps=["compilation"]), ["1 bare causes for 5 rungs", "4 here"]),
        (lambda r: r["platforms"]["cpu"].update(threads=0), ["platforms.cpu.threads", "0"]),
        (
            lambda r: r["platforms"]["cpu"].update(resources={"slurm_partiton": "gpu"}),
            ["platforms.cpu.resources", "'slurm_partiton' is unknown (did you mean 'slurm_partition'?)"],
        ),
        (
            lambda r: r["platforms"]["cpu"].update(resources={"slurm_qos": "high"}),
            ["'slurm_qos' is unknown (did you mean 'qos'?)"],
        ),
        (
            lambda r: r["platforms"]["cpu"].update(resources={"slurm_reservation": "mine"}),
            ["'slurm_reservation' is unknown; of slurm_… the executor has slurm_account, "],
        ),
        (
            lambda r: r["models"]["yolo11n"].update(
                source="onnx", architecture=None, weights={"path": "m.onnx"}, axes={"n": "batch"}
            ),
            ["pytorch-cpu runs a PyTorch module", "ONNX only"],
        ),
        (
            lambda r: r["models"]["yolo11n"].update(source="onnx", architecture=None, weights={"path": "m.onnx"}),
            ["models.yolo11n.axes", "'batch'"],
        ),
        (
            lambda r: r["models"].update(
                bert=dict(source="transformers", architecture="bert-tiny", weights={"seeded": 0}, data="pictures")
            ),
            ["models.bert.axes", "sequence: 128"],
        ),
        (
            lambda r: r["data"].update(pictures={"generated": {"inputs": {"images": {"dtype": "float32"}}}}),
            ["random data", "int8 would", "calibration: pictures"],
        ),
        (lambda r: r.update(stacks=[1]), ["stacks: [1]: expected a mapping"]),
        (lambda r: r.update(stacks="x"), ['stacks: "x": expected a mapping']),
        (lambda r: r.update(stacks={"known": None}), ["stacks.known: null: expected a mapping"]),
        (lambda r: r.update(stacks={"pytorch-cpu": None}), ["stacks.pytorch-cpu: null: expected a mapping"]),
        (lambda r: r.update(stacks={"pytorch-cpu": 0}), ["stacks.pytorch-cpu: 0: expected a mapping"]),
        (lambda r: r.update(parity=["fp32"]), ['parity: ["fp32"]: expected a mapping']),
        (lambda r: r.update(parity={"fp32": 3}), ["parity.fp32: 3: expected a mapping"]),
        (
            lambda r: r.update(parity={"fp8": {}}),
            ["parity", '"fp8"', "'fp32', 'tf32', 'tf32-conv', 'fp16'", "'int8-fp16'"],
        ),
        (lambda r: r.update(environments=["x"]), ['environments: ["x"]: expected a mapping']),
        (lambda r: r.update(environments="x"), ['environments: "x": expected a mapping']),
        (lambda r: r["environments"].update(main={"lock": "my.txt"}), ["environments.main", "workflow's own"]),
        (lambda r: r["environments"].update(main={"python": "/p"}), ["environments.main", "workflow's own"]),
        (lambda r: r["environments"].update(mine={"python": ""}), ["environments.mine.python", "at least 1 character"]),
        (lambda r: r["measure"].update(max_seconds=math.inf), ["measure.max_seconds: Infinity", "finite"]),
        (lambda r: r["telemetry"].update(cooldown_below_c=math.nan), ["telemetry.cooldown_below_c: NaN", "finite"]),
        (
            lambda r: r["measure"].update(max_seconds="2"),
            ['measure.max_seconds: "2"', "valid number without quotes", "--configfile"],
        ),
        (lambda r: ladder(r).update(rounds=True), ["ladders.cpu.rounds: true", "valid integer"]),
        (lambda r: ladder(r).update(rounds="2"), ['ladders.cpu.rounds: "2"', "valid integer"]),
        (lambda r: ladder(r).update(rounds=10001), ["ladders.cpu.rounds: 10001", "10000"]),
        (lambda r: ladder(r).update(batches=["1"]), ['ladders.cpu.batches.0: "1"', "valid integer"]),
        (lambda r: ladder(r).update(batches=[65537]), ["ladders.cpu.batches.0: 65537", "65536"]),
        (lambda r: rung(r, "pytorch-fp32").update(threads=1025), ["rungs.0.threads: 1025", "1024"]),
        (lambda r: r["platforms"]["cpu"].update(threads=1025), ["platforms.cpu.threads: 1025", "1024"]),
        (lambda r: r["measure"].update(pause_seconds=10**30), ["measure.pause_seconds: 1000", "604800"]),
        (lambda r: r["measure"].update(repeats=10**30), ["measure.repeats: 1000", "1000000000"]),
        (lambda r: r.update(seed=2**32), ["seed: 4294967296", "less than 4294967296"]),
        (
            lambda r: rung(r, "pytorch-fp32").update(options={"a": {"b": [math.nan]}}),
            ["rungs.0.options.a.b.0: NaN", "finite"],
        ),
        (
            lambda r: rung(r, "pytorch-fp32").update(options={"day": datetime.date(2026, 1, 2)}),
            ["options.day", "2026, 1, 2"],
        ),
        (lambda r: rung(r, "pytorch-fp32").update(options={1: 2}), ["rungs.0.options.1: 1", "valid string"]),
        (
            lambda r: r.update(stacks={"s": {**A_STACK, "arguments": {"names": {"a"}}}}),
            ["stacks.s.arguments.names: {'a'}"],
        ),
        (lambda r: r.update(stacks={"s": {**A_STACK, "arguments": {"key": b"a"}}}), ["stacks.s.arguments.key: b'a'"]),
        (lambda r: r.update(stacks={"s": {**A_STACK, "module": ""}}), ["stacks.s.module", "at least 1 character"]),
        (lambda r: r["models"]["yolo11n"].update(weights={"path": ""}), ["weights.path", "at least 1 character"]),
        (
            lambda r: rung(r, "pytorch-fp32").update(stack="pytorch-cuda"),
            ["pytorch-fp32.stack", "runs on cuda", "is a cpu"],
        ),
        (lambda r: r["models"].update(environments=r["models"]["yolo11n"]), ["models.environments", "another name"]),
        (lambda r: r["models"].update({"m" * 101: r["models"]["yolo11n"]}), ["models.mmm", "at most 100 characters"]),
        (lambda r: rung(r, "pytorch-fp32").update(name="n" * 101), ["rungs.0.name", "at most 100 characters"]),
        (
            lambda r: ladder(r)["steps"].append(ladder(r)["steps"][0]),
            ["pytorch-fp32 → onnxruntime-fp32 stands 2 times"],
        ),
        (
            lambda r: ladder(r)["steps"].append({"from": "openvino-int8", "to": "openvino-fp32", "cause": "precision"}),
            ["ladders.cpu.steps", "openvino-fp32 → openvino-int8 → openvino-fp32", "circle"],
        ),
    ],
)  # fmt: skip
def test_one_line_names_key_value_and_what_is_allowed(change, expected):
    lines = [line for line in faults(change) if all(part in line for part in expected)]
    assert len(lines) == 1, faults(change)
    assert "\n" not in lines[0]


def test_resources_of_other_schedulers_have_any_name():
    raw = copy.deepcopy(DEFAULT)
    raw["platforms"]["cpu"]["resources"] = {"queue": "gpu", "slurmy": 1}
    config.load(raw)


def test_a_whole_number_is_taken_where_a_fraction_may_be():
    raw = copy.deepcopy(DEFAULT)
    raw["measure"]["max_seconds"] = 2
    assert config.load(raw).measure.max_seconds == 2


def test_a_section_left_empty_is_the_built_in_one():
    raw = DEFAULT | {"stacks": None, "parity": None, "environments": None}
    assert config.load(raw) == config.load(DEFAULT)


JUNK = [None, True, 0, 10**30, math.nan, "", "x", [], [1], [[1]], {}, {"a": 1}, {1: 2}, datetime.date.min, b"x", {1}]


def places(node, above=()):
    """The way to every value below a mapping or list."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*above, key)
        yield from places(value, (*above, key))


@given(st.sampled_from(list(places(FULL))), st.sampled_from(JUNK))
def test_whatever_stands_anywhere_is_taken_or_refused_in_single_lines(place, junk):
    raw = node = copy.deepcopy(FULL)
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = junk
    try:
        config.load(raw)
    except ConfigError as error:
        assert error.faults and not any("\n" in line for line in error.faults)


def test_a_value_that_holds_itself_is_one_fault():
    options = {}
    options["again"] = [options]
    assert len(faults(lambda raw: rung(raw, "pytorch-fp32").update(options=options))) == 1


def test_numbers_in_the_braces_of_config_are_told_where_they_can_stand():
    given = parse_config(["measure={max_seconds: 1, iterations: null}", "platforms={cpu: {exclusive_host: true}}"])
    lines = faults(lambda raw: raw.update(merged(raw, given)))
    assert len(lines) == 3 and all("--configfile" in line for line in lines)
    (line,) = faults(lambda raw: raw["measure"].update(warmup="often"))
    assert "--configfile" not in line


def test_every_fault_is_reported_at_once():
    def change(raw):
        raw["measure"]["warmup"] = -1
        raw["models"]["yolo11n"]["opset"] = 3
        ladder(raw)["rounds"] = 0

    assert len(faults(change)) == 3


def test_a_conflated_step_names_rungs_cause_and_every_factor():
    def change(raw):
        ladder(raw)["steps"] = [{"from": "pytorch-fp32", "to": "onnxruntime-int8", "cause": "compilation"}]

    (line,) = faults(change)
    for part in (
        "pytorch-fp32 → onnxruntime-int8",
        "conflated",
        "'compilation'",
        "api",
        "compiler",
        "precision (fp32 → int8)",
    ):
        assert part in line


@pytest.mark.parametrize(
    ("field", "value"), [("module", "b.py"), ("arguments", {"a": 1}), ("environment", "other"), ("source", "fp32-onnx")]
)
@pytest.mark.parametrize("cause", causes.CAUSES)
def test_stacks_that_only_seem_the_same_are_joined_by_no_cause(field, value, cause):
    """Whatever else the rungs differ in, what no factor shows would be credited to the step's cause."""
    change = {
        "precision": {"precision": "int8"},
        "specialisation": {"shape": "static"},
        "tuning": {"options": {"a": 1}},
        "launch": {"launch": "graph"},
    }.get(cause, {})

    def spoil(raw):
        raw["environments"]["other"] = {"python": "/usr/bin/python3"}
        one = A_STACK | {"precisions": ["fp32", "int8"], "launches": ["eager", "graph"]}
        raw["stacks"] = {"one": one, "two": one | {field: value}}
        ladder(raw)["rungs"] = [{"name": "a", "stack": "one"}, {"name": "b", "stack": "two", **change}]
        ladder(raw)["steps"] = [cause]

    (line,) = faults(spoil)
    if cause in ("compilation", "wrapper"):
        assert "do not differ" in line
    else:
        for part in ("a → b", "conflated", f"'{cause}'", f"{field} ("):
            assert part in line


def test_a_step_that_changes_nothing_is_no_cause():
    def change(raw):
        ladder(raw)["rungs"].append({"name": "again", "stack": "pytorch-cpu"})
        ladder(raw)["steps"].append({"from": "pytorch-fp32", "to": "again", "cause": "precision"})

    (line,) = faults(change)
    assert "do not differ" in line


def test_the_same_thing_twice_is_the_cause_none():
    raw = copy.deepcopy(DEFAULT)
    ladder(raw)["rungs"].append({"name": "again", "stack": "pytorch-cpu"})
    ladder(raw)["steps"].append({"from": "pytorch-fp32", "to": "again", "cause": "none"})
    config.load(raw)


def test_a_key_that_stands_twice_is_named_with_its_file_and_line(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("a: &a {x: 1}\nb:\n  - {<<: *a, x: 2}\n  - y: 1\n    z: 1\n    y: 2\nc: {d: 1, d: 1}\nb: 3\n")
    assert sorted(repeated_keys(file)) == [
        f"{file}, line 6: 'y' stands in line 4 too; each key may stand once",
        f"{file}, line 7: 'd' stands in line 7 too; each key may stand once",
        f"{file}, line 8: 'b' stands in line 2 too; each key may stand once",
    ]
    file.write_text('{\n\t"a": {"b": 1,\n\t"b": 2}}')
    assert [line.split(": ")[0] for line in repeated_keys(file)] == [f"{file}, line 3"]


@pytest.mark.parametrize(
    "file", [ROOT / "config.yaml", *ROOT.glob("presets/*.yaml"), *ROOT.glob("docs/**/*.yaml")], ids=str
)
def test_no_key_of_the_given_files_stands_twice(file):
    assert list(repeated_keys(file)) == []


@pytest.mark.parametrize("above", [(), ("energy",), ("int8",), ("int8", "energy")])
def test_the_recorded_configurations_of_the_h200_are_valid(above):
    raw = {}
    for name in ("config", *above):
        update_config(raw, read_yaml(ROOT / f"docs/measurements/h200/{name}.yaml"))
    assert set(above) <= set(config.load(raw).ladders)


@pytest.mark.parametrize(
    ("content", "part"),
    [(b'platform: "caf\xe9"', "byte 14 is not UTF-8"), (b"a: [", "is not YAML: "), (b"[1]", "expected a mapping")],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, part):
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(file)
    (line,) = caught.value.faults
    assert str(file) in line and part in line and "\n" not in line


def test_tables_without_snakemakes_notes_are_noticed(tmp_path):
    (tmp_path / "results").mkdir()
    assert not forgotten(tmp_path)
    (tmp_path / "results/ladder.csv").touch()
    assert forgotten(tmp_path)
    notes = tmp_path / ".snakemake/metadata"
    notes.mkdir(parents=True)
    assert forgotten(tmp_path)
    (notes / "note").touch()
    assert not forgotten(tmp_path)


def test_bare_causes_join_neighbours():
    raw = copy.deepcopy(DEFAULT)
    ladder(raw)["rungs"] = ladder(raw)["rungs"][:3]
    ladder(raw)["steps"] = ["compilation", "precision"]
    steps = config.load(raw).ladders["cpu"].all_steps()
    assert [(s.from_, s.to, s.cause) for s in steps] == [
        ("pytorch-fp32", "onnxruntime-fp32", "compilation"),
        ("onnxruntime-fp32", "onnxruntime-int8", "precision"),
    ]


def test_random_calibration_asked_for_by_name_is_allowed():
    raw = copy.deepcopy(DEFAULT)
    raw["data"]["pictures"] = {"generated": {"inputs": {"images": {"dtype": "float32"}}}}
    raw["models"]["yolo11n"]["calibration"] = "pictures"
    config.load(raw)


def test_config_yaml_shows_every_default():
    """Each setting of the schema stands in config.yaml, with its default value."""
    for section, shown in (("measure", config.Measure), ("limits", config.Limits), ("platforms", config.Platform)):
        values = DEFAULT["platforms"]["cpu"] if section == "platforms" else DEFAULT[section]
        assert values == shown().model_dump()
    model = DEFAULT["models"]["yolo11n"]
    assert set(model) == set(config.Model.model_fields)
    defaults = {
        k: f.get_default(call_default_factory=True) for k, f in config.Model.model_fields.items() if not f.is_required()
    }
    assert model["profile"] == defaults["profile"].model_dump()
    assert model["conversion"] == defaults["conversion"].model_dump()
    assert (model["opset"], model["axes"], model["calibration"]) == (17, {}, None)
    assert set(DEFAULT) == set(config.Config.model_fields)
    assert DEFAULT["ladders"]["cpu"]["rounds"] == config.Ladder.model_fields["rounds"].default


def test_the_exported_schema_is_current():
    assert json.loads((ROOT / "schemas/config.schema.json").read_text()) == config.schema()


FACTOR_VALUES = {
    "device": ["cpu", "cuda"],
    "api": ["pytorch", "onnxruntime"],
    "compiler": ["none", "onnxruntime"],
    "precision": ["fp32", "int8"],
    "launch": ["eager", "graph"],
    "shape": ["dynamic", "static"],
    "transfers": ["excluded", "included"],
    "threads": [1, 2],
    "options": [{}, {"a": 1}],
}
some_rung = st.fixed_dictionaries({k: st.sampled_from(v) for k, v in FACTOR_VALUES.items()})


@given(some_rung, some_rung, st.sampled_from(sorted(causes.CAUSES)))
def test_a_step_is_accepted_only_if_nothing_but_its_cause_changed(first, second, cause):
    changed = {k for k in first if first[k] != second[k]}
    needed, allowed = causes.CAUSES[cause]
    clean = changed <= needed | allowed and (not needed or bool(changed & needed))
    fault = causes.fault(first, second, cause)
    assert (fault is None) == clean
    if changed - needed - allowed:
        assert "conflated" in fault and all(factor in fault for factor in changed)


@given(some_rung, some_rung, st.sampled_from(sorted(causes.CAUSES)))
def test_a_cause_reads_the_same_backwards(first, second, cause):
    assert (causes.fault(first, second, cause) is None) == (causes.fault(second, first, cause) is None)
