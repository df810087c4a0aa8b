"""Which rungs ran out of memory in this sitting: their larger batches would too, and are not tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ladder.files import read_json, write_json

# PyTorch, CUDA's driver, TensorRT, numpy and OpenVINO, C++, and how a process ends that the kernel kills for it
_SIGNS = re.compile(r"out of memory|out_of_memory|cannot allocate|unable to allocate|bad_alloc|signal 9", re.IGNORECASE)


def is_told_by(reason: str) -> bool:
    """Whether the reason of a failed run says that memory ran out, or is what is left where it most often did."""
    return bool(_SIGNS.search(reason))


class Seen:
    """The smallest batch at which each rung ran out, kept beside the rounds of one model and ladder."""

    def __init__(self, folder: Path, sitting: str):
        self._path, self._sitting = folder / "out_of_memory.json", sitting

    def below(self, rung: str, batch: int) -> dict[str, Any] | None:
        """The smallest batch at which the rung ran out in this sitting, and the ``reason`` told; None if not below."""
        found = self._read().get(rung)
        return found if found and found["batch"] < batch else None

    def note(self, rung: str, batch: int, reason: str) -> None:
        found = self._read()
        if rung not in found or batch < found[rung]["batch"]:
            found |= {rung: {"batch": batch, "reason": reason}}
            write_json(self._path, {"sitting": self._sitting, "ran_out": found})

    def _read(self) -> dict[str, Any]:
        try:
            kept = read_json(self._path)
        except FileNotFoundError:
            return {}
        return kept["ran_out"] if kept["sitting"] == self._sitting else {}
