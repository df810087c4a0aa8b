"""The build step: what one rung runs from, made once by its stack and kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ladder import process, stacks
from ladder.errors import StepError
from ladder.files import replacing, sha256
from ladder.stacks.base import Rung, Source
from ladder.step import id_path_of, read_id

NOTHING_BUILT: dict[str, Any] = {"sha256": None, "size_mb": None, "seconds": None, "peak_memory_mb": None, "facts": {}}


def build(spec: dict[str, Any], source: Source, engine: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have the stack build an engine; return its identity (id.json) and the facts of the build (build.json).

    ``spec`` is ``ladder.matrix.Matrix.engine_spec``, ``source`` what ``source_of`` gave. ``engine`` is always written; it is empty where the stack has no
    build step. The identity holds what the engine is made from and by, never its bytes: a second build has the same.
    The facts are its ``sha256`` (None for an empty file), ``size_mb`` (10^6 bytes), ``seconds``, ``peak_memory_mb``
    (largest resident size of this process so far) and ``facts`` as the stack gives them. Raises StepError.
    """
    rung = Rung(**spec["rung"])
    stack = stacks.load(**spec["stack"])
    with replacing(engine) as temporary:
        started = time.monotonic()
        facts = stack.build(source, rung, temporary)
        seconds = time.monotonic() - started
        temporary.touch()
    size = engine.stat().st_size
    built = {
        "sha256": sha256(engine) if size else None,
        "size_mb": size / 1e6 if size else None,
        "seconds": seconds,
        "peak_memory_mb": process.peak_memory_mb(),
        "facts": facts,
    }
    identity = {
        "status": "ok",
        "rung": {factor: value for factor, value in spec["rung"].items() if factor != "name"},
        "stack": {**spec["stack"], "identity": stack.identity()},
        "model": None if source.onnx else spec["model"],  # the ONNX file says what it computes
        "onnx_sha256": sha256(source.onnx) if source.onnx else None,
        "weights_sha256": sha256(source.weights) if source.weights else None,
        "profile": source.profile,
        "axes": source.axes,
        "fingerprint": spec["fingerprint"],
    }
    return identity, built


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
    if identity["sha256"] != sha256(artifact):
        raise StepError(f"{artifact} is not the file its id describes: delete both to have them made again")
    return identity


def checked_payload(engine: Path, built: dict[str, Any]) -> Path | None:
    """The engine file, once it is the one ``build`` described; None where none was built. Raises StepError."""
    if built["sha256"] is None:
        return None
    if (found := sha256(engine)) != built["sha256"]:
        raise StepError(
            f"{engine} has sha256 {found[:12]}…, but {built['sha256'][:12]}… was built: the file was changed or cut "
            f"short; delete {engine.parent} and call again"
        )
    return engine
