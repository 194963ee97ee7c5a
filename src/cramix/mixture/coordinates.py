"""Any mixture as one in d >= 1 dimensions, for code that does not care which it is."""

from __future__ import annotations

import torch

from cramix.mixture.covariance import Spherical
from cramix.mixture.multivariate import MultivariateNormalMixture
from cramix.mixture.univariate import NormalMixture


def in_coordinates(
    mixture: NormalMixture | MultivariateNormalMixture, dtype: torch.dtype | None = None
) -> MultivariateNormalMixture:
    """Return the same distribution as a multivariate mixture, with one coordinate for a univariate one.

    Args:
        mixture: of any batch shape.
        dtype: converted to before scales are squared; that of the mixture if None.

    Example:
        >>> in_coordinates(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)))
        MultivariateNormalMixture(weights=[1], means=[[0]], n_components=1, dim=1, covariance_type='spherical')
    """
    dtype = mixture.means.dtype if dtype is None else dtype
    if isinstance(mixture, MultivariateNormalMixture):
        return mixture.to(dtype)
    weights, means = mixture.weights.to(dtype), mixture.means.to(dtype).unsqueeze(-1)
    if mixture.is_empirical:
        return MultivariateNormalMixture.from_samples(means, weights)
    variances = Spherical(mixture.scales.to(dtype).square())
    result = MultivariateNormalMixture(weights, means, variances, validate_args=False)
    result._validate_args = mixture._validate_args  # the parameters are valid, but values may not be
    return result
