"""Builds the report's pages from the tables: one self-contained HTML file a section."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils.core import publish_parts  # type: ignore[import-untyped]

from ladder import attribution, tables
from ladder.aggregate import read_latencies
from ladder.errors import StepError
from ladder.files import read_json, write_text
from ladder.report import figures
from ladder.report.page import Block, Column, Figure, page, table
from ladder.report.read import read_table
from ladder.report.text import (
    NO_STEPS,
    Row,
    context,
    findable,
    from_to,
    gain,
    gain_ms,
    how_to_read,
    interactions,
    interval_title,
    number,
    processor,
    tables_of,
    weights_note,
    weights_notes,
)

AUDIT_TYPES = 20  # operator types a figure shows; the rest is in one bar
WARNINGS = 200  # rows shown; all stand in summary.json


def build(results: Path, captions: Path, destination: Path) -> list[Path]:
    """Write <section>.html for every section from the tables in ``results``; return the files.

    ``captions`` holds <section>.rst, which says how to read it. Raw latencies are read where results.csv says,
    relative to the working directory. Raises StepError where a table or caption is missing.
    """
    summary = _read(results / "summary.json")
    written = []
    for name, (title, blocks) in SECTIONS.items():
        caption = _html(captions / f"{name}.rst")
        path = destination / f"{name}.html"
        write_text(path, page(title, caption, context(summary), blocks(summary, results)))
        written.append(path)
    return written


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise StepError(f"{path} is missing; make the tables first") from None


def _html(path: Path) -> str:
    """A caption as HTML. Captions are reStructuredText, since Snakemake's own report takes no other."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StepError(f"{path} is missing; it says how to read the page of the same name") from None
    return publish_parts(text, writer="html5", settings_overrides={"report_level": 5})["body"]


def _ladder(summary: Row, results: Path) -> list[Block]:
    columns = (
        Column("step", "step"),
        Column("cause", "cause"),
        Column("ms", "from → to, ms", True),
        Column("gain_ms", "gain, ms", True),
        Column("gain", interval_title(summary), True),
        Column("floor", "noise floor, ms", True),
        Column("findable", "findable", True),
        Column("rounds", "rounds", True),
        Column("verdict", "verdict"),
    )
    blocks = []
    for (platform, model, batch), entries in tables_of(summary):
        steps = [step for entry in entries for step in entry["steps"]]
        rows = [
            {
                "step": f"{step['from']} → {step['to']}",
                "cause": step["cause"],
                "ms": from_to(step),
                "gain_ms": gain_ms(step),
                "gain": gain(step),
                "floor": number(step["noise_floor_ms"], 2),
                "findable": findable(step),
                "rounds": str(step["rounds"]),
                "verdict": step["verdict"],
            }
            for step in steps
        ]
        caption = f"Weights {weights_note(summary['weights'][model])}"
        heading = f"{model}, batch {batch}, {platform}"
        shown = [table(columns, rows, caption)] if rows else [NO_STEPS]
        blocks.append(Block(heading, tables=shown, notes=interactions(steps)))
    return [Block(text=[how_to_read(summary)]), *blocks]


def _waterfall(summary: Row, results: Path) -> list[Block]:
    blocks = []
    for (platform, model, batch), entries in tables_of(summary):
        drawn: dict[tuple[str, ...], Figure] = {}
        notes = [note for entry in entries for note in interactions(entry["steps"])]
        for path in (path for entry in entries for path in attribution.paths(entry["steps"])):
            for measured, part in groupby(path, key=lambda step: step["from_ms"] is not None):
                steps = list(part)
                names = (steps[0]["from"], *(step["to"] for step in steps))
                if measured:
                    title = f"{attribution.order(steps)}: {names[0]} to {names[-1]}"
                    drawn[names] = Figure(title, figures.waterfall(steps))
                else:
                    notes.append(f"{' → '.join(names)}: no round holds both sides of a step; see failures.")
        text = [f"Weights {weights_note(summary['weights'][model])}"]
        heading = f"{model}, batch {batch}, {platform}"
        blocks.append(Block(heading, text=text, figures=list(drawn.values()), notes=list(dict.fromkeys(notes))))
    return blocks


def _throughput(summary: Row, results: Path) -> list[Block]:
    columns = (
        Column("rung", "rung"),
        Column("batch", "batch", True),
        Column("median", "median, images/s", True),
        Column("range", "lowest to highest", True),
        Column("rounds", "rounds", True),
    )
    blocks = []
    for (platform, model, ladder), entry in _ladders(summary).items():
        rows, marks = (
            [row for row in summary[key] if (row["platform"], row["model"], row["ladder"]) == (platform, model, ladder)]
            for key in ("throughput", "saturation")
        )
        heading = f"{model}, {ladder}, {platform}"
        if not rows:
            blocks.append(Block(heading, text=["No throughput was measured."]))
            continue
        cells = [
            {
                "rung": row["rung"],
                "batch": str(row["batch"]),
                "median": number(row["median_ips"]),
                "range": f"{number(row['min_ips'])} to {number(row['max_ips'])}",
                "rounds": str(row["rounds"]),
            }
            for row in sorted(rows, key=lambda row: (entry["rungs"].index(row["rung"]), row["batch"]))
        ]
        caption = f"Weights {weights_note(summary['weights'][model])}"
        chart = Figure("Throughput against batch", figures.throughput(rows, marks, entry["rungs"]))
        marks = sorted(marks, key=lambda mark: entry["rungs"].index(mark["rung"]))
        saturation = table(
            (Column("rung", "rung"), Column("point", "saturation point"), Column("highest", "highest, images/s", True)),
            [
                {
                    "rung": mark["rung"],
                    "point": _saturation_point(mark),
                    "highest": number(mark["highest_ips"]),
                }
                for mark in marks
            ],
            caption,
        )
        blocks.append(Block(heading, figures=[chart], tables=[saturation, table(columns, cells, caption)]))
    return blocks


def _saturation_point(mark: Row) -> str:
    return f"batch {mark['batch']}" if mark["batch"] else f"not reached up to batch {mark['largest_batch']}"


def _ladders(summary: Row) -> dict[tuple[str, str, str], Row]:
    """One entry of each ladder and model, in the plan's order."""
    found: dict[tuple[str, str, str], Row] = {}
    for entry in summary["ladders"]:
        found.setdefault((entry["platform"], entry["model"], entry["ladder"]), entry)
    return found


def _latency(summary: Row, results: Path) -> list[Block]:
    by_place: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in read_table(results / "results.csv", tables.RESULTS):
        by_place[tuple(row[key] for key in ("platform", "model", "ladder", "batch"))].append(row)
    panels = sum(len({row["rung"] for row in rows}) for rows in by_place.values())
    limit = max(200, figures.LATENCY_POINTS // max(1, panels))
    blocks = []
    for entry in summary["ladders"]:
        rows = by_place[entry["platform"], entry["model"], entry["ladder"], str(entry["batch"])]
        text = [f"Weights {weights_note(entry['weights'])}", *([] if rows else ["Nothing was measured."])]
        heading = f"{entry['model']}, {entry['ladder']}, batch {entry['batch']}, {entry['platform']}"
        blocks.append(Block(heading, text=text, figures=_panels(entry["rungs"], rows, limit)))
    return blocks


def _panels(rungs: Sequence[str], rows: Sequence[dict[str, str]], limit: int) -> list[Figure]:
    """One figure for each rung of a ladder and batch that has rows of results.csv."""
    raw = {path: read_latencies(Path(path)) for path in {row["raw"] for row in rows}}
    panels = []
    for rung in rungs:
        runs = [
            (int(row["round"]), raw[row["raw"]][rung], float(row["median_ms"]))
            for row in sorted(rows, key=lambda row: int(row["round"]))
            if row["rung"] == rung
        ]
        if runs:
            spec, shown = figures.latency(runs, limit)
            panels.append(Figure(f"{rung}: {shown}", spec))
    return panels


def _audit(summary: Row, results: Path) -> list[Block]:
    rows = read_table(results / "audit.csv", tables.AUDIT)
    blocks = []
    for (platform, model), group in groupby(rows, key=lambda row: (row["platform"], row["model"])):
        engines = list(group)
        nodes = [node for node in summary["nodes"] if (node["platform"], node["model"]) == (platform, model)]
        timed = [node for node in nodes if node["time_ms"] is not None]
        charts = []
        if nodes:
            charts.append(Figure("Executed nodes", figures.nodes(nodes, "engine", "nodes", "nodes")))
        if timed:
            charts.append(Figure("Measured time", figures.nodes(timed, "engine", "time_ms", "time, ms a run")))
        labels = sorted({engine["weights"] for engine in engines})
        caption = "Weights " + ", ".join(weights_note(label or None) for label in labels)
        blocks.append(Block(f"{model}, {platform}", figures=charts, tables=_audit_tables(engines, caption)))
        types = [
            Figure(name, figures.nodes(_largest_types(list(held)), "type", "nodes", "nodes"))
            for name, held in groupby(nodes, key=lambda node: node["engine"])
        ]
        blocks.append(Block(f"{model}, {platform}: nodes by type", figures=types))
    return blocks or [Block(text=["No engine was audited."])]


def _largest_types(nodes: Sequence[Row]) -> list[Row]:
    """The rows of the most frequent types; the other types under one name."""
    counts: dict[str, int] = defaultdict(int)
    for node in nodes:
        counts[node["type"]] += node["nodes"]
    largest = sorted(counts, key=lambda name: -counts[name])[:AUDIT_TYPES]
    rest = f"{len(counts) - len(largest)} other types"
    return [node if node["type"] in largest else {**node, "type": rest} for node in nodes]


def _audit_tables(engines: Sequence[dict[str, str]], caption: str) -> list[Any]:
    precision = (
        Column("engine", "engine"),
        Column("requested_precision", "asked for"),
        Column("nodes", "nodes", True),
        Column("nodes_at_precision", "nodes in it", True),
        Column("share", "of computing nodes", True),
        Column("flops", "FLOPs in it", True),
        Column("time", "time in it", True),
        Column("nodes_unknown", "nodes unknown", True),
        Column("onnx", "ONNX nodes in it", True),
        Column("precisions", "executed precisions"),
    )
    verdict = (Column("engine", "engine"), Column("verdict", "verdict"), Column("reason", "reason"))
    parity = (
        Column("engine", "engine"),
        Column("parity_finite", "finite"),
        Column("parity_max_abs", "largest error", True),
        Column("parity_relative", "relative error", True),
        Column("parity_cosine", "cosine", True),
        Column("parity_boxes_relative", "boxes, relative", True),
        Column("parity_scores_relative", "scores, relative", True),
        Column("matched", "boxes matched", True),
    )
    rows = [
        engine
        | {
            "precisions": _counts(engine["precisions"]),
            "share": _pct(engine["nodes_at_precision_pct"]),
            "onnx": _share(engine, "onnx_nodes_at_precision", "onnx_nodes", "onnx_nodes_at_precision_pct"),
            "flops": _pct(engine["flops_at_precision_pct"]),
            "time": _pct(engine["time_at_precision_pct"]),
            "matched": _pct(engine["parity_matched_pct"]),
        }
        | {key: _short(engine[key]) for key in tables.AUDIT if key.startswith("parity_") and key != "parity_finite"}
        for engine in engines
    ]
    titled = {"Verdict": verdict, "Precision": precision, "Parity": parity}
    return [table(columns, rows, f"{title}. {caption}") for title, columns in titled.items()]


def _share(engine: dict[str, str], part: str, whole: str, pct: str) -> str:
    """E.g. ``395 of 419 (94.27 %)``; empty where the count is not known."""
    return f"{engine[part]} of {engine[whole]} ({float(engine[pct]):.2f} %)" if engine[part] and engine[pct] else ""


def _counts(text: str) -> str:
    """Counts by name, e.g. ``fp32 100, int8 118``."""
    return ", ".join(f"{name} {count}" for name, count in json.loads(text).items()) if text else ""


def _pct(text: str) -> str:
    return f"{float(text):.1f} %" if text else ""


def _short(text: str) -> str:
    return f"{float(text):.6g}" if text else ""


def _environment(summary: Row, results: Path) -> list[Block]:
    columns = (Column("name", "name"), Column("value", "value"))
    blocks = []
    for platform, versions in summary["versions"].items():
        rows = [{"name": name, "value": _value(value)} for name, value in versions.items()]
        caption = weights_notes(summary, platform)
        blocks.append(Block(f"Versions on {platform}", tables=[table(columns, rows, caption)]))
    for host in summary["hosts"]:
        rows = [{"name": "device", "value": host["device_uuid"] or ""}]
        rows += [{"name": name, "value": _value(value)} for name, value in host["state"].items()]
        caption = f"{processor(host)}, over {host['rounds']} rounds. {weights_notes(summary, host['platform'])}"
        blocks.append(Block(f"Host {host['host']} ({host['platform']})", tables=[table(columns, rows, caption)]))
    for (platform, model, ladder), group in groupby(
        summary["rungs"], key=lambda row: (row["platform"], row["model"], row["ladder"])
    ):
        rungs = list(group)
        facts = list(dict.fromkeys(key for rung in rungs for part in ("identity", "facts") for key in rung[part]))
        rows = [
            {rung["rung"]: _value((rung["identity"] | rung["facts"]).get(name)) for rung in rungs} | {"name": name}
            for name in facts
        ]
        named = (Column("name", "read back from the runtime"), *(Column(rung["rung"], rung["rung"]) for rung in rungs))
        caption = f"Weights {weights_note(summary['weights'][model])}"
        blocks.append(Block(f"Rungs of {model}, {ladder}, {platform}", tables=[table(named, rows, caption)]))
    return blocks or [Block(text=["Nothing was measured."])]


def _value(value: Any) -> str:
    """A reading as text: empty where it could not be read, a range or all values where it changed between rounds."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and set(value) == {"min", "max"}:
        return f"{value['min']} to {value['max']}"
    if isinstance(value, list):
        return ", ".join(_value(item) or "unreadable" for item in value)
    return str(value)


def _failures(summary: Row, results: Path) -> list[Block]:
    rows = read_table(results / "failures.csv", tables.FAILURES)
    columns = tuple(Column(name, name) for name in tables.FAILURES)
    failed = Block("Failures", text=["Every planned run has a result."])
    if rows:
        failed = Block("Failures", tables=[table(columns, rows, weights_notes(summary))])
    held = summary["warnings"]
    warned = Block("Warnings", text=["None."])
    if held:
        named = (Column("warning", "warning"), Column("scope", "concerns"))
        shown = f"{min(len(held), WARNINGS)} of {len(held)} warnings; all of them are in summary.json"
        caption = f"{shown}. {weights_notes(summary)}"
        warned = Block("Warnings", tables=[table(named, held[:WARNINGS], caption)])
    return [failed, warned]


SECTIONS: dict[str, tuple[str, Callable[[Row, Path], list[Block]]]] = {
    "ladder": ("Ladder: one cause a step", _ladder),
    "waterfall": ("Waterfall of causes", _waterfall),
    "throughput": ("Throughput against batch", _throughput),
    "latency": ("Latency in arrival order", _latency),
    "audit": ("Precision audit", _audit),
    "environment": ("Environment", _environment),
    "failures": ("Failures and warnings", _failures),
}
