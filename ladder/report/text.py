"""The ladder as Markdown, and the words that pages and terminal share. All of it is in the summary."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ladder.preflight import BUSY_LIMIT
from ladder.tables import KEPT_OUT
from ladder.utilisation import FAIR_SHARE, is_fair

TOO_FEW_ROUNDS, SLOWER, MAY_BE_FASTEST = (
    "too few rounds",
    "slower",
    "may be fastest",
)  # of ladder.statistics, without scipy
NO_RESULT = "no result"  # shown in place of it where no round has both sides of a step
Row = Mapping[str, Any]

NOISE_FLOOR = (
    "The noise floor is the gain that two rungs as unsteady as these could show by chance, had they not been timed "
    "side by side. Where the runs of a round drift together, smaller gains than that can be told apart."
)
DISTURBED = (
    "'disturbed' counts runs of either rung: throttled or contended ones, whose rounds are left out of the step unless "
    "the configuration keeps them; and ones that stay in and widen its interval, unsteady or begun beside busy "
    "programs. Of a CPU only the latter are known."
)
RANKED = (
    "A ranking judges every rung by the rounds that all of its rungs have, and says how many times the fastest one's "
    "latency a rung takes. 'slower' means that another rung was shown to be faster; where several 'may be fastest', "
    "noise does not tell which of them is. The interval is of the latency over the truly fastest rung's, whichever of "
    "these that is: it holds for all rungs of a ranking at once. So it allows for their number and for the choice of "
    "the best, and may leave open what the verdict of a single step tells."
)
NO_STEPS = "A single rung: no step to compare."
NBSP = "\u00a0"  # a space that no line is broken at
WARNED = "⚠"  # behind the name of every rung whose audit warns
RELEASE = re.compile(r"v?\d+(\.\d+)+(\+\w+)?")  # the part of a version string that a reader knows


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many significant digits, no exponent, and its integer part whole; empty where there is none."""
    return "" if value is None else f"{value:,.{_decimals(value, digits)}f}"


def signed(value: float) -> str:
    """A number with its sign, ``+0.31`` or ``−3.01``."""
    return f"{'+' if value >= 0 else '−'}{number(abs(value))}"


def _decimals(value: float, digits: int = 3) -> int:
    """Decimal places that give a value so many significant digits."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return max(0, digits - 1 - exponent)


def percent(value: float | None) -> str:
    """E.g. ``2.1 %``; empty where there is none."""
    return "" if value is None else f"{value:.1f} %"


def gain_ms(step: Row) -> str:
    """The gain in ms as finely as the latency it is taken from, but to 0.1 ms at least; empty where there is none."""
    if step["gain_ms"] is None:
        return ""
    return f"{step['gain_ms']:+,.{max(1, _decimals(step['from_ms']))}f}".replace("-", "−")


def gain_pct(step: Row) -> str:
    """The gain in % with its sign, e.g. ``+31.2 %``: positive where the step is faster, as every gain."""
    return f"{step['gain_pct']:+.1f} %".replace("-", "−")


def gain(step: Row) -> str:
    """The gain and its interval in %, e.g. ``+31.2 % (+28.9 to +33.5)``; empty where nothing was compared.

    Too few rounds show no interval: that of two spans everything.
    """
    if step["gain_pct"] is None:
        return ""
    text = gain_pct(step)
    if step["ci_low_pct"] is not None and step["verdict"] != TOO_FEW_ROUNDS:
        text += f" ({step['ci_low_pct']:+.1f} to {step['ci_high_pct']:+.1f})"
    return text.replace("-", "−")


def from_to(step: Row) -> str:
    """Both latencies in ms, e.g. ``86.1 → 59.2``."""
    if step["from_ms"] is None or step["to_ms"] is None:
        return ""
    return f"{number(step['from_ms'])} → {number(step['to_ms'])}"


def rounds(steps: Sequence[Row]) -> str:
    """How many rounds the steps of a ladder rest on, e.g. ``8 rounds`` or ``6 to 8 rounds``."""
    counts = sorted({step["rounds"] for step in steps})
    if not counts:
        return "nothing compared"
    return f"{counts[0]} round{'s' * (counts != [1])}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rounds"


def marked(rung: Row) -> str:
    """A rung's name, marked where its audit warns: its name may promise what did not run."""
    return f"{rung['name']} {WARNED}" if rung["verdict"] == "warn" else rung["name"]


def ran_in(rung: Row) -> str:
    """What of a rung ran in the precision asked for, e.g. ``int8: 77.0 % of FLOPs``; empty where that is not known."""
    for share, of in (("flops_at_precision_pct", "FLOPs"), ("nodes_at_precision_pct", "nodes")):
        if rung[share] is not None:
            return f"{rung['requested_precision']}: {percent(rung[share])} of {of}"
    return ""


def shown(entry: Row) -> list[Row]:
    """The steps of a ladder as they are shown: with marked names, with what the second rung ran in, and plainly without
    result where a side has none (in ladder.csv that is ``too few rounds``, of which there are none)."""
    return [_shown(entry, step) for step in entry["steps"]]


def _shown(entry: Row, step: Row) -> Row:
    rungs = {rung["name"]: rung for rung in entry["rungs"]}
    first, second = rungs[step["from"]], rungs[step["to"]]
    verdict = step["verdict"] if step["rounds"] else NO_RESULT
    return {**step, "from": marked(first), "to": marked(second), "ran_in": ran_in(second), "verdict": verdict}


def shown_totals(entry: Row) -> dict[tuple[str, str], Row]:
    """The totals of a ladder as they are shown, by the marked names of their first and last rung."""
    told = [_shown(entry, total) for total in entry.get("totals", ())]  # a summary of an earlier version has none
    return {(total["from"], total["to"]): total for total in told}


def audit_notes(entry: Row) -> list[str]:
    """A line for each rung of a ladder whose audit warns, or did not let it through."""
    said = {"warn": "", **dict.fromkeys(KEPT_OUT, "not measured, ")}
    rungs = [rung for rung in entry["rungs"] if rung["verdict"] in said]
    return [f"{WARNED} {rung['name']}: {said[rung['verdict']]}{rung['reason']}" for rung in rungs]


def notes(entry: Row) -> list[str]:
    """What has to be said right below a ladder's table or waterfall."""
    gains = [*shown(entry), *shown_totals(entry).values()]
    return [*totals(entry), *audit_notes(entry), *exclusions(gains), *interactions(entry["steps"])]


def totals(entry: Row) -> list[str]:
    """A line for each pair of first and last rung: what all steps between them gained, measured and not added up."""
    lines = []
    for (first, last), total in shown_totals(entry).items():
        line = f"All causes together, {first} → {last}: "
        if total["rounds"]:
            line += f"{from_to(total)} ms, gain {gain(total)}, {total['verdict']}; {rounds([total])}"
        else:
            line += "no round holds both"
        lines.append(line)
    return lines


def rankings(entry: Row) -> list[list[Row]]:
    """The rankings of a ladder and batch: lists of rows with marked names and what ran, fastest first."""
    rungs = {rung["name"]: rung for rung in entry["rungs"]}
    found: dict[tuple[str, str | None], list[Row]] = {}
    for row in entry.get("ranking", ()):  # a summary of an earlier version has none
        rung = rungs[row["rung"]]
        told = {**row, "name": rung["name"], "rung": marked(rung), "ran_in": ran_in(rung)}
        found.setdefault((row["transfers"], row["precision"]), []).append(told)
    return list(found.values())


def fastest(entry: Row) -> list[str]:
    """A line for each ranking of a ladder and batch, from its fastest rung on; then one for measured rungs in none.

    E.g. ``Fastest at batch 1: a (4.10 ms); not told apart from it: b 1.02 times (1.00 to 1.10); slower: …``.
    """
    ranked = rankings(entry)
    several = len({rows[0]["transfers"] for rows in ranked}) > 1
    lines = []
    for rows in ranked:
        first, *others = rows
        told = [f"Fastest{among(first, several)} at batch {entry['batch']}: {first['rung']} "]
        told[0] += unbroken(f"({number(first['median_ms'])} ms)")
        if first["verdict"] == TOO_FEW_ROUNDS:
            verb = "is" if first["rounds"] == 1 else "are"
            told.append(f"{rounds([first])} {verb} too few to tell it from the others")
        for verdict, title in ((MAY_BE_FASTEST, "not told apart from it"), (SLOWER, "slower")):
            if named := [f"{row['rung']} {unbroken(slowdown(row))}" for row in others if row["verdict"] == verdict]:
                told.append(f"{title}: {', '.join(named)}")
        lines.append("; ".join(told))
    told_elsewhere = {row["rung"] for row in entry.get("ranking", ())}
    told_elsewhere |= {rung["name"] for rung in entry["rungs"] if rung["verdict"] in KEPT_OUT}
    if left := [marked(rung) for rung in entry["rungs"] if rung["name"] not in told_elsewhere]:
        said = f"Not ranked, for want of rounds that the others have too: {', '.join(left)}"
        lines += [said] if ranked else []
    return lines


def among(row: Row, several: bool) -> str:
    """Of which rungs a ranking is, e.g. `` in fp32``, from one of its rows; transfers where there are ``several``."""
    told = f" in {row['precision']}" if row["precision"] else ""
    return told + (f" with transfers {row['transfers']}" if several else "")


def slowdown(row: Row) -> str:
    """How many times the fastest's latency, and its interval, e.g. ``1.31 times (1.22 to 1.41)``; 1 is the fastest.

    Too few rounds show no interval.
    """
    text = f"{number(row['slowdown'])} times"
    if row["slowdown_low"] is not None and row["verdict"] != TOO_FEW_ROUNDS:
        text += f" ({number(row['slowdown_low'])} to {number(row['slowdown_high'])})"
    return text


def exclusions(steps: Sequence[Row]) -> list[str]:
    """A line for each step or total that has rounds which are left out, since a run in them was flagged."""
    return [
        f"{step['from']} → {step['to']}: {count} round{'s' * (count > 1)} left out, in which the device was throttled "
        "or another process was on it; the runs are in results.csv"
        for step in steps
        if (count := step["rounds_excluded"])
    ]


def interactions(steps: Sequence[Row]) -> list[str]:
    """A line for each pair of causes that was measured in both orders, with its interval and what that says."""
    squares: dict[tuple[float, float | None, float | None], list[Row]] = {}
    for step in steps:
        if (value := step["interaction_ms"]) is not None:
            # summaries of before the interval have none
            told = (value, step.get("interaction_low_ms"), step.get("interaction_high_ms"))
            squares.setdefault(told, []).append(step)
    return [_interaction(held, *told) for told, held in squares.items()]


def _interaction(steps: Sequence[Row], value: float, low: float | None, high: float | None) -> str:
    line = f"Interaction of {' and '.join(dict.fromkeys(step['cause'] for step in steps))}: {signed(value)} ms"
    if any(step["verdict"] == TOO_FEW_ROUNDS for step in steps):
        return f"{line}; too few rounds to tell it from noise."
    if low is not None and high is not None:
        line += f" ({signed(low)} to {signed(high)})"
        if low <= 0 <= high:
            return f"{line}: no more than noise; the order in which the two are taken may not matter."
    return f"{line}; either gains this much {'more' if value >= 0 else 'less'} after the other than before it."


def interval_title(summary: Row) -> str:
    return f"gain ({summary['method']['confidence_pct']:g} % interval)"


def how_to_read(summary: Row) -> list[str]:
    """What the columns of a ladder table mean, a line each."""
    method = summary["method"]
    return [
        "A step changes one cause only, and both of its rungs were timed side by side in the same rounds. Its gain is "
        "the share of the latency that it removed.",
        "A latency is that of one launch of a whole batch, from submitting it until its result is there; copies "
        "between host and device are in it only where a rung's transfers are 'included'.",
        "'faster' and 'slower' mean that the gain's interval leaves out 0; 'within noise' that no difference was "
        "shown, not that there is none: a change of the size under 'smallest findable' would have been found with "
        f"{method['power_pct']:g} % probability. Fewer than {method['min_rounds']} rounds give no verdict.",
        "'ran in' is what the runtime itself reports of the second rung: the share of the FLOPs in convolutions and "
        "matrix products at the precision asked for, or of the nodes that compute where FLOPs cannot be assigned. "
        f"{WARNED} marks a rung whose audit warns.",
        RANKED,
    ]


def weights_note(label: str | None) -> str:
    """The weights label as every table states it."""
    if label is None:
        return "not known: nothing was built or measured"
    return f"{label}: random weights, timing only" if label.startswith("seeded") else label


def processor(host: Row) -> str:
    """The device's name as the host told it, the GPU's where there is one, and the cores of the CPU."""
    state = host["state"]
    named = [value for key, value in state.items() if key.split(".")[-2:] in (["gpu", "name"], ["processor"])]
    name = " + ".join(str(value) for value in reversed(named)) or "processor unknown"
    return f"{name}, {cores} cores" if (cores := state.get("physical_cores")) else name


NOT_FAIR = f" (below {100 * FAIR_SHARE:g} % of the datasheet's figure, which counts instead)"


def peaks_note(peaks: Row) -> str:
    """The peaks of a device, e.g. ``Peaks of NVIDIA L4, measured: fp32 25.1 TFLOPS, …, memory 270 GB/s``."""
    told = []
    for kind in ("measured", "datasheet"):
        if (found := peaks[kind]) is not None:
            sheet = (peaks["datasheet"] or {"tflops": {}})["tflops"]
            rates = [
                f"{name} {number(rate)} TFLOPS{'' if is_fair(rate, sheet.get(name)) else NOT_FAIR}"
                for name, rate in found["tflops"].items()
            ]
            source = f" ({found['source']})" if "source" in found else ""
            if (found.get("load_before") or 0) > BUSY_LIMIT:
                source = f" {WARNED} while other programs kept {found['load_before']:.1f} CPUs busy"
            told.append(f"{kind}{source}: {', '.join(rates)}, memory {number(found['bandwidth_gb_s'])} GB/s")
    return f"Peaks of {peaks['device'] or 'a GPU that tells no name'}, {'; '.join(told)}" if told else ""


def saturation_point(mark: Row) -> str:
    """The point in words, and what noise leaves of it where that is more than one batch."""
    lowest, highest, largest = mark["lowest_batch"], mark["highest_batch"], mark["largest_batch"]
    if mark["batches"] == 1:
        return f"not known: only batch {largest} was measured"
    point = f"batch {mark['batch']}" if mark["batch"] else f"not reached up to batch {largest}"
    if lowest == highest:
        return point
    return f"{point}; noise leaves {lowest} to {'beyond ' * (highest == largest)}{highest}"


def weights_notes(summary: Row, platform: str | None = None) -> str:
    """The weights of every model of a platform (None: of all), e.g. ``Weights: yolo11n seeded(0): ..; resnet18 ..``."""
    models = {entry["model"] for entry in summary["ladders"] if platform in (None, entry["platform"])}
    return "Weights: " + "; ".join(f"{m} {weights_note(w)}" for m, w in summary["weights"].items() if m in models)


def context(summary: Row) -> list[str]:
    """What goes for a whole page, one line each: weights, processor, releases, when, and what to know before trust."""
    lines = [weights_notes(summary)]
    lines += dict.fromkeys(f"Platform {host['platform']}: {processor(host)}" for host in summary["hosts"])
    for platform, versions in summary["versions"].items():
        told = ((name, releases(value)) for name, value in sorted(versions.items()))
        lines.append(f"Versions on {platform}: " + ", ".join(f"{name} {text}" for name, text in told if text))
    span = summary["measured"]
    if span["first"] is None:
        lines.append("Nothing was measured.")
    else:
        first, last = span["first"][:10], span["last"][:10]
        days = first if first == last else f"{first} to {last}"
        sittings = f"{span['sittings']} sitting{'s' * (span['sittings'] != 1)}"
        lines.append(f"Measured {days}: {span['runs']} runs in {sittings}")
    return lines + caveats(summary)


def caveats(summary: Row, where: str = "see the report's warnings") -> list[str]:
    """A line for everything that makes the tables less trustworthy, but what stands beside a rung already.

    ``where`` says what names the runs that are only counted.
    """
    general = [w for w in summary["warnings"] if w["kind"] in ("host", "workflow", "files", "device")]
    lines = [f"{WARNED} {warning['warning']} ({warning['scope']})" for warning in general]
    if runs := len(summary["unsteady_runs"]):
        lines.append(f"{WARNED} {runs} of {summary['measured']['runs']} runs were unsteady ({where})")
    if runs := len(summary["busy_runs"]):
        told = f"{runs} of {summary['measured']['runs']} runs began beside busy programs"
        lines.append(f"{WARNED} {told} ({where})")
    if count := summary["failures"]:
        lines.append(f"{WARNED} not everything gave a result: {count} row{'s' * (count != 1)} in failures.csv")
    return lines


def releases(value: Any) -> str:
    """The release out of a version string, or out of several, e.g. ``2026.4.1``; empty for what is no version.

    The whole strings stand on the page on the environment.
    """
    found = [RELEASE.match(str(each)) for each in (value if isinstance(value, list) else [value])]
    return " and ".join(dict.fromkeys(match[0] for match in found if match))


def place(entry: Row) -> str:
    """The heading of a ladder's part, e.g. ``yolo11n, batch 1 (ladder cpu, platform cpu)``."""
    return f"{entry['model']}, batch {entry['batch']} (ladder {entry['ladder']}, platform {entry['platform']})"


def ladder_markdown(summary: Row) -> str:
    """Tables for a README, one a ladder and batch, as wide as a README is; the noise floor is left to the report."""
    titles = ["step", "cause", "from → to, ms", interval_title(summary), "smallest findable", "ran in", "verdict"]
    lines = []
    for entry in summary["ladders"]:
        told = [f"weights {weights_note(entry['weights'])}", *([rounds(entry["steps"])] if entry["steps"] else [])]
        lines += [f"**{place(entry)}**: {'; '.join(told)}", ""]
        if not entry["steps"]:
            lines += [NO_STEPS, ""]
            continue
        lines += [f"| {' | '.join(titles)} |", "|---|---|---:|---:|---:|---|---|"]
        for step in shown(entry):
            cells = [
                f"{step['from']} → {step['to']}", step["cause"], unbroken(from_to(step)),
                unbroken(gain(step)), percent(step["mde_pct"]),
                unbroken(step["ran_in"].partition(" of ")[0]), step["verdict"],
            ]  # fmt: skip
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
        for note in [*fastest(entry), *notes(entry)]:
            lines += [note, ""]
    lines += [f"- {line}" for line in context(summary)]
    lines += ["", "How to read it:", "", *(f"- {line}" for line in how_to_read(summary))]
    return "\n".join(lines).replace(" %", f"{NBSP}%") + "\n"


def unbroken(text: str) -> str:
    """A figure that no line breaks but before its interval."""
    return text.replace(" ", NBSP).replace(f"{NBSP}(", " (")
