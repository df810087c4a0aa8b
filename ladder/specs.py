"""What steps are told, as files: a command names one, whose name is a hash of what it holds.

A change of a specification is so a change of a parameter, a command stays short enough to be read, and rounds that
share one share its file. Written while planning, by whoever plans: on another host that is the job itself.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ladder.errors import StepError
from ladder.files import canonical_json, write_text

FOLDER = Path(".ladder/specs")  # in progress.STATE; not imported, since what a step imports is code that it depends on
_planned: set[Path] = set()


def file_of(spec: Any) -> str:
    """The file that holds a JSON value, written where it is not there or was changed. Raises ValueError for NaN."""
    text = canonical_json(spec)
    path = FOLDER / _name(text)
    if path not in _planned and not (path.is_file() and path.read_bytes() == text.encode()):
        write_text(path, text)
    _planned.add(path)
    return str(path)


def read(path: Path) -> Any:
    """What a step is told by a file; one of ``FOLDER`` holds what its name says.

    Raises OSError, ValueError where it holds no JSON, StepError where it was changed after it was planned.
    """
    text = path.read_text(encoding="utf-8")
    if path.parent == FOLDER and path.name != _name(text):
        raise StepError(f"{path} was changed after it was planned; call the workflow again, or copy it elsewhere")
    return json.loads(text)


def _name(text: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def remove_others() -> None:
    """Remove the specifications of earlier plans; those of this process stay.

    A job of a killed call that a cluster still runs may miss its own: it fails and says so.
    """
    for path in set(FOLDER.glob("*")) - _planned:
        path.unlink(missing_ok=True)
