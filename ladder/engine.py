"""The build step: what one rung runs from, made once by its stack and kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder import process, stacks
from ladder.artifacts import TIMING_CACHE
from ladder.files import read_json, replacing, sha256, write_json
from ladder.stacks.base import Rung, Source

WEIGHTS = ("model", "onnx_sha256", "weights_sha256")  # in an identity: what an engine computes, not how it is built
NOTHING_BUILT: dict[str, Any] = {"sha256": None, "size_mb": None, "seconds": None, "peak_memory_mb": None, "facts": {}}


def build(spec: dict[str, Any], source: Source, engine: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have the stack build an engine; return its identity (id.json) and the facts of the build (build.json).

    ``spec`` is ``ladder.steps.engine_spec``, ``source`` what ``ladder.artifacts.source_of`` gave. ``engine`` is
    always written; it is empty where the stack has no build step. The identity holds what the engine is made from and
    by, never its bytes: a second build has the same. The facts are its ``sha256`` (None for an empty file), ``size_mb``
    (10^6 bytes), ``seconds``, ``peak_memory_mb`` (largest resident size of this process so far) and ``facts`` as the
    stack gives them. Raises StepError.
    """
    rung = Rung(**spec["rung"])
    stack = stacks.load(**spec["stack"])
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
    with replacing(engine) as temporary, _timings_kept(engine, identity):
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
    return identity, built


@contextmanager
def _timings_kept(engine: Path, identity: dict[str, Any]) -> Iterator[None]:
    """Beside an engine that is built, no timing cache but of a whole build on such a host, by its stack and options.

    It is known by ``timing.json``, which tells its hash and is written last: one that was cut short, or that another
    driver, GPU, version or option had a part in, is removed before the build.
    """
    cache, record = engine.with_name(TIMING_CACHE), engine.with_name("timing.json")
    circumstances = {key: value for key, value in identity.items() if key not in WEIGHTS}
    try:
        trusted = read_json(record) == {**circumstances, "sha256": sha256(cache)}
    except (OSError, ValueError):
        trusted = False
    if not trusted:
        cache.unlink(missing_ok=True)
    yield
    if cache.is_file():
        write_json(record, {**circumstances, "sha256": sha256(cache)})
