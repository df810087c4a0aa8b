"""What the guide "Beyond peak TOPS" asks of a benchmark: a JSON report for comparing runs, and a saturation plot."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ladder import out_of_memory
from ladder.attribution import flagged
from ladder.preflight import BUSY_LIMIT
from ladder.records import LADDER_KEY, ladder_fields, ladder_key
from ladder.report import figures
from ladder.report.page import Block, Figure, page
from ladder.report.text import context, saturation_point, weights_note

SCHEMA_VERSION = 1  # of report.json; goes up when a key changes its meaning or goes away
MIN_TRIALS = 5  # the guide's
POWER = ("power_w", "idle_power_w", "energy_window_s", "energy_j_per_image", "ips_per_w")
OF_A_RUNG = ("rung", "batch")
# how ladder.audit, ladder.stacks.checks and ladder.stacks.onnxruntime tell that work would be done elsewhere
FELL_BACK = re.compile(r"nodes (do|would) not run on|nodes would run on the CPU|made a session on")

Row = Mapping[str, Any]


def report(summary: Row, results: Sequence[Mapping[str, str]], failures: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """report.json from summary.json and the rows of results.csv and failures.csv, as text.

    ``rungs`` has an entry a rung and batch: ``latency_ms`` (p50, p90, p99), ``throughput_ips`` over ``trials`` rounds,
    ``power`` (medians over them, each from the steady window of a throughput pass), ``achieved_tops`` and its share of
    the peak, and what ran in the requested precision. What was not measured is null.
    """
    ran: dict[tuple[Any, ...], list[Mapping[str, str]]] = defaultdict(list)
    for row in results:
        ran[(*ladder_key(row, "rung"), int(row["batch"]))].append(row)
    throughput, used = (_by_rung(summary[key]) for key in ("throughput", "utilisation"))
    audits = {
        (*ladder_key(entry), rung["name"], entry["batch"]): rung
        for entry in summary["ladders"]
        for rung in entry["rungs"]
    }
    return {
        "schema": SCHEMA_VERSION,
        **{key: summary[key] for key in ("measured", "weights", "versions", "hosts")},
        "rungs": [
            {
                **ladder_fields(row, *OF_A_RUNG),
                "trials": row["rounds"],
                "iterations": row["iterations"],
                "latency_ms": {of: row[f"{of}_ms"] for of in ("p50", "p90", "p99")},
                "throughput_ips": {of: throughput[place][f"{of}_ips"] for of in ("median", "min", "max")},
                "power": {column: _median(run[column] for run in ran[place]) for column in POWER},
                "achieved_tops": used[place]["achieved_tflops"],
                "peak_pct": used[place]["peak_compute_pct"],
                **{key: used[place][key] for key in ("peak_source", "bound")},
                **{key: audits[place][key] for key in ("requested_precision", "flops_at_precision_pct")},
            }
            for row in summary["latency"]
            for place in [ladder_key(row, *OF_A_RUNG)]
        ],
        "saturation": summary["saturation"],
        "comparisons": [
            {**ladder_fields(entry, "batch"), **step} for entry in summary["ladders"] for step in entry["steps"]
        ],
        "pitfalls": pitfalls(summary, results, failures),
    }


def pitfalls(
    summary: Row, results: Sequence[Mapping[str, str]], failures: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """The guide's pitfalls: whether each was ``found`` (null where nothing was there that could tell) and ``where``.

    Those that cannot happen here are not checked: garbage is not collected while timing, and a comparison of
    different runtimes and precisions at once is an error of the configuration.
    """
    audits = {
        f"{entry['platform']}, {entry['model']}, {rung['engine']}": rung
        for entry in summary["ladders"]
        for rung in entry["rungs"]
        if rung["verdict"]
    }
    on_gpu = [row for row in results if row["device"] != "cpu"]
    unsteady = [f"{_named(run)}: {run['why'][0]}" for run in summary["unsteady_runs"]]
    found = [
        ("warm-up skipped", results, [_named(row) for row in results if row["warmup"] == "0"]),
        ("warm-up too short, or latencies that drift", results, unsteady),
        ("noisy host", *_runs(results, "load_before", lambda load: float(load) > BUSY_LIMIT)),
        ("throttling while latencies were timed", *_runs(results, "throttled", flagged)),
        ("throttling while throughput was timed", *_runs(results, "throughput_throttled", flagged)),
        ("device shared with other processes", *_runs(results, "contended", flagged)),
        ("no steady window to tell the power", on_gpu, [_named(row) for row in on_gpu if not row["power_w"]]),
        (
            f"fewer than {MIN_TRIALS} trials",
            results,
            [f"{_place(row)}: {row['rounds']}" for row in summary["latency"] if row["rounds"] < MIN_TRIALS],
        ),
        (
            "another precision than the one requested",
            audits,
            [f"{name}: {rung['reason']}" for name, rung in audits.items() if rung["verdict"] == "warn"],
        ),
        (
            "accelerator unused: work fell back to another device",
            audits or failures,
            [f"{_place(row)}: {row['reason']}" for row in failures if FELL_BACK.search(row["reason"])],
        ),
        (
            "out of memory",
            [*results, *failures],
            [f"{_place(row)}: {row['reason']}" for row in failures if out_of_memory.is_told_by(row["reason"])],
        ),
    ]
    return [
        {"pitfall": name, "found": bool(where) if told else None, "where": list(dict.fromkeys(where))}
        for name, told, where in found
    ]


def saturation(summary: Row) -> str:
    """saturation.html: throughput against batch for every model and ladder, saturation points ringed."""
    blocks = []
    for place in dict.fromkeys(map(ladder_key, summary["throughput"])):
        rows, marks = (
            [row for row in summary[key] if ladder_key(row) == place] for key in ("throughput", "saturation")
        )
        entry = next(entry for entry in summary["ladders"] if ladder_key(entry) == place)
        spec = figures.throughput(rows, marks, [rung["name"] for rung in entry["rungs"]])
        blocks.append(
            Block(
                f"{entry['model']} (ladder {entry['ladder']}, platform {entry['platform']})",
                text=[f"Weights {weights_note(entry['weights'])}"],
                figures=[Figure("Throughput against batch", spec)],
                notes=[f"{mark['rung']}: saturation point {saturation_point(mark)}" for mark in marks],
            )
        )
    caption = "Ringed: the smallest batch that reaches 95 % of the highest throughput, where a larger one was measured."
    return page("Saturation", caption, context(summary), blocks or [Block(text=["Nothing was measured."])])


def _by_rung(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    return {ladder_key(row, *OF_A_RUNG): row for row in rows}


def _median(cells: Iterable[str]) -> float | None:
    told = [float(cell) for cell in cells if cell]
    return median(told) if told else None


def _runs(results: Sequence[Mapping[str, str]], column: str, fault: Any) -> tuple[list[Any], list[str]]:
    """The runs that tell a column, and those of them in which it is a fault, by name and value."""
    told = [row for row in results if row[column]]
    return told, [f"{_named(row)}: {row[column]}" for row in told if fault(row[column])]


def _place(row: Row) -> str:
    where = [str(row[key]) for key in (*LADDER_KEY, "rung") if row[key]]
    return ", ".join([*where, *([f"batch {row['batch']}"] if row["batch"] else [])])


def _named(row: Row) -> str:
    return f"{_place(row)}, round {row['round']}"
