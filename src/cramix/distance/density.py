"""The squared L2 distance of densities, Jensen-Tsallis in Choi et al. 2019 (docs/math.md, eq. 15)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cramix.distance.operands import Operand, operands
from cramix.mixture import NormalMixture


def density_l2_squared(p: NormalMixture, q: NormalMixture) -> Tensor:
    """Return `integral (f - g)^2 dx` in closed form, `(*batch)`; a ValueError for atoms, which have no density.

    Example:
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> density_l2_squared(p, p.affine(1.0, 1.0))
        tensor(0.1248)
    """
    for name, side in (("p", p), ("q", q)):
        if not isinstance(side, NormalMixture):
            raise ValueError(f"{name} must be a NormalMixture; got {type(side).__name__}. Samples have no density.")
        side.refuse_atoms("the L2 distance of densities")
    a, b, dtype = operands(p, q)
    cross, within_p, within_q = _overlap(a, b), _overlap(a, a), _overlap(b, b)
    return (within_p + within_q - 2 * cross).clamp_min(0).to(dtype)


def _overlap(p: Operand, q: Operand) -> Tensor:
    """Return `integral f g dx = sum_ij p_i q_j N(mu_i - nu_j; 0, s_i^2 + t_j^2)`, in float64."""
    weights = p.weights.double().unsqueeze(-1) * q.weights.double().unsqueeze(-2)
    assert p.scales is not None and q.scales is not None, "atoms were refused"  # noqa: PT018
    d = p.means.double().unsqueeze(-1) - q.means.double().unsqueeze(-2)
    variance = p.scales.double().square().unsqueeze(-1) + q.scales.double().square().unsqueeze(-2)
    return (weights * torch.exp(-0.5 * d.square() / variance) * (2 * math.pi * variance).rsqrt()).sum((-1, -2))
