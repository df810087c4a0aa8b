"""The report's figures as Vega-Lite specifications. They place what the tables hold; units are on the axes.

Colours are those of Okabe & Ito, Color Universal Design, 2008, told apart with every common colour blindness;
what a figure says by colour it says by shape, label or dashes too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from ladder import attribution
from ladder.report.page import Spec
from ladder.report.text import gain, gain_ms, gain_pct, number

Row = Mapping[str, Any]

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#999999"
OTHER_PRECISIONS = (GREY, "#cccccc", "#666666")  # types of shapes and indices: int64, bool, …

CAUSE_COLOURS = {
    "launch": ORANGE,
    "compilation": BLUE,
    "wrapper": PURPLE,
    "precision": GREEN,
    "specialisation": SKY,
    "tuning": YELLOW,
    "none": GREY,
}
PRECISION_COLOURS = {
    "fp32": BLUE,
    "tf32": SKY,
    "tf32-conv": PURPLE,
    "fp16": ORANGE,
    "bf16": VERMILION,
    "int8": GREEN,
    "unknown": BLACK,
}
RUNG_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, YELLOW)
RUNG_SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
SHOWN = ("faster", "slower")  # verdicts of steps that are drawn at full strength

LATENCY_POINTS = 60_000  # in all panels of a page together; more make it slow to open
LABEL_SIZE = 12
DODGE, DODGE_SPAN = 6, 30  # px between neighbouring rungs at one batch, and at most between all of them
NARROW_CHARACTERS = 34  # of a label in the width of a waterfall on a screen of 390 px
LINE, BAND = 14, 44  # px of a label's line, and of a waterfall's bar with a label of one
BAR = {"height": 18, "yOffset": -12}  # a waterfall's bar, above its label
CONFIG = {
    "font": "system-ui, sans-serif",
    "axis": {"labelFontSize": LABEL_SIZE, "titleFontSize": LABEL_SIZE, "titleFontWeight": "normal", "grid": True},
    "legend": {
        "labelFontSize": LABEL_SIZE,
        "titleFontSize": LABEL_SIZE,
        "orient": "bottom",
        "columns": 2,
        "labelLimit": 260,
    },
    "view": {"stroke": None},
}


def finished(chart: alt.LayerChart | alt.Chart, description: str, **datasets: Iterable[Row]) -> Spec:
    """The specification with its data, which is put in only here: altair is slow at carrying it around."""
    spec = chart.properties(description=description, width="container").to_dict()
    named = {name: [dict(row) for row in rows] for name, rows in datasets.items()}
    return spec | {"datasets": named, "config": CONFIG, "autosize": {"type": "fit-x", "contains": "padding"}}


def waterfall(path: Sequence[Row], reach_ms: float, total: Row | None = None) -> Spec:
    """A waterfall of one path of steps for one batch, top to bottom; ``reach_ms`` is where its axis ends.

    A step is a row of ladder.csv with from_ms and to_ms, and ``ran_in``, what its second rung ran in ("" if unknown).
    Each bar runs from the step's from_ms to its to_ms, with the interval of its gain around to_ms; the first and last
    bars are whole latencies, the last one labelled with the gain of ``total`` where that is given. Steps within noise
    or undecided are faded and dashed. An interval that goes on beyond the axis ends there in an arrow.
    """
    first, last = path[0], path[-1]
    together = ""
    if total and total["rounds"]:
        doubt = "" if total["verdict"] in SHOWN else f" {total['verdict']}"
        together = f", total{doubt}:\n{gain(total)}"
    totals = [
        {"label": label, "start": 0, "end": ms, "text": f"{number(ms)} ms{said}", "align": "left", "edge": 0}
        for label, ms, said in (
            (first["from"], first["from_ms"], ""),
            (f"all together:\n{last['to']}", last["to_ms"], together),
        )
    ]
    bars = [_bar(step, reach_ms) for step in path]
    breaks = max(row["text"].count("\n") for row in (*totals, *bars))
    order = [totals[0]["label"], *(bar["label"] for bar in bars), totals[1]["label"]]
    causes = list(dict.fromkeys(step["cause"] for step in path))

    y = alt.Y("label:N").sort(order).title(None).axis(
        labelExpr="split(datum.label, '\\n')", labelLimit=170, labelOffset=BAR["yOffset"],
        grid=False, ticks=False, domain=False, labelPadding=6,
    )  # fmt: skip
    x = alt.X("start:Q").title("latency, ms").scale(domain=[0, reach_ms], nice=False).axis(tickCount=5)
    colour = alt.Color("cause:N", legend=None).scale(domain=causes, range=[CAUSE_COLOURS[cause] for cause in causes])

    def layer(name: str) -> alt.Chart:
        return alt.Chart(alt.NamedData(name)).encode(y=y, x=x)

    tooltip = [alt.Tooltip(f"{key}:N") for key in ("step", "cause", "from → to, ms", "gain", "ran in", "verdict")]
    layers = [
        layer("totals").mark_bar(color="#555555", **BAR).encode(x2="end:Q"),
        layer("shown").mark_bar(**BAR).encode(x2="end:Q", color=colour, tooltip=tooltip),
        layer("undecided")
        .mark_bar(**BAR, fillOpacity=0.25, strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x2="end:Q", color=colour, stroke=colour, tooltip=tooltip),
        layer("intervals")
        .mark_rule(strokeWidth=1.5, color=BLACK, yOffset=BAR["yOffset"], clip=True)
        .encode(x="low:Q", x2="high:Q"),
    ]
    for end in ("low", "high"):
        tick = layer("intervals").mark_tick(thickness=1.5, size=12, color=BLACK, yOffset=BAR["yOffset"], clip=True)
        layers.append(tick.encode(x=f"{end}:Q"))
    beyond = layer("beyond").mark_text(align="right", fontSize=LABEL_SIZE, yOffset=BAR["yOffset"], clip=True)
    layers.append(beyond.encode(x="edge:Q", text="text:N"))
    for align in ("left", "right"):
        label = layer(align).mark_text(align=align, baseline="top", dy=2, fontSize=LABEL_SIZE, lineBreak="\n")
        layers.append(label.encode(x="edge:Q", text="text:N"))
    return finished(
        alt.layer(*layers).properties(height=alt.Step(BAND + LINE * breaks)),
        f"Waterfall of latency from {first['from']} to {last['to']}: {attribution.order(path)}",
        totals=totals,
        shown=[bar for bar in bars if bar["verdict"] in SHOWN],
        undecided=[bar for bar in bars if bar["verdict"] not in SHOWN],
        intervals=[bar for bar in bars if bar["low"] is not None],
        beyond=[
            {"label": bar["label"], "start": reach_ms, "edge": reach_ms, "text": "▶"}
            for bar in bars
            if bar["high"] is not None and bar["high"] > reach_ms
        ],
        left=[row for row in (*totals, *bars) if row["align"] == "left"],
        right=[row for row in bars if row["align"] == "right"],
    )


def waterfall_reach_ms(steps: Sequence[Row]) -> float:
    """Where the axis of the waterfalls of these steps ends: beyond every bar, and every interval unless far beyond."""
    bars = max(max(step["from_ms"], step["to_ms"]) for step in steps)
    intervals = max((high for step in steps if (high := _interval_ms(step)[1]) is not None), default=0)
    return 1.02 * max(bars, min(intervals, 1.3 * bars))


def _interval_ms(step: Row) -> tuple[float, float] | tuple[None, None]:
    """The interval of the gain, drawn around to_ms: it turns around, since a larger gain is a lower latency."""
    if step["ci_low_pct"] is None:
        return None, None
    return step["from_ms"] * (1 - step["ci_high_pct"] / 100), step["from_ms"] * (1 - step["ci_low_pct"] / 100)


def _bar(step: Row, reach_ms: float) -> Row:
    """Where a step's bar, interval and label stand."""
    low, high = _interval_ms(step)
    left, right = sorted((step["from_ms"], step["to_ms"]))
    text = f"gain {gain_ms(step)} ms, {gain_pct(step)}"
    beneath = [step["verdict"]] if step["verdict"] not in SHOWN else []
    beneath += [f"ran in {step['ran_in']}"] if step["cause"] == "precision" and step["ran_in"] else []
    lines = [text, *beneath]
    room = {"left": (reach_ms - left) / reach_ms, "right": right / reach_ms}
    align, edge = ("left", left) if room["left"] > room["right"] else ("right", right)
    if room[align] * NARROW_CHARACTERS < max(map(len, lines)):
        align, edge = "left", 0  # from the axis, where the whole width is there for it
    return {
        "label": f"{step['cause']}:\n{step['to']}",
        "start": step["from_ms"],
        "end": step["to_ms"],
        "low": low,
        "high": high,
        "align": align,
        "edge": edge,
        "text": "\n".join(lines),
        "cause": step["cause"],
        "verdict": step["verdict"],
        "step": f"{step['from']} → {step['to']}",
        "from → to, ms": f"{number(step['from_ms'])} → {number(step['to_ms'])}",
        "gain": gain_pct(step),
        "ran in": step["ran_in"],
    }


def throughput(rows: Sequence[Row], saturation: Sequence[Row], rungs: Sequence[str]) -> Spec:
    """Images/s against batch for the rungs of one ladder: medians over rounds, their range, saturation points ringed.

    ``rows`` and ``saturation`` are the summary's ``throughput`` and ``saturation`` of that ladder.
    """
    batches = sorted({row["batch"] for row in rows})
    shown = [rung for rung in rungs if any(row["rung"] == rung for row in rows)]
    points = {(row["rung"], row["batch"]): row for row in rows}
    rings = [points[mark["rung"], mark["batch"]] for mark in saturation if mark["batch"] is not None]
    x = (
        alt.X("batch:Q")
        .title("batch, images (logarithmic)")
        .scale(type="log", base=2, domain=[batches[0] / 1.15, batches[-1] * 1.15], nice=False)
        .axis(values=batches, format="d", grid=False, labelOverlap=True)
    )
    y = alt.Y("median_ips:Q").title("throughput, images/s").scale(zero=True)
    colour = alt.Color("rung:N").title(None).scale(domain=shown, range=_cycled(RUNG_COLOURS, len(shown)))
    shape = alt.Shape("rung:N").title(None).scale(domain=shown, range=_cycled(RUNG_SHAPES, len(shown)))
    tooltip = [alt.Tooltip(key) for key in ("rung:N", "batch:Q", "median_ips:Q", "min_ips:Q", "max_ips:Q", "rounds:Q")]
    step = min(DODGE, DODGE_SPAN / len(shown))
    layers = []
    for index, rung in enumerate(shown):
        aside = step * (index - (len(shown) - 1) / 2)  # px, so that the ranges of rungs do not hide each other
        mine = alt.datum.rung == rung
        base = alt.Chart(alt.NamedData("medians")).transform_filter(mine).encode(x=x, y=y, color=colour)
        ring = alt.Chart(alt.NamedData("rings")).transform_filter(mine).encode(x=x, y=y)
        layers += [
            base.mark_line(strokeWidth=1.5, xOffset=aside),
            base.mark_rule(xOffset=aside).encode(y=alt.Y("min_ips:Q"), y2="max_ips:Q"),
            base.mark_point(filled=True, size=70, opacity=1, xOffset=aside).encode(shape=shape, tooltip=tooltip),
            ring.mark_point(size=320, shape="circle", filled=False, color=BLACK, strokeWidth=1.5, xOffset=aside),
        ]
    about = f"Throughput in images per second against batch for {', '.join(shown)}"
    return finished(alt.layer(*layers).properties(height=280), about, medians=rows, rings=rings)


def _cycled(values: Sequence[str], count: int) -> list[str]:
    return [values[index % len(values)] for index in range(count)]


def latency(runs: Sequence[tuple[int, np.ndarray, float]], limit: int) -> tuple[Spec, str]:
    """Latencies of one rung and batch in arrival order, rounds one after another, with each run's median.

    ``runs`` is a list of (round, latencies in ns [iterations], median in ms). At most about ``limit`` points are
    shown: of longer runs the lowest and highest of each block of neighbours. Returns the figure and what it shows.
    """
    total = sum(len(ns) for _, ns, _ in runs)
    block = 1 if total <= limit else int(np.ceil(2 * total / limit))
    points, medians, offset = [], [], 0
    for position, (number_, ns, median) in enumerate(runs):
        for index in extremes(ns, block):
            points.append(
                {"i": offset + int(index), "ms": float(f"{ns[index] / 1e6:.5g}"), "r": number_, "p": position % 2}
            )
        medians.append({"i": offset, "to": offset + len(ns), "ms": median, "r": number_})
        offset += len(ns)
    middles = {(row["i"] + row["to"]) // 2: row["r"] for row in medians}
    x = (
        alt.X("i:Q")
        .title("round, its iterations in arrival order")
        .scale(domain=[0, total], nice=False)
        .axis(values=list(middles), labelExpr=f"{json.dumps(middles)}[datum.value]", grid=False, ticks=False)
    )
    low, high = min(point["ms"] for point in points), max(point["ms"] for point in points)
    margin = 0.04 * (high - low or high)
    y = alt.Y("ms:Q").title("latency, ms").scale(domain=[max(0, low - margin), high + margin], nice=False)
    y = y.axis(tickCount=5)
    colour = alt.Color("p:N", legend=None).scale(domain=[0, 1], range=[BLUE, ORANGE])
    tooltip = [alt.Tooltip("r:Q", title="round"), alt.Tooltip("ms:Q", title="ms")]
    chart = alt.layer(
        alt.Chart(alt.NamedData("points"))
        .mark_point(filled=True, size=12, opacity=0.7)
        .encode(x=x, y=y, color=colour, tooltip=tooltip),
        alt.Chart(alt.NamedData("medians"))
        .mark_rule(strokeWidth=2, color=BLACK)
        .encode(x=x, x2="to:Q", y=y, tooltip=tooltip),
    ).properties(height=150)
    shown = f"{total:,} iterations" if block == 1 else f"{len(points):,} of {total:,} iterations"
    if block > 1:
        shown += f", the lowest and highest of every {block:,}"
    spec = finished(chart, f"Latency in arrival order, {len(runs)} rounds", points=points, medians=medians)
    canvas = {"embedOptions": {"renderer": "canvas"}}  # an SVG element a point would make the page slow
    return spec | {"usermeta": canvas}, shown


def extremes(values: np.ndarray, block: int) -> np.ndarray:
    """Indices of the lowest and highest value of each block of neighbours, in order; all indices for a block of 1."""
    if block == 1:
        return np.arange(len(values))
    starts = range(0, len(values), block)
    found = [
        start + index
        for start in starts
        for index in (int(np.argmin(values[start : start + block])), int(np.argmax(values[start : start + block])))
    ]
    return np.unique(found)


def nodes(rows: Sequence[Row], by: str, value: str, title: str, share: bool = False) -> Spec:
    """Stacked bars of ``value`` (nodes, or ms) by precision, one bar for each distinct ``by`` (engine, or type).

    With ``share`` every bar is 100 % long.
    """
    totals: dict[str, float] = {}
    for row in rows:
        totals[row[by]] = totals.get(row[by], 0) + row[value]
    order = list(totals) if by == "engine" else sorted(totals, key=lambda key: -totals[key])
    others = sorted({row["precision"] for row in rows} - set(PRECISION_COLOURS))
    colours = PRECISION_COLOURS | dict(zip(others, _cycled(OTHER_PRECISIONS, len(others)), strict=True))
    shown = [precision for precision in colours if any(row["precision"] == precision for row in rows)]
    numbered = [dict(row) | {"order": shown.index(row["precision"])} for row in rows]
    x = alt.X(f"sum({value}):Q").title(title).axis(tickCount=5)
    if share:
        x = x.stack("normalize").axis(tickCount=5, format="%")
    chart = (
        alt.Chart(alt.NamedData("nodes"))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            y=alt.Y(f"{by}:N").sort(order).title(None).axis(labelLimit=160, ticks=False, domain=False),
            x=x,
            color=alt.Color("precision:N").title("precision").scale(domain=shown, range=[colours[p] for p in shown]),
            order=alt.Order("order:Q"),
            tooltip=[f"{by}:N", "precision:N", alt.Tooltip(f"sum({value}):Q", title=value)],
        )
        .properties(height=alt.Step(24))
    )
    return finished(chart, f"{title} by precision for {', '.join(totals)}", nodes=numbered)
