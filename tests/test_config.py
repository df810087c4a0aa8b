"""Bad configuration ends before any job, one line a fault, naming key, value and what is allowed."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ladder import causes, config
from ladder.errors import ConfigError
from ladder.workflow import merged

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


def test_the_default_configuration_is_valid():
    assert list(config.load(DEFAULT).ladders) == ["cpu", "nvidia"]


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
    ],
)  # fmt: skip
def test_one_line_names_key_value_and_what_is_allowed(change, expected):
    lines = [line for line in faults(change) if all(part in line for part in expected)]
    assert len(lines) == 1, faults(change)
    assert "\n" not in lines[0]


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
