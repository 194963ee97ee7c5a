"""Cancellation: the closed form loses digits of Cramér losses that are small against the scale of the mixtures.

It subtracts terms of the size of the mixtures, so its relative error is the rounding error over `loss / scale`. Where
that ratio falls below a threshold the loss is recomputed by a better method:

- float32: the same closed form in float64;
- float64: Gauss-Legendre quadrature of `(F - G)^2` (docs/math.md, eq. 12), a sum of squares, which cancels only to
  first order and cannot be negative.

Between one and two thresholds the two are blended, so that there is no jump. Gradients do not cancel to second order
and always come from the closed form. Sides are component-major, as in `blocked`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from cramix.distance.cramer.atoms import mass_below_and_above
from cramix.distance.kernels import block_size, normalized
from cramix.quadrature import ORDERS, panel_edges, panel_nodes

# loss / scale below which the closed form is no longer trusted: its relative error there is about 1e-4 and 1e-11.
THRESHOLD = {torch.float32: 2e-3, torch.float64: 1e-5}

ClosedForm = Callable[[Tensor, Tensor, Tensor | None, int | None], Tensor]


def recomputed(
    losses: Tensor,
    scale: Tensor,
    p: Tensor,
    q: Tensor,
    self_energy_q: Tensor | None,
    closed_form: ClosedForm,
    block: int | None = None,
) -> Tensor:
    """Return Cramér losses, `(B,)`, with those recomputed that are small against the scale.

    Args:
        losses: from the closed form, `(B,)`.
        scale: half of `E|X - X'| + E|Y - Y'|`, `(B,)`.
        p: one side, with normalised weights.
        q: the other side.
        self_energy_q: `1/2 E|Y - Y'|` in float64, `(B,)` or `(1,)`, if q is atoms.
        closed_form: of p, q, the self energy and the block size, to be used in float64.
        block: see `kernels.block_size`.
    """
    limit = THRESHOLD[losses.dtype] * scale
    small = losses < 2 * limit
    if not small.any():
        return losses
    index = small.nonzero().squeeze(-1)
    p, q = _select(p, index), _select(q, index)
    if losses.dtype == torch.float64:
        better = sum_of_squares(p, q, block)
    else:
        self_energy_q = self_energy_q if self_energy_q is None else _select(self_energy_q, index)
        better = closed_form(_in_float64(p), _in_float64(q), self_energy_q, block)
    closed = losses[index]
    trust = (closed / limit[index] - 1).clamp_(0, 1)
    return losses.index_copy(0, index, torch.lerp(better.to(losses.dtype), closed, trust))


def sum_of_squares(p: Tensor, q: Tensor, block: int | None = None) -> Tensor:
    """Integrate `(F - G)^2` for float64 sides by Gauss-Legendre panels, `(B,)`."""
    limit = block_size(p.device, block)
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
    # Both sides relative to the nearer tail, F or F - 1, where it is small; F - 1/2 in the middle, where erf is best.
    at_edges = f.lower_tail(edges[:, :-1], limit)
    tails = (at_edges > 0.9).int() - (at_edges < 0.1).int()
    for tail, (order, (least, most)) in product((-1, 0, 1), ORDERS.items()):
        wanted = (width > 0) & (tails == tail) & (least <= in_scales) & (in_scales < most)
        rows, panels = wanted.nonzero(as_tuple=True)
        step = max(1, limit // (order * smooth.shape[2]))
        for row, panel in zip(rows.split(step), panels.split(step), strict=True):
            left = edges[row, panel]
            # Nodes are relative to the edge: absolute ones would be rounded to the spacing of numbers of the size of
            # the means, which is coarse for narrow components.
            beyond, weights = panel_nodes(torch.zeros_like(left), width[row, panel], order)  # (panels, order)
            difference = f(left, beyond, tail, row, panel) - g(left, beyond, tail, row, panel)
            total.index_add_(0, row, (weights * difference.sum(-1).square()).sum(-1))
    return total


class _SmoothCDF:
    """`F, F - 1/2, F - 1` (tail -1, 0, 1) of a mixture `(3, B, k)`; the last axis is a coarse part and a remainder."""

    def __init__(self, side: Tensor) -> None:
        widths = (side[2] * 2**0.5).clamp_min_(torch.finfo(side.dtype).tiny)
        self.parts = side[1].unsqueeze(1), widths.unsqueeze(1), _half_weights(side[0])

    def __call__(self, left: Tensor, beyond: Tensor, tail: int, row: Tensor, panel: Tensor) -> Tensor:
        one = self.parts[0].shape[0] == 1
        means, widths, half_weights = self.parts if one else (part[row] for part in self.parts)
        z = (left[:, None, None] - means + beyond.unsqueeze(-1)) / widths
        return z.erf_() @ half_weights if tail == 0 else -tail * (z.mul_(tail).erfc_() @ half_weights)

    def lower_tail(self, x: Tensor, block: int) -> Tensor:
        """Return F at `(B, n)`."""
        means, widths, half_weights = self.parts
        step = max(1, block // means.numel())
        return torch.cat(
            [((means - y.unsqueeze(-1)) / widths).erfc_() @ half_weights for y in x.split(step, 1)], 1
        ).sum(-1)


class _StepCDF:
    """The same of atoms `(2, B, k)`, all of which are among the edges of the panels, `(B, e)`."""

    def __init__(self, side: Tensor, edges: Tensor) -> None:
        below, above = mass_below_and_above(edges[:, :-1], side[1], 2 * _half_weights(side[0]))  # (B, e - 1, 2)
        self.levels = {-1: below, 0: below - below.new_tensor([0.5, 0.0]), 1: -above}

    def __call__(self, left: Tensor, beyond: Tensor, tail: int, row: Tensor, panel: Tensor) -> Tensor:
        return self.levels[tail][row, panel].unsqueeze(1)


def _half_weights(weights: Tensor) -> Tensor:
    """Return half the normalised weights as a coarse number of few bits and a small remainder, `(B, k, 2)`.

    Sums of the first part are exact wherever every component is entirely below or above x, and so is the difference of
    two such sums. With plain weights, rounding would look like a difference of F and G all along a gap between
    components.
    """
    half = 0.5 * normalized(weights)[0]
    coarse = torch.round(half * 2.0**26) * 2.0**-26
    remainder = half - coarse
    excess = (coarse.sum(-1, keepdim=True) - 0.5) + remainder.sum(-1, keepdim=True)
    return torch.stack((coarse, remainder - 2 * excess * half), -1)


def _in_float64(side: Tensor) -> Tensor:
    """Return a component-major side in float64, with weights that sum to one there."""
    side = side.double()
    return torch.cat((normalized(side[0].mT)[0].mT.unsqueeze(0), side[1:]))


def _select(x: Tensor, index: Tensor) -> Tensor:
    """Keep some batch elements, and all of what the whole batch shares."""
    return x if x.shape[-1] == 1 else x[..., index]
