"""Which rounds may be measured again by themselves: something beside them, that no latency tells, disturbed them.

Why only these grounds: docs/method.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ladder.preflight import BUSY_LIMIT
from ladder.tables import CLEAR, FLAGS


def disturbed(results: Sequence[Mapping[str, str]], flags: Sequence[str] = FLAGS) -> dict[Path, list[str]]:
    """The records of disturbed rounds, each with what disturbed which of its runs, from rows of results.csv as text.

    ``flags`` are those that take a round out of the verdicts, of ``ladder.tables.FLAGS``.
    """
    found: dict[Path, list[str]] = {}
    for row in results:
        for why in _grounds(row, flags):
            found.setdefault(Path(row["raw"]).with_suffix(".json"), []).append(f"{row['rung']}: {why}")
    return dict(sorted(found.items()))


def _grounds(row: Mapping[str, str], flags: Sequence[str]) -> Iterator[str]:
    for flag in flags:
        if row[flag] not in ("", CLEAR):
            yield f"{flag} ({row[flag]})"
    if float(row["load_before"] or 0) > BUSY_LIMIT:
        yield f"other programs kept {float(row['load_before']):.1f} CPUs busy before it"
