"""The sliced Cramér distance of spherical mixtures in closed form, as an oracle for the general distance.

The mean over the unit sphere of `C2^2` of the projections is an energy distance with Euclidean norms, and the mean norm
of a spherical normal vector is a hypergeometric function: docs/others.md, eq. O6 to O9, the case of SeGMA.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function

from cramix import MultivariateNormalMixture
from cramix.distance.cramer_wold import SphericalSide, mean_over_pairs, spherical_side, squared_distances
from cramix.distance.hypergeometric import gamma_ratio, kummer
from cramix.distance.operands import as_operands
from cramix.torch_internals import readable

# Beyond this ratio of squared distance to variance a component is a point, up to rounding.
_FAR = 1e17


def spherical_cramer_squared(p: MultivariateNormalMixture | Tensor, q: MultivariateNormalMixture | Tensor) -> Tensor:
    """Return the mean over all directions of `C2^2` of the projections, `(*batch)`, exactly (eq. O6).

    Computed in float64, to 1e-14 of the mean distances within p and q. Gradients reach weights (along the simplex),
    means and variances, of any order; where two points coincide the derivative is defined as 0.
    """
    a, b, _, _ = as_operands(MultivariateNormalMixture, p, q)
    p_side, q_side = spherical_side("p", a), spherical_side("q", b)
    cross, within_p, within_q = (_mean_distance(*s) for s in ((p_side, q_side), (p_side, p_side), (q_side, q_side)))
    dtype = torch.promote_types(a.means.dtype, torch.float32)
    return (cross - 0.5 * (within_p + within_q)).clamp_min(0).to(dtype)


def _mean_distance(p: SphericalSide, q: SphericalSide) -> Tensor:
    """Return the mean over directions of `E|<X - Y, direction>|`."""
    squared, variance = squared_distances(p, q)
    return mean_over_pairs(p, q, MeanLength.apply(squared, variance, p.means.shape[-1]))


class MeanLength(Function):
    """`A = c_d E|delta + s Z|` of `|delta|^2` and `s^2`, from its two derivatives: neither loses digits (eq. O9)."""

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
    # For a point A is c_d |delta|, and its slope in the variance is what some noise across delta adds to the length.
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
