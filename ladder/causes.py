"""Which factors a step may change, by its cause. This rule is what keeps one number to one cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FACTORS = ("device", "api", "compiler", "precision", "launch", "shape", "transfers", "threads", "options")

# cause -> (factors of which at least one must differ, further factors that may differ with them)
CAUSES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "launch": (frozenset({"launch"}), frozenset()),
    "compilation": (frozenset({"compiler"}), frozenset({"api"})),  # a compiler forces its own api
    "wrapper": (frozenset({"api"}), frozenset()),
    "precision": (frozenset({"precision"}), frozenset()),
    "specialisation": (frozenset({"shape"}), frozenset()),
    "tuning": (frozenset({"options"}), frozenset()),
    "none": (frozenset(), frozenset()),  # A/A: the same thing twice
}


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The factors in which two rungs differ, in the order of FACTORS."""
    return [factor for factor in FACTORS if first[factor] != second[factor]]


def fault(first: Mapping[str, Any], second: Mapping[str, Any], cause: str) -> str | None:
    """Why the step from ``first`` to ``second`` may not be called ``cause``; None where it may."""
    changed = differing(first, second)
    needed, allowed = CAUSES[cause]
    stray = [factor for factor in changed if factor not in needed | allowed]
    if stray:
        listed = ", ".join(f"{factor} ({_show(first[factor])} → {_show(second[factor])})" for factor in changed)
        may = " and ".join(sorted(needed | allowed)) or "nothing"
        return f"conflated: cause '{cause}' may change {may} only, but these factors differ: {listed}"
    if needed and not needed & set(changed):
        return f"cause '{cause}' must change {' or '.join(sorted(needed))}, but the rungs do not differ in it"
    return None


def hidden(first: Mapping[str, Any], second: Mapping[str, Any], cause: str) -> str | None:
    """What differs between two stacks that count as the same runtime, so that no factor shows it; None: nothing does.

    The stacks are given by the fields of their entries in the configuration.
    """
    if any(first[key] != second[key] for key in ("device", "api", "compiler")):
        return None
    changed = [key for key in ("module", "arguments", "environment", "source") if first[key] != second[key]]
    if not changed:
        return None
    listed = ", ".join(f"{key} ({_show(first[key])} → {_show(second[key])})" for key in changed)
    return (
        f"conflated: cause '{cause}' cannot join stacks that name the same api and compiler but differ in: {listed}; "
        "run both rungs on one stack, with other options, or give one stack an api or compiler of its own"
    )


def _show(value: Any) -> str:
    return "none" if value == {} else str(value)
