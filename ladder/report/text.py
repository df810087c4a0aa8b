"""The ladder as text: Markdown for a README, and a table for the terminal. Both say what the summary says, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many significant digits and no exponent; empty where there is none."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    exponent = int(f"{abs(rounded):.0e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


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
    return [
        f"Interaction of {' and '.join(dict.fromkeys(names))}: {_signed(value)} ms; either gains this much "
        f"{'more' if value >= 0 else 'less'} after the other than before it."
        for value, names in causes.items()
    ]


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "−") + number(abs(value))


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


def context(summary: Row, model: str | None = None) -> list[str]:
    """What every table has to state, one line each: weights, platform and processor, versions, when and how often."""
    labels = {name: label for name, label in summary["weights"].items() if model in (None, name)}
    lines = [f"Weights of {name}: {weights_note(label)}" for name, label in labels.items()]
    for host in summary["hosts"]:
        lines.append(f"Platform {host['platform']}: {processor(host)}")
    for platform, versions in summary["versions"].items():
        lines.append(f"Versions on {platform}: " + ", ".join(f"{k} {_joined(v)}" for k, v in versions.items()))
    span = summary["measured"]
    if span["first"] is None:
        return [*lines, "Nothing was measured."]
    first, last = span["first"][:10], span["last"][:10]
    days = first if first == last else f"{first} to {last}"
    return [*lines, f"Measured {days}: {span['runs']} runs in {span['sittings']} sitting{'s' * (span['sittings'] != 1)}"]


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
    for (platform, model, batch), entries in tables_of(summary):
        steps = [step for entry in entries for step in entry["steps"]]
        lines += [f"**{model}, batch {batch}, {platform}** (weights {weights_note(summary['weights'][model])})", ""]
        lines += [f"| step | cause | from → to, ms | {interval_title(summary)} | noise floor, ms | findable | rounds | verdict |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
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
