"""One step of the pipeline, run by a script: a failure becomes a record, not a broken workflow.

A script wraps its work so::

    with step("export", args.output_id, [args.output_onnx], log=args.log):
        ...                                          # raises StepError with the reason
        write_json(args.output_id, {"status": "ok", ...})

and ends with exit code 0 either way: consumers read ``status`` and the aggregate turns a failed
id into a row of failures.csv. (A job that exits non-zero would block every consumer.)
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder import specs
from ladder.errors import StepError
from ladder.files import read_json, write_json, write_text


class UpstreamFailed(StepError):
    """An earlier step gave no result; ``record`` is its failed id, which stands for this step as well."""

    def __init__(self, record: dict[str, Any]):
        super().__init__(record["reason"], permanent=record["permanent"])
        self.record = record


def id_path_of(artifact: Path) -> Path:
    """Where the id of an artifact stands: ``fp32.id.json`` beside ``fp32.onnx``."""
    return artifact.with_name(f"{artifact.stem}.id.json")


def read_id(path: Path) -> dict[str, Any]:
    """The id an earlier step wrote. Raises UpstreamFailed where that step has failed."""
    record = read_json(path)
    if record["status"] != "ok":
        raise UpstreamFailed(record)
    return record


def json_file(path: str) -> Any:
    """What the JSON file named by a script's argument holds. Raises argparse's own error."""
    try:
        return specs.read(Path(path))
    except (OSError, ValueError, StepError) as error:
        raise argparse.ArgumentTypeError(f"needs a JSON file: {error}") from error


def attempts_path(id_path: Path) -> Path:
    """The file beside an id that holds one line for each try that failed and may go well next time."""
    id_path = Path(id_path)
    return id_path.with_name(id_path.name + ".attempts")


@contextmanager
def step(stage: str, id_path: Path, outputs: Sequence[Path] = (), log: Path | None = None) -> Iterator[None]:
    """Run the block; where it raises, write a failed id and empty files for ``outputs``, and go on.

    The failed id is ``{"status": "failed", "stage", "reason", "permanent", "log"}``. A ``StepError`` gives
    its message as the reason and its own ``permanent``; any other exception is not permanent, its reason is
    ``"TypeOfException: message"`` and its traceback goes to stderr. Each failure that is not permanent adds a
    line to ``attempts_path(id_path)``, which the planner counts in order to try again on the next call. The
    failure of an earlier step (``read_id``) is passed on as it is, and adds no line: that step is tried again.
    The block itself writes ``outputs`` and, last, the ok id; a block that forgets one has failed.

    KeyboardInterrupt and SystemExit pass through, leaving no id: an earlier one is removed before the block starts.
    """
    id_path = Path(id_path)
    id_path.unlink(missing_ok=True)
    try:
        yield
        missing = [str(path) for path in (*outputs, id_path) if not Path(path).exists()]
        if missing:
            raise StepError(f"the {stage} step ended without writing {', '.join(missing)}")
    except Exception as error:
        record = _record(error, stage, log)
        if not isinstance(error, StepError) and not lost_artifact(error):
            traceback.print_exc()
        print(f"{stage}: no result: {record['stage']} failed: {record['reason']}", file=sys.stderr)
        for path in outputs:
            write_text(Path(path), "")
        if not record["permanent"] and not isinstance(error, UpstreamFailed):
            id_path.parent.mkdir(parents=True, exist_ok=True)
            with open(attempts_path(id_path), "a", encoding="utf-8") as stream:
                stream.write(" ".join(record["reason"].split()) + "\n")
        write_json(id_path, record)


def lost_artifact(error: Exception) -> str | None:
    """What to say where an artifact was deleted while a step or a run needed it; None for every other error."""
    if not isinstance(error, FileNotFoundError) or "artifacts" not in Path(str(error.filename)).parts:
        return None
    return f"{error.filename} is gone: it was deleted after it was made; the next call makes it anew"


def _record(error: Exception, stage: str, log: Path | None) -> dict[str, Any]:
    if isinstance(error, UpstreamFailed):
        return error.record
    known = str(error) if isinstance(error, StepError) else lost_artifact(error)
    return {
        "status": "failed",
        "stage": stage,
        "reason": known or f"{type(error).__name__}: {error}",
        "permanent": isinstance(error, StepError) and error.permanent,
        "log": None if log is None else str(log),
    }
