"""The build step: which timing cache of an earlier build a stack finds beside its engine."""

from __future__ import annotations

import pytest

from ladder import engine
from ladder.artifacts import TIMING_CACHE
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.stacks.base import Source

STACK = '''
"""A stack that adds a line to its timing cache at each build, and says what it found."""
from pathlib import Path
from ladder.errors import StepError
from ladder.artifacts import TIMING_CACHE

def create():
    return Stack()

class Stack:
    def identity(self):
        return {"fake": "1"}

    def build(self, source, rung, destination):
        cache = destination.with_name(TIMING_CACHE)
        found = cache.read_text() if cache.is_file() else ""
        if rung.options.get("fails"):
            raise StepError("no")
        destination.write_text(source.onnx.read_text())
        cache.write_text(found + "a line\\n")
        return {"found": found.count("a line")}
'''
RUNG = {
    "name": "r", "stack": "fake", "device": "cuda", "api": "fake", "compiler": "fake", "precision": "fp32",
    "launch": "eager", "shape": "dynamic", "transfers": "excluded", "threads": 1, "options": {},
}  # fmt: skip


@pytest.fixture
def build(tmp_path):
    """Build an engine of such weights with the fake stack, and say how many earlier builds' timings it found."""
    module, onnx = tmp_path / "fake.py", tmp_path / "model.onnx"
    module.write_text(STACK)

    def run(weights: str = "w", driver: str = "580", **factors) -> int:
        onnx.write_text(weights)
        spec = {
            "rung": RUNG | factors,
            "stack": {"module": str(module), "arguments": {}},
            "model": {},
            "fingerprint": {"gpu": {"name": "G", "driver": driver}},
        }
        source = Source({}, onnx, None, {"min": 1, "opt": 2, "max": 4}, {"batch": "batch"})
        identity, built = engine.build(spec, source, tmp_path / "built" / "engine")
        assert identity["status"] == "ok" and (tmp_path / "built" / "engine").read_text() == weights
        return built["facts"]["found"]

    return run


def test_a_build_of_other_weights_finds_the_timings_of_the_one_before(build):
    assert [build("first"), build("second"), build("third")] == [0, 1, 2]


@pytest.mark.parametrize(
    "other", [{"driver": "590"}, {"options": {"builder_level": 5}}, {"precision": "fp16"}, {"shape": "static"}]
)
def test_nothing_is_taken_over_from_another_driver_or_other_options(build, other):
    build()
    assert build(**other) == 0
    assert build() == 0  # nor back


def test_a_cut_or_changed_cache_is_not_used(build, tmp_path):
    build()
    cache = tmp_path / "built" / TIMING_CACHE
    cache.write_text(cache.read_text() + "a line\n")
    assert build() == 0
    cache.write_bytes(cache.read_bytes()[:3])
    assert build() == 0
    (tmp_path / "built" / "timing.json").write_text("{")
    assert build() == 0
    record = read_json(tmp_path / "built" / "timing.json")
    write_json(tmp_path / "built" / "timing.json", {key: value for key, value in record.items() if key != "sha256"})
    assert build() == 0


def test_a_failed_build_leaves_the_cache_to_the_next(build):
    build(options={})
    with pytest.raises(StepError):
        build(options={"fails": True})
    assert build(options={}) == 0  # its options had no part in it
