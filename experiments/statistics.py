"""Statistics of the scores of several runs (Agarwal et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """An estimate with the limits of its 95 % confidence interval."""

    value: float
    low: float
    high: float


class EpisodeSummary(NamedTuple):
    """Returns of episodes, split at the reward threshold of the environment; NaN where that is undefined.

    Args:
        mean: of all returns.
        failures: fraction of returns below the threshold.
        successes: mean of the other returns.
    """

    mean: float
    failures: float
    successes: float


def summarize(returns: np.ndarray, env: str) -> EpisodeSummary:
    """Return the summary of returns of an environment.

    Example:
        >>> summarize(np.array([500.0, 490.0, 300.0, 480.0]), "CartPole-v1")  # its threshold is 475
        EpisodeSummary(mean=442.5, failures=0.25, successes=490.0)
    """
    threshold = gymnasium.spec(env.rpartition(":")[2]).reward_threshold
    mean = float(returns.mean())
    if threshold is None:
        return EpisodeSummary(mean, np.nan, np.nan)
    good = returns >= threshold
    return EpisodeSummary(mean, float(1 - good.mean()), float(returns[good].mean()) if good.any() else np.nan)


def interquartile_mean(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean of scores without the lowest and the highest quarter, rounded down.

    Example:
        >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 100.0])))
        1.5
    """
    return stats.trim_mean(scores, 0.25, axis=axis)


def interval(scores: np.ndarray, seed: int = 0) -> Interval:
    """Return the interquartile mean of scores `(runs)` with its percentile bootstrap interval over runs."""
    value = float(interquartile_mean(scores))
    if len(scores) < 2 or np.ptp(scores) == 0:
        return Interval(value, value, value)
    return Interval(value, *_bootstrap((scores,), interquartile_mean, seed))


def mean_interval(scores: np.ndarray, seed: int = 0) -> Interval:
    """Return the mean of scores `(runs)` with its percentile bootstrap interval over runs."""
    value = float(scores.mean())
    if len(scores) < 2 or np.ptp(scores) == 0:
        return Interval(value, value, value)
    return Interval(value, *_bootstrap((scores,), np.mean, seed))


def difference(one: np.ndarray, other: np.ndarray, seed: int = 0) -> Interval:
    """Return the difference of the interquartile means of two sets of runs; NaNs are left out."""
    one, other = (scores[~np.isnan(scores)] for scores in (one, other))
    if min(len(one), len(other)) < 2:
        return Interval(np.nan, np.nan, np.nan)

    def statistic(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return interquartile_mean(a, axis) - interquartile_mean(b, axis)

    value = float(statistic(one, other))
    if np.ptp(one) == np.ptp(other) == 0:
        return Interval(value, value, value)
    return Interval(value, *_bootstrap((one, other), statistic, seed))


def _bootstrap(samples: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], seed: int) -> tuple[float, float]:
    """Return the limits of a 95 % percentile bootstrap interval."""
    random = np.random.default_rng(seed)
    drawn = stats.bootstrap(samples, statistic, n_resamples=5000, axis=-1, method="percentile", rng=random)
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def stratified_interval(statistic: Callable[..., np.ndarray], *scores: np.ndarray, seed: int = 0) -> Interval:
    """Return a statistic of scores `(runs, tasks)` with its interval by a stratified bootstrap.

    Runs are drawn with replacement for each task by itself (Agarwal et al., 2021).

    Args:
        statistic: of one or several arrays `(*batch, runs, tasks)`, returns `(*batch)`.
        scores: one or several arrays.
        seed: of the bootstrap.
    """
    random = np.random.default_rng(seed)
    drawn = [_resampled(x, random) for x in scores]
    low, high = np.quantile(statistic(*drawn), (0.025, 0.975))
    return Interval(float(statistic(*scores)), float(low), float(high))


def _resampled(scores: np.ndarray, random: np.random.Generator, count: int = 2000) -> np.ndarray:
    """Return `(count, runs, tasks)`, each column from that of the scores with replacement."""
    index = random.integers(len(scores), size=(count, *scores.shape))
    return np.take_along_axis(scores[None], index, axis=1)


def aggregate_iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean `(*batch)` over all runs and tasks of scores `(*batch, runs, tasks)`.

    Example:
        >>> float(aggregate_iqm(np.array([[0.0, 1.0], [2.0, 100.0]])))
        1.5
    """
    return interquartile_mean(scores.reshape(*scores.shape[:-2], -1))


def probability_of_improvement(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the mean over tasks of the probability that a run of one is better than one of the other, `(*batch)`.

    Ties count half.

    Args:
        one: scores `(*batch, runs, tasks)`.
        other: the same, of as many tasks.

    Example:
        >>> float(probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])))
        0.625
    """
    difference = one[..., :, None, :] - other[..., None, :, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean((-3, -2, -1))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray, seed: int = 0) -> list[Interval]:
    """Return the fraction of runs, of all tasks, with a score above each threshold."""
    return [stratified_interval(lambda x, t=t: (x > t).mean((-2, -1)), scores, seed=seed) for t in thresholds]
