"""The Cramér loss and its gradients as the compiler likes them: plain formulas, which it turns into a few loops.

Pairs are `(*batch, n, m)` and never stored. The formulas are those of `pairs`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.operands import Operand
from cramix.distance.underflow import LARGEST_EXPONENT
from cramix.distance.univariate.packing import packed
from cramix.distance.univariate.pairs import INV_SQRT_PI
from cramix.distance.univariate.resolve import THRESHOLD, resolve


class _Sums(NamedTuple):
    """Sums of A, E and H at the components of one side over those of another, `(*batch, n)`."""

    a: Tensor
    e: Tensor
    h: Tensor


def evaluate_fused(
    p: Operand, q: Operand, within_q: Tensor | None, working: torch.dtype, grad_p: bool, grad_q: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the loss `(*batch)` and, where asked for, its gradients for p and for q, as in `Evaluation`."""
    dtype = p.means.dtype
    a, p_total = _normalized(p, working)
    b, q_total = _normalized(q, working)
    pq, pp = _sums(a, b), _sums(a, a)
    qq = None if b.scales is None else _sums(b, b)
    if qq is None:
        assert within_q is not None, "atoms come with their within_q"
        half_within_q = within_q.to(working)
    else:
        half_within_q = 0.5 * (b.weights * qq.a).sum(-1)
    scale = 0.5 * (a.weights * pp.a).sum(-1) + half_within_q
    value = (a.weights * pq.a).sum(-1) - scale
    if working == dtype:
        value = _resolve_op(value, scale.expand(value.shape), *p, *q, within_q)
    at_p = _gradients(a, p_total, pq, pp) if grad_p else None
    at_q = _gradients(b, q_total, _sums(b, a), qq) if grad_q else None
    return (
        value.clamp_min(0).to(dtype),
        None if at_p is None else at_p.to(dtype),
        None if at_q is None else at_q.to(dtype),
    )


def _normalized(side: Operand, dtype: torch.dtype) -> tuple[Operand, Tensor]:
    """Return a side with weights divided by their sums, `(*batch, 1)`, and those."""
    weights, means, scales = side
    weights = weights.to(dtype)
    total = weights.sum(-1, keepdim=True)
    return Operand(weights / total, means.to(dtype), None if scales is None else scales.to(dtype)), total


def _sums(at: Operand, of: Operand) -> _Sums:
    """Sum over the components of the side `of`; what is not used the compiler leaves out."""
    d = at.means.unsqueeze(-1) - of.means.unsqueeze(-2)
    variances = [] if at.scales is None else [(2 * at.scales.square()).unsqueeze(-1)]
    variances += [] if of.scales is None else [(2 * of.scales.square()).unsqueeze(-2)]
    r = (sum(variances, torch.zeros_like(d)) + torch.finfo(d.dtype).tiny).rsqrt()  # see pairs._doubled_variance
    z = d * r
    e = torch.erf(z)
    h = torch.exp(-z.square().clamp_max(LARGEST_EXPONENT[d.dtype]))
    a = d * e + INV_SQRT_PI * h / r
    weights = of.weights.unsqueeze(-2)
    return _Sums(*((weights * x).sum(-1) for x in (a, e, h * r)))


def _gradients(side: Operand, total: Tensor, other: _Sums, own: _Sums | None) -> Tensor:
    """Return the gradients for weights, means and scales (eq. 8), `(3 or 2, *batch, k)`; atoms have no own sums."""
    weights, _, scales = side
    potential, slope, curve = other if own is None else (x - y for x, y in zip(other, own, strict=True))
    for_weights = (potential - (weights * potential).sum(-1, keepdim=True)) / total
    rows = [for_weights, weights * slope]
    if scales is not None:
        rows.append(2 * INV_SQRT_PI * weights * scales * curve)
    return torch.stack(rows)


@torch.library.custom_op("cramix::resolve", mutates_args=())
def _resolve_op(
    value: Tensor,
    scale: Tensor,
    p_weights: Tensor,
    p_means: Tensor,
    p_scales: Tensor,
    q_weights: Tensor,
    q_means: Tensor,
    q_scales: Tensor | None,
    within_q: Tensor | None,
) -> Tensor:
    """Hide from the compiler that what is computed depends on the data; see `resolve`."""
    if not bool((value < 2 * THRESHOLD[value.dtype] * scale).any()):
        return value.clone()
    batch = value.shape
    p, q = Operand(p_weights, p_means, p_scales), Operand(q_weights, q_means, q_scales)
    p_side, q_side, _, _ = packed(batch, value.dtype, p, q)
    within_q = within_q if within_q is None else within_q.expand(batch).reshape(-1)
    return resolve(value.reshape(-1), scale.reshape(-1), p_side, q_side, within_q).reshape(batch).clone()


@_resolve_op.register_fake
def _(value, scale, p_weights, p_means, p_scales, q_weights, q_means, q_scales, within_q):
    return torch.empty_like(value)
