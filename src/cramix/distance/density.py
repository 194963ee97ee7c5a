"""The squared L2 distance of densities, Jensen-Tsallis in Choi et al. 2019.

Univariate in docs/math.md, eq. 15, of any dimension in docs/others.md, eq. O13.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.distance.operands import Mixture, as_mixtures
from cramix.mixture import Covariance, Diagonal, Full, MultivariateNormalMixture
from cramix.mixture.components import whitened_log_density
from cramix.mixture.coordinates import in_coordinates


def density_l2_squared(p: Mixture, q: Mixture) -> Tensor:
    """Return `integral (f - g)^2 dx` in closed form, `(*batch)`; a ValueError for atoms, which have no density.

    Both are univariate or both multivariate. Densities in many dimensions may be as large as `(2 pi s^2)^(-d/2)`:
    results beyond the range of the dtype are infinite, never NaN.

    Example:
        >>> from cramix import NormalMixture
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> density_l2_squared(p, p.affine(1.0, 1.0))
        tensor(0.1248)
    """
    p, q, _ = as_mixtures(p, q)
    for side in (p, q):
        side._require_density("the L2 distance of densities")
    a, b = in_coordinates(p, torch.float64), in_coordinates(q, torch.float64)
    pairs = [_overlaps(*sides) for sides in ((a, b), (a, a), (b, b))]
    # In units of the largest density, so that no infinities are subtracted.
    largest = [torch.where(weights > 0, logs, -torch.inf).detach().amax((-1, -2)) for weights, logs in pairs]
    unit = torch.stack(torch.broadcast_tensors(*largest)).amax(0)
    cross, within_p, within_q = (_sum(weights, logs - unit[..., None, None]) for weights, logs in pairs)
    squared = (within_p + within_q - 2 * cross).clamp_min(0)
    size = torch.where(squared > 0, unit, 0).exp()  # 0 times infinity is 0 here
    return (squared * size).to(torch.promote_types(p.means.dtype, torch.float32))


def _overlaps(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> tuple[Tensor, Tensor]:
    """Return `p_i q_j` and `log N(mu_i - nu_j; 0, S_i + T_j)` for all pairs, `(*batch, k, l)`, in float64."""
    offset = p.means.unsqueeze(-2) - q.means.unsqueeze(-3)
    dim, p_kind, q_kind = p.dim, p.covariance_kind, q.covariance_kind
    total: Covariance
    if p_kind.axis_aligned and q_kind.axis_aligned:
        total = Diagonal(p_kind.compact().unsqueeze(-2) + q_kind.compact().unsqueeze(-3))
    else:
        total = Full(p_kind.matrices(dim).unsqueeze(-3) + q_kind.matrices(dim).unsqueeze(-4))
    z, log_diagonal = total.whiten(offset)
    return p.weights.unsqueeze(-1) * q.weights.unsqueeze(-2), whitened_log_density(z, log_diagonal)


def _sum(weights: Tensor, logs: Tensor) -> Tensor:
    """Return the sum over pairs; only pairs of weight 0 can be out of range, and must not make the sum NaN."""
    return (weights * logs.clamp_max(700).exp()).sum((-1, -2))
