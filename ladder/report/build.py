"""Builds the report's pages from the tables: one self-contained HTML file a section."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from docutils.core import publish_parts  # type: ignore[import-untyped]

from ladder import attribution, tables
from ladder.errors import StepError
from ladder.files import read_json, write_text
from ladder.records import read_latencies
from ladder.report import figures
from ladder.report.by_rung import (
    CLOCKS,
    ENERGY,
    MEMORY,
    PERCENTILES,
    THROUGHPUT,
    UTILISATION,
    by_rung,
    runs_by_rung,
)
from ladder.report.energy import energy_note
from ladder.report.page import Block, Column, Figure, held, page, start, table
from ladder.report.read import raw_file, read_table
from ladder.report.text import (
    DISTURBED,
    NO_STEPS,
    NOISE_FLOOR,
    WARNED,
    Row,
    among,
    audit_notes,
    context,
    exclusions,
    fastest,
    from_to,
    gain,
    gain_ms,
    how_to_read,
    interval_title,
    marked,
    notes,
    number,
    peaks_note,
    percent,
    place,
    processor,
    rankings,
    rounds,
    saturation_point,
    shown,
    shown_totals,
    slowdown,
    weights_note,
    weights_notes,
)

AUDIT_TYPES = 20  # operator types a figure shows; the rest is in one bar
WARNINGS = 200  # rows shown; all stand in summary.json
UNSTEADY, BUSY = "unsteady", "beside busy programs"
UNKNOWN = {flag: f"not known whether {flag}" for flag in tables.FLAGS}
Disturbances = Mapping[tuple[str, str, str, int, str], Counter[str]]  # place, batch and rung
NONE_MEANS = {  # where nothing is an answer, and not that it could not be read
    "static_batch": "none: its batch is dynamic",
    "cpu_quota": "none found",
    "iterations": "as many as the other settings ask for",
}


def build(results: Path, captions: Path, destination: Path) -> list[Path]:
    """Write <section>.html for every section from the tables in ``results``, and start.html; return the files.

    ``captions`` holds <section>.rst, which says how to read it. Raw latencies are looked for in ``results``, wherever
    that was copied to (``ladder.report.read.raw_file``). start.html is what Snakemake's report shows first: the ladder,
    and links to the pages in it. Raises StepError where a table, caption or raw file is missing, or that file holds
    other latencies than the table is of.
    """
    summary = _read(results / "summary.json")
    written = []
    for name, (title, blocks) in SECTIONS.items():
        caption = caption_html(captions / f"{name}.rst")
        path = destination / f"{name}.html"
        write_text(path, page(title, caption, context(summary), blocks(summary, results)))
        written.append(path)
    links = {title: _link(path) for path, (title, _) in zip(written, SECTIONS.values(), strict=True)}
    first = destination / "start.html"
    write_text(first, start("What each step gained", context(summary), links, _ladder_tables(summary)))
    return [*written, first]


def _link(path: Path) -> str:
    """Opens a page inside Snakemake's report, with the list of pages beside it. Source: its components/app.js."""
    script = f"""(page => {{
        const category = Object.keys(categories).find(c => Object.values(categories[c]).flat().includes(page));
        const subcategory = Object.keys(categories[category])[0];
        const shown = {{content: 'html', contentPath: results[page].data_uri, resultPath: page}};
        app.setView({{navbarMode: 'subcategory', category, subcategory, ...shown}});
    }})({json.dumps(str(path))})"""
    return "javascript:" + " ".join(script.split())


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise StepError(f"{path} is missing; make the tables first") from None


def caption_html(path: Path) -> str:
    """A caption as HTML. Captions are reStructuredText, since Snakemake's own report takes no other."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StepError(f"{path} is missing; it says how to read the page of the same name") from None
    return publish_parts(text, writer="html5", settings_overrides={"report_level": 5})["body"]


def _ladder(summary: Row, results: Path) -> list[Block]:
    runs = read_table(results / "results.csv", tables.RESULTS)
    text = [*how_to_read(summary), DISTURBED, NOISE_FLOOR]
    return [*_ladder_tables(summary, _disturbances(summary, runs)), Block("How to read it", text=text)]


def _disturbances(summary: Row, runs: Sequence[dict[str, str]]) -> Disturbances:
    """How many runs of each rung and batch there are, and how many of them something disturbed, by what it was."""
    found: Disturbances = defaultdict(Counter)
    for kind, rows in ((UNSTEADY, summary["unsteady_runs"]), (BUSY, summary["busy_runs"])):
        for row in rows:
            found[*_place(row), row["batch"], row["rung"]][kind] += 1
    for run in runs:
        counts = found[*_place(run), int(run["batch"]), run["rung"]]
        counts["runs"] += 1
        for flag in tables.FLAGS:
            if run[flag] not in ("", tables.CLEAR):
                counts[flag] += 1
            elif not run[flag] and run["device"] != "cpu":
                counts[UNKNOWN[flag]] += 1
    return found


def _disturbed(entry: Row, step: Row, found: Disturbances) -> str:
    """What disturbed the runs of both rungs of a step, e.g. ``of 16 runs 2 throttled, 1 unsteady``."""
    both = sum((found[*_place(entry), entry["batch"], step[end]] for end in ("from", "to")), Counter())
    if not (runs := both.pop("runs", 0)):
        return ""
    told = [f"{both[kind]} {kind}" for kind in (*tables.FLAGS, UNSTEADY, BUSY, *UNKNOWN.values()) if both[kind]]
    return f"of {runs} runs {', '.join(told)}" if told else "nothing seen"


def _ladder_tables(summary: Row, disturbances: Disturbances | None = None) -> list[Block]:
    """A table a ladder and batch; without ``disturbances`` a brief one, that lacks what is only needed to doubt it."""
    brief = disturbances is None
    columns = (
        Column("step", "step"),
        Column("cause", "cause"),
        Column("verdict", "verdict"),
        Column("ms", "from → to, ms", True),
        *(() if brief else (Column("gain_ms", "gain (noise floor), ms", True),)),
        Column("gain", interval_title(summary), True),
        *(() if brief else (Column("findable", "smallest findable", True),)),
        Column("ran_in", "ran in"),
        *(() if brief else (Column("disturbed", "disturbed"),)),
    )
    blocks = []
    images = {(*_place(row), row["batch"], row["rung"]): row["median_ips"] for row in summary["throughput"]}
    for entry in summary["ladders"]:
        steps = shown(entry)
        rows = [
            {
                "step": f"{step['from']} → {step['to']}",
                "cause": step["cause"],
                "ms": from_to(step),
                "gain_ms": " ".join(filter(None, (gain_ms(step), floor and f"({floor})"))),
                "gain": gain(step),
                "findable": percent(step["mde_pct"]),
                "ran_in": step["ran_in"],
                "disturbed": "" if disturbances is None else _disturbed(entry, measured, disturbances),
                "verdict": step["verdict"],
            }
            for step, measured in zip(steps, entry["steps"], strict=True)
            for floor in (number(step["noise_floor_ms"], 2),)
        ]
        caption = f"Weights {weights_note(entry['weights'])}; {rounds(steps)}"
        told = [table(columns, rows, caption)] if rows else [NO_STEPS]
        told += _ranking_tables(summary, entry, images)
        blocks.append(Block(place(entry), text=fastest(entry), tables=told, notes=notes(entry)))
    return blocks


def _ranking_tables(summary: Row, entry: Row, images: Mapping[tuple[Any, ...], float]) -> list[Any]:
    """The ranking of all rungs of a ladder and batch; of each precision its line is enough. ``images``: images/s."""
    columns = (
        Column("rung", "rung"),
        Column("verdict", "verdict"),
        Column("ms", "latency, ms", True),
        Column("slowdown", f"over the fastest's ({summary['method']['confidence_pct']:g} % interval)", True),
        Column("images", "images/s", True),
        Column("ran_in", "ran in"),
    )
    whole = [ranked for ranked in rankings(entry) if ranked[0]["precision"] is None]
    found = []
    for ranked in whole:
        rows = [
            {
                "rung": row["rung"],
                "verdict": row["verdict"],
                "ms": number(row["median_ms"]),
                "slowdown": slowdown(row),
                "images": number(images.get((*_place(entry), entry["batch"], row["name"]))),
                "ran_in": row["ran_in"],
            }
            for row in ranked
        ]
        caption = f"Ranking{among(ranked[0], len(whole) > 1)}, fastest first. "
        caption += f"Weights {weights_note(entry['weights'])}; {rounds(ranked[:1])} that all of them have"
        found.append(table(held(columns, rows), rows, caption))
    return found


def _waterfall(summary: Row, results: Path) -> list[Block]:
    blocks = []
    for entry in summary["ladders"]:
        drawn: dict[tuple[str, ...], list[Row]] = {}
        said = notes(entry)
        totals = shown_totals(entry)
        for path in attribution.paths(shown(entry)):
            for measured, part in groupby(path, key=lambda step: step["from_ms"] is not None):
                steps = list(part)
                names = (steps[0]["from"], *(step["to"] for step in steps))
                if measured:
                    drawn[names] = steps
                else:
                    said.append(f"{' → '.join(names)}: no round holds both sides of a step; see failures.")
        all_steps = [step for steps in drawn.values() for step in steps]
        reach_ms = figures.waterfall_reach_ms(all_steps) if all_steps else 0.0
        alike = Counter((names[0], names[-1]) for names in drawn)
        panels = [
            Figure(
                f"{names[0]} to {names[-1]}"
                + (f": {attribution.order(steps)}" if alike[names[0], names[-1]] > 1 else ""),
                figures.waterfall(steps, reach_ms, totals.get((names[0], names[-1]))),
                _sum(steps),
            )
            for names, steps in drawn.items()
        ]
        told = f"Weights {weights_note(entry['weights'])}; {rounds(entry['steps'])}"
        text = [f"{told}; intervals are {summary['method']['confidence_pct']:g} % ones."]
        blocks.append(Block(place(entry), text=text, figures=panels, notes=list(dict.fromkeys(said))))
    return blocks


def _sum(steps: Sequence[Row]) -> str:
    """A path in words, e.g. ``82.6 → 34.6 ms; gains: launch +33.1 ms, then precision +14.9 ms (within noise)``."""
    doubts = ["" if step["verdict"] in figures.SHOWN else f" ({step['verdict']})" for step in steps]
    parts = [f"{step['cause']} {gain_ms(step)} ms{doubt}" for step, doubt in zip(steps, doubts, strict=True)]
    return f"{number(steps[0]['from_ms'])} → {number(steps[-1]['to_ms'])} ms; gains: {', then '.join(parts)}"


def _throughput(summary: Row, results: Path) -> list[Block]:
    saturation = (
        Column("rung", "rung"),
        Column("point", "saturation point"),
        Column("highest", "highest, images/s", True),
    )
    runs = read_table(results / "results.csv", tables.RESULTS)
    blocks = []
    for place_, entries in _ladders(summary).items():
        platform, model, ladder = place_
        names = _names(entries)
        read = runs_by_rung([row for row in runs if _place(row) == place_])
        measured, marks, used = (
            [row for row in summary[key] if _place(row) == place_]
            for key in ("throughput", "saturation", "utilisation")
        )
        heading = f"{model} (ladder {ladder}, platform {platform})"
        if not measured:
            blocks.append(Block(heading, text=["No throughput was measured."]))
            continue
        points = [mark | {"rung": names[mark["rung"]]} for mark in sorted(marks, key=_in_order(names))]
        drawn = [row | {"rung": names[row["rung"]]} for row in sorted(measured, key=_in_order(names))]
        ends = [
            {"rung": mark["rung"], "point": saturation_point(mark), "highest": number(mark["highest_ips"])}
            for mark in points
        ]
        weights = f"Weights {weights_note(entries[0]['weights'])}"
        chart = Figure("Throughput against batch", figures.throughput(drawn, points, list(names.values())))
        told = [
            table(saturation, ends, f"Saturation. {weights}"),
            *by_rung(measured, names, f"Throughput. {weights}", THROUGHPUT),
            *by_rung(used, names, f"Utilisation. {weights}", UTILISATION),
            *by_rung(read, names, f"Peak memory, lowest to highest over rounds. {weights}", MEMORY),
            *by_rung(read, names, f"Power and energy, lowest to highest over rounds. {weights}", ENERGY),
        ]
        said = list(dict.fromkeys(note for entry in entries for note in audit_notes(entry)))
        said += [line for each in summary["peaks"] if each["platform"] == platform and (line := peaks_note(each))]
        blocks.append(Block(heading, figures=[chart], tables=told, notes=said))
    if doubts := [warning for warning in summary["warnings"] if warning["kind"] == "throughput"]:
        told = [f"{WARNED} {warning['warning']} ({warning['scope']})" for warning in doubts]
        blocks.append(Block("What to know before trusting images/s", text=told))
    if said := _energy_notes(summary, runs):
        blocks.append(Block("Why energy is missing", text=said))
    return blocks


def _energy_notes(summary: Row, runs: Sequence[dict[str, str]]) -> list[str]:
    asked_s = (summary["protocol"] or {"measure": {}})["measure"].get("throughput_seconds")
    found = []
    for platform in dict.fromkeys(row["platform"] for row in runs):
        found.append(energy_note(platform, [row for row in runs if row["platform"] == platform], asked_s))
    return [note for note in found if note]


def _names(entries: Sequence[Row]) -> dict[str, str]:
    """The rungs of a ladder in their order, and how they are shown."""
    return {rung["name"]: marked(rung) for entry in entries for rung in entry["rungs"]}


def _in_order(names: Mapping[str, str]) -> Callable[[Row], int]:
    order = list(names)
    return lambda row: order.index(row["rung"])


def _ladders(summary: Row) -> dict[tuple[str, str, str], list[Row]]:
    """The entries of each ladder and model, one a batch, in the plan's order."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for entry in summary["ladders"]:
        found.setdefault(_place(entry), []).append(entry)
    return found


def _latency(summary: Row, results: Path) -> list[Block]:
    by_place: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in read_table(results / "results.csv", tables.RESULTS):
        by_place[tuple(row[key] for key in ("platform", "model", "ladder", "batch"))].append(row)
    count = sum(len({row["rung"] for row in rows}) for rows in by_place.values())
    limit = max(200, figures.LATENCY_POINTS // max(1, count))
    blocks = []
    for entry in summary["ladders"]:
        rows = by_place[entry["platform"], entry["model"], entry["ladder"], str(entry["batch"])]
        weights = f"Weights {weights_note(entry['weights'])}"
        pooled = [row for row in summary["latency"] if _place(row) == _place(entry) and row["batch"] == entry["batch"]]
        told = by_rung(
            pooled, _names([entry]), f"Percentiles over the iterations of all rounds. {weights}", PERCENTILES
        )
        text = [weights, *([] if rows else ["Nothing was measured."])]
        raw = {path: raw_file(results, path) for path in {row["raw"] for row in rows}}
        panels = _panels(entry, rows, raw, limit)
        said = [*audit_notes(entry), *exclusions(shown(entry))]
        blocks.append(Block(place(entry), text=text, figures=panels, tables=told, notes=said))
    return blocks


def _panels(entry: Row, rows: Sequence[dict[str, str]], files: Mapping[str, Path], limit: int) -> list[Figure]:
    """One figure for each rung of a ladder and batch that has rows of results.csv; ``files`` are those of their raw."""
    raw = {name: read_latencies(path) for name, path in files.items()}
    panels = []
    for rung in entry["rungs"]:
        runs = [
            (int(row["round"]), _latencies_of(row, raw[row["raw"]], files[row["raw"]]), float(row["median_ms"]))
            for row in sorted(rows, key=lambda row: int(row["round"]))
            if row["rung"] == rung["name"]
        ]
        if runs:
            spec, told = figures.latency(runs, limit)
            panels.append(Figure(f"{marked(rung)}: {told}", spec))
    return panels


def _latencies_of(row: dict[str, str], raw: Mapping[str, np.ndarray], path: Path) -> np.ndarray:
    """A run's latencies, ns, of those of its round. Raises StepError where they do not have the row's median."""
    found = raw.get(row["rung"])
    if found is None or not math.isclose(float(np.median(found)) / 1e6, float(row["median_ms"]), rel_tol=1e-9):
        raise StepError(
            f"{path}: not the raw latencies of {row['rung']}, {row['ladder']}, batch {row['batch']}, round "
            f"{row['round']}: the median is not {row['median_ms']} ms, as results.csv has it; bring the rounds it is of"
        )
    return found


def _audit(summary: Row, results: Path) -> list[Block]:
    rows = read_table(results / "audit.csv", tables.AUDIT)
    users = _rungs_of_engines(summary)
    blocks = []
    for (platform, model), group in groupby(rows, key=lambda row: (row["platform"], row["model"])):
        engines = [row | {"rungs": users.get((platform, model, row["engine"]), "")} for row in group]
        rungs = {engine["engine"]: engine["rungs"] for engine in engines}
        nodes = [node for node in summary["nodes"] if (node["platform"], node["model"]) == (platform, model)]
        timed = [node for node in nodes if node["time_ms"] is not None]
        charts = []
        if nodes:
            charts.append(Figure("Executed nodes", figures.nodes(nodes, "engine", "nodes", "nodes")))
        if timed:
            chart = figures.nodes(timed, "engine", "time_ms", "share of the time of a profiled run", share=True)
            charts.append(Figure("Measured time", chart, _untimed(nodes)))
        labels = sorted({engine["weights"] for engine in engines if engine["weights"]})  # what failed tells none
        caption = "Weights " + (", ".join(map(weights_note, labels)) or weights_note(None))
        blocks.append(Block(f"{model} (platform {platform})", figures=charts, tables=_audit_tables(engines, caption)))
        types = [
            Figure(name, figures.nodes(_largest_types(list(listed)), "type", "nodes", "nodes"), rungs.get(name, ""))
            for name, listed in groupby(nodes, key=lambda node: node["engine"])
        ]
        blocks.append(Block(f"{model} (platform {platform}): nodes by type", figures=types))
    return blocks or [Block(text=["No engine was audited."])]


def _rungs_of_engines(summary: Row) -> dict[tuple[str, str, str], str]:
    """The rungs that run each engine, as they are shown; with their ladder where a model has several of them."""
    several = Counter((platform, model) for platform, model, _ in _ladders(summary))
    users: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)  # a set that keeps the order
    for entry in summary["ladders"]:
        of_ladder = f" ({entry['ladder']})" if several[entry["platform"], entry["model"]] > 1 else ""
        for rung in entry["rungs"]:
            users[entry["platform"], entry["model"], rung["engine"]][marked(rung) + of_ladder] = None
    return {engine: ", ".join(names) for engine, names in users.items()}


def _untimed(nodes: Sequence[Row]) -> str:
    """What the chart of time lacks; empty where it lacks nothing."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for node in nodes:
        counts[node["engine"]][0] += node["nodes"]
        counts[node["engine"]][1] += node["nodes"] if node["time_ms"] is None else 0
    lacking = [
        engine if left == every else f"{engine} ({left} of {every} nodes)"
        for engine, (every, left) in counts.items()
        if left
    ]
    return f"Left out, since their runtimes do not time them: {', '.join(lacking)}." if lacking else ""


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
        Column("rungs", "of the rungs"),
        Column("requested_precision", "requested"),
        Column("flops", "share of FLOPs", True),
        Column("time", "share of time", True),
        Column("at", "computing nodes", True),
        Column("precisions", "all executed nodes"),
        Column("verdict", "verdict"),
        Column("reason", "reason"),
    )
    file = (
        Column("engine", "engine"),
        Column("onnx", "nodes in the precision", True),
        Column("kept_by_range", "kept: out of range", True),
        Column("kept_by_op", "kept: operator lacks it", True),
        Column("kept_by_exclusion", "kept: excluded", True),
        Column("kept_by_other", "kept: reason unknown", True),
    )
    parity = (
        Column("engine", "engine"),
        Column("finite", "finite"),
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
            "at": _share(engine["nodes_at_precision"], engine["nodes_at_precision_pct"]),
            "onnx": _share(
                engine["onnx_nodes_at_precision"], engine["onnx_nodes_at_precision_pct"], engine["onnx_nodes"]
            ),
            "flops": percent(_float(engine["flops_at_precision_pct"])),
            "time": percent(_float(engine["time_at_precision_pct"])),
            "matched": percent(_float(engine["parity_matched_pct"])),
            "finite": {"true": "yes", "false": "no"}.get(engine["parity_finite"], ""),
            "parity_cosine": _short(engine["parity_cosine"], 6),
        }
        | {
            key: _short(engine[key], 2)
            for key in ("parity_max_abs", *(f"parity_{of}relative" for of in ("", "boxes_", "scores_")))
        }
        for engine in engines
    ]
    converted = [row for row in rows if row["onnx"]]
    compared = [row for row in rows if row["finite"]]
    titled = {
        "What runs in the requested precision": (precision, rows),
        "What the ONNX files have in the requested precision": (file, converted),
        "Parity with the reference": (parity, compared),
    }
    return [
        table(held(columns, chosen), chosen, f"{title}. {caption}")
        for title, (columns, chosen) in titled.items()
        if chosen
    ]


def _share(part: str, pct: str, whole: str = "") -> str:
    """E.g. ``395 of 419 (94.27 %)``; empty where the count is not known."""
    return f"{part}{whole and f' of {whole}'} ({float(pct):.2f} %)" if part and pct else ""


def _counts(text: str) -> str:
    """Counts by name, e.g. ``fp32 100, int8 118``."""
    return ", ".join(f"{name} {count}" for name, count in json.loads(text).items()) if text else ""


def _float(text: str) -> float | None:
    return float(text) if text else None


def _short(text: str, digits: int) -> str:
    return f"{float(text):.{digits}g}" if text else ""


def _environment(summary: Row, results: Path) -> list[Block]:
    runs = read_table(results / "results.csv", tables.RESULTS)
    blocks = []
    if protocol := summary["protocol"]:
        inputs = {f"inputs.{model}": value for model, value in protocol["inputs"].items()}
        told = _named_values(protocol["measure"] | inputs, weights_notes(summary))
        blocks.append(Block("How runs were timed", tables=[told]))
    for platform, versions in summary["versions"].items():
        told = _named_values(dict(sorted(versions.items())), weights_notes(summary, platform))
        blocks.append(Block(f"Versions on platform {platform}", tables=[told]))
    for host in summary["hosts"]:
        caption = f"{processor(host)}, over {rounds([host])}. {weights_notes(summary, host['platform'])}"
        told = _named_values({"device": host["device_uuid"], **host["state"]}, caption)
        blocks.append(Block(f"Host {host['host']} (platform {host['platform']})", tables=[told]))
    for place_, entries in _ladders(summary).items():
        platform, model, ladder = place_
        mine = [row for row in runs if _place(row) == place_]
        if not mine:
            continue
        of, names, caption = (
            f"(ladder {ladder}, platform {platform})",
            _names(entries),
            weights_note(entries[0]["weights"]),
        )
        asked = _factors(mine, names, f"Weights {caption}")
        blocks.append(Block(f"What was asked of the rungs of {model} {of}", tables=[asked]))
        opened = [rung for rung in summary["rungs"] if _place(rung) == place_]
        said = _facts(opened, names, summary["versions"].get(platform, {}), f"Weights {caption}")
        blocks.append(Block(f"What the runtimes of {model} say of themselves {of}", tables=said))
        watched = [row for row in mine if row["sm_clock_start_mhz"]]
        if clocks := by_rung(runs_by_rung(watched), names, f"Lowest to highest over rounds. Weights {caption}", CLOCKS):
            blocks.append(Block(f"The GPU during the runs of {model} {of}", tables=clocks))
    return blocks or [Block(text=["Nothing was measured."])]


def _factors(runs: Sequence[dict[str, str]], names: Mapping[str, str], caption: str) -> Any:
    """The factors of each rung, of which a step changes those that its cause allows."""
    found = {row["rung"]: row for row in runs}
    rows = [
        {**row, "rung": shown_as, "options": row["options"] if row["options"] != "{}" else "none"}
        for rung, shown_as in names.items()
        if (row := found.get(rung))
    ]
    columns = (Column("rung", "rung"), Column("stack", "stack"), *(Column(name, name) for name in tables.FACTORS))
    return table(columns, rows, caption)


def _facts(opened: Sequence[Row], names: Mapping[str, str], versions: Row, caption: str) -> list[Any]:
    """What runtimes read back, a table for all rungs that say the same things; and versions that differ among rungs."""
    several = {name for name, value in versions.items() if isinstance(value, list)}
    alike: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for rung in sorted(opened, key=_in_order(names)):
        said = {name: value for name, value in rung["identity"].items() if name in several} | rung["facts"]
        alike[tuple(said)].append({"rung": rung["rung"], "said": said})
    found = []
    for asked, rungs in alike.items():
        columns = [Column(f"value {index}", rung["rung"]) for index, rung in enumerate(rungs)]
        rows = [
            {f"value {index}": _reading(name, rung["said"][name]) for index, rung in enumerate(rungs)} | {"name": name}
            for name in asked
        ]
        found.append(table((Column("name", "read back"), *columns), rows, caption))
    return found


def _named_values(values: Mapping[str, Any], caption: str) -> Any:
    rows = [{"name": name, "value": _reading(name, value)} for name, value in values.items()]
    return table((Column("name", "name"), Column("value", "value")), rows, caption)


def _place(row: Row) -> tuple[str, str, str]:
    return row["platform"], row["model"], row["ladder"]


def _reading(name: str, value: Any) -> str:
    return NONE_MEANS[name] if value is None and name in NONE_MEANS else _value(value)


def _value(value: Any) -> str:
    """A reading as text: empty where it could not be read, a range or all values where it changed between rounds."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and set(value) == {"min", "max"}:
        return f"{value['min']} to {value['max']}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        items = [f"[{_value(item)}]" if isinstance(item, list) else _value(item) or "unreadable" for item in value]
        return ", ".join(items) or "none"
    return str(value)


def _failures(summary: Row, results: Path) -> list[Block]:
    rows = read_table(results / "failures.csv", tables.FAILURES)
    columns = tuple(Column(name, name) for name in tables.FAILURES)
    failed = Block("Failures", text=["Every planned run has a result."])
    if rows:
        failed = Block("Failures", tables=[table(columns, rows, weights_notes(summary))])
    found = summary["warnings"]
    warned = Block("Warnings", text=["None."])
    if found:
        named = (Column("warning", "warning"), Column("scope", "concerns"))
        shown = f"{min(len(found), WARNINGS)} of {len(found)} warnings; all of them are in summary.json"
        caption = f"{shown}. {weights_notes(summary)}"
        warned = Block("Warnings", tables=[table(named, found[:WARNINGS], caption)])
    return [failed, warned]


SECTIONS: dict[str, tuple[str, Callable[[Row, Path], list[Block]]]] = {
    "ladder": ("Ladder: one cause a step", _ladder),
    "waterfall": ("Waterfall of causes", _waterfall),
    "throughput": ("Throughput, memory and energy", _throughput),
    "latency": ("Latency in arrival order", _latency),
    "audit": ("Precision audit", _audit),
    "environment": ("Environment", _environment),
    "failures": ("Failures and warnings", _failures),
}
