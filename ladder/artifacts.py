"""Artifacts as later steps open them: only once each is the file that its id describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from ladder.errors import StepError
from ladder.files import sha256
from ladder.stacks.base import Source
from ladder.step import attempts_path, id_path_of, read_id

TIMING_CACHE = "timing.cache"  # beside an engine: see ``ladder.stacks.base.Stack.build``


def source_of(
    spec: dict[str, Any], export_id: Path, onnx: Path | None, weights: Path | None, weights_id: Path | None
) -> Source:
    """What a stack builds from and opens, once every file is the one that its id describes.

    ``export_id`` is the FP32 ONNX file's, which has the model's axes; ``onnx`` has its own id beside it. Raises
    UpstreamFailed where a step before has failed, StepError for a file that was changed.
    """
    exported = read_id(export_id)
    for artifact, artifact_id in ((onnx, onnx and id_path_of(onnx)), (weights, weights_id)):
        if artifact and artifact_id:
            checked_id(artifact, artifact_id)
    return Source(model=spec["model"], onnx=onnx, weights=weights, profile=spec["profile"], axes=exported["axes"])


def checked_id(artifact: Path, artifact_id: Path) -> dict[str, Any]:
    """The id of an artifact, once the artifact is the one it describes. Raises UpstreamFailed, StepError."""
    identity = read_id(artifact_id)
    if (found := sha256(artifact)) != identity["sha256"]:
        _refuse(artifact, artifact_id, found, identity["sha256"])
    return identity


def checked_payload(engine: Path, built: dict[str, Any]) -> Path | None:
    """The engine file, once it is the one ``build`` described; None where none was built. Raises StepError."""
    if built["sha256"] is None:
        return None
    if (found := sha256(engine)) != built["sha256"]:
        _refuse(engine, engine.with_name("id.json"), found, built["sha256"])
    return engine


def _refuse(artifact: Path, artifact_id: Path, found: str, made: str) -> NoReturn:
    """Note, as a try of the step that makes it, that an artifact has to be made anew. Raises StepError."""
    reason = f"{artifact} has sha256 {found[:12]}…, but {made[:12]}… was made: it was changed or cut short"
    with open(attempts_path(artifact_id), "a", encoding="utf-8") as stream:
        stream.write(f"{reason}\n")
    raise StepError(f"{reason}; the next call makes it anew")
