"""Inputs: right shape, type and range, the same bytes every time, and clear errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ladder import inputs, models
from ladder.config import Generated
from ladder.errors import StepError
from ladder.files import read_json, sha256, write_json, write_npz
from ladder.models import InputSpec

SCRIPT = Path(__file__).parents[1] / "scripts" / "inputs.py"
PICTURE = InputSpec("images", "float32", (3, 32, 64), "picture")
TOKENS = [InputSpec("ids", "int64", (5,), "tokens"), InputSpec("scale", "float32", (2, 2), "any")]


def generator(**inputs_: dict) -> dict:
    return {"generated": {"seed": 3, "samples": 4, "inputs": inputs_}}


IDS = {"dtype": "int64", "low": 10, "high": 20}
SCALE = {"dtype": "float32", "low": -1, "high": 1}


def test_pictures_are_letterboxed(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), (255, 0, 51)).save(tmp_path / "b.png")
    Image.new("L", (128, 64), 255).save(tmp_path / "a.bmp")
    (tmp_path / "notes.txt").write_text("no picture")
    arrays, label = inputs.make({"pictures": str(tmp_path)}, [PICTURE], 8)
    found = arrays["images"]
    assert label == f"pictures of {tmp_path}"
    assert (found.shape, found.dtype) == ((2, 3, 32, 64), np.float32)
    assert (found[0] == 1).all()  # sorted by name; grey scale becomes RGB, the aspect fits
    np.testing.assert_allclose(found[1, :, 16, 32], [1, 0, 0.2], atol=1e-6)
    np.testing.assert_allclose(found[1, :, :, :16], 114 / 255, atol=1e-6)
    np.testing.assert_allclose(found[1, :, :, 48:], 114 / 255, atol=1e-6)


def test_pictures_are_normalised_where_the_model_asks(tmp_path: Path) -> None:
    Image.new("RGB", (64, 32), (255, 255, 255)).save(tmp_path / "a.webp", lossless=True)
    spec = InputSpec("input", "float32", (3, 32, 64), "picture", (0.5, 0.5, 0.0), (0.5, 0.25, 1.0))
    found = inputs.make({"pictures": str(tmp_path)}, [spec], 8)[0]["input"]
    np.testing.assert_allclose(found[0, :, 0, 0], [1, 2, 1])


def test_no_more_samples_than_asked(tmp_path: Path) -> None:
    for i in range(5):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / f"{i}.jpg")
    assert len(inputs.make({"pictures": str(tmp_path)}, [PICTURE], 3)[0]["images"]) == 3
    assert len(inputs.make(generator(ids=IDS, scale=SCALE), TOKENS, 2)[0]["ids"]) == 2
    assert len(inputs.make(generator(ids=IDS, scale=SCALE), TOKENS, 128)[0]["ids"]) == 4


def test_the_pictures_of_ultralytics() -> None:
    arrays, label = inputs.make({"pictures": "ultralytics"}, [PICTURE], 8)
    assert arrays["images"].shape == (2, 3, 32, 64)
    assert label == "ultralytics' pictures"


def test_generated_inputs_keep_range_type_and_seed() -> None:
    first = inputs.make(generator(ids=IDS, scale=SCALE), TOKENS, 8)[0]
    again = inputs.make(generator(scale=SCALE, ids=IDS), TOKENS, 8)[0]
    assert list(first) == list(again) == ["ids", "scale"]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert first["ids"].shape == (4, 5) and first["ids"].dtype == np.int64
    assert first["ids"].min() >= 10 and first["ids"].max() < 20
    assert first["scale"].dtype == np.float32 and np.abs(first["scale"]).max() <= 1
    flags = [InputSpec("on", "bool", (64,), "any")]
    found = inputs.make(generator(on={"dtype": "bool"}), flags, 8)[0]["on"]
    assert found.dtype == bool and 0 < found.mean() < 1


def test_npz_files_are_taken_as_they_are(tmp_path: Path) -> None:
    arrays = {"scale": np.ones((3, 2, 2), np.float32), "ids": np.arange(15).reshape(3, 5)}
    np.savez(tmp_path / "own.npz", **arrays)
    found, label = inputs.make({"npz": str(tmp_path / "own.npz")}, TOKENS, 2)
    assert list(found) == ["ids", "scale"]
    assert np.array_equal(found["ids"], arrays["ids"][:2])
    assert label.startswith("npz sha256:")


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    data = generator(ids=IDS, scale=SCALE)
    identities = [inputs.write(*inputs.make(data, TOKENS, 8), data, tmp_path / name) for name in ("a.npz", "b.npz")]
    assert identities[0] == identities[1]
    assert identities[0] == {
        "status": "ok",
        "sha256": sha256(tmp_path / "a.npz"),
        "samples": 4,
        "kind": "generated",
        "source": data["generated"],
        "label": "generated(3)",
        "random": True,
    }


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_integer_type_can_be_generated(dtype: str) -> None:
    Generated(dtype=dtype)  # the configuration takes it
    spec = InputSpec("x", dtype, (100,), "any")
    found = inputs.make(generator(x={"dtype": dtype, "low": 1, "high": 100}), [spec], 8)[0]["x"]
    assert found.dtype == dtype and found.min() >= 1 and found.max() < 100


def test_a_range_beyond_the_type_is_named() -> None:
    spec = InputSpec("x", "int8", (3,), "any")
    with pytest.raises(StepError, match="range of 'x', -200 to 200, goes beyond int8, -128 to 127"):
        inputs.make(generator(x={"dtype": "int8", "low": -200, "high": 200}), [spec], 8)
    assert inputs.make(generator(x={"dtype": "int8", "low": -128, "high": 128}), [spec], 8)[0]["x"].dtype == np.int8


@pytest.mark.parametrize("name", ["file", "allow_pickle", "a/b:0", "x.npy"])
def test_an_input_may_have_any_name(tmp_path: Path, name: str) -> None:
    spec = InputSpec(name, "float32", (2,), "any")
    data = generator(**{name: SCALE})
    inputs.write(*inputs.make(data, [spec], 2), data, tmp_path / "own.npz")
    found, _ = inputs.make({"npz": str(tmp_path / "own.npz")}, [spec], 2)
    assert np.array_equal(found[name], inputs.make(data, [spec], 2)[0][name])


def test_an_archive_is_the_one_that_numpy_writes(tmp_path: Path) -> None:
    arrays = {"scale": np.ones((3, 2), np.float32, order="F"), "ids": np.arange(15), "one": np.array(1)}
    np.savez(tmp_path / "numpy.npz", **arrays)
    write_npz(tmp_path / "own.npz", arrays)
    assert (tmp_path / "own.npz").read_bytes() == (tmp_path / "numpy.npz").read_bytes()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ids": np.zeros((2, 5), np.int64)}, "has the inputs ids; the model's are ids, scale"),
        ({"ids": np.zeros((2, 4), np.int64), "scale": np.zeros((2, 2, 2), np.float32)}, "'ids' is int64.2, 4., expect"),
        ({"ids": np.zeros((2, 5), np.int32), "scale": np.zeros((2, 2, 2), np.float32)}, "'ids' is int32"),
        ({"ids": np.zeros((2, 5), np.int64), "scale": np.zeros((3, 2, 2), np.float32)}, "same number of samples"),
        ({"ids": np.zeros((0, 5), np.int64), "scale": np.zeros((0, 2, 2), np.float32)}, "at least 1"),
        ({"ids": np.array([object()]), "scale": np.zeros((1, 2, 2), np.float32)}, "is no readable .npz file"),
    ],
)
def test_wrong_npz_files_are_refused(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(StepError, match=message):
        inputs.make({"npz": str(tmp_path / "own.npz")}, TOKENS, 8)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for data, specs, message in (
        ({"pictures": str(tmp_path)}, [PICTURE], "holds no picture"),
        ({"pictures": str(tmp_path / "none")}, [PICTURE], "no such picture folder"),
        ({"pictures": str(tmp_path)}, TOKENS, "pictures fit a model with one float32 input"),
        ({"npz": str(tmp_path / "none.npz")}, TOKENS, "no such file of inputs"),
        (generator(ids=IDS), TOKENS, "the generator has the inputs ids; the model's are ids, scale"),
        (generator(ids=IDS | {"dtype": "int32"}, scale=SCALE), TOKENS, "as int32, the model takes int64"),
        (generator(ids=IDS | {"high": 10}, scale=SCALE), TOKENS, "range of 'ids' is empty"),
    ):
        with pytest.raises(StepError, match=message):
            inputs.make(data, specs, 8)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(StepError, match="broken.png is no readable picture"):
        inputs.make({"pictures": str(tmp_path)}, [PICTURE], 8)
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    with pytest.raises(StepError, match="is no readable .npz file"):
        inputs.make({"npz": str(tmp_path / "broken.npz")}, TOKENS, 8)


def test_the_script_writes_the_file_or_the_reason(tmp_path: Path) -> None:
    spec = {"name": "b", "source": "transformers", "architecture": "bert-tiny", "weights": {"seeded": 0}}
    spec["axes"] = {"batch": "batch", "sequence": 5}
    each = {"dtype": "int64", "low": 0, "high": 2}
    write_json(tmp_path / "spec.json", spec)
    write_json(tmp_path / "data.json", generator(**dict.fromkeys(models.input_names(spec), each)))
    outputs = ["--output-npz", tmp_path / "calibration.npz", "--output-id", tmp_path / "calibration.id.json"]
    command = [sys.executable, SCRIPT, "--spec", tmp_path / "spec.json", "--samples", "2", *outputs]
    subprocess.run([*command, "--data", tmp_path / "data.json"], check=True)
    identity = read_json(tmp_path / "calibration.id.json")
    assert (identity["samples"], identity["sha256"]) == (2, sha256(tmp_path / "calibration.npz"))
    (tmp_path / "data.json").write_text('{"pictures": "nowhere"}')
    subprocess.run([*command, "--data", tmp_path / "data.json"], check=True, capture_output=True)
    record = read_json(tmp_path / "calibration.id.json")
    assert (record["status"], record["stage"], record["permanent"]) == ("failed", "inputs", True)
    assert (tmp_path / "calibration.npz").stat().st_size == 0
    (tmp_path / "data.json").write_text("{")
    refused = subprocess.run([*command, "--data", tmp_path / "data.json"], capture_output=True, text=True)
    assert refused.returncode == 2 and "argument --data: needs a JSON file" in refused.stderr
