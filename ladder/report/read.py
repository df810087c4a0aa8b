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
