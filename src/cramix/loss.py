"""Distances as losses: reductions, and `nn.Module` twins of the functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cramix.checks import check_broadcast, check_floating
from cramix.distance.cramer import total_cramer
from cramix.distance.cramer_wold import cramer_wold_squared
from cramix.distance.density import density_l2_squared
from cramix.distance.likelihood import negative_log_likelihood
from cramix.distance.sliced import check_options, sliced_cramer_squared
from cramix.distance.univariate.reduction import Share, total
from cramix.distance.wasserstein import sliced_wasserstein_power
from cramix.mixture import MultivariateNormalMixture, NormalMixture

_SHARES: dict[str, Share | None] = {"none": None, "mean": lambda n: 1 / n if n else math.nan, "sum": lambda n: 1.0}


def reduce(losses: Tensor, reduction: str) -> Tensor:
    """Reduce losses `(*batch)` by "none", "mean" or "sum"."""
    return total(losses, _share(reduction))


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
    return total_cramer(p, q, _share(reduction))


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
    return total_cramer(p, NormalMixture.from_samples(y.unsqueeze(-1), name="y"), _share(reduction))


def sliced_cramer_loss(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    directions: str | int | Tensor = "exact",
    normalization: str = "mean",
    reduction: str = "mean",
    *,
    tolerance: float = 1e-7,
    target_term: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the Cramér loss of projections over all directions (docs/math.md, eq. 24), or over some slices.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n, d)`.
        q: the same; batch shapes broadcast. For weighted samples see `MultivariateNormalMixture.from_samples`.
        directions: "exact", a number of random slices, or directions `(t, d)`, see `cramix.directions`.
        normalization: "mean" over the sphere, "integral" (times its area), or with slices their "sum".
        reduction: "none", "mean" or "sum" over the batch.
        tolerance: of "exact", the error of a mean distance as a part of the size of the problem; float32 gives 1e-6.
        target_term: False leaves out the term of q alone in "exact", points or a constant mixture: all pairs of it, the
            same for any p.
        generator: for random slices.

    Example:
        >>> import torch
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 3), torch.eye(3).unsqueeze(0))
        >>> sliced_cramer_loss(p, torch.zeros(1, 3)), sliced_cramer_loss(p, torch.zeros(1, 3), directions=torch.eye(3))
        (tensor(0.2337), tensor(0.2337))
    """
    losses = sliced_cramer_squared(
        p, q, directions, normalization, tolerance=tolerance, target_term=target_term, generator=generator
    )
    return reduce(losses, reduction)


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
        _share(reduction)
        self.reduction = reduction

    def forward(self, p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> Tensor:
        """Return the loss of prediction p and target q."""
        return cramer_loss(p, q, self.reduction)

    def extra_repr(self) -> str:
        """Say how the loss is reduced."""
        return f"reduction={self.reduction!r}"


class SlicedCramerLoss(nn.Module):
    """`sliced_cramer_loss` as a module; random slices are drawn anew in every call.

    Example:
        >>> import torch
        >>> SlicedCramerLoss()(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
        tensor(3.1831)
    """

    def __init__(
        self,
        directions: str | int | Tensor = "exact",
        normalization: str = "mean",
        reduction: str = "mean",
        *,
        tolerance: float = 1e-7,
        target_term: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _share(reduction)
        check_options(directions, normalization, tolerance)
        if isinstance(directions, Tensor):
            self.register_buffer("directions", directions)
        else:
            self.directions = directions
        self.normalization, self.reduction = normalization, reduction
        self.tolerance, self.target_term, self.generator = tolerance, target_term, generator

    def forward(self, p: MultivariateNormalMixture | Tensor, q: MultivariateNormalMixture | Tensor) -> Tensor:
        """Return the loss of prediction p and target q."""
        return sliced_cramer_loss(
            p,
            q,
            self.directions,
            self.normalization,
            self.reduction,
            tolerance=self.tolerance,
            target_term=self.target_term,
            generator=self.generator,
        )

    def extra_repr(self) -> str:
        """Say which directions there are, and how the loss is reduced."""
        shown = tuple(self.directions.shape) if isinstance(self.directions, Tensor) else self.directions
        return f"directions={shown!r}, normalization={self.normalization!r}, reduction={self.reduction!r}"


def _share(reduction: str) -> Share | None:
    if reduction not in _SHARES:
        raise ValueError(
            f'reduction must be "none", "mean" or "sum"; got {reduction!r}. Use "none" for one loss an element.'
        )
    return _SHARES[reduction]
