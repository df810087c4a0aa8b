"""Which of a round's files is trusted, and under which names measurements are kept that nobody asks for just now."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ladder.files import read_json, replacing, sha256
from ladder.step import attempts_path, step
from ladder.telemetry import raw as telemetry_raw


def finished(output: Path, raw: Path, key: str) -> dict[str, Any] | None:
    """The earlier record of this round, if it was measured under the same key and nothing is to be retried."""
    if os.environ.get("LADDER_FORCE") or (record := _whole(output, raw)) is None:
        return None
    retry = any(failure["stage"] == "run" and not failure["permanent"] for failure in record["failures"])
    return record if record["key"] == key and not retry else None


def _whole(output: Path, raw: Path) -> dict[str, Any] | None:
    """A record that has the raw latencies it was written with and that no table has refused; None for anything else."""
    try:
        record = read_json(output)
        is_own = record["raw_sha256"] == sha256(raw) and {"key", "rows", "failures"} <= record.keys()
        return record if is_own and _refusal(output) not in _attempts(output) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def try_again(output: Path, why: str) -> None:
    """Note that a round gave no result, in one line: the planner counts them, so that the next call tries again."""
    with open(attempts_path(output), "a", encoding="utf-8") as stream:
        stream.write(f"{why}\n")


def refuse(output: Path) -> None:
    """Note that a record cannot be trusted as it stands there now: the next call measures its round again."""
    try_again(output, _refusal(output))


def _refusal(output: Path) -> str:
    return f"refused {sha256(output)}"


def _attempts(output: Path) -> list[str]:
    path = attempts_path(output)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def give_up(output: Path, raw: Path, log: Path, error: Exception) -> None:
    """Leave a failed record (``ladder.step``) of a round whose job cannot go on; what was measured before is set aside.

    Raises OSError where not even that can be written.
    """
    set_aside(output, raw)
    with step("round", output, [raw], log):
        raise error


def _aside(path: Path, key: str) -> Path:
    return path.with_name(f"{path.stem}.{key[:12]}{path.suffix}")


def set_aside(output: Path, raw: Path) -> None:
    """Keep measurements that the present configuration does not ask for; it may have a mistake in it."""
    record = _whole(output, raw)
    if record is not None and record["rows"]:
        for path in filter(Path.exists, (output, raw, telemetry_raw.path_of(raw))):
            _aside(path, record["key"]).unlink(missing_ok=True)  # its second name: renaming would leave both
            os.replace(path, _aside(path, record["key"]))


def keep_beside(output: Path, raw: Path) -> None:
    """Give a measured round's files a second name, the one under which a later call takes it back.

    Where a cluster loses a job between the end of its step and its own, Snakemake removes what it made.
    """
    record = read_json(output)
    for path in filter(Path.exists, (telemetry_raw.path_of(raw), raw, output) if record["rows"] else ()):
        with replacing(_aside(path, record["key"])) as temporary:
            try:
                os.link(path, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(path, temporary)


def taken_back(output: Path, raw: Path, key: str) -> dict[str, Any] | None:
    """The record that was set aside under this key, back under its own name."""
    record = finished(_aside(output, key), _aside(raw, key), key)
    if record is not None:
        for path in (telemetry_raw.path_of(raw), raw, output):  # the record last: once it is there the round is whole
            path.unlink(missing_ok=True)
            if _aside(path, key).exists():
                os.replace(_aside(path, key), path)
    return record
