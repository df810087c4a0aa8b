"""Inputs for parity, calibration and timing: pictures, an .npz, or a seeded generator."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.files import replacing, sha256, write_npz
from ladder.models import InputSpec

Arrays = dict[str, np.ndarray]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_GREY = (114, 114, 114)  # the padding of ultralytics' LetterBox


def make(data: dict[str, Any], specs: list[InputSpec], samples: int) -> tuple[Arrays, str]:
    """At most ``samples`` samples of every input, and a label that says where they are from.

    ``data`` is an entry of the configuration's ``data``. Arrays are ``[samples, *shape]`` in the input's
    own type, keyed and ordered as ``specs``. Raises StepError.
    """
    if data.get("pictures") is not None:
        return _pictures(data["pictures"], specs, samples)
    if data.get("npz") is not None:
        return _npz(Path(data["npz"]), specs, samples)
    return _generated(data["generated"], specs, samples)


def write(arrays: Arrays, label: str, data: dict[str, Any], destination: Path) -> dict[str, Any]:
    """Write the .npz (equal arrays give equal bytes) and return its identity."""
    with replacing(destination) as temporary:
        write_npz(temporary, arrays)
    kind = next(kind for kind in ("pictures", "npz", "generated") if data.get(kind) is not None)
    return {
        "status": "ok",
        "sha256": sha256(destination),
        "samples": len(next(iter(arrays.values()))),
        "kind": kind,
        "source": data[kind],
        "label": label,
        "random": kind == "generated",
    }


def _pictures(source: str, specs: list[InputSpec], samples: int) -> tuple[Arrays, str]:
    if len(specs) != 1 or specs[0].kind != "picture":
        names = ", ".join(f"{each.name} {each.dtype}{list(each.shape)}" for each in specs)
        raise StepError(
            f"pictures fit a model with one float32 input of 3 × height × width only; this one has {names}: "
            "give an .npz or a generator",
            permanent=True,
        )
    if source == "ultralytics":
        folder, label = _ultralytics_pictures(), "ultralytics' pictures"
    else:
        folder, label = Path(source), f"pictures of {source}"
    if not folder.is_dir():
        raise StepError(f"{folder}: no such picture folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)[:samples]
    if not paths:
        raise StepError(f"{folder} holds no picture; expected {', '.join(_SUFFIXES)}")
    return {specs[0].name: np.stack([_letterboxed(path, specs[0]) for path in paths])}, label


def _ultralytics_pictures() -> Path:
    """The folder of the pictures that ultralytics ships, found without importing it."""
    found = importlib.util.find_spec("ultralytics")
    if found is None or found.origin is None:
        raise StepError("ultralytics is not installed: its pictures are missing; name a picture folder instead")
    return Path(found.origin).with_name("assets")


def _letterboxed(path: Path, spec: InputSpec) -> np.ndarray:
    """A picture as ``[3, height, width]`` float32, RGB, 0 to 1: scaled whole into the frame, the rest grey."""
    from PIL import Image, ImageOps

    _, height, width = spec.shape
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ImportError) as error:  # ultralytics, once imported, makes PIL look for a plugin first
        raise StepError(f"{path} is no readable picture: {error}") from error
    framed = ImageOps.pad(picture, (width, height), method=Image.Resampling.BILINEAR, color=_GREY)
    array = np.asarray(framed, dtype=np.float32).transpose(2, 0, 1) / np.float32(255)
    if spec.mean is not None and spec.std is not None:
        mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (spec.mean, spec.std))
        array = (array - mean) / std
    return np.ascontiguousarray(array)


def _npz(path: Path, specs: list[InputSpec], samples: int) -> tuple[Arrays, str]:
    if not path.is_file():
        raise StepError(f"{path}: no such file of inputs")
    try:
        with np.load(path, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
    except (ValueError, OSError, zlib.error) as error:
        raise StepError(f"{path} is no readable .npz file: {error}") from error
    _same_names(str(path), list(found), specs)
    counts = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise StepError(f"{path}: every input needs the same number of samples, at least 1; found {counts}")
    for spec in specs:
        array = found[spec.name]
        if array.shape[1:] != spec.shape or array.dtype != spec.dtype:
            raise StepError(
                f"{path}: '{spec.name}' is {array.dtype}{list(array.shape)}, "
                f"expected {spec.dtype}[samples, {', '.join(map(str, spec.shape))}]"
            )
    return {spec.name: found[spec.name][:samples] for spec in specs}, f"npz sha256:{sha256(path)[:8]}"


def _generated(generator: dict[str, Any], specs: list[InputSpec], samples: int) -> tuple[Arrays, str]:
    """Uniform values in [low, high): integers for an integer type. Each input has its own stream of the seed."""
    _same_names("the generator", list(generator["inputs"]), specs)
    seed, count = generator.get("seed", 0), min(samples, generator.get("samples", 8))
    arrays = {}
    for spec in specs:
        asked = generator["inputs"][spec.name]
        low, high = asked.get("low", 0), asked.get("high", 1)
        if asked["dtype"] != spec.dtype:
            raise StepError(f"the generator gives '{spec.name}' as {asked['dtype']}, the model takes {spec.dtype}")
        random = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
        shape, dtype = (count, *spec.shape), np.dtype(spec.dtype)
        if dtype.kind == "b":
            arrays[spec.name] = random.integers(0, 2, shape).astype(bool)
        elif not low < high:
            raise StepError(f"the generator's range of '{spec.name}' is empty: low {low}, high {high}")
        elif dtype.kind in "iu":
            held = np.iinfo(dtype)
            if int(low) < held.min or int(high) > held.max + 1:
                raise StepError(
                    f"the generator's range of '{spec.name}', {low:g} to {high:g}, goes beyond {dtype}, {held.min} to "
                    f"{held.max}"
                )
            arrays[spec.name] = random.integers(int(low), int(high), shape, dtype=dtype)
        else:
            arrays[spec.name] = random.uniform(low, high, shape).astype(dtype)
    return arrays, f"generated({seed})"


def _same_names(where: str, found: list[str], specs: list[InputSpec]) -> None:
    expected = [spec.name for spec in specs]
    if set(found) != set(expected):
        raise StepError(f"{where} has the inputs {', '.join(found) or 'none'}; the model's are {', '.join(expected)}")
