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
from cramix.mixture import MultivariateNormalMixture, NormalMixture

# What is tried. Larger tails can improve the likelihood further, but worsen the CRPS.
_SCALE_FACTORS = tuple(0.5 + 0.05 * i for i in range(17))
_TAIL_WEIGHTS = 0.0, 0.002, 0.005, 0.01, 0.02
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
    """Return the recalibration with the highest likelihood of observations that the model has not seen.

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

    def log_posterior(choice: Recalibration) -> float:
        prior = -0.5 * (math.log(choice.scale_factor) / _PRIOR_SCALE) ** 2
        value = (weights * choice.apply(p).log_prob(y)).sum().item() + prior
        return value if math.isfinite(value) else -math.inf

    return max((Recalibration(*pair) for pair in product(_SCALE_FACTORS, _TAIL_WEIGHTS)), key=log_posterior)
