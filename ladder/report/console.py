"""The ladder in a terminal, as wide as the terminal is."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from ladder.report.text import (
    NO_STEPS,
    Row,
    context,
    fastest,
    from_to,
    gain,
    interval_title,
    notes,
    number,
    percent,
    place,
    rounds,
    shown,
    weights_note,
)

STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "within noise": "dim",
    "too few rounds": "yellow",
    "no result": "yellow",
}

# title of a column, how it is aligned, and its cell for a step
COLUMNS: dict[str, tuple[JustifyMethod, Callable[[Row], str]]] = {
    "step": ("left", lambda step: f"{step['from']} → {step['to']}"),
    "cause": ("left", lambda step: step["cause"]),
    "from → to, ms": ("right", from_to),
    "gain": ("right", gain),
    "noise floor, ms": ("right", lambda step: number(step["noise_floor_ms"], 2)),
    "smallest findable": ("right", lambda step: percent(step["mde_pct"])),
    "ran in": ("left", lambda step: step["ran_in"]),
    "verdict": ("left", lambda step: step["verdict"]),
}
DROPPED = ("noise floor, ms",)  # where there is no room for all; the others say what a gain is worth and what ran
INDENT = "    "
ROOM_FOR_FINDABLE = 100  # columns; two lines a step have it from here


def ladder_text(summary: Row, failures: Sequence[Row], report: str, width: int, colour: bool) -> str:
    """The ladder tables, what has to be said with them, the failures and the report's path.

    ``failures`` are the rows of failures.csv, ``width`` is in columns. Without ``colour`` the text is plain.
    """
    output = io.StringIO()
    console = Console(
        file=output, width=width, force_terminal=colour, no_color=None if colour else True, highlight=False, emoji=False
    )
    for entry in summary["ladders"]:
        console.print(Text(place(entry), "bold"))
        told = [f"weights {weights_note(entry['weights'])}", *([rounds(entry["steps"])] if entry["steps"] else [])]
        console.print(Text("; ".join(told)))
        if entry["steps"]:
            _steps(console, shown(entry), interval_title(summary))
        else:
            console.print(Text(NO_STEPS))
        for line in [*fastest(entry), *notes(entry)]:
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


def _steps(console: Console, steps: Sequence[Row], gain_title: str) -> None:
    """A row a step with as many columns as there is room for, or two lines a step: a row is never broken."""
    for count in range(len(DROPPED) + 1):
        columns = [name for name in COLUMNS if name not in DROPPED[:count]]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for name in columns:
            title = gain_title if name == "gain" else name
            table.add_column(title, justify=COLUMNS[name][0], no_wrap=True)
        for step in steps:
            table.add_row(*(_cell(name, step) for name in columns))
        if console.measure(table, options=console.options.update(width=1000)).maximum <= console.width:
            return console.print(table)
    figures = [[f"{text} ms" if (text := from_to(step)) else "", gain(step)] for step in steps]
    if console.width >= ROOM_FOR_FINDABLE:
        for line, step in zip(figures, steps, strict=True):
            line.append(f"smallest findable {text}" if (text := percent(step["mde_pct"])) else "")
    widths = [max(map(len, column)) for column in zip(*figures, strict=True)]
    for step, texts in zip(steps, figures, strict=True):
        what = "; ".join(filter(None, (step["cause"], step["ran_in"])))
        console.print(Text(f"{step['from']} → {step['to']} ({what})"))
        aligned = "   ".join(text.rjust(width) for text, width in zip(texts, widths, strict=True))
        console.print(Text(f"{INDENT}{aligned}   ").append(step["verdict"], STYLES[step["verdict"]]))


def _cell(name: str, step: Row) -> Text:
    return Text(COLUMNS[name][1](step), STYLES[step["verdict"]] if name == "verdict" else "")


def _what_failed(row: Row) -> str:
    """The rung, batch or run of a failures row in words; the platform where it is not about a model."""
    parts = [row["model"], row["ladder"], row["rung"]]
    parts += [f"batch {row['batch']}"] if row["batch"] else []
    parts += [f"round {row['round']}"] if row["round"] not in (None, "") else []
    return " ".join(part for part in parts if part) or f"platform {row['platform']}"
