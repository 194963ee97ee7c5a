"""Cramér losses: of mixtures on the line, over all directions, and as scores of observations."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_floating
from cramix.distance.cramer import total_cramer
from cramix.distance.likelihood import detached
from cramix.distance.sliced import sliced_cramer_squared, sphere_factor
from cramix.loss.reduction import reduce, share_of
from cramix.loss.targets import as_target
from cramix.mixture import MultivariateNormalMixture, NormalMixture, Spherical
from cramix.mixture.coordinates import in_coordinates


def cramer_loss(
    p: NormalMixture | Tensor, q: NormalMixture | Tensor, reduction: str = "mean", *, weights: Tensor | None = None
) -> Tensor:
    """Return the Cramér loss `C2^2 = integral (F - G)^2 dx` (docs/math.md, eq. 4).

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n)`.
        q: the same; batch shapes broadcast. A tensor of shape `(*batch)`, that of p, is one sample for each mixture.
        reduction: "none", "mean" or "sum" over the batch.
        weights: of samples q, `(*batch, n)`, of any positive sum.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> cramer_loss(p, torch.tensor([-1.2, 0.1, 0.9]))
        tensor(0.0515)
        >>> cramer_loss(p.expand((2,)), torch.tensor([0.0, 1.0]), reduction="none")
        tensor([0.3672, 0.5582])
    """
    return total_cramer(p, as_target(p, q, weights), share_of(reduction))


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
    return total_cramer(p, NormalMixture.from_samples(y.unsqueeze(-1), name="y"), share_of(reduction))


def sliced_cramer_loss(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    directions: str | int | Tensor = "exact",
    normalization: str = "mean",
    reduction: str = "mean",
    *,
    weights: Tensor | None = None,
    tolerance: float = 1e-7,
    target_term: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the Cramér loss of projections over all directions (docs/math.md, eq. 24), or over some slices.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n, d)`.
        q: the same; batch shapes broadcast. A tensor of shape `(*batch, d)`, that of p, is one sample for each mixture.
        directions: "exact", a number of random slices, or directions `(t, d)`, see `cramix.directions`.
        normalization: "mean" over the sphere, "integral" (times its area), or with slices their "sum".
        reduction: "none", "mean" or "sum" over the batch.
        weights: of samples q, `(*batch, n)`, of any positive sum.
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
        p,
        as_target(p, q, weights),
        directions,
        normalization,
        tolerance=tolerance,
        target_term=target_term,
        generator=generator,
    )
    return reduce(losses, reduction)


def energy_score(
    p: NormalMixture | MultivariateNormalMixture,
    q: NormalMixture | MultivariateNormalMixture | Tensor,
    reduction: str = "mean",
    *,
    weights: Tensor | None = None,
    tolerance: float = 1e-7,
) -> Tensor:
    """Return the energy score `E|X - Y| - 1/2 E|X - X'|`, X of p and Y of q (docs/math.md, eq. 24).

    To several samples it is the mean of their scores, to a mixture the expected one. On the line it is the CRPS; of
    vectors, to one sample, it is `sliced_cramer_loss` divided by the mean of |cos| over the sphere. A target mixture
    has no gradient.

    Args:
        p: mixture with batch shape `(*batch)`.
        q: one sample each, `(*batch)` or `(*batch, d)`; several, `(*batch, n)` or `(*batch, n, d)`; or a mixture.
        reduction: "none", "mean" or "sum" over the batch.
        weights: of samples q, `(*batch, n)`, of any positive sum.
        tolerance: of the mean lengths, as a part of the size of the problem; float32 gives 1e-6.

    Example:
        >>> import torch
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 2))
        >>> energy_score(p, torch.tensor([3.0, 4.0]))
        tensor(5.)
    """
    if not isinstance(p, NormalMixture | MultivariateNormalMixture):
        raise ValueError(f"p must be a mixture; got {type(p).__name__}. For samples see from_samples.")
    target = as_target(p, q, weights)
    if isinstance(p, NormalMixture):
        if isinstance(target, Tensor) and target.shape[-1:] == (1,):
            return cramer_loss(p, target, reduction)
        p = in_coordinates(p)
        target = target.unsqueeze(-1) if isinstance(target, Tensor) else in_coordinates(target)
    if p.only_points:  # components of no spread, whose own energy is counted
        p = MultivariateNormalMixture(p.weights, p.means, Spherical(torch.zeros_like(p.weights)), validate_args=False)
    if isinstance(target, MultivariateNormalMixture) and not target.only_points:
        target = detached(target)
    losses = sliced_cramer_squared(p, target, tolerance=tolerance, target_term=False) / sphere_factor(p.dim)
    return reduce(losses, reduction)
