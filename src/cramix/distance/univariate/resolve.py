"""The value of a small Cramér distance, which the closed form loses to cancellation.

The closed form subtracts terms of the size of the mixtures' own scale, so its relative error is the rounding error over
`value / scale`. Where that ratio falls below a threshold the value is computed again by something better:

- float32: the same closed form in float64;
- float64: Gauss-Legendre quadrature of `(F - G)^2` (docs/math.md, eq. 12), a sum of squares, which cancels only to
  first order and cannot be negative.

Between one and two thresholds the two are blended, so that there is no jump. Gradients do not cancel to second order
and always come from the closed form. Sides are component-major, as in `pairs`.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from cramix.distance.univariate.pairs import all_sums
from cramix.quadrature import ORDERS, panel_edges, panel_nodes

# value / scale below which the closed form is no longer trusted: its relative error there is about 1e-4 and 1e-11.
THRESHOLD = {torch.float32: 2e-3, torch.float64: 1e-5}
# Numbers in the largest temporary array of the quadrature.
BLOCK = 1 << 20


def resolve(value: Tensor, scale: Tensor, p: Tensor, q: Tensor, within_q: Tensor | None) -> Tensor:
    """Return the Cramér loss, `(B,)`, with its small elements computed anew.

    Args:
        value: closed form, `(B,)`.
        scale: half of `E|X - X'| + E|Y - Y'|`, `(B,)`.
        p: one side, with normalised weights.
        q: the other side.
        within_q: half of `E|Y - Y'|` in float64, `(B,)` or `(1,)`, if q is atoms.
    """
    limit = THRESHOLD[value.dtype] * scale
    small = value < 2 * limit
    if not small.any():
        return value
    index = small.nonzero().squeeze(-1)
    p, q = _select(p, index), _select(q, index)
    if value.dtype == torch.float64:
        better = sum_of_squares(p, q)
    else:
        within_q = within_q if within_q is None else _select(within_q, index)
        better = _closed_form(_normalized(p.double()), _normalized(q.double()), within_q)
    closed = value[index]
    trust = (closed / limit[index] - 1).clamp_(0, 1)
    return value.index_copy(0, index, torch.lerp(better.to(value.dtype), closed, trust))


def _closed_form(p: Tensor, q: Tensor, within_q: Tensor | None) -> Tensor:
    """Return the Cramér loss (docs/math.md, eq. 4), `(B,)`."""
    sums = all_sums(p, q)
    if within_q is None:
        assert sums.within_q is not None, "atoms come with their within_q"
        within_q = 0.5 * sums.within_q
    return sums.cross - (0.5 * sums.within_p + within_q)


def sum_of_squares(p: Tensor, q: Tensor) -> Tensor:
    """Integrate `(F - G)^2` for float64 sides by Gauss-Legendre panels, `(B,)`."""
    batch = max(p.shape[2], q.shape[2])
    p, q = (side.mT.expand(-1, batch, -1) for side in (p, q))  # (3 or 2, B, k)
    smooth = p if len(q) == 2 else torch.cat((p, q), -1)
    edges = panel_edges(smooth[1], smooth[2])
    if len(q) == 2:
        edges = torch.cat((edges, q[1]), -1).sort(-1).values
    f, g = _SmoothCDF(p), _SmoothCDF(q) if len(q) == 3 else _StepCDF(q, edges)
    width = edges.diff(dim=-1)
    in_scales = width / torch.where(smooth[2] > 0, smooth[2], torch.inf).amin(-1, keepdim=True)
    total = p.new_zeros(batch)
    # Both sides from the tail that is nearer, F or F - 1, where one is small; F - 1/2 in the middle, where erf is best.
    at_edges = f.lower_tail(edges[:, :-1])
    tails = (at_edges > 0.9).int() - (at_edges < 0.1).int()
    for tail, (order, (least, most)) in product((-1, 0, 1), ORDERS.items()):
        wanted = (width > 0) & (tails == tail) & (least <= in_scales) & (in_scales < most)
        rows, panels = wanted.nonzero(as_tuple=True)
        step = max(1, BLOCK // (order * smooth.shape[2]))
        for row, panel in zip(rows.split(step), panels.split(step), strict=True):
            left = edges[row, panel]
            # Nodes are counted from the edge: as a sum they would be rounded to the spacing of numbers of the size of
            # the means, which is coarse for narrow components.
            beyond, weights = panel_nodes(torch.zeros_like(left), width[row, panel], order)  # (panels, order)
            difference = f(left, beyond, tail, row, panel) - g(left, beyond, tail, row, panel)  # coarse part and rest
            total.index_add_(0, row, (weights * difference.sum(-1).square()).sum(-1))
    return total


class _SmoothCDF:
    """`F, F - 1/2, F - 1` (tail -1, 0, 1) of a mixture `(3, B, k)`, as a coarse part and a rest, last axis."""

    def __init__(self, side: Tensor) -> None:
        spread = (side[2] * 2**0.5).clamp_min_(torch.finfo(side.dtype).tiny)
        self.parts = side[1].unsqueeze(1), spread.unsqueeze(1), _half_weights(side[0])

    def __call__(self, left: Tensor, beyond: Tensor, tail: int, row: Tensor, panel: Tensor) -> Tensor:
        one = self.parts[0].shape[0] == 1
        means, spread, half_weights = self.parts if one else (part[row] for part in self.parts)
        z = (left[:, None, None] - means + beyond.unsqueeze(-1)) / spread
        return z.erf_() @ half_weights if tail == 0 else -tail * (z.mul_(tail).erfc_() @ half_weights)

    def lower_tail(self, x: Tensor) -> Tensor:
        """F at `(B, n)`."""
        means, spread, half_weights = self.parts
        step = max(1, BLOCK // means.numel())
        return torch.cat(
            [((means - y.unsqueeze(-1)) / spread).erfc_() @ half_weights for y in x.split(step, 1)], 1
        ).sum(-1)


class _StepCDF:
    """The same of atoms `(2, B, k)`, all of which are among the edges of the panels, `(B, e)`."""

    def __init__(self, side: Tensor, edges: Tensor) -> None:
        atoms, order = side[1].sort(-1)
        weights = 2 * _half_weights(side[0]).gather(1, order.unsqueeze(-1).expand(-1, -1, 2))
        rank = torch.searchsorted(atoms, edges[:, :-1].contiguous(), right=True).unsqueeze(-1).expand(-1, -1, 2)
        below = pad(weights.cumsum(1), (0, 0, 1, 0)).gather(1, rank)  # (B, e - 1, 2)
        above = pad(weights.flip(1).cumsum(1).flip(1), (0, 0, 0, 1)).gather(1, rank)
        self.levels = {-1: below, 0: below - below.new_tensor([0.5, 0.0]), 1: -above}

    def __call__(self, left: Tensor, beyond: Tensor, tail: int, row: Tensor, panel: Tensor) -> Tensor:
        return self.levels[tail][row, panel].unsqueeze(1)


def _half_weights(weights: Tensor) -> Tensor:
    """Return half the normalised weights as a part of few bits and a small rest, `(B, k, 2)`.

    Sums of the first part are exact wherever every component is wholly below or above x, and so is the difference of
    two. With plain weights, rounding would pass for a difference of F and G over the whole of a gap between components.
    """
    half = 0.5 * weights / weights.sum(-1, keepdim=True)
    coarse = torch.round(half * 2.0**26) * 2.0**-26
    rest = half - coarse
    excess = (coarse.sum(-1, keepdim=True) - 0.5) + rest.sum(-1, keepdim=True)
    return torch.stack((coarse, rest - 2 * excess * half), -1)


def _normalized(side: Tensor) -> Tensor:
    return torch.cat((side[:1] / side[:1].sum(1, keepdim=True), side[1:]))


def _select(x: Tensor, index: Tensor) -> Tensor:
    """Keep batch elements; what the whole batch shares stays."""
    return x if x.shape[-1] == 1 else x[..., index]
