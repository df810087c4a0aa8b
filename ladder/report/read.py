"""Reading the tables back, as text, without the libraries that made them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from ladder.errors import StepError


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a table as text. Raises StepError where it is missing or its columns are not the expected ones."""
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
    except FileNotFoundError:
        raise StepError(f"{path} is missing; make the tables first") from None
    if tuple(reader.fieldnames or ()) != tuple(columns):
        raise StepError(f"{path} has other columns than this version writes; make the tables again")
    return rows


def raw_file(results: Path, raw: str) -> Path:
    """The raw latencies that a row of results.csv names, in its results folder wherever that was copied to.

    A copy keeps them in their place below the folder or, those of one ladder and batch, in ``rounds``. The working
    folder does not count: another host's rounds may be there. Raises StepError where neither file is there.
    """
    path = Path(raw)
    below = path.relative_to("results") if path.parts[0] == "results" else path
    places = results / below, results / "rounds" / path.name
    if found := next((place for place in places if place.is_file()), None):
        return found
    raise StepError(
        f"{results / 'results.csv'} names raw latencies in {raw}, but there is neither {places[0]} nor {places[1]}; "
        "bring its rounds along"
    )
