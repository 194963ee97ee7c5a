"""Losses of predicted mixtures: functions of a prediction and its target.

Their targets follow the rules of `cramix.distance.operands`: one observation for each mixture of a batch, a set of
samples for a mixture without batch, a mixture, or a `PreparedTarget`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cramix.distance.cramer.autograd import cramer_of_mixtures
from cramix.distance.cramer_wold import cramer_wold_squared
from cramix.distance.density import density_l2_squared
from cramix.distance.likelihood import negative_log_likelihood
from cramix.distance.operands import Mixture, Target, as_sketch_target, as_target, require_mixture
from cramix.distance.sketch import SliceSketch
from cramix.distance.sliced import check_options, sliced_cramer_squared, sphere_factor
from cramix.distance.wasserstein import sliced_wasserstein_power
from cramix.loss.cross_entropy import nodes_of
from cramix.loss.reduction import check_reduction, reduce
from cramix.mixture import MultivariateNormalMixture, NormalMixture, Spherical
from cramix.mixture.coordinates import in_coordinates


def cramer_loss(
    p: NormalMixture,
    target: Any,
    *,
    sample_weight: Any = None,
    reduction: str = "mean",
    missing: str = "error",
) -> Tensor:
    """Return the Cramér loss `C2^2 = integral (F - G)^2 dx` (docs/math.md, eq. 4); for one observation it is the CRPS.

    Args:
        p: mixture with batch shape `(*batch)`.
        target: one observation each, `(*batch)`; a mixture; or for a p without batch a set of samples `(n,)`.
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> cramer_loss(p, torch.tensor([-1.2, 0.1, 0.9]))
        tensor(0.0515)
        >>> cramer_loss(p.expand((2,)), torch.tensor([0.0, 1.0]), reduction="none")
        tensor([0.3672, 0.5582])
    """
    check_reduction(reduction)
    found = as_target(p, target, sample_weight, missing, NormalMixture)
    if found.weight is None:
        return _cramer(found, reduction)
    return reduce(_cramer(found), found, reduction)


def sliced_cramer_loss(
    p: MultivariateNormalMixture,
    target: Any,
    *,
    directions: Any = "exact",
    normalization: str = "mean",
    sample_weight: Any = None,
    reduction: str = "mean",
    missing: str = "error",
    tolerance: float = 1e-7,
    target_self_energy: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the Cramér loss of projections over all directions (docs/math.md, eq. 24), or over some slices.

    Args:
        p: mixture with batch shape `(*batch)`.
        target: one observation each, `(*batch, d)`; a mixture; a `SliceSketch`; or for a p without batch a set of
            samples `(n, d)`.
        directions: "exact", a number of random slices, or directions `(t, d)`, see `cramix.directions`. A sketch has
            directions of its own, which are used.
        normalization: "mean" over the sphere, "integral" (times its area), or with slices their "sum".
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.
        tolerance: of "exact", the error of a mean distance relative to the size of the problem; float32 reaches 1e-6.
        target_self_energy: whether to subtract the self energy of the target, which does not depend on p. With "exact"
            it is a sum over all pairs, computed at every call unless the target is a `PreparedTarget`.
        generator: for random slices.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 3), torch.eye(3).unsqueeze(0))
        >>> sliced_cramer_loss(p, torch.zeros(3)), sliced_cramer_loss(p, torch.zeros(3), directions=torch.eye(3))
        (tensor(0.2337), tensor(0.2337))
    """
    check_reduction(reduction)
    if isinstance(target, SliceSketch):
        found = as_sketch_target(p, target, sample_weight)
    else:
        found = as_target(p, target, sample_weight, missing, MultivariateNormalMixture)
    losses = sliced_cramer_squared(
        found.p,
        found.prepared or found.q,
        directions,
        normalization,
        tolerance=tolerance,
        target_self_energy=target_self_energy,
        generator=generator,
    )
    return reduce(losses, found, reduction)


def energy_score_loss(
    p: Mixture,
    target: Any,
    *,
    sample_weight: Any = None,
    reduction: str = "mean",
    missing: str = "error",
    tolerance: float = 1e-7,
) -> Tensor:
    """Return the energy score `E|X - Y| - 1/2 E|X - X'|`, X of p and Y of the target (docs/math.md, eq. 24).

    For a set of samples it is the mean of their scores, for a mixture the expected score. On the line it is the CRPS;
    of vectors, for one observation, it is `sliced_cramer_loss` divided by the mean of `|cos|` over the sphere. A
    target mixture gets no gradient.

    Args:
        p: mixture with batch shape `(*batch)`.
        target: one observation each, `(*batch)` or `(*batch, d)`; a mixture; or for a p without batch a set of samples
            `(n,)` or `(n, d)`.
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.
        tolerance: of the mean lengths, relative to the size of the problem; float32 reaches 1e-6.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 2))
        >>> energy_score_loss(p, torch.tensor([3.0, 4.0]))
        tensor(5.)
    """
    check_reduction(reduction)
    check_options("exact", "mean", tolerance)
    found = as_target(p, target, sample_weight, missing)
    return reduce(energy_scores(found.p, found.q, tolerance), found, reduction)


def nll_loss(
    p: Mixture, target: Any, *, sample_weight: Any = None, reduction: str = "mean", missing: str = "error"
) -> Tensor:
    """Return the negative log likelihood, of a set of samples their mean (docs/others.md, eq. O14).

    For a mixture it is the cross entropy, the expected value: on the line by 32 Gauss-Hermite nodes per component, in d
    dimensions by 128 or more quasi-random ones, exact up to rounding where p has one component. A target mixture gets
    no gradient.

    Args:
        p: mixture with batch shape `(*batch)`, without atoms.
        target: one observation each, `(*batch)` or `(*batch, d)`; a mixture; or for a p without batch a set of samples
            `(n,)` or `(n, d)`.
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> nll_loss(p, torch.tensor([-1.0, 1.0])), nll_loss(p, p)
        (tensor(1.4189), tensor(1.4189))
    """
    check_reduction(reduction)
    found = as_target(p, target, sample_weight, missing)
    return reduce(negative_log_likelihoods(found), found, reduction)


def density_l2_loss(p: Mixture, target: Mixture, *, sample_weight: Any = None, reduction: str = "mean") -> Tensor:
    """Return the squared L2 distance of densities, `integral (f - g)^2 dx` (math.md, eq. 15; others.md, O13).

    Args:
        p: mixture with batch shape `(*batch)`, without atoms.
        target: a mixture without atoms, with the batch shape of p or none.
        sample_weight: weights of the losses, `(*batch)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> density_l2_loss(p, p), density_l2_loss(p, p.affine(1.0, 1.0))
        (tensor(0.), tensor(0.1248))
    """
    check_reduction(reduction)
    require_mixture("target", target)
    found = as_target(p, target, sample_weight)
    return reduce(density_l2_squared(found.p, found.q), found, reduction)


def cramer_wold_loss(
    p: MultivariateNormalMixture,
    target: Any,
    *,
    bandwidth: float | Tensor | None = None,
    sample_weight: Any = None,
    reduction: str = "mean",
    missing: str = "error",
) -> Tensor:
    """Return the squared Cramér-Wold distance of spherical mixtures and samples (docs/others.md, eq. O11).

    Args:
        p: mixture with spherical covariances and batch shape `(*batch)`.
        target: as in `sliced_cramer_loss`; a mixture has spherical covariances.
        bandwidth: the variance of the smoothing, > 0, a number or `(*batch)`. None is Silverman's rule for the samples,
            as in CWAE.
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), Spherical(torch.ones(1)))
        >>> cramer_wold_loss(p, torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]])) < cramer_wold_loss(
        ...     p, torch.tensor([[5.0, 1.0], [6.0, 0.0], [4.0, -1.0]])
        ... )
        tensor(True)
    """
    check_reduction(reduction)
    found = as_target(p, target, sample_weight, missing, MultivariateNormalMixture)
    return reduce(cramer_wold_squared(found.p, found.q, bandwidth), found, reduction)


def sliced_wasserstein_loss(
    p: MultivariateNormalMixture,
    target: Any,
    *,
    order: int = 2,
    directions: Any = 64,
    sample_weight: Any = None,
    reduction: str = "mean",
    missing: str = "error",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the mean over directions of `W_r^r`, the distance before its root is taken (docs/others.md, eq. O22).

    Args:
        p: mixture with batch shape `(*batch)`.
        target: as in `sliced_cramer_loss`.
        order: 1 or 2.
        directions: how many to draw, in orthogonal blocks, or unit vectors `(t, d)`.
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.
        generator: for the directions.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
        >>> sliced_wasserstein_loss(p, p.affine(torch.tensor([3.0, 4.0]), 1.0), directions=torch.eye(2))  # (9 + 16) / 2
        tensor(12.5000)
    """
    check_reduction(reduction)
    found = as_target(p, target, sample_weight, missing, MultivariateNormalMixture)
    return reduce(sliced_wasserstein_power(found.p, found.q, order, directions, generator), found, reduction)


def energy_scores(p: Mixture, q: Mixture, tolerance: float) -> Tensor:
    """Return the energy score of each batch element, `(*batch)`, for mixtures of one dtype."""
    if isinstance(p, NormalMixture) and isinstance(q, NormalMixture) and q.is_empirical and q.n_components == 1:
        return cramer_of_mixtures(p, q)
    a, b = in_coordinates(p), in_coordinates(q)
    if a.is_empirical:  # components with covariance 0, whose self energy counts
        a = MultivariateNormalMixture(a.weights, a.means, Spherical(torch.zeros_like(a.weights)), validate_args=False)
    if not b.is_empirical:
        b = b.detach()
    return sliced_cramer_squared(a, b, tolerance=tolerance, target_self_energy=False) / sphere_factor(a.dim)


def cramer_losses(target: Target) -> Tensor:
    """Return the Cramér loss of each batch element, on the line or over all directions."""
    if isinstance(target.p, NormalMixture):
        return _cramer(target)
    return sliced_cramer_squared(target.p, target.prepared or target.q)


def negative_log_likelihoods(target: Target) -> Tensor:
    """Return the negative log likelihood of each batch element, of samples or of a mixture."""
    q = target.q
    samples, weights = (q.means, q.weights) if q.is_empirical else nodes_of(q.detach())
    return negative_log_likelihood(target.p, samples, weights)


def _cramer(target: Target, reduction: str = "none") -> Tensor:
    prepared = target.prepared
    energy = prepared.self_energy_on_line() if prepared is not None and target.q.is_empirical else None
    return cramer_of_mixtures(target.p, target.q, energy, reduction=reduction)
