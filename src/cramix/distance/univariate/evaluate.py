"""The Cramér loss and its gradients in one pass over the pairs, without autograd."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.checks import check_broadcast
from cramix.distance.operands import Operand
from cramix.distance.univariate.fused import evaluate_fused
from cramix.distance.univariate.packing import packed
from cramix.distance.univariate.pairs import INV_SQRT_PI, SMALL, all_sums
from cramix.distance.univariate.reduction import Share
from cramix.distance.univariate.resolve import resolve
from cramix.distance.univariate.small import evaluate_small, is_small
from cramix.torch_internals import plain_eager


class Evaluation(NamedTuple):
    """The loss `(*batch)` and, where asked for, its gradients for p and for q, stacked, `(3 or 2, *batch, k)`.

    With a share the loss is the total, its gradients are times `share`, and `batch` tells what was added up.
    """

    value: Tensor
    at_p: Tensor | None
    at_q: Tensor | None
    batch: torch.Size
    share: float


def evaluate(
    p: Operand, q: Operand, within_q: Tensor | None, grad_p: bool, grad_q: bool, share: Share | None = None
) -> Evaluation:
    """Evaluate the Cramér loss of a mixture p and a mixture q, or atoms q with their half mean difference in float64.

    In plain eager mode the inside runs in inference mode, where calls are a quarter cheaper. Every tensor that leaves
    is made outside of it, and so is an ordinary one.
    """
    dtype = p.means.dtype
    batch = check_broadcast("", p=p.means.shape[:-1], q=q.means.shape[:-1])
    each = None if share is None else share(batch.numel())
    eager = plain_eager()
    if eager and is_small(p, q, batch):
        return Evaluation(*evaluate_small(p, q, batch, grad_p, grad_q, each), batch, 1.0 if each is None else each)
    small = p.means.shape[-1] * q.means.shape[-1] * batch.numel() <= SMALL
    working = torch.float64 if small else dtype  # in float64 there is little to resolve, and here it costs nothing
    if torch.compiler.is_compiling():
        return Evaluation(*evaluate_fused(p, q, within_q, working, grad_p, grad_q), batch, 1.0)
    with torch.inference_mode() if eager else nullcontext():
        p_side, q_side, p_total, q_total = packed(batch, working, p, q)
        sums = all_sums(p_side, q_side, at_p=grad_p, at_q=grad_q)
        if sums.within_q is not None:
            within = sums.within_p + sums.within_q
        else:
            assert within_q is not None, "atoms come with their within_q"
            within_q = within_q.expand(batch).reshape(-1)
            within = torch.add(sums.within_p, within_q.to(working), alpha=2)
        value = torch.sub(sums.cross, within, alpha=0.5)
        if working == dtype:
            value = resolve(value, 0.5 * within, p_side, q_side, within_q)
        if sums.at_p is not None:
            _to_gradients(p_side, p_total, sums.at_p)
        if sums.at_q is not None:
            _to_gradients(q_side, q_total, sums.at_q)
    at_p = None if sums.at_p is None else _unpacked(sums.at_p, len(p_side), dtype, batch)
    at_q = None if sums.at_q is None else _unpacked(sums.at_q, len(q_side), dtype, batch)
    losses = value.clamp_min(0).to(dtype).reshape(batch)
    if each is None:
        return Evaluation(losses, at_p, at_q, batch, 1.0)
    for known in (at_p, at_q):
        if known is not None:
            known.mul_(each)
    return Evaluation(losses.sum() * each, at_p, at_q, batch, each)


def _to_gradients(side: Tensor, total: Tensor, sums: Tensor) -> None:
    """Turn the difference of pair sums, in place, into gradients for weights, means and scales, `(3, k, B)`.

    The loss is that of the normalised weights, so their gradient has mean 0 under them (docs/math.md, eq. 8).
    """
    potential, slope, curve = sums.unbind()
    weights, _, *scales = side.unbind()
    potential.sub_((weights * potential).sum(0)).div_(total)
    slope.mul_(weights)
    if scales:
        curve.mul_(weights).mul_(scales[0]).mul_(2 * INV_SQRT_PI)


def _unpacked(gradients: Tensor, rows: int, dtype: torch.dtype, batch: torch.Size) -> Tensor:
    """Bring gradients back to the layout of the input, `(3 or 2, *batch, k)`, in a tensor of its own."""
    own = gradients[:rows].mT.to(dtype, memory_format=torch.contiguous_format, copy=True)
    return own.view(rows, *batch, gradients.shape[1])
