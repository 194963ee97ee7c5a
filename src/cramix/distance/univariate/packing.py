"""Both sides of a distance laid out component-major, as `pairs` wants them."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.distance.operands import Operand


def packed(batch: torch.Size, dtype: torch.dtype, p: Operand, q: Operand) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lay out both sides component-major (see `pairs`), with weights divided by their sums, `(B,)`, which come last."""
    if q.scales is not None and p.means.shape == q.means.shape:
        (p_side, q_side), (p_total, q_total) = _pack(batch, dtype, p, q)
    else:
        (p_side,), (p_total,) = _pack(batch, dtype, p)
        (q_side,), (q_total,) = _pack(batch, dtype, q)
    return p_side, q_side, p_total, q_total


def _pack(batch: torch.Size, dtype: torch.dtype, *sides: Operand) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Lay out sides of one shape in one go, each `(3 or 2, k, B)`, or `(., k, 1)` where it serves the whole batch."""
    like = sides[0].means
    k = like.shape[-1]
    shape = (1, k) if like.shape[:-1].numel() == 1 else (*batch, k)
    present = [x for same in zip(*sides, strict=True) for x in same if x is not None]
    tensors = [x if x.shape == shape else x.reshape(shape) if shape == (1, k) else x.expand(shape) for x in present]
    rows = torch.cat(tensors, -1).view(-1, len(tensors) // len(sides), len(sides), k)
    packed = rows.permute(1, 2, 3, 0).to(dtype, memory_format=torch.contiguous_format, copy=True)
    weights = packed[0]
    total = weights.sum(1, keepdim=True)
    weights.div_(total)
    return packed.unbind(1), total.squeeze(1).unbind()
