"""The Cramér-Wold distance of CWAE (Knop et al. 2020) and SeGMA (Śmieja et al. 2019), docs/others.md, eq. O10 to O12.

It smooths both sides with a spherical normal distribution, projects them on every direction of the sphere, and averages
the squared L2 distance of the projections' densities.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cramix.distance.hypergeometric import kummer
from cramix.distance.kernels import normalized
from cramix.distance.operands import as_operands
from cramix.mixture import MultivariateNormalMixture, Spherical
from cramix.torch_internals import readable


class SphericalSide(NamedTuple):
    """A mixture of spherical components in float64: weights `(*batch, k)`, means `(*batch, k, d)`, variances."""

    weights: Tensor
    means: Tensor
    variances: Tensor


def cramer_wold_squared(p: Any, q: Any, bandwidth: float | Tensor | None = None) -> Tensor:
    """Return the squared Cramér-Wold distance, `(*batch)`, in closed form for any dimension.

    Computed in float64; gradients reach weights (along the simplex), means and variances, of any order.

    Args:
        p: mixture with `Spherical` covariances and batch shape `(*batch)`, or samples `(n, d)`.
        q: the same; batch shapes broadcast.
        bandwidth: the variance of the smoothing, > 0, a number or `(*batch)`. None is Silverman's rule, as in CWAE.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> cramer_wold_squared(x[:1], x[1:], bandwidth=0.5)
        tensor(0.6677)
    """
    a, b, _, _ = as_operands(MultivariateNormalMixture, p, q)
    smoothing = silverman(a, b) if bandwidth is None else torch.as_tensor(bandwidth, dtype=torch.float64)
    if readable(smoothing) and not bool((smoothing > 0).all()):
        cure = "" if bandwidth is not None else " Silverman's rule is 0 for points that all coincide: give a bandwidth."
        raise ValueError(f"bandwidth must be > 0; got {smoothing.min().item():.3g}.{cure}")
    p_side, q_side = spherical_side("p", a), spherical_side("q", b)
    smoothing = smoothing.to(p_side.means.device)[..., None, None]

    def overlap(p: SphericalSide, q: SphericalSide) -> Tensor:
        squared, variance = squared_distances(p, q)
        return mean_over_pairs(p, q, mean_density(squared, variance + 2 * smoothing, p.means.shape[-1]))

    cross, within_p, within_q = overlap(p_side, q_side), overlap(p_side, p_side), overlap(q_side, q_side)
    return (within_p + within_q - 2 * cross).clamp_min(0).to(torch.promote_types(a.means.dtype, torch.float32))


@torch.no_grad()
def silverman(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> Tensor:
    """Return Silverman's rule `(4 / (3n))^(2/5) v`, `(*batch)`, for n samples of mean variance v per coordinate (O12).

    For two sets of samples n is the larger number, and v the mean of both variances. CWAE uses v = 1, for codes that
    are drawn to a standard normal distribution.
    """
    sides = [side for side in (p, q) if side.is_empirical]
    if not sides:
        raise ValueError("bandwidth must be given for two mixtures; got None. Silverman's rule needs samples.")
    count = max(side.n_components for side in sides)
    variances = [_mean_variance(side) for side in sides]
    return (4 / (3 * count)) ** 0.4 * (variances[0] + variances[-1]) / 2


def spherical_side(name: str, mixture: MultivariateNormalMixture) -> SphericalSide:
    """Return a mixture of spherical components in float64; a ValueError for other covariances."""
    kind = mixture.covariance_kind
    if not isinstance(kind, Spherical):
        raise ValueError(f"{name} must have spherical covariances or be samples; got {kind.name} covariances.")
    weights, _ = normalized(mixture.weights.double())
    return SphericalSide(weights, mixture.means.double(), kind.values.double().expand(mixture.weights.shape))


def squared_distances(p: SphericalSide, q: SphericalSide) -> tuple[Tensor, Tensor]:
    """Return `|mu_i - nu_j|^2` and the sums of variances for all pairs, `(*batch, k, l)`."""
    offset = p.means.unsqueeze(-2) - q.means.unsqueeze(-3)
    return offset.square().sum(-1), p.variances.unsqueeze(-1) + q.variances.unsqueeze(-2)


def mean_over_pairs(p: SphericalSide, q: SphericalSide, pairs: Tensor) -> Tensor:
    """Return `sum_ij p_i q_j pairs_ij`, `(*batch)`."""
    return ((p.weights.unsqueeze(-2) @ pairs).squeeze(-2) * q.weights).sum(-1)


def mean_density(squared: Tensor, variance: Tensor, dim: int) -> Tensor:
    """Return the mean over directions of the density at 0 of the projection of a normal vector (eq. O8).

    The vector has a mean of the given squared length and a variance > 0 in each direction.
    """
    return kummer(0.5, dim / 2, squared / (2 * variance)) * (2 * math.pi * variance).rsqrt()


def _mean_variance(side: MultivariateNormalMixture) -> Tensor:
    weights, means = side.weights.double().unsqueeze(-1), side.means.double()
    offset = means - (weights * means).sum(-2, keepdim=True)
    return (weights * offset.square()).sum(-2).mean(-1)
