"""Reading, hashing and writing files so that nothing half-written is ever trusted."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """One text per value: keys sorted, no spaces. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Hex sha256 of a JSON-serialisable value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; it takes the name only when the block ends without error.

    The temporary file keeps the suffix (some libraries choose the format by it) and is synced to disk
    before the rename. If the block wrote nothing, ``path`` is left as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # hosts that share a folder may count their processes alike, as containers do
    temporary = path.with_name(f".{path.stem}.{platform.node()}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        if temporary.exists():
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically. Raises ValueError for NaN: a missing reading is null."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays under any names, as ``numpy.savez`` does where none of them is ``file``; equal ones as equal bytes.

    Raises ValueError for arrays of Python objects.
    """
    from numpy.lib import format as npy  # not before: planning reads and writes JSON only

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                npy.write_array(stream, array, allow_pickle=False)
