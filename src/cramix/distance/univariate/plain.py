"""The Cramér loss as the formula reads: differentiable by autograd to any order, in memory of all pairs.

It serves second derivatives, and as the reference that kernels are compared with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def plain_cramer(
    p_weights: Tensor, p_means: Tensor, p_scales: Tensor, q_weights: Tensor, q_means: Tensor, q_scales: Tensor | None
) -> Tensor:
    """Return `E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|`, `(*batch)`; for atoms q (no scales) without the last term.

    The last term is linear in the sorted atoms and has a place of its own (`atoms`).
    """
    p = p_weights / p_weights.sum(-1, keepdim=True), p_means, p_scales.square()
    q_variances = torch.zeros_like(q_means) if q_scales is None else q_scales.square()
    q = q_weights / q_weights.sum(-1, keepdim=True), q_means, q_variances
    cross, within_p = _mean_distance(p, q), 0.5 * _mean_distance(p, p)
    within_q = 0 if q_scales is None else 0.5 * _mean_distance(q, q)
    return cross - (within_p + within_q)


def _mean_distance(p: tuple[Tensor, Tensor, Tensor], q: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    weights, means, variances = ((a.unsqueeze(-1), b.unsqueeze(-2)) for a, b in zip(p, q, strict=True))
    d = means[0] - means[1]
    variance = variances[0] + variances[1]
    point = variance == 0
    t = torch.where(point, 1, variance).sqrt()
    z = d / t
    smooth = d * torch.erf(z * math.sqrt(0.5)) + t * (math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()))
    return (weights[0] * weights[1] * torch.where(point, d.abs(), smooth)).sum((-1, -2))
