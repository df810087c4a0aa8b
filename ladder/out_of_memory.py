"""Which rungs ran out of memory in this sitting: their larger batches would too, and are not tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ladder.files import read_json, write_json

# PyTorch, CUDA's driver, TensorRT, numpy and OpenVINO, C++, and the kernel's way to end a process
_SIGNS = re.compile(r"out of memory|out_of_memory|cannot allocate|unable to allocate|bad_alloc|signal 9", re.IGNORECASE)


def is_told_by(reason: str) -> bool:
    """Whether the reason of a failed run says that memory ran out."""
    return bool(_SIGNS.search(reason))


class Seen:
    """The smallest batch at which each rung ran out, kept beside the rounds of one model and ladder."""

    def __init__(self, folder: Path, sitting: str):
        self._path, self._sitting = folder / "out_of_memory.json", sitting

    def at(self, rung: str) -> int | None:
        """The smallest batch at which the rung ran out of memory in this sitting."""
        return self._read().get(rung)

    def note(self, rung: str, batch: int) -> None:
        found = self._read()
        write_json(self._path, {"sitting": self._sitting, "rungs": found | {rung: min(batch, found.get(rung, batch))}})

    def _read(self) -> dict[str, Any]:
        try:
            kept = read_json(self._path)
        except FileNotFoundError:
            return {}
        return kept["rungs"] if kept["sitting"] == self._sitting else {}
