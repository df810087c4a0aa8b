"""Tables of one row a rung and batch: what was read of it, a column a quantity, over its rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ladder.report.page import Column, held, table
from ladder.report.text import Row, number, percent

Cells = Mapping[Column, Callable[[Row], str]]  # what a row says in each column; "" where it does not tell


def by_rung(rows: Sequence[Row], names: Mapping[str, str], caption: str, cells: Cells) -> list[Any]:
    """The table; without columns in which no row says anything, and none where nothing is left to say.

    Each row is of one ``rung`` and ``batch``; ``names`` are the rungs as they are shown, in their order.
    """
    order = list(names)
    told = [
        {"rung": names[row["rung"]], "batch": str(row["batch"])}
        | {column.key: tell(row) for column, tell in cells.items()}
        for row in sorted(rows, key=lambda row: (order.index(row["rung"]), row["batch"]))
    ]
    columns = held(tuple(cells), told)
    return [table((Column("rung", "rung"), Column("batch", "batch", True), *columns), told, caption)] if columns else []


def runs_by_rung(rows: Sequence[Mapping[str, str]]) -> list[Row]:
    """Rows of results.csv gathered for ``by_rung``: each with the ``runs`` of its rung and batch."""
    found: dict[tuple[str, int], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        found[row["rung"], int(row["batch"])].append(row)
    return [{"rung": rung, "batch": batch, "runs": runs} for (rung, batch), runs in found.items()]


def _over(*columns: str, told: Callable[[float], str] = number) -> Callable[[Row], str]:
    """What these columns of results.csv say over the runs, e.g. ``38 to 42``; one figure where all agree."""

    def tell(row: Row) -> str:
        known = [float(run[column]) for run in row["runs"] for column in columns if run[column]]
        return " to ".join(dict.fromkeys((told(min(known)), told(max(known))))) if known else ""

    return tell


def _bandwidth(row: Row) -> str:
    least, unfused = percent(row["peak_bandwidth_pct"]), percent(row["unfused_bandwidth_pct"])
    return f"{least} to {unfused}" if least and unfused else least


THROUGHPUT: Cells = {
    Column("median", "median, images/s", True): lambda row: number(row["median_ips"]),
    Column("range", "lowest to highest, images/s", True): lambda row: (
        f"{number(row['min_ips'])} to {number(row['max_ips'])}"
    ),
    Column("rounds", "rounds", True): lambda row: str(row["rounds"]),
}
UTILISATION: Cells = {
    Column("tflops", "achieved, TFLOPS", True): lambda row: number(row["achieved_tflops"]),
    Column("compute", "of the compute peak", True): lambda row: percent(row["peak_compute_pct"]),
    Column("bandwidth", "of the bandwidth peak", True): _bandwidth,
    Column("host", "host share", True): lambda row: percent(row["host_share_pct"]),
    Column("bound", "bound by"): lambda row: row["bound"] or "",
}
CLOCKS: Cells = {
    Column("temperature", "temperature, °C", True): _over(
        "temperature_start_c", "temperature_end_c", told="{:g}".format
    ),
    Column("sm_clock", "processors' clock, MHz", True): _over(
        "sm_clock_start_mhz", "sm_clock_end_mhz", told="{:g}".format
    ),
    Column("memory_clock", "memory's clock, MHz", True): _over(
        "memory_clock_start_mhz", "memory_clock_end_mhz", told="{:g}".format
    ),
}
