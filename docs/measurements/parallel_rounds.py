"""What rounds on two GPUs at once do to each other's medians: the platform ``beside`` against ``alone``.

    python docs/measurements/parallel_rounds.py            # where parallel_rounds.yaml was measured

A row a GPU, rung and batch: how much longer the median is beside another round, its interval (Welch's), half the width
that the interval has between equal runs (``ladder.statistics.noise_floor``), all in % of the median alone, and how many
of its runs were timed while one on the other GPU was.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from ladder import statistics  # noqa: E402
from ladder.files import read_json  # noqa: E402

RUN = ["platform", "ladder", "batch", "round", "rung"]


def main() -> None:
    runs = pd.read_csv("results/results.csv").merge(pd.DataFrame(timed(), columns=[*RUN, "begin_ns", "end_ns"]), on=RUN)
    print(f"{'GPU':40}  {'rung':8}  batch  longer  95 % interval   noise floor  beside another")
    for (gpu, rung, batch), group in runs.groupby(["device_uuid", "rung", "batch"]):
        alone, beside = (group[group.platform == platform] for platform in ("alone", "beside"))
        change = 100 * np.expm1(statistics.welch_interval(np.log(beside.median_ms), np.log(alone.median_ms)))
        floor = 100 * statistics.noise_floor(np.log(alone.median_ms), np.log(beside.median_ms))
        others = runs[(runs.device_uuid != gpu) & (runs.platform == "beside")]
        spans = zip(beside.begin_ns, beside.end_ns, strict=True)
        together = sum(bool(((others.begin_ns < end) & (begin < others.end_ns)).any()) for begin, end in spans)
        said = f"{change[0]:+6.2f}  {f'{change[1]:+.2f} to {change[2]:+.2f}':14}  {floor:11.2f}"
        print(f"{gpu:40}  {rung:8}  {batch:5}  {said}  {together} of {len(beside)}")


def timed() -> list[tuple]:
    """Each run with the first and last moment of its timed loops and its throughput pass, ns."""
    found = []
    for path in Path("results").glob("*/rounds/*/*/b*/*.json"):
        if path.stem.isdigit():
            record = read_json(path)
            for row in record["rows"]:
                phases = record["details"][row["rung"]]["phases"]
                found.append((*(row[key] for key in RUN), phases["loops_ns"][0][0], phases["throughput_ns"][1]))
    return found


if __name__ == "__main__":
    main()
