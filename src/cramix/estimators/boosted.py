"""Predictions of boosted trees: locations and scales first, then the distribution of what they leave.

Scales that trees learn together with means are too small: the means fit noise of the rows they learn from. So there are
two stages. In the first, each member learns a normal distribution from all rows but a fold. In the second, mixtures are
learned for the standardized residuals of rows in the folds, which the first stage has not seen: one mixture for all
rows to begin with, then trees that change it with the features, the predicted mean and the predicted scale. Both stages
stop when the score of the held-out rows gets no better, so the second adds only what helps on new rows. It is run with
one component and with all, and the held-out rows decide between the two.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from cramix.boosting import MixtureObjective, objective
from cramix.estimators.trees import GrowthOptions, Trees, grow
from cramix.fitting import fit
from cramix.mixture import NormalMixture

# The losses of the two stages for each setting of the regressor.
STAGES = {"cramer": ("crps", "crps"), "nll": ("nll", "nll"), "blend": ("crps", "nll")}
# Standardized residuals are cut here before a mixture is fitted to them, and at most so many are used.
_CUT, _MAX_RESIDUALS = 10.0, 10_000
# Added to the variances of that mixture.
_REG_COVAR = 0.01
# Factor on the learning rate of the second stage: there is less to learn.
_RESIDUAL_RATE = 0.5
# The mixture of all members keeps at least this share of its variance.
_MIN_NARROWING = 0.05


class Rows(NamedTuple):
    """Features `(n, f)` in which NaN is missing, standardized targets `(n,)` and weights `(n,)` with mean 1."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray


@dataclass
class Boosted:
    """Members of an ensemble: trees for mean and scale, and perhaps for the distribution of the residuals."""

    base: list[Trees]
    residual: list[Trees]

    def predict(self, x: np.ndarray) -> NormalMixture:
        """Return the mixture of all members for features `(n, f)`, batch shape `(n,)`."""
        parts = [self._member(i, x) for i in range(len(self.base))]
        return _pooled(parts) if self.residual else _mixed(parts)

    def _member(self, i: int, x: np.ndarray) -> NormalMixture:
        p = self.base[i].predict(x)
        if not self.residual:
            return p
        mean, scale = p.means.squeeze(-1), p.scales.squeeze(-1)
        return self.residual[i].predict(_with_prediction(x, p)).affine(mean, scale)


def boost(
    rows: Rows,
    folds: Sequence[np.ndarray],
    n_components: int,
    loss: str,
    min_scale: float,
    categorical: Sequence[int],
    options: GrowthOptions,
    seed: int,
    seen: Sequence[np.ndarray] | None = None,
) -> tuple[Boosted, list[float]]:
    """Train members, one for each fold, in two stages; return them, and the scores after each round of both.

    A member learns from all rows that are not in its fold, or from those in `seen`.
    Without held-out rows there is one stage, in which trees learn the whole mixture.
    """
    first, second = STAGES[loss]
    holds_out = len(folds[0]) > 0
    k = 1 if holds_out else n_components
    start = objective(k, first, targets=rows.y, sample_weight=rows.weights, min_scale=min_scale)
    base, curve = grow(rows.x, rows.y, rows.weights, folds, start, categorical, options, seed, seen=seen)
    if not holds_out:
        return Boosted(base, []), curve
    held_out = np.concatenate(folds)
    predictions = [member.predict(rows.x[fold]) for member, fold in zip(base, folds, strict=True)]
    x = np.concatenate([_with_prediction(rows.x[fold], p) for fold, p in zip(folds, predictions, strict=True)])
    p = NormalMixture.cat(predictions)
    residuals = ((torch.from_numpy(rows.y[held_out]) - p.means.squeeze(-1)) / p.scales.squeeze(-1)).numpy()
    weights = rows.weights[held_out]
    # The CRPS of a target is that of its residual times the scale.
    score_weights = weights * p.scales.squeeze(-1).numpy() if second == "crps" else weights
    ends = np.cumsum([0, *map(len, folds)])
    parts = [np.arange(a, b) for a, b in pairwise(ends)]
    learned = (
        None if seen is None else [_residuals_of(rows, held_out, part) for rows, part in zip(seen, parts, strict=True)]
    )
    options = replace(options, learning_rate=_RESIDUAL_RATE * options.learning_rate)
    found: list[tuple[float, list[Trees], list[float]]] = []
    for k in sorted({1, n_components}):  # one normal remains unless held-out rows ask for more
        shape = MixtureObjective(_distribution(residuals, weights, k, seed), second, min_scale)
        if len(folds) == 1:  # no rows are left to learn from
            residual, further = [Trees(None, shape)], list[float]()
        else:
            residual, further = grow(
                x, residuals, weights, parts, shape, categorical, options, seed + len(folds), score_weights, learned
            )
        scores = shape.scores(np.zeros((len(residuals), shape.n_outputs)), torch.from_numpy(residuals)).numpy()
        found.append((min([*further, float(scores @ score_weights / score_weights.sum())]), residual, further))
    _, residual, further = min(found, key=lambda one: one[0])
    return Boosted(base, residual), curve + further


def _residuals_of(rows: np.ndarray, held_out: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return which of the held-out rows are among these; all but its own for a member that has seen none of them."""
    found = np.flatnonzero(np.isin(held_out, rows))
    return found if len(found) else np.setdiff1d(np.arange(len(held_out)), own)


def disjoint_folds(n: int, n_folds: int, fraction: float, rng: np.random.RandomState) -> list[np.ndarray]:
    """Return indices of disjoint folds of n rows: all rows, or less if a fold would be larger than a fraction of them.

    A fold has at least one row.
    """
    size = max(1, min(n // n_folds, round(fraction * n)))
    order = rng.permutation(n)
    if n - n_folds * size < n_folds:  # all rows, up to rounding
        return [np.sort(part) for part in np.array_split(order, n_folds)]
    return [np.sort(order[i * size : (i + 1) * size]) for i in range(n_folds)]


def _with_prediction(x: np.ndarray, p: NormalMixture) -> np.ndarray:
    """Return features with two more: the predicted mean and the logarithm of the predicted scale."""
    return np.concatenate((x, p.means.numpy(), p.scales.log().numpy()), 1)


def _distribution(residuals: np.ndarray, weights: np.ndarray, n_components: int, seed: int) -> NormalMixture:
    """Return a mixture for all standardized residuals, by likelihood."""
    from cramix.fitting import ConvergenceWarning  # needs scikit-learn

    generator = torch.Generator().manual_seed(seed)
    z, w = torch.from_numpy(residuals.clip(-_CUT, _CUT)), torch.from_numpy(weights)
    if len(z) > _MAX_RESIDUALS:
        index = torch.randperm(len(z), generator=generator)[:_MAX_RESIDUALS]
        z, w = z[index], w[index]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        k = min(n_components, len(z.unique()))
        found = fit(z, k, sample_weight=w, reg_covar=_REG_COVAR, generator=generator).mixture
    assert isinstance(found, NormalMixture)
    return found


def _pooled(parts: list[NormalMixture]) -> NormalMixture:
    """Return the mixture of the predictions of members, narrower where their means differ.

    A member's variance w is that of its own errors. By the ambiguity decomposition the mean of all members has a lower
    squared error, w - b, where b is the variance of their means; their mixture has a higher variance, w + b.
    """
    means = torch.stack([p.mean for p in parts])
    between = means.var(0, correction=0)
    within = torch.stack([p.variance for p in parts]).mean(0)
    factor = ((within - between) / (within + between)).clamp(min=_MIN_NARROWING).sqrt()
    mean = means.mean(0)
    return _mixed(parts).affine(mean - factor * mean, factor)  # about the mean


def _mixed(parts: list[NormalMixture]) -> NormalMixture:
    share = torch.full((len(parts),), 1 / len(parts), dtype=torch.float64)
    return NormalMixture.mix(parts, share.expand(len(parts[0].means), -1))
