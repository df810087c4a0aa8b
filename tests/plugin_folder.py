"""Where Snakemake's plugins are: in folders of their own, since each call of snakemake loads all that it finds."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest


def require(lock: str, plugin: str) -> dict[str, str]:
    """The variables with which a call finds the plugins of envs/<lock>.txt; skips where this one is not there."""
    folder = str(Path(sys.prefix) / lock)  # made by `make test`
    if PathFinder.find_spec(plugin, [folder, *sys.path]) is None:
        pytest.skip(f"{plugin} is not in {folder}: make .venv/installed-tests", allow_module_level=True)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))}
