"""What a reader has to know before trusting the tables: the warnings of summary.json."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from ladder import attribution, tables
from ladder.records import Row, audits_by_engine, engine_at, first_row, ladder_key

PARENT_CPU_LIMIT_PCT = 1.0  # of a core
THROUGHPUT_FACTOR = 2  # ours: off the median of a rung's rounds; in docs/measurements no round is beyond 1.6
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def find_warnings(
    records: Sequence[Row],
    results: Sequence[Row],
    unsteady: Sequence[Row],
    busy: Sequence[Row],
    ladders: Sequence[Row],
    audited: Sequence[Row],
) -> list[Row]:
    """What a reader has to know before trusting the tables, each with the rounds, runs or engines it concerns.

    ``kind`` is ``host`` (said before or in a round), ``workflow``, ``files``, ``device``, ``throughput``,
    ``audit``, ``busy`` or ``unsteady``.
    """
    of_rounds: dict[str, dict[Path, str]] = defaultdict(dict)
    for record in records:
        for text in record["warnings"]:
            of_rounds[NUMBER.sub("#", text)][record["path"]] = text
    found = [
        _warning("host", ranged(list(texts.values())), f"{len(texts)} of {len(records)} rounds")
        for texts in of_rounds.values()
    ]
    dear = [row["parent_cpu_pct"] for row in results if (row["parent_cpu_pct"] or 0) >= PARENT_CPU_LIMIT_PCT]
    if dear:
        made_of = "Snakemake, the round's process and, on a GPU, its sampler"
        text = f"the workflow itself ({made_of}) used up to {max(dear):.1f} % of a core during a run; below "
        text += f"{PARENT_CPU_LIMIT_PCT:g} % is wanted"
        found.append(_warning("workflow", text, f"{len(dear)} of {len(results)} runs"))
    # ladders of one platform may have a GPU each; the rounds of one of them should not
    for of, what in ((itemgetter("model"), "fp32_onnx_sha256"), (_ladder, "device_uuid")):
        for name, group in groupby(sorted(results, key=of), key=of):
            held = sorted({row[what] for row in group if row[what] is not None})
            if len(held) > 1:
                text = f"{name}: the runs do not agree in {what}: {', '.join(held)}"
                found.append(_warning("files", text, f"{len(held)} values"))
    of_rung = {ladder_key(runs[0], "rung", "batch"): runs for runs in _by_rung(results)}
    found += _several_artifacts(of_rung, ladders, audited)
    found += _two_libraries(records, ladders)
    for flag in tables.FLAGS:
        for runs in of_rung.values():
            if flagged := [row for row in runs if attribution.flagged(row[flag])]:
                row = flagged[0]
                text = f"{_named(row)} was {flag}; in round {row['round']}: {row[flag]}"
                found.append(_warning("device", text, f"{len(flagged)} of {len(runs)} runs"))
        watched = [row for row in results if row["device"] != "cpu"]
        if unknown := [row for row in watched if row[flag] is None]:
            text = f"whether the device was {flag} is not known: it did not tell, or was not looked at in time"
            found.append(_warning("device", text, f"{len(unknown)} of {len(watched)} runs on a GPU"))
    for runs in of_rung.values():  # no flag: latencies and verdicts do not rest on that pass
        if slowed := [row for row in runs if attribution.flagged(row["throughput_throttled"])]:
            row = slowed[0]
            text = f"{_named(row)} was throttled in its throughput pass: images/s, utilisation and energy are of lower "
            text += f"clocks; in round {row['round']}: {row['throughput_throttled']}"
            found.append(_warning("throughput", text, f"{len(slowed)} of {len(runs)} runs"))
        found += _odd_throughput(runs)
    for row in (audit["row"] for audit in audited):
        if row["verdict"] == "warn":
            found.append(_warning("audit", f"{row['model']}, {row['engine']}: {row['reason']}", "engine"))
    for runs in _by_rung(busy):
        highest = max(runs, key=lambda run: run["load_before"])
        text = f"{_named(highest)} ran on a busy host; before round {highest['round']} other programs kept "
        text += f"{highest['load_before']:.1f} CPUs busy"
        found.append(
            _warning("busy", text, f"{len(runs)} of {len(of_rung[ladder_key(highest, 'rung', 'batch')])} runs")
        )
    for runs in _by_rung(unsteady):
        text = f"{_named(runs[0])} was unsteady; in round {runs[0]['round']} {runs[0]['why'][0]}"
        found.append(
            _warning("unsteady", text, f"{len(runs)} of {len(of_rung[ladder_key(runs[0], 'rung', 'batch')])} runs")
        )
    return found


def _odd_throughput(runs: Sequence[Row]) -> list[Row]:
    """A warning where rounds of a rung and batch gave less than half or more than twice their median of images/s."""
    known = [row for row in runs if row["throughput_ips"] is not None]
    if not known:
        return []
    middle = median(row["throughput_ips"] for row in known)
    limits = middle / THROUGHPUT_FACTOR, middle * THROUGHPUT_FACTOR
    odd = [row for row in known if not limits[0] <= row["throughput_ips"] <= limits[1]]
    if not odd:
        return []
    worst = max(odd, key=lambda row: abs(math.log(row["throughput_ips"] / middle)))
    text = f"{_named(worst)} gave {worst['throughput_ips']:.3g} images/s in round {worst['round']}, "
    text += f"{'less than half' if worst['throughput_ips'] < middle else 'more than twice'} the median of its rounds, "
    text += f"{middle:.3g}; utilisation and energy of that round rest on it"
    return [_warning("throughput", text, f"{len(odd)} of {len(known)} runs")]


def _ladder(row: Row) -> str:
    return ", ".join(ladder_key(row))


def _several_artifacts(
    of_rung: Mapping[tuple[Any, ...], Sequence[Row]], ladders: Sequence[Row], audited: Sequence[Row]
) -> Iterator[Row]:
    """A warning for each rung and batch whose runs and audit were not all of one file: one name, several engines."""
    audits = audits_by_engine(audited)
    rungs = {(*ladder_key(ladder), rung["name"]): rung for ladder in ladders for rung in ladder["rungs"]}
    for place, runs in of_rung.items():
        row = runs[0]
        audit = audits.get((row["platform"], row["model"], engine_at(rungs[place[:-1]], row["batch"])), {})
        ran: set[str] = {run["artifact_sha256"] for run in runs if run["artifact_sha256"]}
        held = ran | ({audited_one} if (audited_one := audit.get("artifact_sha256")) else set())
        if len(held) > 1:
            told = ", ".join(sorted(each[:12] + ("" if each in ran else " (audited)") for each in held))
            text = f"{_named(row)}: its runs and its audit do not agree in artifact_sha256: {told}"
            yield _warning("files", text, f"{len(held)} values")


def _two_libraries(records: Sequence[Row], ladders: Sequence[Row]) -> Iterator[Row]:
    """A warning for each wrapper whose compiler was another build than the one beside it: two causes in one step.

    Stacks that load a library of this name from places of their own tell its file in their identities.
    """
    planned = {ladder_key(ladder): ladder for ladder in ladders}
    rounds: dict[str, int] = defaultdict(int)
    for record in records:
        place = ladder_key(first_row(record))
        for ends in ((step["from"], step["to"]) for step in planned[place]["steps"] if step["cause"] == "wrapper"):
            first, second = (record["details"].get(name, {}).get("identity", {}) for name in ends)
            for library in sorted(first.keys() & second.keys() - {"python"}):
                if first[library] != second[library]:
                    builds = f"{library}: {first[library]} and {second[library]}"
                    rounds[f"{', '.join(place)}: {' and '.join(ends)} ran in two builds of {builds}"] += 1
    for text, count in rounds.items():
        told = f"{text}, so that 'wrapper' is not the only cause of their step"
        yield _warning("files", told, f"{count} round{'s' * (count != 1)}")


def _by_rung(runs: Sequence[Row]) -> Iterator[list[Row]]:
    """Runs of the same rung and batch, in the order in which they come."""
    held: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for run in runs:
        held[ladder_key(run, "rung", "batch")].append(run)
    yield from held.values()


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['ladder']}, {row['rung']}, batch {row['batch']}"


def _warning(kind: str, text: str, scope: str) -> Row:
    return {"kind": kind, "warning": text, "scope": scope}


def ranged(texts: Sequence[str]) -> str:
    """Texts that differ in their figures only as one, e.g. ``load is 0.7 to 1.3``."""
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ends = [(min(column, key=float), max(column, key=float)) for column in columns]
    figures = iter([low if float(low) == float(high) else f"{low} to {high}" for low, high in ends])
    return NUMBER.sub(lambda _: next(figures), texts[0])
