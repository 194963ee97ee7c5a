"""Sums of `A = E|X_i - Y_j|` and of its derivatives over pairs of components, in one blocked pass.

A side of the distance is one tensor, component-major: rows weights, means, scales of shape `(3, k, B)`, or `(2, k, B)`
for atoms, which have no scales; `(., k, 1)` is shared by the whole batch. The long batch axis is the contiguous one, so
that the arrays of pairs never have a short inner loop, and a side is copied, cut or converted in one call.

With `d` the difference of the means, `t^2` the sum of the variances and `z = d / (t sqrt 2)`, three numbers describe a
pair (docs/math.md, eq. 5 to 7):

    A = d E + t sqrt(2 / pi) exp(-z^2),    E = dA/dd = erf(z),    H = exp(-z^2) / (t sqrt 2)

and `2 s H / sqrt(pi)` is the derivative of A in either scale `s`. None of them needs an epsilon: see `_doubled_variance`.
"""

from __future__ import annotations

import math
import threading
from itertools import product

import torch
from torch import Tensor

# Pairs per block: long enough to feed every thread, short enough for the work arrays to stay in cache.
BLOCK = 1 << 18
# Up to this many pairs the time goes into calls, not arithmetic.
SMALL = 1 << 14

_local = threading.local()

INV_SQRT_PI = 1 / math.sqrt(math.pi)


def pair_sums(at: Tensor, of: Tensor, *, derivatives: bool = False) -> Tensor:
    """Sum over the components of the side `of`, at each component of `at`, in memory that does not grow with the pairs.

    Returns:
        `sum_j w_j A_ij`, shape `(1, n, B)`; with `derivatives` also the sums of E and H, shape `(3, n, B)`.
    """
    n, m, batch = at.shape[1], of.shape[1], max(at.shape[2], of.shape[2])
    if torch.compiler.is_compiling():
        return _block_sums(at, of, derivatives, None)
    work = _scratch(at, n * m * batch)
    if n * m * batch <= BLOCK:
        return _block_sums(at, of, derivatives, work)
    total = at.new_zeros(3 if derivatives else 1, n, batch)
    batch_step = min(batch, max(1, BLOCK // (n * m)))
    m_step = min(m, max(1, BLOCK // (n * batch_step)))
    n_step = min(n, max(1, BLOCK // (m_step * batch_step)))
    for b, i, j in product(_slices(batch, batch_step), _slices(n, n_step), _slices(m, m_step)):
        total[:, i, b] += _block_sums(_cut(at, i, b), _cut(of, j, b), derivatives, work)
    return total


def all_pair_sums(sides: list[tuple[Tensor, Tensor]], *, derivatives: bool = False) -> tuple[Tensor, ...]:
    """Return `pair_sums` of several pairs of sides; small ones of one shape go through together, as one batch."""
    n, m, batch = sides[0][0].shape[1], sides[0][1].shape[1], sides[0][0].shape[2]
    if len({side.shape for pair in sides for side in pair}) > 1 or n * m * batch * len(sides) > SMALL:
        return tuple(pair_sums(at, of, derivatives=derivatives) for at, of in sides)
    at, of = (torch.cat(group, 2) for group in zip(*sides, strict=True))
    return pair_sums(at, of, derivatives=derivatives).split(batch, 2)


def _block_sums(at: Tensor, of: Tensor, derivatives: bool, work: Tensor | None) -> Tensor:
    """Sum one block of pairs, `(n, m, B)`, in the four arrays of `work` if given."""
    d = e = g = r = None
    if work is not None:
        shape = at.shape[1], of.shape[1], max(at.shape[2], of.shape[2])
        d, e, g, r = work[:, : math.prod(shape)].view(4, *shape).unbind()
    _, means, *scales = at.unsqueeze(2).unbind()
    weights, of_means, *of_scales = of.unbind()
    variances = [_doubled_variance(x) for x in scales + of_scales]
    t2 = torch.add(*variances, out=r) if len(variances) == 2 else variances[0]
    r = t2.rsqrt_()
    d = torch.sub(means, of_means, out=d)
    e = torch.mul(d, r, out=e)
    g = torch.mul(e, e, out=g).neg_().exp_()
    e.erf_()
    a = d.mul_(e).addcdiv_(g, r, value=INV_SQRT_PI).mul_(weights)
    if not derivatives:
        return a.sum(1).unsqueeze(0)
    e.mul_(weights)
    h = g.mul_(r).mul_(weights)
    return torch.stack((a.sum(1), e.sum(1), h.sum(1)))


def _doubled_variance(scales: Tensor) -> Tensor:
    """Return `2 s^2` plus the smallest normal number.

    That is lost in rounding unless every scale of a pair is 0. There it makes z infinite, or 0 where d is, so that
    E is the sign of d, A its absolute value, and H finite, to be multiplied by a scale of 0.
    """
    return (2 * scales).mul_(scales).add_(torch.finfo(scales.dtype).tiny)


def _scratch(like: Tensor, pairs: int) -> Tensor | None:
    """Return four work arrays to be overwritten; none for a few pairs.

    On the CPU each thread keeps its own, a few megabytes: getting fresh memory from the system page by page takes
    longer than the arithmetic. CUDA's allocator keeps memory by itself.
    """
    if pairs <= SMALL:
        return None
    if like.device.type != "cpu":
        return like.new_empty(4, min(pairs, BLOCK))
    kept = getattr(_local, "scratch", None)
    if kept is None:
        kept = _local.scratch = torch.empty(4 * BLOCK, dtype=torch.float64)
    return kept.view(like.dtype)[: 4 * BLOCK].view(4, BLOCK)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _cut(side: Tensor, components: slice, batch: slice) -> Tensor:
    return side[:, components] if side.shape[2] == 1 else side[:, components, batch]
