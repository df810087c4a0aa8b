"""The median's confidence interval from order statistics, for the rule that stops a run.

A module of its own, numpy and the standard library only: it runs inside the timed process, in environments
without scipy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike


def median_interval(sample: ArrayLike, alpha: float = 0.05) -> tuple[float, float] | None:
    """Distribution-free interval that holds the median with probability of at least 1 - alpha.

    The two order statistics x(k) and x(n+1-k) with the largest k for which P(Bin(n, 1/2) < k) <= alpha / 2:
    Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, chapter 2; recommended for
    benchmarks by Hoefler & Belli, SC 2015. ``sample`` is one-dimensional, in any unit; the interval is in the
    same unit. None where n is too small for any interval (n < 6 at alpha = 0.05).

    It takes the sample as independent. Latencies of one process are not, so it tells when to stop and never
    whether two rungs differ.
    """
    values = np.asarray(sample, dtype=float)
    rank = _lower_rank(len(values), alpha)
    if rank == 0:
        return None
    first, last = rank - 1, len(values) - rank
    ordered = np.partition(values, (first, last))
    return float(ordered[first]), float(ordered[last])


@lru_cache(maxsize=4096)
def _lower_rank(n: int, alpha: float) -> int:
    """Largest k >= 0 with P(Bin(n, 1/2) < k) <= alpha / 2, in logarithms so that no n underflows."""
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
    log_pmf = log_factorials[n] - log_factorials - log_factorials[::-1] - n * np.log(2)
    return int(np.searchsorted(np.cumsum(np.exp(log_pmf)), alpha / 2, side="right"))
