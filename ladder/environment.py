"""A stack's own Python environment, made from a locked requirements file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from ladder.errors import StepError
from ladder.files import digest

PATH_SECONDS = 10  # an interpreter that has not told its folders by then is taken for one that cannot
METADATA = (".dist-info", ".egg-info")  # what each installed distribution has beside its code


def make(lock: Path, folder: Path) -> str:
    """Make ``folder`` anew from ``lock`` and return what is in it, as pip freeze lists it. Raises StepError.

    A .pth file of the lock's name beside it comes too: it names folders of the host with modules that no index has.
    """
    if not lock.is_file():
        raise StepError(f"{lock} is missing: an environment needs its lock file, or name an interpreter with 'python'")
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], "python3 -m venv (Debian: install python3-venv)")
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--retries", "2", "--no-deps", "-r", str(lock)], f"pip install of {lock}")
    if (paths := lock.with_suffix(".pth")).is_file():
        tell = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        shutil.copy(paths, _run(tell, "asking for the environment's folder").strip())
    return _run([*pip, "freeze", "--all"], "pip freeze")


def existing(python: Path) -> str:
    """What an interpreter named in the configuration has installed. Raises StepError where it does not run."""
    code = (
        "import importlib.metadata as m, sys\n"
        "print('python', sys.version.split()[0])\n"
        "print(*sorted({f'{d.name}=={d.version}' for d in m.distributions()}, key=str.lower), sep='\\n')"
    )
    return _run([str(python), "-c", code], f"the interpreter {python} named under environments")


@cache
def state(python: str) -> str:
    """Short hash of an interpreter's version and the distributions it finds: name, version, time of installation.

    It asks the interpreter for its folders only and reads their names itself, since it is asked at every planning.
    Empty where the interpreter does not run: making the environment says why.
    """
    command = [python, "-c", "import json, sys; print(json.dumps([sys.version, sys.path[1:]]))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATH_SECONDS)
        version, folders = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    # a folder of its own for each distribution: running code writes beside it, installing writes it anew
    there = [path for folder in map(Path, folders) if folder.is_dir() for path in folder.iterdir()]
    found = sorted([str(path), path.stat().st_mtime_ns] for path in there if path.suffix in METADATA)
    return digest([version, found])[:16]


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=False)
    except OSError as error:
        raise StepError(f"{what} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise StepError(f"{what} failed with exit status {done.returncode}; its messages are in the log")
    return done.stdout
