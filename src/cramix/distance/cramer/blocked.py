"""The Cramér loss and its gradients in one blocked pass over the pairs of components, without autograd.

A side of the distance is one tensor here, component-major: rows weights, means, scales of shape `(3, k, B)`, or
`(2, k, B)` for atoms, which have no scales; `(., k, 1)` is shared by the whole batch. The long batch axis is the
contiguous one, so that arrays of pairs never have a short inner loop, and a side is copied, cut or converted in one
call.

With `d` the difference of the means, `t^2` the sum of the variances and `z = d / (t sqrt 2)`, three numbers describe a
pair (docs/math.md, eq. 5 and 6):

    A = d E + t sqrt(2 / pi) exp(-z^2),    E = dA/dd = erf(z),    H = exp(-z^2) / (t sqrt 2)

and `2 s H / sqrt(pi)` is the derivative of A in either scale `s`. None of them needs an epsilon, see
`_doubled_variance`.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.cramer.cancellation import recomputed
from cramix.distance.cramer.signature import Evaluation, Operand, Problem, batch_of
from cramix.distance.kernels import LARGEST_EXPONENT, Scratch, block_size
from cramix.torch_internals import plain_eager

# Up to this many pairs the time goes into calls, not arithmetic.
FEW_PAIRS = 1 << 14

INV_SQRT_PI = 1 / math.sqrt(math.pi)


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate losses and gradients; see `signature.Problem`.

    In plain eager mode the computation runs in inference mode, where calls are a quarter cheaper. All tensors that are
    returned are created outside of it, so they are ordinary ones.
    """
    p, q, self_energy_q, grad_p, grad_q, block, each = problem
    dtype, batch = p.means.dtype, batch_of(p, q)
    working = working_dtype(p, q, batch)
    with torch.inference_mode() if plain_eager() else nullcontext():
        p_side, q_side, p_total, q_total = component_major(batch, working, p, q)
        sums = all_sums(p_side, q_side, at_p=grad_p, at_q=grad_q, block=block)
        if sums.within_q is not None:
            within = sums.within_p + sums.within_q
        else:
            assert self_energy_q is not None, "atoms come with their self energy"
            self_energy_q = self_energy_q.expand(batch).reshape(-1)
            within = torch.add(sums.within_p, self_energy_q.to(working), alpha=2)
        losses = torch.sub(sums.cross, within, alpha=0.5)
        if working == dtype:
            losses = recomputed(losses, 0.5 * within, p_side, q_side, self_energy_q, closed_form, block)
        if sums.at_p is not None:
            _to_gradients(p_side, p_total, sums.at_p, each)
        if sums.at_q is not None:
            _to_gradients(q_side, q_total, sums.at_q, each)
    at_p = None if sums.at_p is None else _batch_major(sums.at_p, len(p_side), dtype, batch)
    at_q = None if sums.at_q is None else _batch_major(sums.at_q, len(q_side), dtype, batch)
    return Evaluation(losses.clamp_min(0).to(dtype).reshape(batch), at_p, at_q)


def working_dtype(p: Operand, q: Operand, batch: torch.Size) -> torch.dtype:
    """Return float64 for few pairs, where it costs nothing and hardly any loss is lost to cancellation."""
    few = p.means.shape[-1] * q.means.shape[-1] * batch.numel() <= FEW_PAIRS
    return torch.float64 if few else p.means.dtype


def closed_form(p: Tensor, q: Tensor, self_energy_q: Tensor | None, block: int | None = None) -> Tensor:
    """Return the Cramér loss of component-major sides (docs/math.md, eq. 4), `(B,)`, as it comes out of the sums."""
    sums = all_sums(p, q, block=block)
    if self_energy_q is None:
        assert sums.within_q is not None, "atoms come with their self energy"
        self_energy_q = 0.5 * sums.within_q
    return sums.cross - (0.5 * sums.within_p + self_energy_q)


def component_major(
    batch: torch.Size, dtype: torch.dtype, p: Operand, q: Operand
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both sides component-major, with normalised weights, and the sums of the weights as they were, `(B,)`."""
    if q.scales is not None and p.means.shape == q.means.shape:
        (p_side, q_side), (p_total, q_total) = _stacked(batch, dtype, p, q)
    else:
        (p_side,), (p_total,) = _stacked(batch, dtype, p)
        (q_side,), (q_total,) = _stacked(batch, dtype, q)
    return p_side, q_side, p_total, q_total


def _stacked(batch: torch.Size, dtype: torch.dtype, *sides: Operand) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Copy sides of one shape in one call, each to `(3 or 2, k, B)`, or `(., k, 1)` if the whole batch shares it."""
    like = sides[0].means
    k = like.shape[-1]
    shape = (1, k) if like.shape[:-1].numel() == 1 else (*batch, k)
    present = [x for same in zip(*sides, strict=True) for x in same if x is not None]
    tensors = [x if x.shape == shape else x.reshape(shape) if shape == (1, k) else x.expand(shape) for x in present]
    rows = torch.cat(tensors, -1).view(-1, len(tensors) // len(sides), len(sides), k)
    stacked = rows.permute(1, 2, 3, 0).to(dtype, memory_format=torch.contiguous_format, copy=True)
    weights = stacked[0]
    total = weights.sum(1, keepdim=True)
    weights.div_(total)
    return stacked.unbind(1), total.squeeze(1).unbind()


def _to_gradients(side: Tensor, total: Tensor, sums: Tensor, each: float) -> None:
    """Turn differences of pair sums, in place, into gradients for weights, means and scales, times `each`, `(3, k, B)`.

    The loss is that of the normalised weights, so their gradient has mean 0 under them (docs/math.md, eq. 8).
    """
    potential, slope, curve = sums.unbind()
    weights, _, *scales = side.unbind()
    potential.sub_((weights * potential).sum(0)).div_(total)
    slope.mul_(weights)
    if scales:
        curve.mul_(weights).mul_(scales[0]).mul_(2 * INV_SQRT_PI)
    if each != 1:
        sums.mul_(each)


def _batch_major(gradients: Tensor, rows: int, dtype: torch.dtype, batch: torch.Size) -> Tensor:
    """Copy gradients to the layout of the input, `(3 or 2, *batch, k)`."""
    copied = gradients[:rows].mT.to(dtype, memory_format=torch.contiguous_format, copy=True)
    return copied.view(rows, *batch, gradients.shape[1])


class Sums(NamedTuple):
    """Sums over the pairs of two sides, for the Cramér loss and its gradients.

    The energies `cross = E|X - Y|`, `within_p = E|X - X'|` and `within_q`, `(B,)`; `within_q` is None for atoms.
    `at_p`, `(3, k, B)`, holds the sums of A, E and H at each component of p, over q less those over p, `at_q` the
    reverse; each is None if not requested.
    """

    cross: Tensor
    within_p: Tensor
    within_q: Tensor | None
    at_p: Tensor | None
    at_q: Tensor | None


def all_sums(p: Tensor, q: Tensor, *, at_p: bool = False, at_q: bool = False, block: int | None = None) -> Sums:
    """Sum over all pairs that the Cramér loss of two sides needs, with derivatives at the components of p or q."""
    k, batch = p.shape[1:]
    if p.shape == q.shape and 4 * k * k * batch <= min(FEW_PAIRS, _pairs_per_block(p, block)):
        return _chained_sums(p, q, at_p, at_q)
    pq, pp = pair_sums(p, q, derivatives=at_p, block=block), pair_sums(p, p, derivatives=at_p, block=block)
    qq = None if len(q) == 2 else pair_sums(q, q, derivatives=at_q, block=block)
    qp = pair_sums(q, p, derivatives=True, block=block) if at_q else None
    return Sums(
        _energy(p, pq),
        _energy(p, pp),
        None if qq is None else _energy(q, qq),
        pq.sub_(pp) if at_p else None,
        qp if qq is None or qp is None else qp.sub_(qq),
    )


def _chained_sums(p: Tensor, q: Tensor, at_p: bool, at_q: bool) -> Sums:
    """Compute all sums in one pass: neighbours in the chain p, p, q, q, p are the pairs of sides that are needed."""
    chain = torch.stack((p, p, q, q, p) if at_q else (p, p, q, q), 1)
    at, of = chain[:, :-1], chain[:, 1:]
    sums = _block_sums(at, of, at_p or at_q, None)
    within_p, cross, within_q, *_ = (sums[0] * at[0]).sum(1).unbind()
    pp, pq, qq, *qp = sums.unbind(1)
    return Sums(cross, within_p, within_q, pq - pp if at_p else None, qp[0] - qq if at_q else None)


def _energy(at: Tensor, sums: Tensor) -> Tensor:
    return (sums[0] * at[0]).sum(0)


def pair_sums(at: Tensor, of: Tensor, *, derivatives: bool = False, block: int | None = None) -> Tensor:
    """Sum over the components of the side `of`, at each component of `at`, in memory that does not grow with the pairs.

    Returns:
        `sum_j w_j A_ij`, shape `(1, n, B)`; with `derivatives` also the sums of E and H, shape `(3, n, B)`.
    """
    n, m, batch = at.shape[1], of.shape[1], _batch(at, of)
    most = _pairs_per_block(at, block)
    if n * m * batch <= min(FEW_PAIRS, most):
        return _block_sums(at, of, derivatives, None)
    work = Scratch(at).empty(4, min(n * m * batch, most))
    if n * m * batch <= most:
        return _block_sums(at, of, derivatives, work)
    total = at.new_zeros(3 if derivatives else 1, n, batch)
    batch_step = min(batch, max(1, most // (n * m)))
    m_step = min(m, max(1, most // (n * batch_step)))
    n_step = min(n, max(1, most // (m_step * batch_step)))
    for b, i, j in product(_slices(batch, batch_step), _slices(n, n_step), _slices(m, m_step)):
        total[:, i, b] += _block_sums(_cut(at, i, b), _cut(of, j, b), derivatives, work)
    return total


def _pairs_per_block(like: Tensor, block: int | None) -> int:
    """Return how many pairs a block holds; a pair takes a number in each of four arrays."""
    return max(1, block_size(like.device, block) // 4)


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
    # From about 1500 numbers on MKL starts threads for erf in float64, which for a chain takes longer than it saves.
    for part in e.unbind() if e.ndim == 4 else (e,):
        part.erf_()
    a = d.mul_(e).addcdiv_(h, r, value=INV_SQRT_PI)
    if derivatives:
        h.mul_(r)
    terms = work[: 3 if derivatives else 1]
    return terms.mul_(weights).sum(-2)


def _doubled_variance(scales: Tensor) -> Tensor:
    """Return `2 s^2` plus the smallest normal number.

    Rounding removes that number unless every scale of a pair is 0. There it makes z infinite, or 0 where d is, so that
    E is the sign of d, A its absolute value, and H finite, to be multiplied by a scale of 0.
    """
    return (2 * scales).mul_(scales).add_(torch.finfo(scales.dtype).tiny)


def _batch(at: Tensor, of: Tensor) -> int:
    """Return the length of the batch axis, 1 for what the whole batch shares; the batch may be empty."""
    return of.shape[-1] if at.shape[-1] == 1 else at.shape[-1]


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _cut(side: Tensor, components: slice, batch: slice) -> Tensor:
    return side[:, components] if side.shape[2] == 1 else side[:, components, batch]
