"""The Cramér loss and its gradients for torch.compile: plain formulas, which it fuses into a few loops.

Pairs are `(*batch, n, m)` and never stored. The formulas are those of `blocked`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.cramer.blocked import INV_SQRT_PI, closed_form, component_major, working_dtype
from cramix.distance.cramer.cancellation import THRESHOLD, recomputed
from cramix.distance.cramer.signature import Evaluation, Operand, Problem, batch_of
from cramix.distance.kernels import LARGEST_EXPONENT, normalized


class _Sums(NamedTuple):
    """Sums of A, E and H at the components of one side over those of another, `(*batch, n)`."""

    a: Tensor
    e: Tensor
    h: Tensor


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate losses and gradients; see `signature.Problem`. The compiler chooses blocks itself."""
    p, q, self_energy_q, grad_p, grad_q, _, each = problem
    dtype, batch = p.means.dtype, batch_of(p, q)
    working = working_dtype(p, q, batch)
    a, p_total = _normalized(p, working)
    b, q_total = _normalized(q, working)
    pq, pp = _sums(a, b), _sums(a, a)
    qq = None if b.scales is None else _sums(b, b)
    if qq is None:
        assert self_energy_q is not None, "atoms come with their self energy"
        within_q = self_energy_q.to(working)
    else:
        within_q = 0.5 * (b.weights * qq.a).sum(-1)
    scale = 0.5 * (a.weights * pp.a).sum(-1) + within_q
    losses = (a.weights * pq.a).sum(-1) - scale
    if working == dtype:
        sides = [x for x in (*p, *q) if x is not None]
        losses = _recomputed_op(losses, scale.expand(losses.shape), sides, self_energy_q)
    at_p = (each * _gradients(a, p_total, pq, pp)).to(dtype) if grad_p else None
    at_q = (each * _gradients(b, q_total, _sums(b, a), qq)).to(dtype) if grad_q else None
    # A copy, or the compiler of torch 2.11 drops the gradients.
    return Evaluation(losses.clamp_min(0).to(dtype, copy=True), at_p, at_q)


def _normalized(side: Operand, dtype: torch.dtype) -> tuple[Operand, Tensor]:
    """Return a side with weights divided by their sums, `(*batch, 1)`, and those sums."""
    weights, total = normalized(side.weights.to(dtype))
    return Operand(weights, side.means.to(dtype), None if side.scales is None else side.scales.to(dtype)), total


def _sums(at: Operand, of: Operand) -> _Sums:
    """Sum over the components of the side `of`; the compiler drops the sums that are not used."""
    d = at.means.unsqueeze(-1) - of.means.unsqueeze(-2)
    variances = [] if at.scales is None else [(2 * at.scales.square()).unsqueeze(-1)]
    variances += [] if of.scales is None else [(2 * of.scales.square()).unsqueeze(-2)]
    r = (sum(variances, torch.zeros_like(d)) + torch.finfo(d.dtype).tiny).rsqrt()  # see blocked._doubled_variance
    z = d * r
    e = torch.erf(z)
    h = torch.exp(-z.square().clamp_max(LARGEST_EXPONENT[d.dtype]))
    a = d * e + INV_SQRT_PI * h / r
    weights = of.weights.unsqueeze(-2)
    return _Sums(*((weights * x).sum(-1) for x in (a, e, h * r)))


def _gradients(side: Operand, total: Tensor, other: _Sums, within: _Sums | None) -> Tensor:
    """Return the gradients for weights, means and scales (eq. 8), `(3 or 2, *batch, k)`; for atoms `within` is None."""
    weights, _, scales = side
    potential, slope, curve = other if within is None else (x - y for x, y in zip(other, within, strict=True))
    for_weights = (potential - (weights * potential).sum(-1, keepdim=True)) / total
    rows = [for_weights, weights * slope]
    if scales is not None:
        rows.append(2 * INV_SQRT_PI * weights * scales * curve)
    return torch.stack(rows)


@torch.library.custom_op("cramix::recompute_small_losses", mutates_args=())
def _recomputed_op(losses: Tensor, scale: Tensor, sides: list[Tensor], self_energy_q: Tensor | None) -> Tensor:
    """Hide control flow that depends on the data from the compiler; see `cancellation.recomputed`."""
    if not bool((losses < 2 * THRESHOLD[losses.dtype] * scale).any()):
        return losses.clone()
    batch = losses.shape
    p_side, q_side, _, _ = component_major(batch, losses.dtype, Operand(*sides[:3]), Operand(*sides[3:]))
    energy = self_energy_q if self_energy_q is None else self_energy_q.expand(batch).reshape(-1)
    better = recomputed(losses.reshape(-1), scale.reshape(-1), p_side, q_side, energy, closed_form)
    return better.reshape(batch).clone()


@_recomputed_op.register_fake
def _(losses, scale, sides, self_energy_q):
    return torch.empty_like(losses)
