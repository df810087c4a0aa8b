"""gpu-bench's results.csv: all runs appended, one row each, with a run label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COLUMNS = (
    "run_label", "model", "rung", "batch_size", "warmup", "iterations",
    "median_ms", "p95_ms", "images_per_s", "torch_memory_mb",
)  # fmt: skip


def rows(results: Sequence[Mapping[str, str]]) -> list[dict[str, str | None]]:
    """Its rows from those of our results.csv, in the order in which they were measured.

    ``images_per_s`` is batch over median, as in its table. ``torch_memory_mb`` is what it was there, the peak of
    torch's allocator: blind to every other runtime, for which it is empty here.
    """
    return [
        {
            "run_label": f"{row['platform']}/{row['ladder']}/round {row['round']}",
            "model": row["model"],
            "rung": row["rung"],
            "batch_size": row["batch"],
            "warmup": row["warmup"],
            "iterations": row["iterations"],
            "median_ms": row["median_ms"],
            "p95_ms": row["p95_ms"],
            "images_per_s": row["latency_ips"],
            "torch_memory_mb": row["allocator_mem_mb"] if row["api"] == "pytorch" else None,
        }
        for row in sorted(results, key=lambda row: row["started_at"])
    ]
