"""The Cramér loss as the formula reads, differentiable by autograd to any order, with memory for all pairs.

Second derivatives come from here, and the other implementations are tested against it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cramix.distance.cramer.signature import Evaluation, Operand, Problem, batch_of
from cramix.distance.kernels import normalized


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate by autograd of the plain formula; see `signature.Problem`."""
    p, q, self_energy_q, grad_p, grad_q, _, each = problem
    batch = batch_of(p, q)
    leaves = [x.detach().expand(*batch, -1).clone().requires_grad_() for x in (*p, *q) if x is not None]
    with torch.enable_grad():
        losses = formula(Operand(*leaves[:3]), Operand(*leaves[3:]))
        gradients = torch.autograd.grad(losses.sum(), leaves)
    losses = losses.detach()
    if self_energy_q is not None:
        losses = (losses - self_energy_q).to(losses.dtype)
    at_p, at_q = each * torch.stack(gradients[:3]), each * torch.stack(gradients[3:])
    return Evaluation(losses.clamp_min(0), at_p if grad_p else None, at_q if grad_q else None)


def formula(p: Operand, q: Operand) -> Tensor:
    """Return `E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|`, `(*batch)`; for atoms q (no scales) without the last term.

    For atoms, `atoms.self_energy` computes that term by sorting.
    """
    cross, within_p = _mean_distance(p, q), 0.5 * _mean_distance(p, p)
    within_q = 0 if q.scales is None else 0.5 * _mean_distance(q, q)
    return cross - (within_p + within_q)


def _mean_distance(p: Operand, q: Operand) -> Tensor:
    weights = normalized(p.weights)[0].unsqueeze(-1) * normalized(q.weights)[0].unsqueeze(-2)
    d = p.means.unsqueeze(-1) - q.means.unsqueeze(-2)
    variance = _variances(p).unsqueeze(-1) + _variances(q).unsqueeze(-2)
    atoms = variance == 0
    t = torch.where(atoms, 1, variance).sqrt()
    z = d / t
    smooth = d * torch.erf(z * math.sqrt(0.5)) + t * (math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()))
    return (weights * torch.where(atoms, d.abs(), smooth)).sum((-1, -2))


def _variances(side: Operand) -> Tensor:
    return torch.zeros_like(side.means) if side.scales is None else side.scales.square()
