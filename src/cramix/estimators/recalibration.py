"""Recalibration of predictions by observations that the model has not seen.

The scales of a single model tend to be slightly too small; those of a mixture of several models too large, since the
mean of the models is more accurate than each of them. And models trained on the CRPS have no density where outliers
are. The CRPS hardly changes by any of this, the likelihood and the coverage of intervals change a lot. Two numbers
correct it: a factor on all scales, and the weight of one wide component at the mean of the prediction.
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
_SCALE_FACTORS = tuple(i / 20 for i in range(10, 27))
_TAIL_WEIGHTS = 0.0, 0.002, 0.005, 0.01, 0.02
# Levels of the central intervals whose coverage counts.
_LEVELS = 0.5, 0.8, 0.9, 0.95
# Few observations change little: the logarithm of the factor has a normal prior with this standard deviation.
_PRIOR_SCALE = 0.2
# At most this many observations are used.
_MAX_ROWS = 1 << 12
# The scale of the wide component, relative to the standard deviation of the prediction.
_TAIL_WIDTH = 3.0


class Recalibration(NamedTuple):
    """A factor on the scales of all components, and the weight of a wide component at the mean."""

    scale_factor: float = 1.0
    tail_weight: float = 0.0

    def apply(self, p: Mixture) -> Mixture:
        """Return predictions with batch shape `(n,)`, recalibrated."""
        weights, means = p.weights, p.means
        variances = p.scales.square() if isinstance(p, NormalMixture) else p.covariance_kind.values
        variances = self.scale_factor**2 * variances
        if self.tail_weight:
            tail = weights.new_full((len(weights), 1), self.tail_weight)
            weights = torch.cat(((1 - self.tail_weight) * weights, tail), 1)
            means = torch.cat((means, p.mean.unsqueeze(1)), 1)
            variances = torch.cat((variances, _TAIL_WIDTH**2 * p.variance.unsqueeze(1)), 1)
        return p._of_whole(weights, means, variances.sqrt() if isinstance(p, NormalMixture) else variances)


@torch.no_grad()
def recalibrate(p: Mixture, y: Tensor, sample_weight: Tensor | None = None) -> Recalibration:
    """Return the recalibration by observations that the model has not seen.

    It is the one with the highest likelihood, of the observations and of how many of them central intervals contain.
    Few observations change the scales little.

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
    p, y = p[:_MAX_ROWS], y[:_MAX_ROWS].to(p.means)
    weights = torch.ones(len(y)).to(y) if sample_weight is None else sample_weight[:_MAX_ROWS].to(y)
    penalties = {f: _miscoverage(Recalibration(f).apply(p), y, weights, f) for f in _SCALE_FACTORS}

    def log_posterior(choice: Recalibration) -> float:
        value = (weights * choice.apply(p).log_prob(y)).sum().item() - penalties[choice.scale_factor]
        return value if math.isfinite(value) else -math.inf

    return max((Recalibration(*pair) for pair in product(_SCALE_FACTORS, _TAIL_WEIGHTS)), key=log_posterior)


def _miscoverage(p: Mixture, y: Tensor, weights: Tensor, factor: float) -> float:
    """Return minus the logarithm of a posterior: of the number of targets in intervals, and of the factor."""
    targets = y.reshape(len(y), -1).T
    pit = torch.stack([q.cdf(target) for q, target in zip(marginals(p), targets, strict=True)], -1)  # (n, d)
    levels = pit.new_tensor(_LEVELS)
    inside = ((2 * pit - 1).abs().unsqueeze(-1) <= levels).to(y).mean(1)  # (n, levels)
    coverage = weights @ inside / weights.sum()
    squared = (coverage - levels).square() / (levels * (1 - levels))
    return 0.5 * weights.sum().item() * squared.mean().item() + 0.5 * (math.log(factor) / _PRIOR_SCALE) ** 2
