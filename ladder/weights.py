"""Weights files: fetched, copied or drawn once, known by their sha256 ever after."""

from __future__ import annotations

import importlib
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ladder.errors import StepError
from ladder.files import read_json, replacing, write_json
from ladder.files import sha256 as hash_file
from ladder.step import id_path_of, read_id

_CHUNK = 1 << 20


def obtain(spec: dict[str, Any], destination: Path, pins: Path) -> dict[str, Any]:
    """Put the weights of a model's section at ``destination`` and return their identity.

    ``pins`` remembers the full sha256 of each of torchvision's files at its first fetch; a later fetch must
    give the same. Seeded weights are a safetensors file, whose bytes depend on names and values alone.
    Raises StepError.
    """
    weights = spec["weights"]
    identity: dict[str, Any] = {"status": "ok", "sha256": None, "url": None}
    if weights.get("seeded") is not None:
        identity["sha256"] = _draw(spec, destination)
    elif weights.get("pretrained"):
        url, prefix = _source(spec).pretrained(spec)
        known = read_json(pins) if pins.exists() else {}
        identity |= {"url": url, "sha256": fetch(url, known.get(url, prefix), destination)}
        write_json(pins, known | {url: identity["sha256"]})
    elif weights.get("url"):
        pinned = weights.get("sha256")
        if not pinned:
            raise StepError(f"{weights['url']}: a url needs the sha256 of the file it serves", permanent=True)
        identity |= {"url": weights["url"], "sha256": fetch(weights["url"], pinned, destination)}
    else:
        path, pinned = Path(weights["path"]), weights.get("sha256")
        if not pinned:
            _refuse_pickle(spec, path)
        identity["sha256"] = _copy(path, pinned, destination)
    return identity | {"label": label(spec, identity)}


def _source(spec: dict[str, Any]) -> Any:
    """The model's source, imported by name: the weights of other models do not depend on it."""
    return importlib.import_module(f"ladder.models.{spec['source']}")


def _draw(spec: dict[str, Any], destination: Path) -> str:
    from safetensors.torch import save

    with replacing(destination) as temporary:
        temporary.write_bytes(save(_source(spec).draw(spec).state_dict()))  # its save_file lets no other user read
    return hash_file(destination)


def label(spec: dict[str, Any], identity: dict[str, Any] | None = None) -> str:
    """How every table names the weights: ``seeded(0)``, ``file sha256:abcd1234``, ``pretrained sha256:…``.

    ``identity`` is what ``obtain`` returned; seeded weights need none.
    """
    weights = spec["weights"]
    if weights.get("seeded") is not None:
        return f"seeded({weights['seeded']})"
    sha256 = (identity or {}).get("sha256") or weights["sha256"]
    return f"{'pretrained' if weights.get('pretrained') else 'file'} sha256:{sha256[:8]}"


def fetch(url: str, sha256: str, destination: Path, timeout: float = 30) -> str:
    """Download ``url`` to ``destination`` and return its full sha256, which must start with ``sha256``.

    The file takes its name only when its hash is right; until then it is a temporary one that every
    failure deletes. ``timeout`` is the longest silence of the server, s. Raises StepError.
    """
    if not url.startswith(("http://", "https://")):
        raise StepError(f"{url}: only http and https addresses can be fetched", permanent=True)
    with replacing(destination) as temporary:
        try:
            _download(url, temporary, timeout)
        except (OSError, urllib.error.URLError) as error:
            raise StepError(f"{url} could not be fetched: {error}") from error
        found = hash_file(temporary)
        if not found.startswith(sha256):
            temporary.unlink()
            raise StepError(
                f"{url} has sha256 {found}, expected {sha256}: the file was deleted; "
                "check the address, or pin the new hash if you trust it",
                permanent=True,
            )
    return found


def _download(url: str, destination: Path, timeout: float) -> None:
    done, shown = 0, 0
    with urllib.request.urlopen(url, timeout=timeout) as response, open(destination, "wb") as stream:
        total = int(response.headers.get("Content-Length") or 0)
        while chunk := response.read(_CHUNK):
            stream.write(chunk)
            done += len(chunk)
            if total and done * 10 // total > shown:
                shown = done * 10 // total
                print(f"{url}: {done / 1e6:.1f} of {total / 1e6:.1f} MB", file=sys.stderr)
    if total and done != total:
        raise OSError(f"the server closed after {done} of {total} bytes")


def _refuse_pickle(spec: dict[str, Any], path: Path) -> None:
    if spec["source"] != "onnx":
        raise StepError(f"{path} is a pickle, which runs code when loaded: pin its sha256", permanent=True)


def _copy(path: Path, pinned: str | None, destination: Path) -> str:
    if not path.is_file():
        raise StepError(f"{path}: no such weights file")
    with replacing(destination) as temporary:
        shutil.copyfile(path, temporary)
        found = hash_file(temporary)
        if pinned and found != pinned:
            raise StepError(f"{path} has sha256 {found}, but {pinned} is pinned", permanent=True)
    return found


def verify(spec: dict[str, Any], weights: Path | None) -> Path:
    """The weights file, once its bytes are proved to be the pinned or recorded ones.

    The hash comes from the model's section, else from the id that the weights step wrote beside the file.
    Call it before anything reads the file. Raises StepError; without any hash too, but for ONNX: loading a
    pickle runs code, and nothing else says that a file is what a seed gives.
    """
    if weights is None or not weights.is_file():
        raise StepError(f"model {spec['name']} needs its weights file, {weights} is not there")
    expected = spec["weights"].get("sha256")
    if not expected and id_path_of(weights).exists():
        expected = read_id(id_path_of(weights))["sha256"]
    if not expected:
        if spec["weights"].get("seeded") is not None:
            raise StepError(
                f"{weights} has no {id_path_of(weights).name} beside it that says its sha256: delete it "
                "to have both made again"
            )
        _refuse_pickle(spec, weights)
        return weights
    found = hash_file(weights)
    if found != expected:
        raise StepError(f"{weights} has sha256 {found}, expected {expected}: delete it to have it made again")
    return weights
