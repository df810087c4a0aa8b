"""A stack's own Python environment, made from a locked requirements file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from ladder.errors import StepError
from ladder.files import digest

PATH_SECONDS = 10  # an interpreter that has not told its folders by then is taken for one that cannot
METADATA = (".dist-info", ".egg-info")  # what each installed distribution has beside its code
DEFAULT_INDEX = "https://pypi.org/simple"  # pip names the indexes that it asks only where they are others


def in_words(lock: Path) -> str:
    """How much a lock file installs and where pip looks for it. Raises OSError where there is no such file."""
    lines = [line.strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    pins = [line for line in lines if line and not line.startswith(("#", "-"))]
    named = [re.match(r"--(?:extra-)?index-url[ =]+(\S+)", line) for line in lines]
    hosts = [host for url in named if url and (host := urlsplit(url[1]).hostname)]
    where = ["pip's package index", *hosts]
    packages = f"{len(pins)} package{'s' * (len(pins) > 1)}"
    return f"{packages} of {lock} from {' and '.join(where)}"


def make(lock: Path, folder: Path) -> str:
    """Make ``folder`` anew from ``lock`` and return what is in it, as pip freeze lists it. Raises StepError.

    A .pth file of the lock's name beside it comes too: it names folders of the host with modules that no index has.
    """
    if not lock.is_file():
        raise StepError(f"{lock} is missing: an environment needs its lock file, or name an interpreter with 'python'")
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], "python3 -m venv (Debian: install python3-venv)")
    python = str(folder / "bin" / "python")
    pip = [python, "-u", "-m", "pip", "--disable-pip-version-check"]
    _install([*pip, "install", "--retries", "2", "--no-deps", "-r", str(lock)], lock)
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


def _install(command: list[str], lock: Path) -> None:
    """Run pip, its messages going to the log as they come. Raises StepError with what they say of a failure."""
    said = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            said.append(line.rstrip())
    if process.returncode:
        raise StepError(f"pip install of {lock} failed: {failure_of(said)}; its messages are in the log")


def failure_of(said: list[str]) -> str:
    """Why pip gave up, by its messages: a connection that broke comes first, since pip ends in what follows from it."""
    ends = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    last = ends[-1] if ends else "it gave no reason"
    broken = [found[1] for line in said if (found := re.search(r"after connection broken by '(.*)': /\S*$", line))]
    if broken:
        asked = [line.partition("Looking in indexes: ")[2] for line in said if "Looking in indexes: " in line]
        index, why = (*asked, DEFAULT_INDEX)[0], re.sub(r"<[^>]*>: ", "", broken[-1])
        return f"a package index could not be reached ({index}): {why}; check network and proxy. pip ended in: {last}"
    if any("(from versions: none)" in line for line in said):
        return f"no package index gave pip any version, as where none can be reached. pip ended in: {last}"
    return last


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=False)
    except OSError as error:
        raise StepError(f"{what} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise StepError(f"{what} failed with exit status {done.returncode}; its messages are in the log")
    return done.stdout
