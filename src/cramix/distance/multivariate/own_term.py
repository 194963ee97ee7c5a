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

from cramix.distance.multivariate.component_pairs import block_size
from cramix.distance.multivariate.mean_norm import Rows
from cramix.distance.multivariate.nodes import Nodes, lattice
from cramix.distance.multivariate.pair_norm import pair_rises
from cramix.distance.multivariate.sides import (
    Components,
    Ellipsoids,
    Side,
    ellipsoids,
    mean,
    mean_square,
    moved,
    normalized,
    power_of_two,
)

# Nodes are met in runs of so many: those of a distance differ a little from step to step.
_RUN = 4


class OwnTerm:
    """Sums over all pairs of some mixtures that stay the same.

    Args:
        side: components, or points with a spread, flat and as they came.
        tolerance: of the distances to come.
    """

    def __init__(self, side: Side, tolerance: float) -> None:
        side, _ = normalized(side)
        centre = mean(side).to(side[1].dtype)
        self._unit = power_of_two(mean_square(side, centre).sqrt())
        side = moved(side, centre, self._unit)
        assert side.spread is not None, "points without one have a sum of their own"
        self._weights, self._places, self._spread = side.weights.double(), side[1].double(), side.spread
        self._shared = not isinstance(side, Components)
        self._multiplicity = self._places.shape[-1] // self._spread.shape[-1]
        self.tolerance = tolerance
        self._runs: dict[int, Tensor] = {}
        self._rest: _Rest | None = None

    def at(self, nodes: Nodes, unit: Tensor, rows: Tensor) -> Tensor:
        """Return the term for the nodes of a distance, in its unit, `(B,)`; rows `(B,)` say which mixture it is of."""
        numbers = nodes.first.long().unsqueeze(-1) + torch.arange(nodes.t.shape[-1], device=rows.device)
        first, last = (int(x) // _RUN for x in numbers.aminmax())
        runs = range(first, last + 1)
        self._meet([run for run in runs if run not in self._runs])
        assert self._rest is not None, "the pairs have been met"
        rises = torch.cat([self._runs[run] for run in runs], -1)[rows].gather(-1, numbers - first * _RUN)
        mass, square, norm = (x[rows] for x in self._rest)
        scale = self._unit[rows] / unit
        rule = nodes.linear * scale.square() * square + nodes.constant * mass + (nodes.weights * rises).sum(-1)
        return rule + scale * norm

    def _meet(self, runs: list[int]) -> None:
        """Add up all pairs at the nodes of some runs."""
        if not runs:
            return
        t = torch.cat([lattice(run * _RUN, _RUN, self.tolerance, self._unit) for run in runs], -1)
        rises, mass, square, norm = (torch.zeros_like(t), *torch.zeros(3, len(t), dtype=t.dtype, device=t.device))
        for shapes, offsets, shares in self._tiles(t.shape[-1]):
            variances = shapes.variances  # (B, 1 or E, g)
            flat = variances.amax(-1) == 0
            if flat.any():  # these have the plain length, as elsewhere
                norm += (torch.where(flat, shares, 0) * offsets.norm(dim=-1)).sum(-1)
                shares = torch.where(flat, 0, shares)
            squares = offsets.square().sum(-1) + self._multiplicity * variances.sum(-1)
            mass += shares.sum(-1)
            square += (shares * squares).sum(-1)
            rises += self._rises(t, shapes, offsets, shares)
        self._rest = _Rest(mass, square, norm)
        self._runs.update(zip(runs, rises.split(_RUN, -1), strict=True))

    def _rises(self, t: Tensor, shapes: Ellipsoids, offsets: Tensor, shares: Tensor) -> Tensor:
        """Return `sum s (1 - L(t))` over some pairs, `(B, Q)`."""
        if not self._shared:
            return (shares.unsqueeze(1) @ pair_rises(t, shapes, self._multiplicity, offsets)).squeeze(1)
        nodes = Nodes(t, t, t[:, 0], t[:, 0], t[:, 0], t.shape[-1])  # of which only t matters
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


class _Rest(NamedTuple):
    """Sums over pairs that do not depend on the nodes, `(B,)`: of shares, of squares, of lengths without spread."""

    mass: Tensor
    square: Tensor
    norm: Tensor
