"""What the numbers of runs say: summaries of one run, and comparisons of two rungs over rounds.

Pure functions. The unit of comparison is the run (one process), never the iteration: iterations of one process
share its memory layout, clocks and neighbours, so they are no independent repetitions (Kalibera & Jones,
Rigorous Benchmarking in Reasonable Time, ISMM 2013). docs/method.md states the method and its calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from ladder.errors import StepError

ALPHA = 0.01  # share of A/A rows that may be called faster or slower
POWER = 0.9  # chance to find an effect of the size of mde_pct
MIN_ROUNDS = 6  # at fewer, even all rounds agreeing in sign happens by chance in 2/2^5 = 6 % of A/A rows

PERCENTILES = (90, 95, 99)

UNSTABLE_STD = 0.10  # of the mean: pyperf, `pyperf check`
UNSTABLE_EXTREME = 0.50  # of the mean: pyperf, `pyperf check`
TREND_ALPHA = 0.01
TREND_CHANGE = 0.05  # ours: iterations are autocorrelated, so significance alone would flag drifts of no size

FASTER, SLOWER, WITHIN_NOISE, TOO_FEW_ROUNDS = "faster", "slower", "within noise", "too few rounds"
FASTEST, MAY_BE_FASTEST = "fastest", "may be fastest"


def summarise(latencies_ns: ArrayLike) -> dict[str, float | None]:
    """Summary of one run: median_ms, mean_ms, std_ms, min_ms, p90_ms, p95_ms, p99_ms.

    ``latencies_ns``: [iterations], nanoseconds. std_ms (n - 1 in the denominator) is None below 2 iterations,
    percentile p below 2 / (1 - p): with fewer, less than two iterations lie beyond it. Percentiles interpolate
    linearly (Hyndman & Fan 1996, type 7). Raises StepError where there is no iteration.
    """
    latencies = _milliseconds(latencies_ns)
    return {
        "median_ms": float(np.median(latencies)),
        "mean_ms": float(np.mean(latencies)),
        "std_ms": float(np.std(latencies, ddof=1)) if len(latencies) >= 2 else None,
        "min_ms": float(np.min(latencies)),
        **_percentiles(latencies),
    }


def pooled_percentiles(runs_ns: Sequence[ArrayLike]) -> dict[str, float | None]:
    """p90_ms, p95_ms and p99_ms over all iterations of several runs of one rung, as in ``summarise``.

    ``runs_ns``: one array [iterations] a run, nanoseconds. Every iteration counts the same, so a run with more
    iterations weighs more. Raises StepError where there is no iteration.
    """
    return _percentiles(_milliseconds(np.concatenate([np.empty(0), *(np.asarray(run) for run in runs_ns)])))


def instability(latencies_ns: ArrayLike) -> list[str]:
    """Warnings about one run, worded for a reader; empty where nothing stands out.

    ``latencies_ns``: [iterations] in arrival order, nanoseconds. Spread and extremes as in `pyperf check`
    (standard deviation from 10 % of the mean, minimum or maximum from 50 % off it). A trend over arrival order
    is the Mann-Kendall test (Mann, Econometrica 13, 1945; Kendall's tau against the index) at 0.01 where also
    the medians of the first and last quarter differ by 5 %.
    """
    latencies = _milliseconds(latencies_ns)
    n, mean = len(latencies), float(np.mean(latencies))
    found = []
    if n >= 2 and (std := float(np.std(latencies, ddof=1))) >= UNSTABLE_STD * mean:
        found.append(f"the standard deviation ({std:.3g} ms) is {100 * std / mean:.0f} % of the mean ({mean:.3g} ms)")
    for name, index in (("minimum", int(np.argmin(latencies))), ("maximum", int(np.argmax(latencies)))):
        offset = latencies[index] / mean - 1
        if abs(offset) >= UNSTABLE_EXTREME:
            found.append(
                f"the {name} ({latencies[index]:.3g} ms, iteration {index + 1} of {n}) is {100 * abs(offset):.0f} % "
                f"{'above' if offset > 0 else 'below'} the mean ({mean:.3g} ms)"
            )
    quarter = n // 4
    if quarter and np.ptp(latencies) > 0:
        change = float(np.median(latencies[-quarter:]) / np.median(latencies[:quarter]) - 1)
        if abs(change) >= TREND_CHANGE and stats.kendalltau(np.arange(n), latencies).pvalue < TREND_ALPHA:
            falls = ("below", "warm-up residue or easing load")
            side, likely = falls if change < 0 else ("above", "throttling or growing load")
            found.append(f"the median of the last quarter is {100 * abs(change):.0f} % {side} the first's ({likely})")
    return found


class Interval(NamedTuple):
    """Mean of log ratios with its confidence interval; floats, or arrays of one shape."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def paired_interval(log_ratios: ArrayLike, alpha: float = ALPHA) -> Interval:
    """Student-t interval (Student, Biometrika 6, 1908) of the mean of paired log ratios, at 1 - alpha.

    ``log_ratios``: [..., rounds], ln(from / to) of the two run medians of each round; the rounds, at least 2,
    are the independent repetitions. The result has the leading shape. No spread gives an interval of no width.
    """
    d = np.asarray(log_ratios, dtype=float)
    rounds = d.shape[-1]
    mean = d.mean(axis=-1)
    half = _critical(rounds, alpha) * d.std(axis=-1, ddof=1) / np.sqrt(rounds)
    return Interval(mean, mean - half, mean + half)


def welch_interval(first: ArrayLike, second: ArrayLike, alpha: float = ALPHA) -> Interval:
    """Interval of the difference of the means of two samples that were not taken in pairs, at 1 - alpha.

    ``first`` is [..., n], ``second`` [..., m], of n and m at least 2, e.g. logarithms of run medians of two hosts; the
    result has the leading shape. Welch, Biometrika 34, 1947, with the degrees of freedom of Satterthwaite, Biometrics
    Bulletin 2, 1946: neither the spreads nor the numbers need be equal. No spread gives an interval of no width.
    """
    samples = [np.asarray(sample, dtype=float) for sample in (first, second)]
    mean = samples[0].mean(axis=-1) - samples[1].mean(axis=-1)
    one, other = (np.asarray(sample.var(axis=-1, ddof=1) / sample.shape[-1]) for sample in samples)
    variance = one + other
    share = np.divide(one, variance, out=np.full_like(variance, 0.5), where=variance > 0)
    freedom = 1 / (share**2 / (samples[0].shape[-1] - 1) + (1 - share) ** 2 / (samples[1].shape[-1] - 1))
    half = stats.t.ppf(1 - alpha / 2, freedom) * np.sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def combined_interval(medians: ArrayLike, signs: ArrayLike, alpha: float = ALPHA) -> Interval:
    """Interval of a sum of geometric means over the same rounds, each taken ``signs`` times, at 1 - alpha.

    ``medians``: [rungs, rounds], of at least 2 rounds, in any unit, which is the result's. By the delta method
    (Oehlert, The American Statistician 46, 1992): to first order a geometric mean moves by itself times the mean of
    the rounds' log deviations, so the sum's deviations are formed round by round and what a round's rungs share
    cancels.
    """
    logs = np.log(np.asarray(medians, dtype=float))
    rounds = logs.shape[-1]
    terms = np.asarray(signs, dtype=float) * np.exp(logs.mean(axis=-1))
    deviations = terms @ (logs - logs.mean(axis=-1, keepdims=True))
    half = _critical(rounds, alpha) * deviations.std(ddof=1) / np.sqrt(rounds)
    return Interval(terms.sum(), terms.sum() - half, terms.sum() + half)


class BehindBest(NamedTuple):
    """How far each rung is behind the truly fastest, ln(rung / fastest) as an interval, and whether it may be that."""

    low: np.ndarray
    high: np.ndarray
    may_be_best: np.ndarray


def behind_best(log_medians: ArrayLike, alpha: float = ALPHA) -> BehindBest:
    """Multiple comparisons with the best (Edwards & Hsu, JASA 78, 1983): which of k rungs may be the fastest.

    ``log_medians``: [..., rungs, rounds], of at least 2 rungs that all have the same 2 or more rounds; the fields are
    [..., rungs]. Any two rungs are compared by ``paired_interval`` at 1 - alpha / (k - 1), so that by Bonferroni all
    k - 1 intervals of the truly fastest rung hold with probability 1 - alpha at least, whatever the spreads and however
    they hang together. While they hold that rung is among those that no other is shown to beat, and each rung's
    distance to it lies between the lowest and the highest end of its intervals against these, and is not below 0.
    """
    logs = np.asarray(log_medians, dtype=float)
    _, low, high = paired_interval(logs[..., :, None, :] - logs[..., None, :, :], alpha / (logs.shape[-2] - 1))
    may_be_best = np.asarray(~(low > 0).any(axis=-1))
    against = may_be_best[..., None, :]
    nearest = np.where(against, low, np.inf).min(axis=-1)
    return BehindBest(np.maximum(nearest, 0), np.where(against, high, -np.inf).max(axis=-1), may_be_best)


def verdict(low: float, high: float, rounds: int) -> str:
    """``faster`` where the interval [low, high] of ln(from / to) lies above 0, ``slower`` where below.

    ``within noise`` where it holds 0; ``too few rounds`` below MIN_ROUNDS, whatever the interval.
    """
    if rounds < MIN_ROUNDS:
        return TOO_FEW_ROUNDS
    if low > 0:
        return FASTER
    return SLOWER if high < 0 else WITHIN_NOISE


def noise_floor(from_medians: ArrayLike, to_medians: ArrayLike, alpha: float = ALPHA) -> float:
    """The gain that two rungs of these spreads could show by chance, in the unit of the medians.

    t(1 - alpha/2, n - 1) * sqrt((s_from^2 + s_to^2) / n), from the run medians [n rounds >= 2] of the two rungs
    alone: the half width of the difference's interval if a round's two runs shared nothing, with the smaller
    degrees of freedom of the two samples (conservative against Welch, Biometrika 34, 1947). Where rounds drift
    together, pairing resolves less than this.
    """
    first, second = np.asarray(from_medians, dtype=float), np.asarray(to_medians, dtype=float)
    variance = first.var(ddof=1) + second.var(ddof=1)
    return float(_critical(len(first), alpha) * np.sqrt(variance / len(first)))


def minimum_detectable_effect(std: float, rounds: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """|ln(from / to)| that ``paired_interval`` finds, on its own side of 0, with probability ``power``.

    From the noncentral t distribution (Johnson & Welch, Biometrika 31, 1940). ``std`` is the standard deviation
    of the log ratios over at least 2 rounds; it is itself an estimate, and so is the effect.
    """
    return _noncentrality(rounds, alpha, power) * std / float(np.sqrt(rounds))


def gain_pct(log_ratio: ArrayLike) -> np.ndarray:
    """Share of the latency that a step removed, in %: 100 * (1 - to / from); negative is slower."""
    return -100 * np.expm1(-np.asarray(log_ratio, dtype=float))


def _milliseconds(latencies_ns: ArrayLike) -> np.ndarray:
    latencies = np.asarray(latencies_ns, dtype=float) / 1e6
    if latencies.size == 0:
        raise StepError("a run without a single timed iteration has no summary: expected at least one latency")
    return latencies


def _percentiles(latencies: np.ndarray) -> dict[str, float | None]:
    # 2 / (1 - p) in integers: in floats 2 / (1 - 0.9) is above 20
    return {
        f"p{p}_ms": float(np.percentile(latencies, p)) if len(latencies) * (100 - p) >= 200 else None
        for p in PERCENTILES
    }


@lru_cache
def _critical(rounds: int, alpha: float) -> float:
    return float(stats.t.ppf(1 - alpha / 2, rounds - 1))


@lru_cache
def _noncentrality(rounds: int, alpha: float, power: float) -> float:
    """The noncentrality at which the t interval lies on the effect's own side of 0 with this power."""
    critical, freedom = _critical(rounds, alpha), rounds - 1
    # an upper bound: normal and chi part each spoil the verdict with half of 1 - power (union bound)
    half = (1 + power) / 2
    enough = stats.norm.ppf(half) + critical * np.sqrt(stats.chi2.ppf(half, freedom) / freedom)
    return float(optimize.brentq(lambda nc: stats.nct.sf(critical, freedom, nc) - power, 0, float(enough)))
