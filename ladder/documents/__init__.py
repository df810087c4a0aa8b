"""The files of the published documents whose protocols the presets follow, each in its document's own format.

One module a document, pure: rows of our tables in, rows or text of its file out; ``runs`` reads what they need beyond
the tables, ``write`` writes. docs/presets.md says what differs from the documents.
"""

from __future__ import annotations

FILES = {
    "gpu-bench": ("results.csv",),
    "deep-gap": ("benchmark_results_final.csv", "gpu_telemetry_full_run.csv"),
    "beyond-tops": ("report.json", "saturation.html"),
}


def paths(documents: list[str]) -> list[str]:
    """What the workflow makes for these documents."""
    return [f"results/documents/{document}/{name}" for document in documents for name in FILES[document]]
