"""The squared L2 distance of densities, Jensen-Tsallis in Choi et al. 2019.

Univariate in docs/math.md, eq. 15, of any dimension in docs/others.md, eq. O13.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.operands import Mixture, as_mixtures
from cramix.mixture import Covariance, Diagonal, Full, NormalMixture, Spherical
from cramix.mixture.components import whitened_log_density


class _Side(NamedTuple):
    weights: Tensor  # (*batch, k)
    means: Tensor  # (*batch, k, d)
    covariances: Covariance


def density_l2_squared(p: Mixture, q: Mixture) -> Tensor:
    """Return `integral (f - g)^2 dx` in closed form, `(*batch)`; a ValueError for atoms, which have no density.

    Both are univariate or both multivariate. Densities in many dimensions may be as large as `(2 pi s^2)^(-d/2)`:
    results beyond the range of the dtype are infinite, never NaN.

    Example:
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> density_l2_squared(p, p.affine(1.0, 1.0))
        tensor(0.1248)
    """
    p, q, _ = as_mixtures(p, q)
    a, b = _side(p), _side(q)
    pairs = [_overlaps(*sides) for sides in ((a, b), (a, a), (b, b))]
    # In units of the largest density, so that no infinities are subtracted.
    largest = [torch.where(weights > 0, logs, -torch.inf).detach().amax((-1, -2)) for weights, logs in pairs]
    unit = torch.stack(torch.broadcast_tensors(*largest)).amax(0)
    cross, within_p, within_q = (_sum(weights, logs - unit[..., None, None]) for weights, logs in pairs)
    squared = (within_p + within_q - 2 * cross).clamp_min(0)
    size = torch.where(squared > 0, unit, 0).exp()  # 0 times infinity is 0 here
    return (squared * size).to(torch.promote_types(p.means.dtype, torch.float32))


def _side(mixture: Mixture) -> _Side:
    mixture._require_density("the L2 distance of densities")
    if isinstance(mixture, NormalMixture):
        covariances: Covariance = Spherical(mixture.scales.double().square())
        return _Side(mixture.weights.double(), mixture.means.double().unsqueeze(-1), covariances)
    wide = mixture.to(dtype=torch.float64)
    return _Side(wide.weights, wide.means, wide.covariance_kind)


def _overlaps(p: _Side, q: _Side) -> tuple[Tensor, Tensor]:
    """Return `p_i q_j` and `log N(mu_i - nu_j; 0, S_i + T_j)` for all pairs, `(*batch, k, l)`, in float64."""
    offset = p.means.unsqueeze(-2) - q.means.unsqueeze(-3)
    dim = offset.shape[-1]
    total: Covariance
    if p.covariances.axis_aligned and q.covariances.axis_aligned:
        total = Diagonal(p.covariances.compact().unsqueeze(-2) + q.covariances.compact().unsqueeze(-3))
    else:
        total = Full(p.covariances.matrices(dim).unsqueeze(-3) + q.covariances.matrices(dim).unsqueeze(-4))
    z, log_diagonal = total.whiten(offset)
    return p.weights.unsqueeze(-1) * q.weights.unsqueeze(-2), whitened_log_density(z, log_diagonal)


def _sum(weights: Tensor, logs: Tensor) -> Tensor:
    """Return the sum over pairs; only pairs of weight 0 can be out of range, and must not make the sum NaN."""
    return (weights * logs.clamp_max(700).exp()).sum((-1, -2))
