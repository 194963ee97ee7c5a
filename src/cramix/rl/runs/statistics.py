"""Scores of several runs in one number with its interval (Agarwal et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


class Judged(NamedTuple):
    """Returns of episodes, parted at the threshold that the environment names; NaN for what there is none of.

    Args:
        mean: of all.
        failures: the share of those below the threshold.
        successes: mean of the others.
    """

    mean: float
    failures: float
    successes: float


def judged(returns: np.ndarray, env: str) -> Judged:
    """Return what to say of returns of an environment.

    Example:
        >>> judged(np.array([500.0, 490.0, 300.0, 480.0]), "CartPole-v1")  # which is solved at 475
        Judged(mean=442.5, failures=0.25, successes=490.0)
    """
    threshold = gymnasium.spec(env.rpartition(":")[2]).reward_threshold
    if threshold is None:
        return Judged(float(returns.mean()), np.nan, np.nan)
    good = returns >= threshold
    return Judged(float(returns.mean()), float(1 - good.mean()), float(returns[good].mean()) if good.any() else np.nan)


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
    return Interval(value, *_bootstrapped((scores,), interquartile_mean, seed))


def difference(one: np.ndarray, other: np.ndarray, seed: int = 0) -> Interval:
    """Return the interquartile mean of one set of runs less that of another; NaN counts as not there."""
    one, other = (scores[~np.isnan(scores)] for scores in (one, other))
    if min(len(one), len(other)) < 2:
        return Interval(np.nan, np.nan, np.nan)

    def less(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return interquartile_mean(a, axis) - interquartile_mean(b, axis)

    value = float(less(one, other))
    if np.ptp(one) == np.ptp(other) == 0:
        return Interval(value, value, value)
    return Interval(value, *_bootstrapped((one, other), less, seed))


def _bootstrapped(
    samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], seed: int
) -> tuple[float, float]:
    """Return the ends of a 95 % interval by a percentile bootstrap."""
    random = np.random.default_rng(seed)
    drawn = stats.bootstrap(samples, statistic, n_resamples=5000, axis=-1, method="percentile", rng=random)
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
