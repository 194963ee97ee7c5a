"""The sliced Cramér distance of spherical mixtures without slices: its mean over all directions in closed form.

The mean over the unit sphere of `C2^2` of the projections is an energy distance with Euclidean norms, and the mean norm
of a spherical normal vector is a hypergeometric function: docs/others.md, eq. O6 to O9, the case of SeGMA.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.hypergeometric import gamma_ratio, kummer
from cramix.distance.operands import multivariate_operands
from cramix.mixture import MultivariateNormalMixture, Spherical
from cramix.torch_internals import readable

# Beyond this ratio of squared distance to variance a component is a point, to rounding.
_FAR = 1e17


class Balls(NamedTuple):
    """A mixture of spherical components in float64: weights `(*batch, k)`, means `(*batch, k, d)`, variances."""

    weights: Tensor
    means: Tensor
    variances: Tensor


def spherical_cramer_squared(p: MultivariateNormalMixture | Tensor, q: MultivariateNormalMixture | Tensor) -> Tensor:
    """Return the mean over all directions of `C2^2` of the projections, `(*batch)`, exactly (eq. O6).

    Computed in float64, to 1e-14 of the mean distances within p and q. Gradients reach weights (along the simplex),
    means and variances, of any order; where two points coincide the derivative is taken as 0.

    Args:
        p: mixture with `Spherical` covariances and batch shape `(*batch)`, or samples `(*batch, n, d)`.
        q: the same; batch shapes broadcast.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> spherical_cramer_squared(x[:1], x[1:]), 5 * 2 / torch.pi  # a mean of |cos|, times the distance
        (tensor(3.1831), 3.183098861837907)
    """
    p_side, q_side, dtype = balls(p, q, "sliced_cramer_loss")
    cross, within_p, within_q = (_mean_distance(*s) for s in ((p_side, q_side), (p_side, p_side), (q_side, q_side)))
    return (cross - 0.5 * (within_p + within_q)).clamp_min(0).to(dtype)


def balls(
    p: MultivariateNormalMixture | Tensor, q: MultivariateNormalMixture | Tensor, instead: str
) -> tuple[Balls, Balls, torch.dtype]:
    """Return both sides of a distance of spherical mixtures and the dtype of its result; an error names what to use."""
    p, q = multivariate_operands(p, q)
    for name, side in (("p", p), ("q", q)):
        if not isinstance(side.covariance_kind, Spherical):
            raise ValueError(
                f"{name} must have Spherical covariances or be points; got {side.covariance_kind.name} ones. "
                f"Use {instead}, which takes any."
            )
    return _balls(p), _balls(q), torch.promote_types(p.means.dtype, torch.float32)


def squared_distances(p: Balls, q: Balls) -> tuple[Tensor, Tensor]:
    """Return `|mu_i - nu_j|^2` and the sums of variances for all pairs, `(*batch, k, l)`."""
    offset = p.means.unsqueeze(-2) - q.means.unsqueeze(-3)
    return offset.square().sum(-1), p.variances.unsqueeze(-1) + q.variances.unsqueeze(-2)


def mean_over_pairs(p: Balls, q: Balls, pairs: Tensor) -> Tensor:
    """Return `sum_ij p_i q_j pairs_ij`, `(*batch)`."""
    return ((p.weights.unsqueeze(-2) @ pairs).squeeze(-2) * q.weights).sum(-1)


def mean_density(squared: Tensor, variance: Tensor, dim: int) -> Tensor:
    """Return the mean over directions of the density at 0 of the projection of a normal vector (eq. O8).

    The vector has a mean of the given squared length and a variance > 0 in each direction.
    """
    return kummer(0.5, dim / 2, squared / (2 * variance)) * (2 * math.pi * variance).rsqrt()


def _balls(side: MultivariateNormalMixture) -> Balls:
    weights = side.weights.double()
    # Rounding keeps float32 weights from summing to one, and in the energy distance the excess would not cancel.
    return Balls(
        weights / weights.sum(-1, keepdim=True),
        side.means.double(),
        side.covariance_kind.values.double().expand(side.weights.shape),
    )


def _mean_distance(p: Balls, q: Balls) -> Tensor:
    """Return the mean over directions of `E|<X - Y, direction>|`."""
    squared, variance = squared_distances(p, q)
    return mean_over_pairs(p, q, _MeanLength.apply(squared, variance, p.means.shape[-1]))


class _MeanLength(Function):
    """`A = c_d E|delta + s Z|` of `|delta|^2` and `s^2`, from its two derivatives: neither form loses digits (O9)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(squared, variance, dim):
        by_squared, by_variance = _slopes(squared, variance, dim)
        return 2 * (squared * by_squared + variance * by_variance)

    @staticmethod
    def setup_context(ctx, inputs, output):
        squared, variance, ctx.dim = inputs
        ctx.save_for_backward(squared, variance)

    @staticmethod
    def backward(ctx, grad):
        squared, variance = ctx.saved_tensors
        by_squared, by_variance = _slopes(squared, variance, ctx.dim)
        return grad * by_squared, grad * by_variance, None


def _slopes(squared: Tensor, variance: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the derivatives of A in `|delta|^2` and in `s^2`; 0 where both are."""
    point = squared >= _FAR * variance
    apart = point & (squared > 0)
    # A point's A is c_d |delta|, and its slope in the variance is what a little noise across delta adds to the length.
    c_d = 1 / (math.sqrt(math.pi) * gamma_ratio(dim / 2))
    by_length = torch.where(apart, 0.5 * c_d * torch.where(apart, squared, 1).rsqrt(), 0)
    if readable(point) and point.all():
        return by_length, (dim - 1) * by_length
    wide = torch.where(point, 1, variance)
    near = torch.where(point, 0, squared)
    density = (2 * math.pi * wide).rsqrt()
    by_squared = density / dim * kummer(0.5, dim / 2 + 1, near / (2 * wide))
    by_variance = density * kummer(0.5, dim / 2, near / (2 * wide))
    return torch.where(point, by_length, by_squared), torch.where(point, (dim - 1) * by_length, by_variance)
