"""What an engine really is: which nodes run where and in which precision, and whether it still computes the model.

Runs in the rung's own environment: numpy and the stack, nothing else. What the ONNX files say was counted where they
were made (``ladder.graph``); here it is set beside what the runtime reports of its own nodes. The requested precision
is never taken for the actual one: what the runtime does not tell stays unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ladder import parity, stacks, tables
from ladder.errors import StepError
from ladder.stacks.base import Arrays, Node, Rung, Session, Source, Stack

LARGEST_CHECKED_BATCH = 32  # the far end of a profile is checked too, unless a single run there would be long
SHOWN_NAMES = 10  # of nodes in a reason; all of them are in the JSON

ARITHMETIC = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")  # others (int64, bool, …) are shapes and indices
CONVERSIONS = frozenset(
    # kernels that only change type or layout: ONNX and ONNX Runtime, then OpenVINO, then TensorRT
    ("Cast", "QuantizeLinear", "DequantizeLinear", "ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost")
    + ("Convert", "Reorder", "FakeQuantize")
    + ("Reformat", "MyelinReformat")
)
TARGETS = {"tf32-conv": "tf32", "int8-fp16": "int8"}  # what nodes at the precision are called, where it is not the same
RESTS = {"int8-fp16": ("fp16",)}  # further precisions that belong to it, besides FP32
_ORDER = ("pass", "warn", "exclude")


class NotCompared(StepError):
    """An engine that could be inspected, but not run; ``found`` is what ``audit`` would return, without parity."""

    def __init__(self, error: StepError, found: dict[str, Any]):
        super().__init__(str(error), permanent=error.permanent)
        self.found = found


def audit(
    spec: dict[str, Any],
    source: Source,
    payload: Path | None,
    inputs: Arrays,
    reference: Arrays,
    graph: dict[str, Any] | None,
    converted: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Open an engine, compare and count. Returns ``row``, ``nodes``, ``parity``, ``facts``. Raises StepError.

    ``spec`` is ``ladder.steps.audit_spec``; ``inputs`` and ``reference`` are [samples, ...] by name; ``graph`` is what
    ``ladder.graph.describe`` gave for the ONNX file the engine was made from, None for a stack that runs the module.
    ``converted`` is the same of the file converted to the precision, where the runtime made it from another one: the
    columns on the ONNX file are then about that. An engine that can be inspected but not run raises NotCompared.

    Every sample is compared at the profile's smallest batch, and as many as fit at its largest, up to
    LARGEST_CHECKED_BATCH; the figures in the row are those of the smallest batch, the verdict is the worse of both.
    ``row`` has every column of ``tables.AUDIT`` that is known here; the others, None there, are about files.
    """
    rung, requested = Rung(**spec["rung"]), spec["requested_precision"]
    stack = stacks.load(**spec["stack"])
    low = source.profile["min"]
    first = {name: np.take(array, range(low), axis=0, mode="wrap") for name, array in inputs.items()}
    try:
        figures, findings, facts = _compared(stack, spec, source, payload, inputs, reference)
    except StepError as error:
        try:
            nodes = stack.nodes(source, payload, rung, low, first)
        except StepError:
            raise error from None
        row = {**empty_row(spec), **_node_columns(nodes, requested, graph, converted)}
        raise NotCompared(error, {"row": row, "nodes": [asdict(node) for node in nodes]}) from error
    nodes = stack.nodes(source, payload, rung, low, first)
    findings += [placement(nodes, facts["provider"]), contradiction(nodes, requested, graph)]
    findings += graph_contradiction(graph, requested)
    verdict = max((verdict for verdict, _ in findings), key=_ORDER.index)
    reasons = [reason for found, reason in findings if reason and found == verdict]
    row = {
        **empty_row(spec),
        "verdict": verdict,
        "reason": "; ".join(reasons) or None,
        **_node_columns(nodes, requested, graph, converted),
        **{f"parity_{name}": value for name, value in figures[low].items()},
    }
    return {
        "row": row,
        "nodes": [asdict(node) for node in nodes],
        "parity": {f"batch {batch}": each for batch, each in figures.items()},
        "facts": facts,
    }


def _compared(
    stack: Stack, spec: dict[str, Any], source: Source, payload: Path | None, inputs: Arrays, reference: Arrays
) -> tuple[dict[int, dict[str, Any]], list[tuple[str, str | None]], dict[str, Any]]:
    """Figures of parity by batch, what follows from them, and a session's facts."""
    low, high = source.profile["min"], source.profile["max"]
    figures: dict[int, dict[str, Any]] = {}
    findings: list[tuple[str, str | None]] = []
    facts: dict[str, Any] = {}
    for batch in sorted({low, high if high <= LARGEST_CHECKED_BATCH else low}):
        session = stack.open(source, payload, Rung(**spec["rung"]), batch)
        samples = list(range(len(next(iter(inputs.values())))))
        if batch != low:
            samples = [i % len(samples) for i in range(batch)]
        found = _outputs(session, inputs, samples, batch)
        facts = facts or session.facts()
        session.close()
        right = {name: array[samples] for name, array in reference.items()}
        figures[batch] = parity.compare(found, right, spec["model"]["task"])
        verdict, reason = parity.judge(figures[batch], spec["thresholds"], is_seeded(spec))
        findings.append((verdict, reason and f"at batch {batch}: {reason}"))
    if "hazard" in facts:
        worst = max((verdict for verdict, _ in findings), key=_ORDER.index)
        findings.append((worst, facts["hazard"] if worst != "pass" else None))
    return figures, findings, facts


def verdict_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a round depends on (pass.json): the verdict, and a reason only where it keeps the engine out.

    No figure of an engine that is measured is in it, so an audit that judges it as before changes nothing downstream.
    """
    excluded = row["verdict"] == "exclude"
    return {
        "status": "ok",
        "verdict": row["verdict"],
        "stage": "audit",
        "reason": row["reason"] if excluded else None,
        "permanent": excluded,  # it follows from the engine and the data alone
        "log": None,
    }


def empty_row(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The row of ``tables.AUDIT`` of an engine nothing is known of yet."""
    return {
        **dict.fromkeys(tables.AUDIT),
        "platform": spec["platform"],
        "model": spec["model"]["name"],
        "engine": spec["engine"],
        "stack": spec["rung"]["stack"],
        "requested_precision": spec["requested_precision"],
    }


def is_seeded(spec: Mapping[str, Any]) -> bool:
    return spec["model"]["weights"].get("seeded") is not None


def count(nodes: Sequence[Node], requested: str) -> dict[str, Any]:
    """Columns on the executed nodes.

    ``nodes``, ``precisions`` and ``providers`` count all of them, ``nodes_unknown`` those whose precision the runtime
    does not tell. ``nodes_at_precision_pct`` is a share of the nodes that compute: not of those that work on integers
    or only change type or layout, but of unknown ones too, so that what is unknown never counts as converted.
    ``time_at_precision_pct`` is a share of the time of all nodes, None unless the runtime gives it for each.
    """
    computing, at = _computing(nodes), _at(nodes, requested)
    known = any(node.precision is not None for node in computing)
    times = [node.time_ms for node in nodes if node.time_ms is not None]
    timed = known and len(times) == len(nodes) and sum(times) > 0
    return {
        "nodes": len(nodes),
        "nodes_at_precision": len(at) if known else None,
        "nodes_at_precision_pct": 100 * len(at) / len(computing) if known else None,
        "time_at_precision_pct": 100 * sum(node.time_ms or 0.0 for node in at) / sum(times) if timed else None,
        "nodes_unknown": sum(node.precision is None for node in nodes),
        "precisions": _counts(node.precision or "unknown" for node in nodes),
        "providers": _counts(node.provider for node in nodes),
    }


def flops_at_precision_pct(nodes: Sequence[Node], requested: str, graph: Mapping[str, Any] | None) -> float | None:
    """Share of the FLOPs in convolutions and matrix products that run at the precision, %.

    Each ONNX node's FLOPs go to the executed nodes that the runtime says come from it (by its name or its first
    output's) or that have its very name.
    None where it says so for some of them only, or where those differ in precision: nothing is guessed.
    """
    if graph is None or not graph["flops"]["total"]:
        return None
    precisions: dict[str, set[str | None]] = defaultdict(set)
    for node in _computing(nodes):
        for name in node.origin or (node.name,):
            precisions[name].add(node.precision)
    target, reached = TARGETS.get(requested, requested), 0
    for each in graph["detail"]:
        if not each["flops"]:
            continue
        if len(found := precisions[each["name"]] | precisions[each["output"]]) != 1 or None in found:
            return None
        reached += each["flops"] if target in found else 0
    return 100 * reached / graph["flops"]["total"]


def placement(nodes: Sequence[Node], provider: str) -> tuple[str, str | None]:
    """Excludes an engine with a node anywhere but on the provider that its session reports."""
    strays = [f"{node.name} ({node.provider})" for node in nodes if node.provider != provider]
    if not strays:
        return "pass", None
    return "exclude", f"{len(strays)} of {len(nodes)} nodes do not run on {provider}: {_shown(strays)}"


def contradiction(nodes: Sequence[Node], requested: str, graph: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """Warns where the executed nodes are not what was requested: some at a lower precision, or too few at it.

    Too few is less than half of the share that the ONNX file has at the precision (of a module: half of all), by FLOPs
    where the runtime tells where its nodes come from, else by nodes. Warns too where none is in the precision that a
    mixed one has for the rest, but some in FP32. Where a precision is unknown nothing is said.
    """
    computing = _computing(nodes)
    allowed = {"fp64", "fp32", None, TARGETS.get(requested, requested), *RESTS.get(requested, ())}
    lower = _counts(str(node.precision) for node in computing if node.precision not in allowed)
    if lower:
        found = ", ".join(f"{number} in {precision}" for precision, number in lower.items())
        return "warn", f"requested {requested}, but of {len(computing)} nodes that compute {found}"
    if not computing or any(node.precision is None for node in computing):
        return "pass", None
    precisions = {node.precision for node in computing}
    if (rest := RESTS.get(requested)) and "fp32" in precisions and not precisions.intersection(rest):
        wide = sum(node.precision == "fp32" for node in computing)
        return "warn", f"requested {requested}, but no node that computes is in {rest[0]}, {wide} are in fp32"
    share = flops_at_precision_pct(nodes, requested, graph)
    by_flops = share is not None
    if share is None:
        share = 100 * len(_at(nodes, requested)) / len(computing)
    what = "the FLOPs in convolutions and matrix products" if by_flops else "the nodes that compute"
    expected, compared = 100.0, ""
    if graph is not None and _made_for(graph, requested):
        by_nodes = 100 * graph["float_nodes_at_precision"] / max(graph["float_nodes"], 1)
        expected = graph["flops"]["at_precision_pct"] if by_flops else by_nodes
        compared = f", of {expected:.1f} % in the ONNX file"
    if share >= expected / 2:
        return "pass", None
    return "warn", f"requested {requested}, but only {share:.1f} % of {what} run in it{compared}"


def graph_contradiction(graph: Mapping[str, Any] | None, requested: str) -> list[tuple[str, str | None]]:
    """Warns where the ONNX file was made for the precision and has no node in it."""
    if graph is None or not _made_for(graph, requested) or graph["at_precision"]:
        return []
    return [("warn", f"the {graph['precision']} ONNX file has no node in {graph['precision']}")]


def _made_for(graph: Mapping[str, Any], requested: str) -> bool:
    """Whether an ONNX file says which nodes are to be at the precision: the Q/DQ file does, of INT8 beside FP16 too."""
    return TARGETS.get(graph["precision"], graph["precision"]) == TARGETS.get(requested, requested)


def _node_columns(
    nodes: Sequence[Node], requested: str, graph: Mapping[str, Any] | None, converted: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Columns on the executed nodes, and those on the ONNX file."""
    return {
        **count(nodes, requested),
        "flops_at_precision_pct": flops_at_precision_pct(nodes, requested, graph),
        **_graph_columns(converted or graph, requested),
    }


def _graph_columns(graph: Mapping[str, Any] | None, requested: str) -> dict[str, Any]:
    """Columns on the ONNX file. TF32 is no type a file could hold: its engines are made from the FP32 file."""
    if graph is None:
        return {}
    columns = {"onnx_nodes": graph["nodes"]}
    if graph["precision"] == requested:
        columns |= {
            "onnx_nodes_at_precision": graph["at_precision"],
            "onnx_nodes_at_precision_pct": graph["at_precision_pct"],
            **{f"kept_by_{reason}": number for reason, number in graph["kept"].items()},
        }
    return columns


def _outputs(session: Session, inputs: Arrays, samples: Sequence[int], batch: int) -> Arrays:
    """Outputs for these samples in order, [samples, ...] by name; the last batch is filled up from the first one."""
    runs: list[Arrays] = []
    for first in range(0, len(samples), batch):
        wanted = [samples[(first + i) % len(samples)] for i in range(batch)]
        session.bind({name: array[wanted] for name, array in inputs.items()})
        session.run()
        session.synchronise()
        runs.append(session.outputs())
        for name, array in runs[-1].items():
            if array.ndim == 0 or len(array) != batch:
                raise StepError(f"output '{name}' has the shape {list(array.shape)} at batch {batch}", permanent=True)
    return {name: np.concatenate([run[name] for run in runs])[: len(samples)] for name in runs[0]}


def _computing(nodes: Iterable[Node]) -> list[Node]:
    return [n for n in nodes if n.type not in CONVERSIONS and (n.precision is None or n.precision in ARITHMETIC)]


def _at(nodes: Iterable[Node], requested: str) -> list[Node]:
    return [node for node in _computing(nodes) if node.precision == TARGETS.get(requested, requested)]


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _shown(names: Sequence[str]) -> str:
    more = "" if len(names) <= SHOWN_NAMES else f" and {len(names) - SHOWN_NAMES} more"
    return ", ".join(names[:SHOWN_NAMES]) + more
