"""Runtimes, one module each behind ``ladder.stacks.base``, loaded by name so that one may come from outside."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ladder.errors import StepError
from ladder.stacks.base import Stack


def load(module: str, arguments: dict[str, Any]) -> Stack:
    """The stack that ``module`` creates: a dotted name, or the path of a .py file that defines ``create``.

    Raises StepError where there is no such module, it needs a library that this environment lacks, or it does not
    take the arguments.
    """
    try:
        found = _from_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        create = found.create
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            reason = f"there is no stack module '{module}'; give a Python module or the path of a .py file"
        else:
            reason = (
                f"stack module '{module}' needs '{error.name}', which {sys.executable} lacks: install it there, or "
                "give the stack an environment that has it"
            )
        raise StepError(reason) from error
    except AttributeError as error:
        raise StepError(f"stack module '{module}' defines no create(**arguments): {error}") from error
    try:
        return create(**arguments)
    except TypeError as error:
        raise StepError(f"stack module '{module}' does not take the arguments {arguments}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    """Run a .py file as a module of its own name, which dataclasses and pickle look up."""
    if not path.is_file():
        raise StepError(f"there is no stack module {path}; the path is taken from {Path.cwd()}")
    name = f"ladder_stack_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # holds for every .py file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
