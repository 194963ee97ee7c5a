"""Sums of `A = E|X_i - Y_j|` and of its derivatives over pairs of components, in one blocked pass.

A side of the distance is one tensor, component-major: rows weights, means, scales of shape `(3, k, B)`, or `(2, k, B)`
for atoms, which have no scales; `(., k, 1)` is shared by the whole batch. The long batch axis is the contiguous one, so
that the arrays of pairs never have a short inner loop, and a side is copied, cut or converted in one call.

With `d` the difference of the means, `t^2` the sum of the variances and `z = d / (t sqrt 2)`, three numbers describe a
pair (docs/math.md, eq. 5 to 7):

    A = d E + t sqrt(2 / pi) exp(-z^2),    E = dA/dd = erf(z),    H = exp(-z^2) / (t sqrt 2)

and `2 s H / sqrt(pi)` is the derivative of A in either scale `s`. None of them needs an epsilon, see
`_doubled_variance`.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.scratch import Scratch
from cramix.distance.underflow import LARGEST_EXPONENT

# Pairs per block: long enough to feed every thread, short enough for the work arrays to stay in cache.
BLOCK = 1 << 18
# Up to this many pairs the time goes into calls, not arithmetic.
SMALL = 1 << 14

INV_SQRT_PI = 1 / math.sqrt(math.pi)


class Sums(NamedTuple):
    """What the pairs of two sides add up to, for the Cramér loss and its gradients.

    The energies `cross = E|X - Y|`, `within_p = E|X - X'|` and `within_q`, `(B,)`; `within_q` is None for atoms.
    `at_p`, `(3, k, B)`, holds the sums of A, E and H at each component of p, over q less those over p, `at_q` the
    reverse; each is None if not asked for.
    """

    cross: Tensor
    within_p: Tensor
    within_q: Tensor | None
    at_p: Tensor | None
    at_q: Tensor | None


def all_sums(p: Tensor, q: Tensor, *, at_p: bool = False, at_q: bool = False) -> Sums:
    """Sum over all pairs that the Cramér loss of two sides needs, with derivatives at the components of p or q."""
    k, batch = p.shape[1:]
    if p.shape == q.shape and 4 * k * k * batch <= SMALL:
        return _chained_sums(p, q, at_p, at_q)
    pq, pp = pair_sums(p, q, derivatives=at_p), pair_sums(p, p, derivatives=at_p)
    qq = None if len(q) == 2 else pair_sums(q, q, derivatives=at_q)
    qp = pair_sums(q, p, derivatives=True) if at_q else None
    return Sums(
        _energy(p, pq),
        _energy(p, pp),
        None if qq is None else _energy(q, qq),
        pq.sub_(pp) if at_p else None,
        qp if qq is None or qp is None else qp.sub_(qq),
    )


def _chained_sums(p: Tensor, q: Tensor, at_p: bool, at_q: bool) -> Sums:
    """Take all sums in one pass: neighbours in the chain p, p, q, q, p are the pairs of sides wanted."""
    chain = torch.stack((p, p, q, q, p) if at_q else (p, p, q, q), 1)
    at, of = chain[:, :-1], chain[:, 1:]
    sums = _block_sums(at, of, at_p or at_q, None)
    within_p, cross, within_q, *_ = (sums[0] * at[0]).sum(1).unbind()
    pp, pq, qq, *qp = sums.unbind(1)
    return Sums(cross, within_p, within_q, pq - pp if at_p else None, qp[0] - qq if at_q else None)


def _energy(at: Tensor, sums: Tensor) -> Tensor:
    return (sums[0] * at[0]).sum(0)


def pair_sums(at: Tensor, of: Tensor, *, derivatives: bool = False) -> Tensor:
    """Sum over the components of the side `of`, at each component of `at`, in memory that does not grow with the pairs.

    Returns:
        `sum_j w_j A_ij`, shape `(1, n, B)`; with `derivatives` also the sums of E and H, shape `(3, n, B)`.
    """
    n, m, batch = at.shape[1], of.shape[1], _batch(at, of)
    if n * m * batch <= SMALL:
        return _block_sums(at, of, derivatives, None)
    work = Scratch(at).empty(4, min(n * m * batch, BLOCK))
    if n * m * batch <= BLOCK:
        return _block_sums(at, of, derivatives, work)
    total = at.new_zeros(3 if derivatives else 1, n, batch)
    batch_step = min(batch, max(1, BLOCK // (n * m)))
    m_step = min(m, max(1, BLOCK // (n * batch_step)))
    n_step = min(n, max(1, BLOCK // (m_step * batch_step)))
    for b, i, j in product(_slices(batch, batch_step), _slices(n, n_step), _slices(m, m_step)):
        total[:, i, b] += _block_sums(_cut(at, i, b), _cut(of, j, b), derivatives, work)
    return total


def _block_sums(at: Tensor, of: Tensor, derivatives: bool, work: Tensor | None) -> Tensor:
    """Sum one block of pairs, `(*, n, m, B)`, in the four arrays of `work` if given."""
    _, means, *scales = at.unsqueeze(-2).unbind()
    weights, of_means, *of_scales = of.unsqueeze(-3).unbind()
    shape = *at.shape[1:-1], of.shape[-2], _batch(at, of)
    work = at.new_empty(4, *shape) if work is None else work[:, : math.prod(shape)].view(4, *shape)
    a, e, h, r = work.unbind()
    variances = [_doubled_variance(x) for x in scales + of_scales]
    r = (torch.add(*variances, out=r) if len(variances) == 2 else variances[0]).rsqrt_()
    d = torch.sub(means, of_means, out=a)
    e = torch.mul(d, r, out=e)
    h = torch.mul(e, e, out=h).clamp_max_(LARGEST_EXPONENT[e.dtype]).neg_().exp_()
    # From some 1500 numbers on MKL starts threads for erf in float64: for a chain, longer to start than to do without.
    for part in e.unbind() if e.ndim == 4 else (e,):
        part.erf_()
    a = d.mul_(e).addcdiv_(h, r, value=INV_SQRT_PI)
    if derivatives:
        h.mul_(r)
    terms = work[: 3 if derivatives else 1]
    return terms.mul_(weights).sum(-2)


def _doubled_variance(scales: Tensor) -> Tensor:
    """Return `2 s^2` plus the smallest normal number.

    That is lost in rounding unless every scale of a pair is 0. There it makes z infinite, or 0 where d is, so that
    E is the sign of d, A its absolute value, and H finite, to be multiplied by a scale of 0.
    """
    return (2 * scales).mul_(scales).add_(torch.finfo(scales.dtype).tiny)


def _batch(at: Tensor, of: Tensor) -> int:
    """The length of the batch axis, 1 for what the whole batch shares; the batch may be empty."""
    return of.shape[-1] if at.shape[-1] == 1 else at.shape[-1]


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _cut(side: Tensor, components: slice, batch: slice) -> Tensor:
    return side[:, components] if side.shape[2] == 1 else side[:, components, batch]
