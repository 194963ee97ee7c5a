"""Scores of several runs in one number with its interval (Agarwal et al., 2021)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean of scores without the best and the worst quarter of them, rounded down.

    Example:
        >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 100.0])))
        1.5
    """
    return stats.trim_mean(scores, 0.25, axis=axis)


def interval(scores: np.ndarray, seed: int = 0) -> Interval:
    """Return the interquartile mean of scores `(runs)` and its interval by a percentile bootstrap over runs."""
    value = float(interquartile_mean(scores))
    if len(scores) < 2 or np.ptp(scores) == 0:
        return Interval(value, value, value)
    drawn = stats.bootstrap(
        (scores,), interquartile_mean, n_resamples=5000, axis=-1, method="percentile", rng=np.random.default_rng(seed)
    )
    return Interval(value, float(drawn.confidence_interval.low), float(drawn.confidence_interval.high))
