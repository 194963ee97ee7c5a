"""The own term of a mixture that stays the same, `1/2 E|Y - Y'|`: all its pairs, met once (docs/math.md, eq. 32).

The rule for mean lengths is linear in `1 - L(t)`. So what the pairs add up to at each node of the lattice gives the
term for whichever nodes a distance takes, with the very error that its other terms have: equal sides are 0 apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate.arrays import Array, as_like
from cramix.distance.multivariate.component_pairs import block_size
from cramix.distance.multivariate.mean_norm import Rows
from cramix.distance.multivariate.nodes import Nodes, below_lattice, lattice
from cramix.distance.multivariate.pair_norm import pair_rises
from cramix.distance.multivariate.sides import (
    Components,
    Ellipsoids,
    Given,
    centred,
    ellipsoids,
    mean,
    mean_square,
    normalized,
    power_of_two,
    prepared,
    scaled,
    squares,
)

# Nodes are met in runs of so many: those of a distance differ a little from step to step.
_RUN = 4


class _Group(NamedTuple):
    """Nodes that are met together: a run of the lattice, by its number, or those below a first number of it."""

    number: int
    low: bool

    def nodes(self, tolerance: float, unit: Tensor) -> Tensor:
        """Return `t`, `(M, nodes)`, in units `(M,)`."""
        if self.low:
            return below_lattice(self.number, tolerance, unit)
        return lattice(self.number * _RUN, _RUN, tolerance, unit)


class OwnTerm:
    """Sums over all pairs of some mixtures that stay the same.

    Args:
        given: components, or points with a spread, flat and as they came.
        tolerance: of the distances to come.
    """

    def __init__(self, given: Given, tolerance: float) -> None:
        side, _ = normalized(prepared(given, small=False)[0])
        side = centred(side, mean(side))
        self._unit = power_of_two(mean_square(side, squares(side)).sqrt())
        side = scaled(side, self._unit)
        assert side.spread is not None, "points without one have a sum of their own"
        self._weights, self._places, self._spread = side.weights, side[1].double(), side.spread.double()
        self._shared = not isinstance(side, Components)
        self._multiplicity = self._places.shape[-1] // self._spread.shape[-1]
        self.tolerance = tolerance
        self._met: dict[_Group, Tensor] = {}
        self._mass = self._norm = self._unit.new_zeros(len(self._unit))

    def at(self, nodes: Nodes, unit: Array, rows: Tensor | None) -> Tensor:
        """Return the term for the nodes of a distance, in its unit, `(B,)`; rows `(B,)` say which mixture it is of."""
        nodes, unit = nodes.like(self._unit), as_like(unit, self._unit)
        rows = torch.arange(len(self._unit), device=self._unit.device) if rows is None else rows
        firsts, which = nodes.first.long().unique(return_inverse=True)
        count = nodes.t.shape[-1] - below_lattice(0, self.tolerance, self._unit).shape[-1]
        first, last = int(firsts[0]) // _RUN, int(firsts[-1] + count - 1) // _RUN
        lows = [_Group(number, low=True) for number in firsts.tolist()]
        runs = [_Group(number, low=False) for number in range(first, last + 1)]
        self._meet([group for group in lows + runs if group not in self._met])
        below = torch.stack([self._met[group] for group in lows], 1)[rows, which]
        numbers = firsts[which].unsqueeze(-1) + torch.arange(count, device=rows.device) - first * _RUN
        above = torch.cat([self._met[group] for group in runs], -1)[rows].gather(-1, numbers)
        rule = nodes.constant * self._mass[rows] + (nodes.weights * torch.cat((below, above), -1)).sum(-1)
        return rule + self._unit[rows] / unit * self._norm[rows]

    def _meet(self, groups: list[_Group]) -> None:
        """Add up all pairs at some groups of nodes."""
        if not groups:
            return
        parts = [group.nodes(self.tolerance, self._unit) for group in groups]
        t = torch.cat(parts, -1)
        rises, mass, norm = (torch.zeros_like(t), *torch.zeros(2, len(t), dtype=t.dtype, device=t.device))
        for shapes, offsets, shares in self._tiles(t.shape[-1]):
            flat = shapes.variances.sum(-1) == 0  # (M, 1 or E)
            if flat.any():  # these have the plain length, as elsewhere
                norm += (torch.where(flat, shares, 0) * offsets.norm(dim=-1)).sum(-1)
                shares = torch.where(flat, 0, shares)
            mass += shares.sum(-1)
            rises += self._rises(t, shapes, offsets, shares)
        self._mass, self._norm = mass, norm
        self._met.update(zip(groups, rises.split([x.shape[-1] for x in parts], -1), strict=True))

    def _rises(self, t: Tensor, shapes: Ellipsoids, offsets: Tensor, shares: Tensor) -> Tensor:
        """Return `sum s (1 - L(t))` over some pairs, `(B, Q)`."""
        if not self._shared:
            return (shares.unsqueeze(1) @ pair_rises(t, shapes, self._multiplicity, offsets)).squeeze(1)
        nodes = Nodes(t, t, t[:, 0], t[:, 0], t.shape[-1])  # of which only t matters
        rows = Rows(nodes, shapes, self._multiplicity, t.dtype, False)
        return rows.rises(offsets.mT, shares)

    def _tiles(self, count: int) -> Iterator[tuple[Ellipsoids, Tensor, Tensor]]:
        """Yield shapes, offsets `(B, E, d)` and shares `(B, E)` of all pairs, each met once but for some near i = j."""
        batch, n, dim = self._places.shape
        dense, spread = self._spread.ndim == 4, self._spread
        width = count + dim if self._shared else spread[0, 0].numel() + 5 * spread.shape[-1] * count
        side = max(1, math.isqrt(block_size(spread) // (batch * width)))
        common = ellipsoids(2 * spread, dense) if self._shared else None
        for start in range(0, n, side):
            i = slice(start, start + side)
            for begin in range(start, n, side):
                j = slice(begin, begin + side)
                half = 0.5 if i == j else 1.0
                shares = half * self._weights[:, i].unsqueeze(-1) * self._weights[:, j].unsqueeze(-2)
                offsets = self._places[:, i].unsqueeze(2) - self._places[:, j].unsqueeze(1)
                shapes = common
                if shapes is None:
                    sums = spread[:, i].unsqueeze(2) + spread[:, j].unsqueeze(1)
                    shapes = ellipsoids(sums.flatten(1, 2), dense)
                yield shapes, offsets.flatten(1, 2), shares.flatten(1)
