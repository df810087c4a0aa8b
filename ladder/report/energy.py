"""Why runs have no energy, and what to do: a sentence a platform, from rows of results.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ladder.summary_warnings import NUMBER, ranged

ENOUGH_SECONDS = 10.0  # a throughput pass so long gives energy to about 1 %: docs/method.md, Watching a GPU
NOT_LOOKED_AT = "the GPU was not looked at in the throughput pass"
DISAGREES = "the energy counter gives"  # how ladder.telemetry.summary begins where power readings contradict it


def energy_note(platform: str, runs: Sequence[Mapping[str, str]], asked_s: float | None) -> str:
    """One or two sentences on the energy that these runs of a platform lack; empty where all of them have it.

    ``asked_s`` is ``measure.throughput_seconds``, s; None where it is not known.
    """
    if all(run["device"] == "cpu" for run in runs):
        return f"Platform {platform} has no energy: it is read of GPUs only."
    lacking = [run for run in runs if not run["power_w"]]
    if not lacking:
        return ""
    alike: dict[str, list[str]] = defaultdict(list)
    for run in lacking:
        reason = run["energy_missing"] or NOT_LOOKED_AT
        alike[NUMBER.sub("#", reason)].append(reason)
    why = ", ".join(f"{ranged(reasons)} ({len(reasons)})" for reasons in alike.values())
    lacks = f"Platform {platform} has no energy in {len(lacking)} of {len(runs)} runs: {why}"
    return f"{lacks}. {_remedy(list(alike), asked_s)}"


def _remedy(reasons: Sequence[str], asked_s: float | None) -> str:
    if all(reason.startswith(DISAGREES) for reason in reasons):
        return "That counter is wrong or counts in another unit than it says; no setting changes that."
    if asked_s is not None and asked_s >= ENOUGH_SECONDS:
        return (
            f"Throughput passes of {asked_s:g} s are long enough for a counter that works: where it has too few steps "
            "longer ones may help, else the GPU, its driver or a container does not give it."
        )
    given = "" if asked_s is None else f" (it was {asked_s:g})"
    return (
        "A short throughput pass sees too little of the counter: set measure.throughput_seconds to "
        f"{ENOUGH_SECONDS:g}{given} and call again."
    )
