"""Recalibration of predictions by observations that the model has not seen.

The scales of a single model tend to be slightly too small. A mixture of several models is too wide, since its mean is
more accurate than each of them: their scales are too large for it, and their disagreement comes on top. And models
trained on the CRPS have no density where outliers are. The CRPS changes little by any of this, the likelihood and the
coverage of intervals change a lot. Three numbers correct it: a factor on all scales, a factor on the distances of the
components' means from the mean of the prediction, and the weight of one wide component at that mean.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.operands import Mixture
from cramix.estimators.forecasts import marginals
from cramix.mixture import MultivariateNormalMixture, NormalMixture

# What is tried. Larger tails can improve the likelihood further, but worsen the CRPS.
_SCALE_FACTORS = tuple(i / 20 for i in range(8, 29))
_SPREAD_FACTORS = 1.0, 0.8, 0.6, 0.4, 0.2
_TAIL_WEIGHTS = 0.0, 0.005, 0.01, 0.02, 0.05
# Levels of the central intervals whose coverage counts, and how much it counts beside the likelihood.
_LEVELS = 0.5, 0.8, 0.9, 0.95
_COVERAGE_WEIGHT = 4.0
# Few observations change little: the logarithms of both factors have normal priors with this standard deviation.
_PRIOR_SCALE = 0.2
# At most this many observations are used, evenly spaced: they may be sorted.
_MAX_ROWS = 1 << 12
# The scale of the wide component, relative to the standard deviation of the prediction.
_TAIL_WIDTH = 3.0


class Recalibration(NamedTuple):
    """Factors on the scales and on the spread of the means of all components, and the weight of a wide component."""

    scale_factor: float = 1.0
    spread_factor: float = 1.0
    tail_weight: float = 0.0

    def apply(self, p: Mixture) -> Mixture:
        """Return predictions with batch shape `(n,)`, recalibrated."""
        narrowed = _rescaled(p, self.scale_factor, self.spread_factor)
        if not self.tail_weight:
            return narrowed
        # Component by component: weights, means, and scales or variances.
        pairs = zip(narrowed._whole(), _tail(narrowed)._whole(), strict=True)
        weights, means, values = (torch.cat(pair, 1) for pair in pairs)
        share = torch.full_like(weights[:1], 1 - self.tail_weight)
        share[:, -1] = self.tail_weight
        return p._of_whole(share * weights, means, values)


@torch.no_grad()
def recalibrate(p: Mixture, y: Tensor, sample_weight: Tensor | None = None) -> Recalibration:
    """Return the recalibration by observations that the model has not seen.

    It is the one with the highest likelihood, of the observations and of how many of them central intervals contain.
    Few observations change the factors little.

    Args:
        p: predictions of a model, with batch shape `(n,)`.
        y: what was observed, `(n,)` or `(n, d)`.
        sample_weight: `(n,)`.

    Example:
        >>> from cramix import NormalMixture
        >>> y = 2**0.5 * torch.linspace(-0.998, 0.998, 500).erfinv()  # quantiles of a normal distribution
        >>> narrow = NormalMixture(torch.ones(500, 1), torch.zeros(500, 1), torch.full((500, 1), 0.9))
        >>> recalibrate(narrow, y).scale_factor
        1.1
    """
    if isinstance(p, MultivariateNormalMixture) and p.covariance_type != "diag":
        raise ValueError(f"p must have diagonal covariances; got {p.covariance_type!r}.")
    weights = torch.ones(len(y)) if sample_weight is None else sample_weight
    if len(y) > _MAX_ROWS:
        chosen = torch.linspace(0, len(y) - 1, _MAX_ROWS, dtype=torch.float64, device=p.means.device).round().long()
        p, y, weights = p[chosen], y.to(chosen.device)[chosen], weights.to(chosen.device)[chosen]
    y, weights = y.to(p.means), weights.to(p.means)
    found: dict[Recalibration, float] = {}
    for scale_factor, spread_factor in product(_SCALE_FACTORS, _SPREAD_FACTORS):
        narrowed = _rescaled(p, scale_factor, spread_factor)
        within, beyond = narrowed.log_prob(y), _tail(narrowed).log_prob(y)
        log_prior = -0.5 * sum((math.log(factor) / _PRIOR_SCALE) ** 2 for factor in (scale_factor, spread_factor))
        penalty = _COVERAGE_WEIGHT * _miscoverage(narrowed, y, weights)
        for tail in _TAIL_WEIGHTS:
            log_density = torch.logaddexp(within + math.log1p(-tail), beyond + math.log(tail)) if tail else within
            value = (weights * log_density).sum().item() + log_prior - penalty
            found[Recalibration(scale_factor, spread_factor, tail)] = value if math.isfinite(value) else -math.inf
    return max(found, key=found.__getitem__)


def _rescaled(p: Mixture, scale_factor: float, spread_factor: float) -> Mixture:
    weights, means, values = p._whole()
    center = p.mean.unsqueeze(1)
    means = torch.lerp(center, means, spread_factor)
    return p._of_whole(weights, means, (scale_factor if isinstance(p, NormalMixture) else scale_factor**2) * values)


def _tail(p: Mixture) -> Mixture:
    """Return the wide component of each prediction."""
    variances = _TAIL_WIDTH**2 * p.variance.unsqueeze(1)
    values = variances.sqrt() if isinstance(p, NormalMixture) else variances
    return p._of_whole(torch.ones_like(p.weights[:, :1]), p.mean.unsqueeze(1), values)


def _miscoverage(p: Mixture, y: Tensor, weights: Tensor) -> float:
    """Return minus the log likelihood of the number of targets in central intervals, but for a constant."""
    targets = y.reshape(len(y), -1).T
    pit = torch.stack([q.cdf(target) for q, target in zip(marginals(p), targets, strict=True)], -1)  # (n, d)
    levels = pit.new_tensor(_LEVELS)
    inside = ((2 * pit - 1).abs().unsqueeze(-1) <= levels).to(y).mean(1)  # (n, levels)
    coverage = weights @ inside / weights.sum()
    squared = (coverage - levels).square() / (levels * (1 - levels))
    return 0.5 * weights.sum().item() * squared.mean().item()
