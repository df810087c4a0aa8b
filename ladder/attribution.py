"""Which step of a ladder gained how much, and whether that is more than noise: rows of runs in, rows of steps out.

Pure. The method, its sources and its calibration stand in docs/method.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ladder import statistics
from ladder.errors import StepError
from ladder.tables import CLEAR, FLAGS, INTERACTION, LADDER

log = logging.getLogger(__name__)

Step = Mapping[str, str]  # {"from": rung, "to": rung, "cause": cause}
Device = tuple[Any, ...]  # host and device_uuid; None where unreadable
Runs = dict[str, dict[Any, tuple[Device, float | None]]]  # rung -> round -> (device, median in ms; None: left out)

COLUMNS = (
    "platform", "model", "weights", "ladder", "batch", "rung", "precision", "transfers", "round", "host", "device_uuid",
    "median_ms", *FLAGS,
)  # fmt: skip
RANKING = (
    "platform", "model", "weights", "ladder", "batch", "transfers", "precision", "rung", "rounds", "median_ms",
    "slowdown", "slowdown_low", "slowdown_high", "verdict",
)  # fmt: skip
TOTAL = tuple(column for column in LADDER if column not in ("cause", *INTERACTION))
NUMBERS = (
    "from_ms", "to_ms", "gain_ms", "gain_pct", "ci_low_pct", "ci_high_pct", "noise_floor_ms", "mde_pct", *INTERACTION,
)  # fmt: skip


def attribute(runs: pd.DataFrame, ladders: Sequence[Mapping[str, Any]], exclude: Sequence[str] = FLAGS) -> pd.DataFrame:
    """One row per ladder, batch and step, with the columns of ``ladder.tables.LADDER``, in configured order.

    ``runs`` has ``COLUMNS``, out of ``ladder.tables.RESULTS``; each ladder is ``{"platform", "ladder", "model",
    "weights", "batches": [..], "steps": [{"from", "to", "cause"}]}``. Only rounds in which both rungs ran on one
    host and device count; a round that spans two is left out with a warning in the log. So is, for the steps of a
    rung, a round whose run of that rung has one of the flags ``exclude``, columns out of ``ladder.tables.FLAGS``.

    rounds: number of such rounds. rounds_excluded: number of rounds left out for a flag. from_ms, to_ms: geometric
    means of the run medians over the rounds. gain_ms: from_ms - to_ms. gain_pct: share of the latency removed,
    negative where slower. ci_low_pct, ci_high_pct: its interval. noise_floor_ms and mde_pct: see
    ``ladder.statistics``. interaction_ms: where both orders of two causes x and y stand in the ladder
    (A -x-> B -y-> D and A -y-> C -x-> D), the gain of x after y less the gain of x before it, (C - D) - (A - B), in ms
    over the rounds that have all four rungs; positive where the causes strengthen each other, negative where their
    gains overlap; the same on the four rows. interaction_low_ms, interaction_high_ms: its interval. What cannot be
    computed is NaN. Raises StepError where a rung has two runs in one round or a median that is not positive.
    """
    rows = []
    for ladder in ladders:
        for batch in ladder["batches"]:
            where = f"{ladder['platform']}, {ladder['model']}, {ladder['ladder']}, batch {batch}"
            medians = _medians(runs, ladder, batch, where, exclude)
            interactions = _interactions(medians, ladder["steps"], where)
            for index, step in enumerate(ladder["steps"]):
                row = _row(ladder, batch, medians, step, where)
                rows.append(row | interactions.get(index, {}))
    return pd.DataFrame(rows, columns=list(LADDER)).astype(
        dict.fromkeys(NUMBERS, float) | {"rounds": int, "rounds_excluded": int}
    )


def totals(runs: pd.DataFrame, ladders: Sequence[Mapping[str, Any]], exclude: Sequence[str] = FLAGS) -> pd.DataFrame:
    """One row per ladder, batch and pair of first and last rung that steps lead to one after another: ``TOTAL``.

    Its columns are those of ``attribute``, which also says what comes in, for a step from the first rung to the last:
    both ran in the same rounds, so that the total is paired as a step is and not added up from the steps' intervals.
    A single step is its own total and has no row. Where the last rung has no run, the total up to the last rung that
    has one follows in a row of its own. Raises StepError as ``attribute`` and ``paths`` do.
    """
    rows = []
    for ladder in ladders:
        ways = [path for path in paths(ladder["steps"]) if len(path) > 1]
        for batch in ladder["batches"] if ways else ():
            where = f"{ladder['platform']}, {ladder['model']}, {ladder['ladder']}, batch {batch}"
            medians = _medians(runs, ladder, batch, where, exclude)
            ends = dict.fromkeys(pair for path in ways for pair in _ends(path, medians))
            rows += [_row(ladder, batch, medians, {"from": first, "to": last}, where) for first, last in ends]
    numbers = [column for column in NUMBERS if column in TOTAL]
    return pd.DataFrame(rows, columns=list(TOTAL)).astype(
        dict.fromkeys(numbers, float) | {"rounds": int, "rounds_excluded": int}
    )


def ranking(runs: pd.DataFrame, ladders: Sequence[Mapping[str, Any]], exclude: Sequence[str] = FLAGS) -> pd.DataFrame:
    """The rungs of each ladder and batch, fastest first: ``RANKING``. What comes in is that of ``attribute``.

    All rungs that time the same ``transfers`` are ranked, and then, ``precision`` by precision where there are several,
    those of each; ``precision`` is None in the rows of all. Two rungs at least: one alone has no row. Every rung of a
    ranking is judged by the same ``rounds``, those that all of them have on one device and without a flag: other rounds
    would be another host's state. A rung that would leave fewer than ``statistics.MIN_ROUNDS`` of them (or, where none
    has as many, than the most that one has) has no row either.

    median_ms: geometric mean of the run medians over the rounds. slowdown: this over that of the first row.
    slowdown_low, slowdown_high: interval of the latency over the truly fastest rung's, whichever of them that is, at
    99 % for all rows of a ranking together (``statistics.behind_best``); NaN for a single round. verdict: ``fastest``
    where all others are ``slower``, ``may be fastest`` where several are not shown to be, ``too few rounds`` as ever.
    Raises StepError as ``attribute``.
    """
    rows = []
    for ladder in ladders:
        for batch in ladder["batches"]:
            where = f"{ladder['platform']}, {ladder['model']}, {ladder['ladder']}, batch {batch}"
            head = {**{key: ladder[key] for key in ("platform", "model", "weights", "ladder")}, "batch": batch}
            chosen = _chosen(runs, ladder, batch)
            medians = _medians(runs, ladder, batch, where, exclude)
            for transfers, alike in chosen.groupby("transfers", sort=False):
                named = [(None, alike), *alike.groupby("precision", sort=False)]
                for precision, among in named if len(named) > 2 else named[:1]:
                    rungs = list(among["rung"].unique())
                    about = {"transfers": transfers, "precision": precision}
                    rows += [head | about | row for row in _ranked({rung: medians[rung] for rung in rungs})]
    numbers = dict.fromkeys(("median_ms", "slowdown", "slowdown_low", "slowdown_high"), float)
    return pd.DataFrame(rows, columns=list(RANKING)).astype(numbers | {"rounds": int})


def flagged(value: Any) -> bool:
    """Whether a flag of a run, one of ``ladder.tables.FLAGS``, holds anything; one that could not be read does not."""
    return not pd.isna(value) and value != CLEAR


def paths(steps: Sequence[Step]) -> list[list[Step]]:
    """Every way from a root rung (one that no step leads to) to a last one, each the bars of one waterfall.

    Branches give several paths, and so do two orders of the same causes; ``order`` names them. Paths come in the
    order of the steps. Raises StepError where the steps run in a circle.
    """
    reached = {step["to"] for step in steps}
    roots = dict.fromkeys(step["from"] for step in steps if step["from"] not in reached)
    if steps and not roots:
        raise StepError(f"steps run in a circle: every one of {sorted(reached)} has a step to it; leave one without")

    def extend(path: list[Step], seen: tuple[str, ...]) -> Iterator[list[Step]]:
        onward = [step for step in steps if step["from"] == seen[-1]]
        if not onward:
            yield path
        for step in onward:
            if step["to"] in seen:
                raise StepError(f"steps run in a circle: {' → '.join((*seen, step['to']))}; take one of them out")
            yield from extend([*path, step], (*seen, step["to"]))

    return [path for root in roots for path in extend([], (root,))]


def order(path: Sequence[Step]) -> str:
    """The causes of a path in their order, e.g. "launch, then compilation"."""
    return ", then ".join(step["cause"] for step in path)


def _chosen(runs: pd.DataFrame, ladder: Mapping[str, Any], batch: int) -> Any:
    """The runs of a ladder and batch, a table: pandas' stubs know no types of its columns."""
    keys = ("platform", "model", "weights", "ladder")
    return runs[(runs["batch"] == batch) & np.logical_and.reduce([runs[key] == ladder[key] for key in keys])]


def _medians(runs: pd.DataFrame, ladder: Mapping[str, Any], batch: int, where: str, exclude: Sequence[str]) -> Runs:
    chosen = _chosen(runs, ladder, batch)
    medians: Runs = {}
    kept_out = {position for position, flags in enumerate(chosen[list(exclude)].values) if any(map(flagged, flags))}
    columns = ["rung", "round", "host", "device_uuid", "median_ms"]
    for position, run in enumerate(chosen[columns].itertuples(index=False)):
        rounds = medians.setdefault(run.rung, {})
        if run.round in rounds:
            raise StepError(
                f"rung '{run.rung}' has two runs in round {run.round} ({where}): expected one, since nothing tells "
                "which of them ran beside the other rungs; remove that round's files and measure it again"
            )
        if pd.isna(run.median_ms):
            continue
        if not run.median_ms > 0:
            raise StepError(
                f"rung '{run.rung}', round {run.round} ({where}) has a median of {run.median_ms} ms: expected more "
                "than 0; look at its raw latencies and measure that round again"
            )
        device = tuple(None if pd.isna(part) else part for part in (run.host, run.device_uuid))
        rounds[run.round] = (device, None if position in kept_out else float(run.median_ms))
    return medians


def _ends(path: Sequence[Step], medians: Runs) -> Iterator[tuple[str, str]]:
    """The first and last rung of a path; and of the part of several steps that ends in runs, where it does not."""
    first = path[0]["from"]
    yield first, path[-1]["to"]
    ran = [step["to"] for step in path[1:] if medians.get(step["to"])]
    if ran and medians.get(first):
        yield first, ran[-1]


def _excluded(medians: Runs, rungs: Sequence[str]) -> set[Any]:
    """The rounds that have all these rungs, but one of them flagged."""
    rounds = set.intersection(*(set(medians.get(rung, {})) for rung in rungs))
    return {number for number in rounds if any(medians[rung][number][1] is None for rung in rungs)}


def _shared(medians: Runs, rungs: Sequence[str], where: str) -> np.ndarray:
    """Medians in ms, [rungs, rounds], of the rounds in which all these rungs ran on one device."""
    rounds = sorted(set.intersection(*(set(medians.get(rung, {})) for rung in rungs)) - _excluded(medians, rungs))
    columns = []
    for number in rounds:
        devices, values = zip(*(medians[rung][number] for rung in rungs), strict=True)
        if len(set(devices)) == 1:
            columns.append(values)
        else:
            listed = ", ".join(f"{rung} on {device}" for rung, device in zip(rungs, devices, strict=True))
            log.warning("%s: round %s is left out, since it spans devices (host, uuid): %s", where, number, listed)
    return np.array(columns, dtype=float).reshape(-1, len(rungs)).T


def _row(ladder: Mapping[str, Any], batch: int, medians: Runs, step: Step, where: str) -> dict[str, Any]:
    """The columns of a step, or of a total, but for what goes beyond its two rungs."""
    ends = (step["from"], step["to"])
    return {
        **{key: ladder[key] for key in ("platform", "model", "weights", "ladder")},
        "batch": batch,
        **step,
        "rounds_excluded": len(_excluded(medians, ends)),
        **_compare(*_shared(medians, ends, where)),
    }


def _compare(from_medians: np.ndarray, to_medians: np.ndarray) -> dict[str, Any]:
    """The columns from ``rounds`` to ``mde_pct``, and the verdict, for medians in ms over the same rounds."""
    rounds = len(from_medians)
    row: dict[str, Any] = {"rounds": rounds, "verdict": statistics.TOO_FEW_ROUNDS}
    if rounds == 0:
        return row
    from_ms, to_ms = _geometric_mean(from_medians), _geometric_mean(to_medians)
    log_ratios = np.log(from_medians / to_medians)
    row |= {
        "from_ms": from_ms,
        "to_ms": to_ms,
        "gain_ms": from_ms - to_ms,
        "gain_pct": statistics.gain_pct(log_ratios.mean()),
    }
    if rounds == 1:
        return row
    _, low, high = statistics.paired_interval(log_ratios)
    detectable = statistics.minimum_detectable_effect(float(log_ratios.std(ddof=1)), rounds)
    return row | {
        "ci_low_pct": statistics.gain_pct(low),
        "ci_high_pct": statistics.gain_pct(high),
        "noise_floor_ms": statistics.noise_floor(from_medians, to_medians),
        "mde_pct": statistics.gain_pct(detectable),
        "verdict": statistics.verdict(float(low), float(high), rounds),
    }


def _ranked(medians: Runs) -> list[dict[str, Any]]:
    """The columns of a ranking that its runs give, a row for each rung that enters, fastest first."""
    usable = {
        rung: {(number, device) for number, (device, ms) in rounds.items() if ms is not None}
        for rung, rounds in medians.items()
    }
    needed = max(1, min(statistics.MIN_ROUNDS, max(map(len, usable.values()))))
    entered: list[str] = []
    shared: set[tuple[Any, Device]] = set().union(*usable.values())
    for rung in sorted(usable, key=lambda name: -len(usable[name])):
        if len(left := shared & usable[rung]) >= needed:
            entered, shared = [*entered, rung], left
    if len(entered) < 2:
        return []
    numbers = sorted(number for number, _ in shared)
    values = {rung: np.array([medians[rung][number][1] for number in numbers], dtype=float) for rung in entered}
    entered.sort(key=lambda rung: _geometric_mean(values[rung]))
    fastest_ms = _geometric_mean(values[entered[0]])
    rows = []
    for rung in entered:
        median_ms = _geometric_mean(values[rung])
        rows.append({"rung": rung, "rounds": len(numbers), "median_ms": median_ms, "slowdown": median_ms / fastest_ms})
    if len(numbers) > 1:
        low, high, may_be_best = statistics.behind_best([np.log(values[rung]) for rung in entered])
        best = statistics.FASTEST if may_be_best.sum() == 1 else statistics.MAY_BE_FASTEST
        for row, *ends, may in zip(rows, np.exp(low), np.exp(high), may_be_best, strict=True):
            verdict = best if may else statistics.SLOWER
            row |= {"slowdown_low": float(ends[0]), "slowdown_high": float(ends[1]), "verdict": verdict}
    if len(numbers) < statistics.MIN_ROUNDS:
        rows = [row | {"verdict": statistics.TOO_FEW_ROUNDS} for row in rows]
    return rows


def _geometric_mean(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean()))


def _interactions(medians: Runs, steps: Sequence[Step], where: str) -> dict[int, dict[str, float]]:
    """The columns of ``INTERACTION`` by index of step; none for a square that no round has whole."""
    found: dict[int, dict[str, float]] = {}
    for square in _squares(steps):
        first, second, other = (steps[index] for index in square[:3])
        a, b, c, d = first["from"], first["to"], other["to"], second["to"]
        shared = _shared(medians, (a, b, c, d), where)
        if not shared.shape[1]:
            continue
        a_ms, b_ms, c_ms, d_ms = (_geometric_mean(row) for row in shared)
        interaction = {"interaction_ms": (c_ms - d_ms) - (a_ms - b_ms)}
        if shared.shape[1] > 1:
            _, low, high = statistics.combined_interval(shared, (-1, 1, 1, -1))
            interaction |= {"interaction_low_ms": float(low), "interaction_high_ms": float(high)}
        if found.keys() & set(square):
            # a column holds one number a row, and the four rows of a square must agree
            log.warning("%s: the interaction of %s and %s between %s and %s (%.4g ms) is not in the table, since "
                        "one of its steps already belongs to another pair of orders",
                        where, first["cause"], second["cause"], a, d, interaction["interaction_ms"])  # fmt: skip
            continue
        found |= dict.fromkeys(square, interaction)
    return found


def _squares(steps: Sequence[Step]) -> list[tuple[int, int, int, int]]:
    """Indices of the steps A-x->B, B-y->D, A-y->C, C-x->D of every pair of orders of two causes, each pair once."""
    numbered = list(enumerate(steps))
    squares: dict[frozenset[int], tuple[int, int, int, int]] = {}
    for i, ab in numbered:
        for j, bd in numbered:
            if bd["from"] != ab["to"] or bd["cause"] == ab["cause"]:
                continue
            for k, ac in numbered:
                if ac["from"] != ab["from"] or ac["to"] == ab["to"] or ac["cause"] != bd["cause"]:
                    continue
                for m, cd in numbered:
                    if (cd["from"], cd["to"], cd["cause"]) == (ac["to"], bd["to"], ab["cause"]):
                        squares.setdefault(frozenset((i, j, k, m)), (i, j, k, m))
    return list(squares.values())
