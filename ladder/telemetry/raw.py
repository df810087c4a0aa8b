"""The samples of a round as they are kept: Parquet beside its raw latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ladder.files import replacing
from ladder.telemetry.base import Sample

_NUMBERS = ("temperature_c", "power_w", "gpu_pct", "memory_pct", "memory_used_mb", "sm_clock_mhz", "memory_clock_mhz")
SCHEMA = pa.schema(
    [
        ("rung", pa.string()),
        ("at_ns", pa.int64()),
        ("unix_ns", pa.int64()),
        *((name, pa.float64()) for name in _NUMBERS),
        ("performance_state", pa.string()),
        ("clock_reasons", pa.list_(pa.string())),
        ("energy_j", pa.float64()),
        ("processes", pa.list_(pa.struct([("pid", pa.int64()), ("memory_mb", pa.float64())]))),
    ]
)


def path_of(latencies: Path) -> Path:
    """``1.telemetry.parquet`` beside ``1.parquet``; it is there only where a device was watched."""
    return latencies.with_suffix(f".telemetry{latencies.suffix}")


def write(latencies: Path, samples: Mapping[str, Sequence[Sample]]) -> None:
    """Write the samples by rung, in order, in place of what was there before; without any there is no file."""
    rows = [{"rung": rung} | asdict(sample) for rung, held in samples.items() for sample in held]
    path_of(latencies).unlink(missing_ok=True)
    if rows:
        with replacing(path_of(latencies)) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), temporary)


def read(latencies: Path) -> list[dict[str, Any]]:
    """The samples beside a round's latencies with their ``rung``, in order; none where no device was watched."""
    path = path_of(latencies)
    return pq.read_table(path, schema=SCHEMA).to_pylist() if path.is_file() else []
