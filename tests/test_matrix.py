"""What is planned, what each step is told, what changes with what, and what a host may lack."""

from __future__ import annotations

import copy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder import config, environment, fingerprint, host_faults, steps, telemetry
from ladder.errors import ConfigError, StepError
from ladder.files import canonical_json
from ladder.matrix import Matrix
from ladder.workflow import expected_seconds

DEFAULT = yaml.safe_load((Path(__file__).parent.parent / "config.yaml").read_text())
HOST = {"machine": "x86_64", "processor": "A", "instructions": "1", "physical_cores": 2}


@pytest.fixture(autouse=True)
def known_host(monkeypatch):
    monkeypatch.setattr(fingerprint, "host", lambda device, gpu=None: HOST)
    monkeypatch.setattr(fingerprint, "physical_cores", lambda: 2)


def matrix(change=lambda raw: None):
    raw = copy.deepcopy(DEFAULT)
    change(raw)
    return Matrix(config.load(raw), raw)


def ladder(raw):
    return raw["ladders"]["cpu"]


def specs(plan):
    """Everything each engine, audit and round of a plan depends on, by the file it makes."""
    engines = {e.id: steps.engine_spec(plan, e) for e in plan.engines.values()}
    audits = {e.audit: steps.audit_spec(plan, e) for e in plan.engines.values()}
    return engines, audits, {r.record: steps.round_spec(plan, r.model, r.ladder, r.batch) for r in plan.rounds()}


def test_the_default_plan():
    plan = matrix()
    assert len(plan.rounds()) == 16 and len(plan.engines) == 5
    assert [r.number for r in plan.rounds()] == sorted(r.number for r in plan.rounds())
    engines = {e.name: e for e in plan.engines.values()}
    assert plan.onnx(engines["openvino-cpu-int8"]) == "artifacts/yolo11n/int8.onnx"
    assert plan.onnx(engines["pytorch-cpu-fp32"]) is None


def test_only_a_module_reads_the_weights():
    plan = matrix()
    for engine in plan.engines.values():
        files = {"onnx", "onnx_id"} if plan.onnx(engine) else {"weights", "weights_id"}
        assert steps.engine_inputs(plan, engine).keys() == files | {"export_id"}
    (spec,) = [spec for path, spec in specs(plan)[2].items() if path.endswith("b1/1.json")]
    for rung in spec["rungs"]:
        of_module = rung["rung"]["name"].startswith("pytorch")
        assert (rung["weights"], rung["onnx"] is None) == (
            "artifacts/yolo11n/weights.bin" if of_module else None,
            of_module,
        )


@settings(deadline=None, max_examples=20)  # each example plans two configurations
@given(batch=st.integers(2, 8).filter(lambda b: b != 4), rounds=st.integers(9, 12))
def test_more_batches_and_rounds_change_nothing_that_was_there(batch, rounds):
    before = specs(matrix())
    after = specs(matrix(lambda raw: ladder(raw).update(batches=[1, 4, batch], rounds=rounds)))
    assert after[0] == before[0] and after[1] == before[1]
    assert before[2].items() <= after[2].items()
    assert len(after[2]) == 3 * rounds


def test_a_new_rung_changes_its_ladders_rounds_and_no_engine():
    extra = {"name": "again", "stack": "onnxruntime-cpu"}
    before, after = specs(matrix()), specs(matrix(lambda raw: ladder(raw)["rungs"].append(extra)))
    assert after[0] == before[0]
    assert all(after[2][record] != before[2][record] for record in before[2])


def left_out(raw):
    """Take out every key that has a default; what remains of models and ladders is what has none."""
    for key in ("seed", "measure", "telemetry", "parity", "limits", "cross_stack", "documents", "stacks"):
        del raw[key]
    raw["data"]["random"] = {"generated": {"inputs": {"x": {"dtype": "float32"}}}}
    for model in raw["models"].values():
        for key in ("opset", "axes", "profile", "calibration", "conversion"):
            del model[key]
    raw["models"]["yolo11n"]["data"], raw["models"]["yolo11n"]["calibration"] = "random", "pictures"


@pytest.mark.parametrize("written", [lambda full: full, lambda full: yaml.safe_load(yaml.safe_dump(full))])
def test_a_default_written_out_is_the_default_left_out(written):
    bare = matrix(left_out)
    raw = written(bare.config.model_dump(by_alias=True))
    full = Matrix(config.load(raw), raw)
    assert canonical_json(full.config.model_dump(by_alias=True)) == canonical_json(raw)
    assert canonical_json(specs(full)) == canonical_json(specs(bare))
    assert canonical_json(steps.plan(full, ["cpu"])) == canonical_json(steps.plan(bare, ["cpu"]))
    full_data, bare_data = (steps.data_spec(plan, "yolo11n", "inputs") for plan in (full, bare))
    assert canonical_json(full_data) == canonical_json(bare_data)


def test_every_number_may_be_written_whole():
    """0 is 0.0 wherever a fraction may stand, as a person writes it: what is measured stays the same."""

    def whole(value):
        if isinstance(value, dict):
            return {key: whole(each) for key, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    bare = matrix(left_out)
    raw = whole(bare.config.model_dump(by_alias=True))
    assert canonical_json(specs(Matrix(config.load(raw), raw))) == canonical_json(specs(bare))


def test_steps_change_nothing_that_is_measured():
    assert specs(matrix(lambda raw: ladder(raw)["steps"].pop())) == specs(matrix())


def test_how_it_is_measured_changes_rounds_only():
    before, after = specs(matrix()), specs(matrix(lambda raw: raw["measure"].update(warmup=9)))
    assert after[:2] == before[:2]
    assert all(after[2][record] != before[2][record] for record in before[2])


def test_another_processor_rebuilds_and_measures_again(monkeypatch):
    before = specs(matrix())
    monkeypatch.setattr(fingerprint, "host", lambda device, gpu=None: HOST | {"processor": "B"})
    after = specs(matrix())
    for old, new in zip(before, after, strict=True):
        assert all(new[key] != old[key] for key in old)


def test_another_driver_rebuilds_and_measures_again(monkeypatch):
    def planned(driver):
        monkeypatch.setattr(fingerprint, "host", lambda device, gpu=None: HOST | {"gpu": {"driver": driver}})
        return specs(matrix(lambda raw: raw.update(platform="nvidia")))

    before, after = planned("1"), planned("2")
    for old, new in zip(before, after, strict=True):
        assert all(new[key] != old[key] for key in old)


def test_another_version_of_a_runtime_changes_its_own_engines(monkeypatch):
    before = specs(matrix())
    real = fingerprint.versions
    monkeypatch.setattr(
        fingerprint, "versions", lambda packages: real(packages) | ({"openvino": "0"} if "openvino" in packages else {})
    )
    changed = {key for key, spec in specs(matrix())[0].items() if spec != before[0][key]}
    assert changed == {f"artifacts/cpu/yolo11n/openvino-cpu-{p}/id.json" for p in ("fp32", "int8")}


def test_peaks_are_measured_where_the_ladders_need_a_pytorch_anyway():
    plan = matrix()
    assert (plan.peaks_stack("cpu"), plan.peaks("cpu")) == ("pytorch-cpu", "artifacts/cpu/peaks.json")
    assert steps.peaks_spec(plan, "cpu") | {"fingerprint": None} == {"device": "cpu", "threads": 2, "fingerprint": None}
    assert {entry["peaks"] for entry in steps.plan(plan, ["cpu"])["ladders"]} == {plan.peaks("cpu")}

    def elsewhere(raw):
        raw["environments"] = {"alone": {"python": "/opt/alone/bin/python"}}
        raw["stacks"] = {"openvino-cpu": {"environment": "alone"}}
        ladder(raw).update(rungs=[{"name": "one", "stack": "openvino-cpu"}], steps=[])

    without = matrix(elsewhere)
    assert without.peaks_stack("cpu") is None and without.peaks("cpu") is None


def test_a_rung_is_counted_by_the_file_it_computes():
    (entry,) = steps.plan(matrix(), ["cpu"])["ladders"]
    found = {rung["name"]: (rung["source"], rung["graph"]) for rung in entry["rungs"]}
    assert found["pytorch-fp32"] == ("module", "artifacts/yolo11n/fp32.graph.json")
    assert found["openvino-int8"] == ("onnx", "artifacts/yolo11n/int8.graph.json")
    assert matrix().graphs_of(["cpu"]) == ["artifacts/yolo11n/fp32.graph.json", "artifacts/yolo11n/int8.graph.json"]


def test_rungs_that_differ_in_transfers_share_an_engine():
    def change(raw):
        ladder(raw)["rungs"].append({"name": "with-transfers", "stack": "openvino-cpu", "transfers": "included"})

    assert len(matrix(change).engines) == 5


def test_rungs_that_differ_in_what_is_built_do_not():
    def change(raw):
        ladder(raw)["rungs"] += [
            {"name": "one-thread", "stack": "openvino-cpu", "threads": 1},
            {"name": "static", "stack": "openvino-cpu", "shape": "static"},
            {"name": "spinning", "stack": "onnxruntime-cpu", "options": {"allow_spinning": True}},
        ]

    plan = matrix(change)
    names = {e.name for e in plan.engines.values()}
    assert {"openvino-cpu-fp32-t1", "openvino-cpu-fp32-static-b1", "openvino-cpu-fp32-static-b4"} <= names
    assert len(names) == 5 + 1 + 2 + 1
    static = plan.engines["cpu", "yolo11n", "openvino-cpu-fp32-static-b4"]
    assert steps.engine_spec(plan, static)["profile"] == {"min": 4, "opt": 4, "max": 4}


def test_limits_take_the_first():
    plan = matrix(lambda raw: raw.update(limits={"batches": 1, "rounds": 2}))
    assert [(r.batch, r.number) for r in plan.rounds()] == [(1, 1), (1, 2)]


def test_only_the_configured_platforms_ladders_are_planned():
    def change(raw):
        raw["platforms"]["gpu"] = {"device": "cuda"}
        raw["ladders"]["gpu"] = {
            "platform": "gpu",
            "models": ["yolo11n"],
            "batches": [1],
            "rungs": [{"name": "a", "stack": "tensorrt"}],
            "steps": [],
        }

    assert list(matrix(change).ladders) == ["cpu"]


@pytest.mark.parametrize(("gpu", "expected"), [({"name": "NVIDIA H200"}, "nvidia"), (None, "cpu")])
def test_auto_takes_the_gpu_where_there_is_one(monkeypatch, gpu, expected):
    monkeypatch.setattr(fingerprint, "host", lambda device, _=None: {"gpu": gpu} if device == "cuda" else {})
    assert matrix(lambda raw: raw.update(platform="auto")).platforms == [expected]
    assert matrix(lambda raw: raw.update(platform="cpu")).platforms == ["cpu"]


def test_auto_without_a_platform_for_this_host_is_a_fault(monkeypatch):
    monkeypatch.setattr(fingerprint, "host", lambda device, gpu=None: {"gpu": None})
    with pytest.raises(ConfigError, match="platform: auto"):
        matrix(lambda raw: raw["platforms"].pop("cpu") and raw["ladders"].pop("cpu") and raw.update(platform="auto"))


def test_the_estimate_is_withheld_where_the_model_decides():
    fixed, timed = matrix(lambda raw: raw["measure"].update(iterations=100)), matrix()
    assert expected_seconds(fixed, fixed.rounds()[0]) is None
    assert 20 < expected_seconds(timed, timed.rounds()[0]) < 40


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda raw: raw["data"]["pictures"].update(pictures="nowhere"), "data.pictures.pictures: 'nowhere'"),
        (lambda raw: raw["models"]["yolo11n"].update(input=[500, 640]), "multiples of 32"),
        (
            lambda raw: raw["models"]["yolo11n"].update(
                architecture=None, weights={"path": "my.pt", "sha256": "0" * 64}
            ),
            "models.yolo11n.weights.path: 'my.pt' is not a file",
        ),
        (lambda raw: raw["platforms"].update(gpu={}) or raw.update(platform="gpu"), "no ladder is for 'gpu'"),
    ],
)
def test_what_this_host_lacks_is_said_before_any_job(change, part):
    (line,) = host_faults.faults(matrix(change))
    assert part in line


def test_a_stack_module_that_does_not_parse_is_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def create(:\n")
    entry = {"module": str(broken), "device": "cpu", "api": "b", "compiler": "b"}

    def change(raw):
        raw["stacks"] = {"b": entry}
        ladder(raw)["rungs"].append({"name": "b", "stack": "b"})

    (line,) = host_faults.faults(matrix(change))
    assert "stacks.b.module" in line and "broken.py, line 1" in line


def test_a_stack_module_that_is_not_there_is_named():
    def change(raw):
        raw["stacks"] = {"b": {"module": "stacks/nowhere.py", "device": "cpu", "api": "b", "compiler": "b"}}
        ladder(raw)["rungs"].append({"name": "b", "stack": "b"})

    (line,) = host_faults.faults(matrix(change))
    assert line.startswith("stacks.b.module: 'stacks/nowhere.py' is not a file here")


@pytest.mark.parametrize("shape", ["dynamic", "static"])
def test_two_engines_of_one_name_are_a_fault_that_names_both_rungs(shape):
    one = {"module": __file__, "device": "cpu", "api": "z", "compiler": "z", "precisions": ["fp16", "int8-fp16"]}

    def change(raw):
        raw["stacks"] = {"z": one, "z-int8": one}
        ladder(raw)["rungs"] += [{"name": "a", "stack": "z", "precision": "int8-fp16", "shape": shape}]
        other = {**ladder(raw), "batches": [4], "steps": []}
        raw["ladders"]["other"] = {
            **other,
            "rungs": [{"name": "b", "stack": "z-int8", "precision": "fp16", "shape": shape}],
        }

    (line,) = host_faults.faults(matrix(change))
    for part in ("ladders.cpu.rungs.a", "ladders.other.rungs.b", "'z-int8-fp16", "'z-int8'", "'z'"):
        assert part in line


def test_paths_of_environments_may_hold_spaces():
    entries = {"given": {"python": "/a b/python"}, "made": {"lock": "my lock.txt"}}
    plan = matrix(lambda raw: raw["environments"].update(entries))
    assert shlex.split(steps.environment_source(plan, "given")) == ["--python", "/a b/python"]
    assert shlex.split(steps.environment_source(plan, "made")) == ["--lock", "my lock.txt"]


def test_an_interpreter_whose_packages_change_is_looked_at_again(tmp_path):
    folder = tmp_path / "my venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")

    def state():
        environment.state.cache_clear()
        plan = matrix(lambda raw: raw["environments"].update(mine={"python": str(folder / "bin/python")}))
        return steps.environment_packages(plan, "mine")

    states = [state()]
    installed = packages / "runtime-1.0.dist-info"
    installed.mkdir()
    states.append(state())
    (packages / "__pycache__").mkdir()  # what running code leaves behind
    assert state() == states[-1]
    installed = installed.rename(packages / "runtime-1.1.dist-info")
    states.append(state())
    installed.rmdir()
    (packages / "something.py").touch()
    installed.mkdir()  # the same version installed again
    states.append(state())
    assert len(set(states)) == 4 and "" not in states


@pytest.mark.parametrize(
    ("python", "host", "expected"),
    [
        ("/no/such/python", "local", {"cpu": {"mine": ["openvino-cpu"]}}),
        (__file__, "local", {"cpu": {"mine": ["openvino-cpu"]}}),  # not executable
        (sys.executable, "local", {}),
        ("sh", "local", {}),  # by its name on the search path, as subprocess finds it
        ("/no/such/python", "declared", {}),
    ],
)
def test_an_interpreter_that_is_not_here_is_told_and_is_no_fault(monkeypatch, python, host, expected):
    def change(raw):
        raw["environments"]["mine"] = {"python": python}
        raw["stacks"] = {"openvino-cpu": {"environment": "mine"}}
        raw["platforms"]["cpu"]["host"] = host
        raw["platform"] = "cpu"

    plan = matrix(change)
    assert host_faults.absent_interpreters(plan) == expected
    monkeypatch.setattr(Matrix, "host", lambda self, platform: HOST)
    assert list(host_faults.faults(plan)) == []


def test_an_interpreter_that_does_not_run_has_no_state():
    plan = matrix(lambda raw: raw["environments"].update(mine={"python": "/no/such/python"}))
    assert steps.environment_packages(plan, "mine") == steps.environment_packages(plan, "main") == ""


def test_a_lock_file_in_words_says_how_much_and_where_from_and_no_password(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# by hand\n--extra-index-url https://me:secret@wheels.example/rocm\n\nnumpy==2.4.6\nonnx==1.22.0\n"
    )
    assert environment.in_words(lock) == f"2 packages of {lock} from pip's package index and wheels.example"


BROKEN = (
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError('<urllib3.HTTPS "
    "object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or service not known')': /simple/numpy/"
)
NONE = "ERROR: Could not find a version that satisfies the requirement numpy==2.4.6 (from versions: none)"
END = "ERROR: No matching distribution found for numpy==2.4.6"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            [BROKEN, NONE, END],
            "a package index could not be reached (https://pypi.org/simple): NewConnectionError('Failed",
        ),
        (["Looking in indexes: https://mine/simple", BROKEN, "ERROR: ResolutionImpossible"], "(https://mine/simple): "),
        ([NONE, END], "no package index gave pip any version, as where none can be reached. pip ended in: No matching"),
        ([NONE.replace("none", "1.0, 2.0"), END], "No matching distribution found for numpy==2.4.6"),
        (["ERROR: [Errno 28] No space left on device"], "[Errno 28] No space left on device"),
        (["Killed"], "it gave no reason"),
    ],
)
def test_a_failure_of_pip_names_an_index_that_could_not_be_reached(said, reason):
    told = environment.failure_of(said)
    assert reason in told and ("could not be reached" in told) == (BROKEN in said) and "0x7f" not in told


def test_a_misspelt_package_of_the_users_own_stack_is_named():
    def change(raw):
        raw["stacks"] = {"mine": {"module": __file__, "device": "cpu", "api": "m", "compiler": "m"}}
        raw["stacks"]["mine"]["packages"] = ["numpy", "nunpy"]
        ladder(raw)["rungs"].append({"name": "mine", "stack": "mine"})

    (line,) = host_faults.faults(matrix(change))
    assert line.startswith("stacks.mine.packages: 'nunpy' is not installed")


@pytest.mark.parametrize(("device", "part"), [("cuda", "NVIDIA"), ("rocm", "/dev/kfd")])
def test_a_gpu_that_is_not_here_is_told_and_is_no_fault(monkeypatch, tmp_path, device, part):
    def gone(device, name=None):
        raise StepError(f"no {'NVIDIA driver' if device == 'cuda' else 'amdsmi'}")

    monkeypatch.setattr(telemetry, "open_reader", gone)
    monkeypatch.setattr(host_faults, "KFD", tmp_path / "dev/kfd")
    name = "nvidia" if device == "cuda" else "amd"
    plan = matrix(lambda raw: raw.update(platform=["cpu", name]))
    assert list(host_faults.faults(plan)) == []
    assert {platform: part in reason for platform, reason in host_faults.absent_devices(plan).items()} == {name: True}
    declared = matrix(lambda raw: raw.update(platform=name) or raw["platforms"][name].update(host="declared"))
    assert host_faults.absent_devices(declared) == {}


def test_a_gpu_that_is_here_is_not_warned_of(monkeypatch):
    monkeypatch.setattr(fingerprint, "host", lambda device, gpu=None: HOST | {"gpu": {"name": "H200"}})
    assert host_faults.absent_devices(matrix(lambda raw: raw.update(platform=["cpu", "nvidia", "amd"]))) == {}


def test_the_default_lacks_nothing():
    assert list(host_faults.faults(matrix())) == []
