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


def _number(key: str) -> Callable[[Row], str]:
    return lambda row: number(row[key])


def _bandwidth(row: Row) -> str:
    least, unfused = percent(row["peak_bandwidth_pct"]), percent(row["unfused_bandwidth_pct"])
    return f"{least} to {unfused}" if least and unfused else least


COUNTED_FOR = {"process": "the process", "device": "the whole GPU"}  # by device_mem_source

THROUGHPUT: Cells = {
    Column("median", "median, images/s", True): _number("median_ips"),
    Column("range", "lowest to highest, images/s", True): lambda row: (
        f"{number(row['min_ips'])} to {number(row['max_ips'])}"
    ),
    Column("rounds", "rounds", True): lambda row: str(row["rounds"]),
}
UTILISATION: Cells = {
    Column("tflops", "achieved, TFLOPS", True): _number("achieved_tflops"),
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
PERCENTILES: Cells = {
    **{Column(name, f"{name}, ms", True): _number(f"{name}_ms") for name in ("p50", "p90", "p95", "p99")},
    Column("iterations", "iterations", True): lambda row: f"{row['iterations']:,}",
    Column("rounds", "rounds", True): lambda row: str(row["rounds"]),
}
MEMORY: Cells = {
    Column("process", "process, MB", True): _over("process_mem_mb"),
    Column("device", "GPU, MB", True): _over("device_mem_mb"),
    Column("source", "GPU's, counted for"): lambda row: " or ".join(
        words for source, words in COUNTED_FOR.items() if any(run["device_mem_source"] == source for run in row["runs"])
    ),
    Column("allocator", "runtime's allocator, MB", True): _over("allocator_mem_mb"),
    Column("weights", "weights, MB", True): _over("weights_mb"),
    Column("activations", "activations, MB", True): _over("activations_mb"),
    Column("context", "context, MB", True): _over("context_mb"),
}
ENERGY: Cells = {
    Column("power", "power, W", True): _over("power_w"),
    Column("energy", "energy, J per image", True): _over("energy_j_per_image"),
    Column("efficiency", "images/s per W", True): _over("ips_per_w"),
    Column("window", "over, s", True): _over("energy_window_s"),
    Column("idle", "idle power, W", True): _over("idle_power_w"),
}
