"""Losses to compare with: of densities, of Cramér and Wold, of Wasserstein (docs/others.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.distance.cramer_wold import cramer_wold_squared
from cramix.distance.density import density_l2_squared
from cramix.distance.wasserstein import sliced_wasserstein_power
from cramix.loss.reduction import reduce
from cramix.mixture import MultivariateNormalMixture, NormalMixture


def density_l2_loss(
    p: NormalMixture | MultivariateNormalMixture,
    q: NormalMixture | MultivariateNormalMixture,
    reduction: str = "mean",
) -> Tensor:
    """Return the squared L2 distance of the densities, `integral (f - g)^2 dx` (math.md, eq. 15; others.md, O13)."""
    return reduce(density_l2_squared(p, q), reduction)


def cramer_wold_loss(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    bandwidth: float | Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the squared Cramér-Wold distance of spherical mixtures and points (docs/others.md, eq. O11).

    By default the bandwidth, a variance, follows Silverman's rule for the points, as in CWAE.
    """
    return reduce(cramer_wold_squared(p, q, bandwidth), reduction)


def sliced_wasserstein_loss(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    order: int = 2,
    directions: int | Tensor = 64,
    generator: torch.Generator | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean over directions of `W_r^r`, the distance before its root is taken (docs/others.md, eq. O22)."""
    return reduce(sliced_wasserstein_power(p, q, order, directions, generator), reduction)
