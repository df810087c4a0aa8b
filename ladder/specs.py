"""What steps are told, as files: a command names one, whose name is a hash of what it holds.

A change of a specification is so a change of a parameter, a command stays short enough to be read, and rounds that
share one share its file. Written while planning, by whoever plans: on another host that is the job itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ladder.files import canonical_json, write_text
from ladder.progress import STATE

FOLDER = STATE / "specs"
_planned: set[Path] = set()


def file_of(spec: Any) -> str:
    """The file that holds a JSON value, written where it is not there yet. Raises ValueError for NaN."""
    text = canonical_json(spec)
    path = FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if path not in _planned and not path.is_file():
        write_text(path, text)
    _planned.add(path)
    return str(path)


def remove_others() -> None:
    """Remove the specifications of earlier plans; those of this process stay."""
    for path in set(FOLDER.glob("*")) - _planned:
        path.unlink(missing_ok=True)
