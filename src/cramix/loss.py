"""Distances as losses: reductions, and `nn.Module` twins of the functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cramix.checks import check_broadcast, check_floating
from cramix.distance.cramer import cramer_squared
from cramix.distance.cramer_wold import cramer_wold_squared
from cramix.distance.density import density_l2_squared
from cramix.distance.likelihood import negative_log_likelihood
from cramix.distance.wasserstein import sliced_wasserstein_power
from cramix.mixture import MultivariateNormalMixture, NormalMixture

_REDUCTIONS = {"none": lambda x: x, "mean": lambda x: x.mean(), "sum": lambda x: x.sum()}


def reduce(losses: Tensor, reduction: str) -> Tensor:
    """Reduce losses `(*batch)` by "none", "mean" or "sum"."""
    _check_reduction(reduction)
    return _REDUCTIONS[reduction](losses)


def cramer_loss(p: NormalMixture | Tensor, q: NormalMixture | Tensor, reduction: str = "mean") -> Tensor:
    """Return the Cramér loss `C2^2 = integral (F - G)^2 dx` (docs/math.md, eq. 4).

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n)`.
        q: the same; batch shapes broadcast. For weighted samples see `NormalMixture.from_samples`.
        reduction: "none", "mean" or "sum" over the batch.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> cramer_loss(p, torch.tensor([-1.2, 0.1, 0.9]))
        tensor(0.0515)
    """
    return reduce(cramer_squared(p, q), reduction)


def crps(p: NormalMixture, y: Tensor, reduction: str = "none") -> Tensor:
    """Return the continuous ranked probability score of observations `y`, `(*sample, *batch)`: the Cramér loss to each.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> crps(p, torch.tensor([0.0, 2.0]))
        tensor([0.2337, 1.4528])
    """
    if not isinstance(p, NormalMixture):
        raise ValueError(f"p must be a NormalMixture; got {type(p).__name__}. For samples see from_samples.")
    if not isinstance(y, Tensor):
        raise ValueError(f"y must be a tensor of observations; got {type(y).__name__}. Use torch.as_tensor(y).")
    check_floating(p=p.means, y=y)
    check_broadcast("Observations are (*sample, *batch).", p=p.batch_shape, y=y.shape)
    return reduce(cramer_squared(p, NormalMixture.from_samples(y.unsqueeze(-1), name="y")), reduction)


def density_l2_loss(
    p: NormalMixture | MultivariateNormalMixture,
    q: NormalMixture | MultivariateNormalMixture,
    reduction: str = "mean",
) -> Tensor:
    """Return the squared L2 distance of the densities, `integral (f - g)^2 dx` (math.md, eq. 15; others.md, O13)."""
    return reduce(density_l2_squared(p, q), reduction)


class CramerLoss(nn.Module):
    """`cramer_loss` as a module.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> CramerLoss()(p, p.affine(1.0, 1.0))
        tensor(0.2709)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        _check_reduction(reduction)
        self.reduction = reduction

    def forward(self, p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> Tensor:
        """Return the loss of prediction p and target q."""
        return cramer_loss(p, q, self.reduction)

    def extra_repr(self) -> str:
        """Say how the loss is reduced."""
        return f"reduction={self.reduction!r}"


def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(
            f'reduction must be "none", "mean" or "sum"; got {reduction!r}. Use "none" for one loss an element.'
        )


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


def negative_log_likelihood_loss(
    p: NormalMixture | MultivariateNormalMixture, x: Tensor, weights: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the negative log likelihood of samples, a mean over them (docs/others.md, eq. O14).

    Args:
        p: mixture with batch shape `(*batch)`.
        x: samples `(*batch, n)`, of a multivariate mixture `(*batch, n, d)`.
        weights: `(*batch, n)`, of any positive sum.
        reduction: "none", "mean" or "sum" over the batch.
    """
    return reduce(negative_log_likelihood(p, x, weights), reduction)
