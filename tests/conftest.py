"""What tests of seeded models share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ladder import weights
from ladder.files import digest, write_json
from ladder.step import id_path_of


@pytest.fixture(scope="session")
def weights_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict], Path]:
    """The weights file of a seeded model's section with its id beside it, made once."""
    folder = tmp_path_factory.mktemp("weights")

    def made(spec: dict) -> Path:
        path = folder / digest([spec[key] for key in ("source", "architecture", "weights")]) / "weights.bin"
        if not path.exists():
            write_json(id_path_of(path), weights.obtain(spec, path, folder / "pins.json"))
        return path

    return made
