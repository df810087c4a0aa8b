"""The page that sets several hosts side by side: one self-contained HTML file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import altair as alt

from ladder import statistics
from ladder.cross_stack import ANY, HASH_DIGITS, Comparison, Role, Run, Side, Source, file_in, side_of
from ladder.report.build import caption_html
from ladder.report.figures import LABEL_SIZE, RUNG_COLOURS, RUNG_SHAPES, finished
from ladder.report.page import Block, Column, Figure, Spec, page, table
from ladder.report.text import WARNED, caveats, marked, number, percent, processor, ran_in, releases, weights_note

Row = dict[str, Any]

PLATFORM_COLUMNS = (
    Column("platform", "platform"),
    Column("device", "device"),
    Column("driver", "driver"),
    Column("host", "host"),
    Column("versions", "versions"),
    Column("measured", "measured"),
    Column("energy", "energy"),
    Column("value", "results"),
)
REFUSED_COLUMNS = (
    Column("platform", "platform"),
    Column("model", "model"),
    Column("runs", "runs", True),
    Column("field", "differs in"),
    Column("found", "is"),
    Column("expected", "would have to be"),
    Column("remedy", "what to do"),
    Column("value", "results"),
)
CPU_ENERGY = "a CPU's is not read"


def cross_stack_page(found: Comparison, caption: Path) -> str:
    """The page of a comparison; ``caption`` (.rst) says how to read it. Raises StepError where that is missing."""
    labels = _labels(found.sides)
    confidence = f"{100 * (1 - statistics.ALPHA):g} %"
    context = [
        *(f"Platform {labels[side]}: {processor(_host(side, runs))}" for side, runs in found.sides.items()),
        f"Reference: {labels[found.reference]}, from {_folders(found.sides[found.reference])}. "
        f"Intervals hold with {confidence} confidence",
        f"Made from {', '.join(_made_from(found.sources))}",
        *_refusals(found.refused),
        *(f"{WARNED} {note}" for note in found.notes),
        *_caveats(found.sides, labels),
    ]
    blocks = [
        _standing(model, batch, list(rows), labels, found)
        for (model, batch), rows in groupby(found.rows, key=lambda row: (row["model"], row["batch"]))
    ]
    blocks += [_platforms(found.sides, labels), _refused(found.refused)]
    return page("Platforms side by side", caption_html(caption), context, blocks)


def _made_from(sources: Sequence[Source]) -> list[str]:
    """Each folder with the hash of its results.csv, by which this page is told from one of other figures."""
    return list(dict.fromkeys(f"{source.name} (results.csv {source.sha256[:HASH_DIGITS]}…)" for source in sources))


def _refusals(refused: Sequence[Row]) -> list[str]:
    """A line for each device and model of which something is not compared, with what keeps it out."""
    fields: dict[str, list[str]] = defaultdict(list)
    for row in refused:
        where = f"{row['platform']} on {row['host']} ({row['source']}), {row['model']}"
        fields[where].append(f"{row['field']} ({row['runs']} run{'s' * (row['runs'] != 1)})")
    return [f"{WARNED} Refused: {where}: {', '.join(each)}; see Refused below" for where, each in fields.items()]


def _caveats(sides: Mapping[Side, Sequence[Run]], labels: Mapping[Side, str]) -> list[str]:
    """What each summary warns of, once, with the platforms that it is of."""
    told: dict[str, tuple[Source, list[str]]] = {}
    for side, runs in sides.items():
        for source in _sources(runs):
            told.setdefault(source.name, (source, []))[1].append(labels[side])
    return [
        f"{' and '.join(named)}: {line}"
        for source, named in told.values()
        for line in caveats(source.summary, f"named in {file_in(source.name, 'summary.json')}")
    ]


def _sources(runs: Sequence[Run]) -> list[Source]:
    return list({run.source.name: run.source for run in runs}.values())


def _folders(runs: Sequence[Run]) -> str:
    return ", ".join(source.name for source in _sources(runs))


def _host(side: Side, runs: Sequence[Run]) -> Mapping[str, Any]:
    """What the first summary says of a side's host."""
    return runs[0].source.host(side)


def _labels(sides: Mapping[Side, Sequence[Run]]) -> dict[Side, str]:
    """What a side is called: its platform, with as much more as it takes to tell it from the others.

    That is its host, its folders where hosts have one name, and its device where folders hold several.
    """
    ends = _ends([source.name for runs in sides.values() for source in _sources(runs)])
    found = {}
    for side in sides:
        namesakes = [other for other in sides if other.platform == side.platform]
        on_host = [other for other in namesakes if other.host == side.host]
        folders = {other: [ends[source.name] for source in _sources(sides[other])] for other in on_host}
        apart = [folder for folder in folders[side] if sum(folder in each for each in folders.values()) == 1]
        more = " and ".join(apart) or (side.device_uuid or "no id")[:HASH_DIGITS]
        host = f" on {side.host}" if len(namesakes) > 1 else ""
        found[side] = side.platform + host + (f" ({more})" if len(on_host) > 1 else "")
    return found


def _ends(folders: Sequence[str]) -> dict[str, str]:
    """Of each folder as many of its last parts as tell it from the others, and from this host's own, 'results'."""
    parts = {folder: folder.rstrip("/").split("/") for folder in folders}
    ends = {folder: ["/".join(each[-count:]) for count in range(1, len(each) + 1)] for folder, each in parts.items()}
    taken = Counter(["results", *(end for each in ends.values() for end in each)])
    return {folder: next((end for end in each if taken[end] == 1), folder) for folder, each in ends.items()}


def role_name(row: Row) -> str:
    """A role in words, e.g. ``fp32, graph, compiled``."""
    role = Role(*(row[key] for key in Role._fields))
    parts = [role.precision, "fastest"] if role.kind == ANY else [role.precision, role.launch, role.kind]
    return ", ".join([*parts, *(["with transfers"] if role.transfers == "included" else [])])


def _standing(model: str, batch: int, rows: Sequence[Row], labels: Mapping[Side, str], found: Comparison) -> Block:
    columns = (
        Column("role", "role"),
        Column("platform", "platform"),
        Column("rung", "rung"),
        Column("candidates", "the fastest of", True),
        Column("shape", "shape"),
        Column("latency", "latency, ms", True),
        Column("ratio", f"times as fast as {labels[found.reference]}", True),
        Column("verdict", "verdict"),
        Column("ips", "images/s", True),
        Column("ips_per_w", "images/s/W", True),
        Column("compute", "of the compute peak", True),
        Column("bandwidth", "of the bandwidth peak, at least", True),
        Column("ran_in", "ran in"),
        Column("rounds", "rounds", True),
    )
    drawn = [row | {"role": role_name(row), "label": labels[side_of(row)]} for row in rows]
    sources = {row["peak_source"] for row in rows if row["peak_source"]}
    cells = [
        {
            "role": row["role"],
            "platform": row["label"],
            "rung": marked({"name": row["rung"], "verdict": row["audit_verdict"]})
            + (f" ({row['source']})" if len(_sources(found.sides[side_of(row)])) > 1 else ""),
            "candidates": str(row["candidates"]) if row["candidates"] > 1 else "",
            "shape": row["shape"],
            "latency": _with_interval(row["median_ms"], row["median_low_ms"], row["median_high_ms"]),
            "ratio": _with_interval(row["ratio"], row["ratio_low"], row["ratio_high"]),
            "verdict": row["verdict"] or "",
            "ips": number(row["throughput_ips"]),
            "ips_per_w": number(row["ips_per_w"]),
            "compute": _share(row, "peak_compute_pct", sources),
            "bandwidth": _share(row, "peak_bandwidth_pct", sources),
            "ran_in": ran_in(row | {"requested_precision": row["precision"]}),
            "rounds": str(row["rounds"]),
        }
        for row in drawn
    ]
    held = [column for column in columns if any(cell[column.key] for cell in cells)]
    fastest = [row["kind"] == ANY for row in rows]
    charts = [
        Figure(title, _chart(drawn, list(labels.values()), *encoded))
        for title, encoded in (
            ("Latency", ("median_ms", "latency, ms (logarithmic)", ("median_low_ms", "median_high_ms"))),
            ("Throughput", ("throughput_ips", "throughput, images/s (logarithmic)")),
            ("Throughput per watt", ("ips_per_w", "images/s/W (logarithmic)")),
        )
        if any(row[encoded[0]] is not None for row in drawn)
    ]
    weights = f". Weights {weights_note(rows[0]['weights'])}"
    shown = [
        table(held, [cell for cell, is_one in zip(cells, fastest, strict=True) if is_one == wanted], caption + weights)
        for wanted, caption in ((True, "The fastest of each precision"), (False, "Role by role"))
    ]
    notes = [
        f"{labels[side_of(row)]} has no {row['precision']}: {row['why']}."
        for row in found.lacking
        if (row["model"], row["batch"]) == (model, batch)
    ]
    watts = {side_of(row) for row in rows if row["ips_per_w"] is not None}
    if without := [labels[side] for side in dict.fromkeys(map(side_of, rows)) if side not in watts]:
        notes.append(f"No images/s/W of {' and '.join(without)}: why stands under Platforms, energy.")
    return Block(f"{model}, batch {batch}", figures=charts, tables=shown, notes=notes)


def _share(row: Row, column: str, sources: set[str]) -> str:
    """A share of a peak, with what that peak is where it is not the same for all."""
    told = percent(row[column])
    return f"{told} ({row['peak_source']})" if told and len(sources) > 1 else told


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """E.g. ``31.2 (30.1 to 32.4)``; no interval where there is none."""
    if value is None or low is None or high is None:
        return number(value)
    return f"{number(value)} ({number(low)} to {number(high)})"


def _chart(rows: Sequence[Row], labels: Sequence[str], value: str, title: str, ends: Sequence[str] = ()) -> Spec:
    """A dot a platform in each role, with its interval between the columns ``ends`` and its value beside it."""
    points = [
        row | {"text": number(row[value]), "edge": max(row[each] or row[value] for each in (value, *ends))}
        for row in rows
        if row[value] is not None
    ]
    low = min(row[each] or row[value] for row in points for each in (value, *ends))
    high = max(row["edge"] for row in points)
    reach = max(high / low, 2.0)
    order = list(dict.fromkeys(row["role"] for row in points))
    shown = [label for label in labels if any(row["label"] == label for row in points)]
    y = alt.Y("role:N").sort(order).title(None).axis(labelLimit=170, ticks=False, domain=False, grid=True)
    x = (
        alt.X(f"{value}:Q")
        .title(title)
        .scale(type="log", domain=[low / reach**0.05, high * reach**0.25], nice=False)  # room for the last value
        .axis(tickCount=5, format="~g", grid=False, labelOverlap=True)
    )
    # by all labels, so that a platform looks the same in every chart
    colours, shapes = (
        {label: one[index % len(one)] for index, label in enumerate(labels)} for one in (RUNG_COLOURS, RUNG_SHAPES)
    )
    colour = alt.Color("label:N").title(None).scale(domain=shown, range=[colours[label] for label in shown])
    shape = alt.Shape("label:N").title(None).scale(domain=shown, range=[shapes[label] for label in shown])
    tooltip = [alt.Tooltip("label:N", title="platform"), "role:N", "rung:N", alt.Tooltip(f"{value}:Q", title=title)]
    base = alt.Chart(alt.NamedData("points")).encode(y=y, yOffset=alt.YOffset("label:N").sort(shown), x=x)
    layers = [
        base.mark_point(filled=True, size=80, opacity=1).encode(color=colour, shape=shape, tooltip=tooltip),
        base.mark_text(align="left", dx=9, fontSize=LABEL_SIZE).encode(x="edge:Q", text="text:N"),
    ]
    if ends:
        known = base.transform_filter(alt.FieldValidPredicate(field=ends[0], valid=True))
        rule = known.mark_rule(strokeWidth=2, clip=True).encode(x=f"{ends[0]}:Q", x2=f"{ends[1]}:Q", color=colour)
        layers.insert(0, rule)
    height = {"step": 20, "for": "offset"}
    chart = alt.layer(*layers).properties(height=alt.Step.from_dict(height))
    columns = ("role", "label", "rung", "text", "edge", value, *ends)
    return finished(
        chart, f"{title} of {', '.join(shown)} by role", points=[{key: row[key] for key in columns} for row in points]
    )


def _platforms(sides: Mapping[Side, Sequence[Run]], labels: Mapping[Side, str]) -> Block:
    cells = []
    for side, runs in sides.items():
        sources = _sources(runs)
        versions = _together([source.summary["versions"].get(side.platform, {}) for source in sources])
        driver = _together([source.host(side)["state"] for source in sources]).get("gpu.driver", [])
        days = sorted(run.row["started_at"][:10] for run in runs)
        sittings = len({run.row["sitting"] for run in runs})
        cells.append(
            {
                "platform": labels[side],
                "device": processor(_host(side, runs)),
                "driver": " and ".join(map(str, driver)),
                "host": side.host,
                "versions": ", ".join(
                    f"{name} {text}" for name, value in versions.items() if (text := releases(value))
                ),
                "measured": f"{' to '.join(dict.fromkeys((days[0], days[-1])))}: {len(runs)} runs in {sittings} "
                f"sitting{'s' * (sittings != 1)}",
                "energy": _energy(runs),
                "value": _folders(runs),
            }
        )
    held = [column for column in PLATFORM_COLUMNS if any(cell[column.key] for cell in cells)]
    return Block("Platforms", tables=[table(held, cells, "What was compared")])


def _together(told: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """All that several summaries say of the same things, by name; what was not read is left out."""
    found: dict[str, list[Any]] = {}
    for name in sorted({name for each in told for name in each}):
        values = [each.get(name) for each in told]
        single = [one for value in values for one in (value if isinstance(value, list) else [value])]
        found[name] = [one for place, one in enumerate(single) if one is not None and one not in single[:place]]
    return found


def _energy(runs: Sequence[Run]) -> str:
    """Of how many runs the energy was measured, and why not of the others as far as they say."""
    without = [run for run in runs if run.row.get("energy_j_per_image") is None]
    if not without:
        return "measured"
    reasons = {CPU_ENERGY if run.row.get("device") == "cpu" else run.row.get("energy_missing") for run in without}
    counted = f"not measured in {len(without)} of {len(runs)} runs" if len(without) < len(runs) else "not measured"
    return ": ".join([counted, *([told] if (told := "; ".join(sorted(filter(None, reasons)))) else [])])


def _refused(refused: Sequence[Row]) -> Block:
    if not refused:
        return Block("Refused", text=["Nothing: all results could be compared."])
    cells = [
        {
            "platform": row["platform"],
            "model": row["model"],
            "runs": str(row["runs"]),
            "field": row["field"],
            "found": _short(row["found"]) or "unknown",
            "expected": _expected(row),
            "remedy": row["remedy"],
            "value": row["source"],
        }
        for row in refused
    ]
    return Block("Refused", tables=[table(REFUSED_COLUMNS, cells, "Results that cannot be compared")])


def _expected(row: Row) -> str:
    if row["found"] is None and row["expected"] is None:
        return "known"
    return f"{_short(row['expected']) or 'not told'} ({row['against']}, {row['against_source']})"


def _short(value: str | None) -> str:
    """A hash as far as it is compared by eye, anything else as it is."""
    return value[:HASH_DIGITS] if value and len(value) == 64 else value or ""
