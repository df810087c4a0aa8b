"""Results of several hosts side by side: which may be compared, which rungs correspond, and how they stand.

Pure but for ``read_source``. Rungs correspond by what they are, not by what they are called: a role is a precision, a
launch and a kind. The runs of two hosts share no round, so they are compared as independent samples
(``ladder.statistics.welch_interval``). docs/cross_stack.md says the same for readers.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from ladder import statistics
from ladder.attribution import flagged
from ladder.config import Precision
from ladder.errors import StepError
from ladder.files import canonical_json, read_json, sha256
from ladder.report.read import read_table
from ladder.tables import FAILURES, FLAGS, KEPT_OUT

Row = dict[str, Any]

STOCK, TUNED, COMPILED, ANY = "stock", "tuned", "compiled", "any"
# what a run is known by, and what two copies of its row must agree on
RUN = ("host", "device_uuid", "sitting", "platform", "model", "ladder", "rung", "batch", "round")
POSITIVE = ("median_ms", "throughput_ips", "power_w", "energy_j_per_image", "ips_per_w")
MEDIANS = (*POSITIVE[1:], "peak_compute_pct", "peak_bandwidth_pct")
NEEDED = (  # in tables of every version
    "started_at", "iterations", "median_ms", "throughput_ips", "weights", "precision", "launch", "transfers",
    "compiler", "options", "fp32_onnx_sha256", "artifact_sha256",
)  # fmt: skip
MEASURED = (*NEEDED, "stack", "shape", *FLAGS, *MEDIANS)
AUDITED = ("flops_at_precision_pct", "nodes_at_precision_pct")
HASH_DIGITS = 12  # of a sha256, as far as a reader compares it
TOLD = ("hosts", "versions", "ladders", "warnings", "unsteady_runs", "busy_runs", "failures")  # by a summary
FINGERPRINT = ("machine", "processor", "logical_cpus", "os", "kernel")  # of a host's state

PROTOCOL = "protocol"
OWN = "this host's own are the folder 'results'"
UNSET = "null"  # a setting left empty: known, unlike None
REMEDIES = {
    "fp32_onnx_sha256": "start both hosts from one export: see 'One model for all hosts' in docs/cross_stack.md",
    "weights": "give the model the same weights on both hosts and measure again",
    "input": "give the model the same input size on both hosts and measure again",
    "measure": "measure both hosts with the same 'measure' section",
    "timing_code": "measure both hosts with one version of this repository",
    "audit": "see the reason in audit.csv of that host",
    PROTOCOL: "its tables do not say how it was timed: bring its summary.json along, and where that has no protocol "
    "call the workflow again on that host with this version",
}


class Side(NamedTuple):
    """One device as one platform: what is compared."""

    platform: str
    host: str
    device_uuid: str


def side_of(row: Mapping[str, Any]) -> Side:
    return Side(*(row[key] for key in Side._fields))


@dataclass(frozen=True)
class Source:
    """The tables of one results folder: its name, the rows of results.csv as text, summary.json, that table's hash."""

    name: str
    rows: Sequence[Mapping[str, str]]
    summary: Mapping[str, Any]
    sha256: str
    failures: Sequence[Mapping[str, str]] = ()  # rows of failures.csv as text; none where it was not brought along

    def rungs(self, platform: str, model: str, batch: int) -> list[Mapping[str, Any]]:
        """The rungs that its ladders have for a platform, model and batch: what their audits found, why runs failed."""
        entries = self.summary.get("ladders", [])
        place = (platform, model, batch)
        held = [entry for entry in entries if tuple(entry[key] for key in ("platform", "model", "batch")) == place]
        return [rung | {"failed": self._failed(entry, rung["name"])} for entry in held for rung in entry["rungs"]]

    def _failed(self, entry: Mapping[str, Any], rung: str) -> list[str]:
        """Why a rung gave no result at a batch, each reason once; a failure without rung or batch is of all of them."""
        reasons = [
            row["reason"]
            for row in self.failures
            if all(row[key] == entry[key] for key in ("platform", "model", "ladder"))
            and row["rung"] in ("", rung)
            and row["batch"] in ("", str(entry["batch"]))
        ]
        return list(dict.fromkeys(reasons))

    @property
    def hosts(self) -> Sequence[Mapping[str, Any]]:
        return self.summary.get("hosts", [])

    def host(self, side: Side) -> Mapping[str, Any]:
        """What the summary says of a side's host: its ``state`` is empty where it does not tell."""
        return next((host for host in self.hosts if side_of(host) == side), {"state": {}})

    def device_name(self, side: Side) -> str | None:
        """The name of the GPU, else of the processor; None where the summary does not tell."""
        state = self.host(side)["state"]
        return state.get("gpu.name") or state.get("processor")


class Role(NamedTuple):
    """What rungs of different platforms have in common. ``any`` launch and kind: the fastest of the precision."""

    precision: str
    launch: str
    kind: str
    transfers: str


@dataclass(frozen=True)
class Run:
    """One row of results.csv with numbers as numbers (None where empty), where it came from, and its terms."""

    row: Row
    source: Source
    audit: Mapping[str, Any]  # of its rung: verdict and shares at the precision; empty where not known
    terms: Mapping[str, Any]  # what it must have in common with whatever it is compared with, by name

    @property
    def side(self) -> Side:
        return side_of(self.row)

    @property
    def place(self) -> tuple[str, int]:
        return self.row["model"], self.row["batch"]

    @property
    def ran(self) -> tuple[str, ...]:
        """What it ran: runs of one rung are pooled only where they ran one engine and the same versions."""
        versions = _versions(self.source, self.row["platform"])
        return self.row["ladder"], self.row["rung"], self.row["artifact_sha256"] or "", versions


@dataclass(frozen=True)
class Comparison:
    rows: list[Row]  # of cross_stack.csv
    refused: list[Row]  # of cross_stack_refused.csv
    lacking: list[Row]  # precisions that a side has no row of: model, batch, side, precision and why
    sides: dict[Side, list[Run]]  # what is compared of each, in the order of reading
    reference: Side
    notes: list[str]  # what a reader must know of the hosts and their tables
    sources: Sequence[Source] = field(compare=False)  # all that was read


def read_source(folder: Path, name: str | None = None) -> Source:
    """The tables in a results folder, made by this or an earlier version.

    Without a summary.json, as beside tables of an earlier version, the summary is empty, and without a failures.csv
    nothing is known of failures. ``name`` is how the user named the folder, e.g. by the URL that the tables were
    fetched from. Raises StepError where they are no tables, or not those that the summary was made with.
    """
    name = name or str(folder)
    table, about = folder / "results.csv", folder / "summary.json"
    told_table, told_about = file_in(name, table.name), file_in(name, about.name)
    try:
        with open(table, newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            header, rows = list(reader.fieldnames or []), list(reader)
        if saved_again := _saved_again(header):
            raise StepError(
                f"{told_table} {saved_again}: another program, such as a spreadsheet, has saved it again; bring "
                "the file that the workflow wrote"
            )
        if torn := [number for number, row in enumerate(rows, 2) if None in row or None in row.values()]:
            raise ValueError(f"row {torn[0]} of results.csv has not as many cells as its header")
        summary, found = read_json(about) if about.is_file() else {}, sha256(table)
    except (OSError, ValueError, csv.Error) as error:
        raise StepError(f"{name}: no tables of a run ({error}); bring its results.csv and summary.json") from None
    if rows and (missing := {*RUN, *NEEDED} - set(rows[0])):
        raise StepError(f"{told_table} has no column {', '.join(sorted(missing))}; bring the results.csv of a run")
    if about.is_file() and (fault := _fault(summary, rows, found)):
        raise StepError(f"{told_about} {fault}; bring it and results.csv from the same call, unchanged")
    failures = folder / "failures.csv"
    return Source(name, rows, summary, found, read_table(failures, FAILURES) if failures.is_file() else ())


def file_in(folder: str, name: str) -> str:
    """A file of a folder, or of a storage URL, as the user named that."""
    return f"{folder.rstrip('/')}/{name}"


def _saved_again(header: Sequence[str]) -> str | None:
    """What shows in the first line of a table that another program wrote it; None where nothing does."""
    if header and header[0].startswith("\ufeff"):
        return "begins with a byte order mark"
    if len(header) == 1 and (between := next((each for each in ";\t" if each in header[0]), None)):
        return f"has {'semicolons' if between == ';' else 'tabs'} between its cells, not commas"
    return None


def _fault(summary: Any, rows: Sequence[Mapping[str, str]], held: str) -> str | None:
    """Why this is no summary of these rows, in a file of this hash; None where it is. An earlier version told less."""
    if not isinstance(summary, dict) or not isinstance(measured := summary.get("measured"), dict):
        return "is not what the workflow wrote"
    if summary.get(PROTOCOL) is not None and (missing := [key for key in TOLD if key not in summary]):
        return f"does not tell {', '.join(missing)}"
    started = [row["started_at"] for row in rows]
    found = {"runs": len(rows), "first": min(started, default=None), "last": max(started, default=None)}
    differing = [
        f"{name} {measured.get(name)}, not {value}" for name, value in found.items() if measured.get(name) != value
    ]
    if differing:
        return f"tells of other runs than results.csv beside it: {', '.join(differing)}"
    if (told := summary.get("results_sha256")) not in (None, held):
        return (
            "was made with another results.csv than the one beside it, in which something has been changed "
            f"(sha256 {held[:HASH_DIGITS]}, not {str(told)[:HASH_DIGITS]})"
        )
    return None


def compare(sources: Sequence[Source], reference: str | None = None) -> Comparison:
    """Set the sources side by side. ``reference`` names the platform that others are compared with; None: the first.

    A run that several sources hold counts once. Raises StepError where two sources contradict each other, the
    reference is not there, or nothing is left that can be compared; then the message names every refusal.
    """
    runs = merged(sources)
    known = list(dict.fromkeys(run.side for run in runs))
    if known and reference is not None and reference not in {side.platform for side in known}:
        names = ", ".join(dict.fromkeys(side.platform for side in known))
        raise StepError(
            f"cross_stack.reference: no result of platform '{reference}'; there are: {names}; name one of them, or "
            "bring the folder of its results"
        )
    admitted, refused = admit(runs, reference)
    sides: dict[Side, list[Run]] = {}
    for run in admitted:
        sides.setdefault(run.side, []).append(run)
    chosen = next((side for side in sides if reference in (None, side.platform)), None)
    rows = [row for group in _roles(admitted) for row in _standing(*group, chosen)]
    if chosen is None or not any(row["ratio"] is not None for row in rows):
        raise StepError("\n".join(_nothing(sources, runs, admitted, refused, chosen, reference)))
    notes = [*conflicts(sources), *unproven(sources)]
    return Comparison(rows, refused, _lacking(rows, sides, runs), sides, chosen, notes, sources)


def merged(sources: Sequence[Source]) -> list[Run]:
    """The runs of all sources, each once. Raises StepError where two sources say different things of one run."""
    found: dict[tuple[Any, ...], Run] = {}
    for source in sources:
        protocol, audits = source.summary.get("protocol"), _audits(source.summary)
        for text in source.rows:
            row = _parsed(text, source.name)
            known_by = tuple(row[key] for key in RUN)
            audit = audits.get(tuple(row[key] for key in ("platform", "model", "ladder", "batch", "rung")), {})
            run = Run(row, source, audit, _terms(row, protocol))
            other = found.setdefault(known_by, run)
            differing = [key for key in MEASURED if key in row and key in other.row and other.row[key] != row[key]]
            if protocol is not None and PROTOCOL in other.terms:
                found[known_by] = run  # in place of a copy without a summary
            elif protocol is not None:
                differing += [key for key in run.terms if run.terms[key] != other.terms.get(key)]
                differing += ["audit"] * (audit.get("verdict") != other.audit.get("verdict"))
            if differing:
                raise StepError(
                    f"{source.name} and {other.source.name} say different things of one run ({_named(row)}): "
                    f"{', '.join(dict.fromkeys(differing))}; bring each host's results once, unchanged"
                )
    return list(found.values())


def admit(runs: Sequence[Run], reference: str | None = None) -> tuple[list[Run], list[Row]]:
    """The runs that may be compared, and a row for everything that keeps others out.

    A run whose terms are not all known is refused, and so is one that its audit did not let through. Of each model the
    terms are those of its first run that tells all, on the reference if there is one: whatever differs from them is
    refused, with each difference named.
    """
    bases: dict[str, Run] = {}

    def last(run: Run) -> tuple[bool, ...]:
        return None in run.terms.values(), _not_let_through(run), reference not in (None, run.side.platform)

    for run in sorted(runs, key=last):
        bases.setdefault(run.row["model"], run)
    admitted: list[Run] = []
    refusals: dict[tuple[Any, ...], int] = defaultdict(int)
    for run in runs:
        base = bases[run.row["model"]]
        differences = [
            (field, *map(_told, (run.terms.get(field), expected))) for field, expected in _differences(run, base)
        ]
        if _not_let_through(run):
            differences.append(("audit", f"{run.audit['verdict']} ({run.row['rung']})", "pass"))
        for difference in differences:
            terms = *difference, base.side.platform, base.source.name
            refusals[(run.source.name, *run.side, run.row["model"], *terms)] += 1
        if not differences:
            admitted.append(run)
    columns = ("source", *Side._fields, "model", "field", "found", "expected", "against", "against_source")
    refused = [
        dict(zip(columns, key, strict=True)) | {"runs": count, "remedy": REMEDIES[key[5].partition(".")[0]]}
        for key, count in refusals.items()
    ]
    return admitted, refused


def _lacking(rows: Sequence[Row], sides: Mapping[Side, Sequence[Run]], runs: Sequence[Run]) -> list[Row]:
    """A row for each precision that a side has no row of and others have, or any ladder asks for, with why."""
    held: dict[tuple[str, int], dict[str, set[Side]]] = {}
    for row in rows:
        held.setdefault((row["model"], row["batch"]), {}).setdefault(row["precision"], set()).add(side_of(row))
    found = []
    for (model, batch), having in held.items():
        rungs = {
            side: [
                rung
                for source in {run.source.name: run.source for run in of_side}.values()
                for rung in source.rungs(side.platform, model, batch)
            ]
            for side, of_side in sides.items()
        }
        asked = [rung["requested_precision"] for of_side in rungs.values() for rung in of_side]
        for precision in dict.fromkeys([*having, *filter(None, asked)]):
            for side in sides:
                if side not in having.get(precision, ()):
                    measured, admitted = (
                        {run.row["rung"] for run in of if run.side == side and run.place == (model, batch)}
                        for of in (runs, sides[side])
                    )
                    why = _why_lacking(rungs[side], precision, measured, admitted)
                    about = {"model": model, "batch": batch, **side._asdict(), "precision": precision}
                    found.append(about | {"why": why})
    return found


def _why_lacking(rungs: Sequence[Mapping[str, Any]], precision: str, measured: set[str], admitted: set[str]) -> str:
    """Why a side has no row of a precision, by its rungs of the model and batch and which of them have runs."""
    if not rungs:
        return "its ladders do not have this model at this batch"
    asking = {rung["name"]: rung for rung in rungs if rung["requested_precision"] == precision}
    unknown = [rung["name"] for rung in rungs if rung["requested_precision"] is None]
    if not asking:
        return "no rung asks for it" + (f", as far as is known: {', '.join(unknown)} not audited" if unknown else "")
    whys = []
    for name, rung in asking.items():
        if rung["verdict"] in KEPT_OUT:
            whys.append(f"{name} was not let through: {rung['reason']}")
        elif name not in measured:
            told = "; ".join(rung["failed"])
            whys.append(f"{name} gave no result{f': {told}' if told else '; failures.csv of its host says why'}")
        elif name in admitted:
            whys.append(f"{name} was throttled or contended in every run")
        else:
            whys.append(f"{name} is refused")
    return "; ".join(whys)


def conflicts(sources: Sequence[Source]) -> list[str]:
    """A line for each host name that stands, or may stand, for two machines or devices.

    Several GPUs with numbers of their own are one host's.
    """
    devices: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    places: dict[str, list[str]] = defaultdict(list)  # by device_uuid: folders
    unnamed: dict[str, set[str]] = defaultdict(set)
    versions: dict[Side, dict[str, str]] = defaultdict(dict)
    states: dict[str, list[tuple[str, Row]]] = defaultdict(list)  # by host name: folder and what it tells
    for source in sources:
        for row in source.rows:
            if row["device_uuid"]:
                number = source.host(side_of(row))["state"].get("gpu_state.index")
                devices[row["host"], row.get("device", "")][row["device_uuid"]].add(_said(number))
                places[row["device_uuid"]].append(source.name)
            else:
                unnamed[row["host"]].add(row["sitting"])
        for host in source.hosts:
            versions[side_of(host)].setdefault(_versions(source, host["platform"]), source.name)
            state = {name: _said(value) for name in FINGERPRINT if (value := host["state"].get(name)) is not None}
            states[host["host"]].append((source.name, state))
    lines = []
    for name, held in states.items():
        values = {reading: {state[reading] for _, state in held if reading in state} for reading in FINGERPRINT}
        folders: dict[str, list[str]] = defaultdict(list)  # by what tells machines apart
        for folder, state in held:
            telling = [f"{each} {state[each]}" for each in FINGERPRINT if len(values[each]) > 1 and each in state]
            folders[", ".join(telling)].append(folder)
        if any(folders):
            machines = [f"{' and '.join(dict.fromkeys(where))} ({said})" for said, where in folders.items() if said]
            lines.append(f"The host name {name} stands for different machines: {'; '.join(machines)}")
    for (name, device), uuids in devices.items():
        numbers = [number for told in uuids.values() for number in told]
        if len(uuids) > 1 and (len(set(numbers)) < len(numbers) or _said(None) in numbers):  # else GPUs of one host
            booted = " (a CPU's id changes when its host boots)" if device == "cpu" else ""
            listed = ", ".join(f"{uuid} ({', '.join(dict.fromkeys(places[uuid]))})" for uuid in sorted(uuids))
            lines.append(f"The host name {name} stands for several {device} devices{booted}: {listed}")
    for side, told in versions.items():
        if len(told) > 1:
            listed = " and ".join(f"{packages} ({where})" for packages, where in told.items())
            lines.append(f"{side.platform} on {side.host} ran in different versions, not pooled: {listed}")
    for name, sittings in unnamed.items():
        if len(sittings) > 1:
            lines.append(
                f"The runs of {len(sittings)} sittings on {name} tell no device_uuid: they count as one device's"
            )
    return lines


def unproven(sources: Sequence[Source]) -> list[str]:
    """A line for each folder whose summary holds no hash of its results.csv, as those of earlier versions do not."""
    return [
        f"Nothing shows whether {file_in(source.name, 'results.csv')} is as it was made: its summary.json, of an "
        "earlier version, holds no hash of it; call the workflow again on its host with this version"
        for source in dict((source.name, source) for source in sources).values()
        if source.summary and "results_sha256" not in source.summary
    ]


def role_of(row: Mapping[str, Any]) -> Role:
    """The role of a run by its factors. Stock is what a runtime does without a compiler or options."""
    kind = COMPILED if row["compiler"] != "none" else TUNED if json.loads(row["options"] or "{}") else STOCK
    return Role(row["precision"], row["launch"], kind, row["transfers"])


def _roles(runs: Iterable[Run]) -> Iterator[tuple[str, int, Role, dict[Side, list[list[Run]]]]]:
    """Model, batch, role, and of each side the candidates for it: the runs of one rung each."""
    found: dict[tuple[str, int, Role], dict[Side, dict[tuple[str, ...], list[Run]]]] = {}
    for run in runs:
        role = role_of(run.row)
        for each in (Role(role.precision, ANY, ANY, role.transfers), role):
            sides = found.setdefault((run.row["model"], run.row["batch"], each), {})
            sides.setdefault(run.side, {}).setdefault(run.ran, []).append(run)
    for (model, batch, role), sides in sorted(found.items(), key=lambda item: _place(*item[0])):
        yield model, batch, role, {side: list(rungs.values()) for side, rungs in sides.items()}


def _place(model: str, batch: int, role: Role) -> tuple[Any, ...]:
    """What rows are sorted by: precisions in the configuration's order, and of each the fastest first."""
    order = get_args(Precision)
    precision = order.index(role.precision) if role.precision in order else len(order)
    return model, batch, precision, role.precision, role.transfers, role.launch, role.kind


def _standing(
    model: str, batch: int, role: Role, candidates: dict[Side, list[list[Run]]], reference: Side | None
) -> Iterator[Row]:
    """A row a side for one role, each for the fastest of its candidates that did what its name says."""
    entered = {side: found for side, rungs in candidates.items() if (found := _contenders(rungs))}
    chosen = {side: min(found, key=lambda runs: np.log(_medians(runs)).mean()) for side, found in entered.items()}
    base = chosen.get(reference) if reference else None
    for side, runs in chosen.items():
        used = _usable(runs)
        head, among = used[0], len(entered[side])
        against: Row = dict.fromkeys(("reference", *RATIO))
        if reference and base and side != reference:
            ratio = _ratio(_medians(base), _medians(runs), among * len(entered[reference]))
            # several sides may have its platform's name
            against = {"reference": ", ".join(filter(None, reference))} | ratio
        yield {
            "model": model, "weights": head.row["weights"], "batch": batch, **role._asdict(), **side._asdict(),
            "device_name": head.source.device_name(side),
            **{key: head.row[key] for key in ("device", "stack", "ladder", "rung", "shape")}, "candidates": among,
            "audit_verdict": head.audit.get("verdict"), **{key: head.audit.get(key) for key in AUDITED},
            "rounds": len(used), "rounds_excluded": len(runs) - len(used), **_latency(_medians(runs), among),
            **{key: _median([run.row.get(key) for run in used]) for key in MEDIANS},
            "peak_source": head.row.get("peak_source"), **against,
            "fp32_onnx_sha256": head.row["fp32_onnx_sha256"],
            "source": ", ".join(dict.fromkeys(run.source.name for run in used)),
        }  # fmt: skip


RATIO = ("ratio", "ratio_low", "ratio_high", "verdict")


def _ratio(base: np.ndarray, medians: np.ndarray, among: int) -> Row:
    """How many times as fast as the reference: its latency over this one's, with an interval from two rounds on.

    ``among`` is how many pairs of rungs there were to choose this one from. The interval is so much surer (Bonferroni,
    by Dunn, Multiple comparisons among means, JASA 56, 1961) that it holds whichever of them was chosen.
    """
    logs = np.log(base), np.log(medians)
    found = {"ratio": float(np.exp(logs[0].mean() - logs[1].mean())), "verdict": statistics.TOO_FEW_ROUNDS}
    if min(len(base), len(medians)) < 2:
        return dict.fromkeys(RATIO) | found
    interval = statistics.welch_interval(*logs, statistics.ALPHA / among)
    low, high = float(interval.low), float(interval.high)
    told = statistics.verdict(low, high, min(len(base), len(medians)))
    return found | {"ratio_low": float(np.exp(low)), "ratio_high": float(np.exp(high)), "verdict": told}


def _latency(medians: np.ndarray, among: int) -> Row:
    """Geometric mean of run medians, ms, with its interval from two rounds on; ``among`` as for ``_ratio``."""
    logs = np.log(medians)  # each a log ratio to 1 ms
    ends: tuple[float | None, float | None] = (None, None)
    if len(logs) > 1:
        interval = statistics.paired_interval(logs, statistics.ALPHA / among)
        ends = float(np.exp(interval.low)), float(np.exp(interval.high))
    return {"median_ms": float(np.exp(logs.mean())), "median_low_ms": ends[0], "median_high_ms": ends[1]}


def _contenders(rungs: Sequence[list[Run]]) -> list[list[Run]]:
    """The runs of each rung that may stand for a role: those that an audit lets pass, where there are any."""
    usable = [runs for runs in rungs if _usable(runs)]
    return [runs for runs in usable if all(run.audit.get("verdict") == "pass" for run in runs)] or usable


def _not_let_through(run: Run) -> bool:
    return run.audit.get("verdict") in KEPT_OUT


def _usable(runs: Sequence[Run]) -> list[Run]:
    """Runs whose latencies are the rung's own: neither throttled nor contended."""
    return [run for run in runs if not any(flagged(run.row.get(flag)) for flag in FLAGS)]


def _medians(runs: Sequence[Run]) -> np.ndarray:
    return np.array([run.row["median_ms"] for run in _usable(runs)])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _terms(row: Row, protocol: Mapping[str, Any] | None) -> Row:
    """What a run must have in common with whatever it is compared with, as values; None where it is not known."""
    terms = {"fp32_onnx_sha256": row["fp32_onnx_sha256"], "weights": row["weights"]}
    if protocol is None:
        return terms | {PROTOCOL: None}
    size = protocol["inputs"].get(row["model"])
    return (
        terms
        | {"input": None if size is None else ", ".join(f"{axis} {length}" for axis, length in sorted(size.items()))}
        | {f"measure.{name}": UNSET if value is None else value for name, value in protocol["measure"].items()}
        | {"timing_code": protocol["timing_code"]}
    )


def _differences(run: Run, base: Run) -> Iterator[tuple[str, Any]]:
    """Each term that keeps a run out, with what it would have to be: None where it is not known."""
    both_told = PROTOCOL not in {**run.terms, **base.terms}
    for name in {**base.terms, **run.terms} if both_told else run.terms:
        found, expected = run.terms.get(name), base.terms.get(name)
        unknown = name in run.terms and found is None
        if unknown or (found != expected and (both_told or name in base.terms)):
            yield name, expected


def _parsed(text: Mapping[str, str], folder: str) -> Row:
    where, again = file_in(folder, "results.csv"), "bring the file that the workflow wrote"
    row: Row = {key: value or None for key, value in text.items()}
    try:
        row |= {key: float(row[key]) for key in {*POSITIVE, *MEDIANS} if row.get(key) is not None}
        row |= {key: int(row[key]) for key in ("batch", "round")}
        json.loads(row["options"] or "{}")
    except (TypeError, ValueError) as error:
        raise StepError(f"{where}: a run ({_named(row)}) with a cell that cannot be read: {error}; {again}") from None
    if row["median_ms"] is None:
        raise StepError(f"{where}: a run ({_named(row)}) without a latency: median_ms is empty; {again}")
    for key in sorted({*POSITIVE, *MEDIANS}):
        value = row.get(key)
        if value is not None and not (math.isfinite(value) and value >= 0 and (value or key not in POSITIVE)):
            raise StepError(
                f"{where}: a run ({_named(row)}) with a figure that none measured: {key} is {value}; {again}"
            )
    return row


def _audits(summary: Mapping[str, Any]) -> dict[tuple[Any, ...], Row]:
    """What the audits found of each rung, by platform, model, ladder, batch and rung."""
    return {
        (entry["platform"], entry["model"], entry["ladder"], entry["batch"], rung["name"]): rung
        for entry in summary.get("ladders", [])
        for rung in entry["rungs"]
    }


def _versions(source: Source, platform: str) -> str:
    return canonical_json(source.summary.get("versions", {}).get(platform))


def _named(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {row[key]}" for key in ("host", "platform", "model", "rung", "batch", "round"))


def _told(value: Any) -> str | None:
    return None if value is None else _said(value)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def refusal(row: Mapping[str, Any]) -> str:
    """One refusal in words."""
    where = f"{row['platform']} on {row['host']} ({row['source']}), {row['model']}"
    runs = f"{row['runs']} run{'s' * (row['runs'] != 1)}"
    if row["found"] is None:
        return f"{where}: {row['field']} unknown ({runs}); {row['remedy']}"
    against = f"{row['expected'] or 'not told'} on {row['against']} ({row['against_source']})"
    return f"{where}: {row['field']} is {row['found']}, {against} ({runs}); {row['remedy']}"


def _nothing(
    sources: Sequence[Source],
    runs: Sequence[Run],
    admitted: Sequence[Run],
    refused: Sequence[Row],
    chosen: Side | None,
    reference: str | None,
) -> Iterator[str]:
    """Why nothing can be compared and what to do, in lines.

    ``chosen`` is what would be compared with, None where all of it was refused, and ``reference`` its platform as
    configured.
    """
    known = list(dict.fromkeys(run.side for run in runs))
    if not known:
        yield f"nothing to compare: name the folders of several hosts' results under cross_stack.results; {OWN}"
        return
    if len(known) == 1:
        named = Counter(source.name for source in sources if source.rows)
        copies = [name for name in named if not any(run.source.name == name for run in runs)]
        folders = " and ".join(f"{name}{' (named twice)' * (count > 1)}" for name, count in named.items())
        again = f"; every run in {' and '.join(copies)} is in another of them too" if copies else ""
        yield (
            f"nothing to compare: there are results of one device alone, {known[0].platform} on {known[0].host}, in "
            f"{folders}{again}; name the folder of another one's results under cross_stack.results too; {OWN}"
        )
        return
    yield f"nothing can be compared; found were results of {', '.join(_placed(side, runs) for side in known)}:"
    yield from (f"  {refusal(row)}" for row in refused)
    for side in known:
        if not _usable([run for run in runs if run.side == side]):
            yield f"  {_placed(side, runs)}: every run was throttled or contended; measure it again"
    left = {run.side for run in _usable(admitted)}
    if chosen in left and len(left) > 1:
        yield (
            f"  no other has a rung of the same model, batch and role as {_placed(chosen, runs)}; give the ladders of "
            "both hosts one, and measure again"
        )
    for folder in dict.fromkeys(row["against_source"] for row in refused):
        if _comparable([source for source in sources if source.name != folder], reference):
            yield f"  the others can be compared with each other: leave {folder} out of cross_stack.results"


def _placed(side: Side, runs: Sequence[Run]) -> str:
    """A side with the folders that its runs came from, by which two of one platform and host name are told apart."""
    folders = dict.fromkeys(run.source.name for run in runs if run.side == side)
    return f"{side.platform} on {side.host} ({', '.join(folders)})"


def _comparable(sources: Sequence[Source], reference: str | None) -> bool:
    try:
        return bool(compare(sources, reference))
    except StepError:
        return False
