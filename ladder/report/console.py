"""The ladder in a terminal, as wide as the terminal is."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ladder.report.text import (
    NO_STEPS,
    Row,
    context,
    findable,
    from_to,
    gain,
    interactions,
    interval_title,
    number,
    tables_of,
    weights_note,
)

NARROW = 80  # columns; below this a step takes two lines instead of a table's row
STYLES = {"faster": "bold green", "slower": "bold red", "within noise": "dim", "too few rounds": "yellow"}


def ladder_text(summary: Row, failures: Sequence[Row], report: str, width: int, colour: bool) -> str:
    """The ladder tables, what has to be said with them, the failures and the report's path.

    ``failures`` are the rows of failures.csv, ``width`` is in columns. Without ``colour`` the text is plain.
    """
    output = io.StringIO()
    console = Console(
        file=output, width=width, force_terminal=colour, no_color=None if colour else True, highlight=False, emoji=False
    )
    for (platform, model, batch), entries in tables_of(summary):
        steps = [step for entry in entries for step in entry["steps"]]
        weights = f"  weights {weights_note(summary['weights'][model])}"
        console.print(Text.assemble((f"{model}, batch {batch}, {platform}", "bold"), weights))
        if not steps:
            console.print(Text(NO_STEPS))
        elif width < NARROW:
            _lines(console, steps)
        else:
            console.print(_table(steps, width, interval_title(summary)))
        for line in interactions(steps):
            console.print(Text(line))
        console.print()
    for line in context(summary):
        console.print(Text(line))
    if failures:
        console.print(Text(f"\nNo result ({len(failures)}):", "bold red"))
        for row in failures:
            console.print(Text(f"- {_what_failed(row)}: {row['stage']}: {row['reason']}"))
            if row["log"]:
                console.print(Text(f"  log: {row['log']}"))
    console.print(Text(f"\nReport: {report}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def _table(steps: Sequence[Row], width: int, gain_title: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("step", overflow="fold")
    if width >= 88:
        table.add_column("cause", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column(gain_title, justify="right", no_wrap=width >= 100)
    if width >= 120:
        table.add_column("noise floor, ms", justify="right", no_wrap=True)
        table.add_column("findable", justify="right", no_wrap=True)
        table.add_column("rounds", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for step in steps:
        cells: list[str | Text] = [f"{step['from']} → {step['to']}"]
        cells += [step["cause"]] * (width >= 88)
        cells += [from_to(step), gain(step)]
        if width >= 120:
            cells += [number(step["noise_floor_ms"], 2), findable(step), str(step["rounds"])]
        table.add_row(*cells, Text(step["verdict"], STYLES[step["verdict"]]))
    return table


def _lines(console: Console, steps: Sequence[Row]) -> None:
    for step in steps:
        console.print(Text(f"{step['from']} → {step['to']} ({step['cause']})"))
        figures = [text for text in (from_to(step) and f"{from_to(step)} ms", gain(step)) if text]
        console.print(Text("  " + "  ".join(figures) + "  ").append(step["verdict"], STYLES[step["verdict"]]))


def _what_failed(row: Row) -> str:
    """The rung, batch or run of a failures row in words."""
    parts = [row["model"], row["ladder"], row["rung"]]
    parts += [f"batch {row['batch']}"] if row["batch"] else []
    parts += [f"round {row['round']}"] if row["round"] not in (None, "") else []
    return " ".join(part for part in parts if part)
