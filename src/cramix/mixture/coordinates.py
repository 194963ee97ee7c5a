"""Any mixture as one in d >= 1 coordinates, for those who do not care which kind it is."""

from __future__ import annotations

import torch

from cramix.mixture.axes import Spherical
from cramix.mixture.multivariate import MultivariateNormalMixture
from cramix.mixture.normal import NormalMixture


def in_coordinates(mixture: NormalMixture | MultivariateNormalMixture) -> MultivariateNormalMixture:
    """Return the same distribution as a multivariate mixture, with one coordinate for a univariate one, in float64.

    Example:
        >>> in_coordinates(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)))
        MultivariateNormalMixture(batch_shape=(), n_components=1, dim=1, covariances=spherical)
    """
    if isinstance(mixture, MultivariateNormalMixture):
        return mixture.to(torch.float64)
    weights, means = mixture.weights.double(), mixture.means.double().unsqueeze(-1)
    if mixture.only_atoms:
        return MultivariateNormalMixture.from_samples(means, weights)
    return MultivariateNormalMixture(weights, means, Spherical(mixture.scales.double().square()), validate_args=False)
