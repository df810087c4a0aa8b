"""The ladder as text: Markdown for a README, and a table for the terminal. Both say what the summary says, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

NO_STEPS = "A single rung: no step to compare."


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many significant digits, no exponent, and its integer part whole; empty where there is none."""
    return "" if value is None else f"{value:,.{_decimals(value, digits)}f}"


def _decimals(value: float, digits: int = 3) -> int:
    """Decimal places that give a value so many significant digits."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return max(0, digits - 1 - exponent)


def gain_ms(step: Row) -> str:
    """The gain in ms as finely as the latency it is taken from, but to 0.1 ms at least; empty where there is none."""
    if step["gain_ms"] is None:
        return ""
    return f"{step['gain_ms']:+,.{max(1, _decimals(step['from_ms']))}f}".replace("-", "−")


def gain(step: Row) -> str:
    """The gain and its interval in %, e.g. ``+31.2 % (28.9 to 33.5)``; empty where nothing was compared."""
    if step["gain_pct"] is None:
        return ""
    text = f"{step['gain_pct']:+.1f} %"
    if step["ci_low_pct"] is not None:
        text += f" ({step['ci_low_pct']:+.1f} to {step['ci_high_pct']:+.1f})"
    return text.replace("-", "−")


def from_to(step: Row) -> str:
    """Both latencies in ms, e.g. ``86.1 → 59.2``."""
    if step["from_ms"] is None or step["to_ms"] is None:
        return ""
    return f"{number(step['from_ms'])} → {number(step['to_ms'])}"


def findable(step: Row) -> str:
    """The smallest effect that the rounds would have found, in %, e.g. ``2.1 %``."""
    return "" if step["mde_pct"] is None else f"{step['mde_pct']:.1f} %"


def interactions(steps: Sequence[Row]) -> list[str]:
    """A line for each pair of causes that was measured in both orders."""
    causes: dict[float, list[str]] = {}
    for step in steps:
        if step["interaction_ms"] is not None:
            causes.setdefault(step["interaction_ms"], []).append(step["cause"])
    lines = []
    for value, names in causes.items():
        sign, way = ("+", "more") if value >= 0 else ("−", "less")
        line = f"Interaction of {' and '.join(dict.fromkeys(names))}: {sign}{number(abs(value))} ms; "
        lines.append(line + f"either gains this much {way} after the other than before it.")
    return lines


def interval_title(summary: Row) -> str:
    return f"gain ({summary['method']['confidence_pct']:g} % interval)"


def how_to_read(summary: Row) -> str:
    """What the columns of a ladder table mean."""
    method = summary["method"]
    return (
        "A step changes one cause only, and both of its rungs were timed side by side in the same rounds. The gain is "
        "the share of the latency that the step removed; 'faster' and 'slower' mean that its interval leaves out 0. "
        "'within noise' means that no difference was shown, not that there is none: an effect of the size given as "
        f"findable would have been found with {method['power_pct']:g} % probability. Below {method['min_rounds']} "
        "rounds there is no verdict."
    )


def weights_note(label: str | None) -> str:
    """The weights label as every table states it."""
    if label is None:
        return "not known: nothing was measured"
    return f"{label}: random weights, timing only" if label.startswith("seeded") else label


def processor(host: Row) -> str:
    """The device's name as the host told it: the GPU where there is one, else the CPU."""
    state = host["state"]
    named = [value for key, value in state.items() if key.split(".")[-2:] in (["gpu", "name"], ["processor"])]
    return " + ".join(str(value) for value in reversed(named)) or "processor unknown"


def weights_notes(summary: Row, platform: str | None = None) -> str:
    """The weights of every model of a platform (None: of all), e.g. ``Weights: yolo11n seeded(0): ..; resnet18 ..``."""
    models = {entry["model"] for entry in summary["ladders"] if platform in (None, entry["platform"])}
    return "Weights: " + "; ".join(f"{m} {weights_note(w)}" for m, w in summary["weights"].items() if m in models)


def context(summary: Row) -> list[str]:
    """What goes for a whole page, one line each: weights, platform and processor, versions, when and how often."""
    lines = [weights_notes(summary)]
    lines += dict.fromkeys(f"Platform {host['platform']}: {processor(host)}" for host in summary["hosts"])
    for platform, versions in summary["versions"].items():
        lines.append(f"Versions on {platform}: " + ", ".join(f"{k} {_joined(v)}" for k, v in versions.items()))
    span = summary["measured"]
    if span["first"] is None:
        return [*lines, "Nothing was measured."]
    first, last = span["first"][:10], span["last"][:10]
    days = first if first == last else f"{first} to {last}"
    sittings = f"{span['sittings']} sitting{'s' * (span['sittings'] != 1)}"
    return [*lines, f"Measured {days}: {span['runs']} runs in {sittings}"]


def _joined(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def tables_of(summary: Row) -> list[tuple[tuple[str, str, int], list[Row]]]:
    """The ladders of one platform, model and batch side by side, in the plan's order."""
    order: dict[tuple[str, str, int], list[Row]] = {}
    for entry in summary["ladders"]:
        order.setdefault((entry["platform"], entry["model"], entry["batch"]), []).append(entry)
    return list(order.items())


def ladder_markdown(summary: Row) -> str:
    """Tables for a README: one a platform, model and batch, with what is needed to read them."""
    lines = []
    titles = ["step", "cause", "from → to, ms", interval_title(summary)]
    titles += ["noise floor, ms", "findable", "rounds", "verdict"]
    for (platform, model, batch), entries in tables_of(summary):
        steps = [step for entry in entries for step in entry["steps"]]
        lines += [f"**{model}, batch {batch}, {platform}** (weights {weights_note(summary['weights'][model])})", ""]
        if not steps:
            lines += [NO_STEPS, ""]
            continue
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for step in steps:
            cells = (
                f"{step['from']} → {step['to']}", step["cause"], from_to(step), gain(step),
                number(step["noise_floor_ms"], 2), findable(step), str(step["rounds"]), step["verdict"],
            )  # fmt: skip
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines += ["", *interactions(steps), ""]
    lines += [how_to_read(summary), ""]
    lines += [f"- {line}" for line in context(summary)]
    if summary["failures"]:
        lines.append(f"- {summary['failures']} rungs, batches or runs gave no result: see failures.csv")
    return "\n".join(lines) + "\n"
