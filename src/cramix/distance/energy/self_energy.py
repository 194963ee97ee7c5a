"""The self energy of a mixture that stays the same, `1/2 E|Y - Y'|`: all its pairs, visited once (math.md, eq. 32).

The rule for mean lengths is linear in `1 - L(t)`. So the sums over all pairs at each lattice node give the self energy
for whichever nodes a distance uses, with exactly the error of its other terms: equal mixtures are 0 apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.energy import flat_mixtures
from cramix.distance.energy.component_pairs import array_size
from cramix.distance.energy.flat_mixtures import Components, Ellipsoids, Side, ellipsoids
from cramix.distance.energy.mean_norm import Rows
from cramix.distance.energy.nodes import Nodes, below_lattice, lattice
from cramix.distance.energy.numpy_or_torch import Array, as_like
from cramix.distance.energy.pair_norm import pair_rises

# Lattice nodes are visited in runs of this length, since those of a distance vary a little from step to step.
_RUN = 4


class _Group(NamedTuple):
    """Nodes that are visited together: a run of the lattice, by its number, or the Gauss nodes below a lattice node."""

    number: int
    low: bool

    def nodes(self, tolerance: float, unit: Tensor) -> Tensor:
        """Return `t`, `(M, nodes)`, in units `(M,)`."""
        if self.low:
            return below_lattice(self.number, tolerance, unit)
        return lattice(self.number * _RUN, _RUN, tolerance, unit)


class SelfEnergy:
    """Sums over all pairs of some mixtures that stay the same, computed for each quadrature node when it is first used.

    Args:
        side: components, or points with a covariance, flat and as they are given.
        tolerance: of the distances it will be used in.
        block: see `kernels.block_size`.
    """

    def __init__(self, side: Side, tolerance: float, block: int | None = None) -> None:
        working, _ = flat_mixtures.working_form(side)
        working = flat_mixtures.centred(working, flat_mixtures.mean(working))
        size = flat_mixtures.mean_square(working, flat_mixtures.mean_squares(working)) ** 0.5
        self._unit = flat_mixtures.power_of_two(size)
        working = flat_mixtures.scaled(working, self._unit)
        assert working.covariances is not None, "points without a covariance have a sum of distances"
        self._weights, self._means, self._covariances = (x.double() for x in working if x is not None)
        self._shared = not isinstance(working, Components)
        self._multiplicity = self._means.shape[-1] // self._covariances.shape[-1]
        self.tolerance, self._block = tolerance, block
        self._sums: dict[_Group, Tensor] = {}
        self._mass = self._norm = self._unit.new_zeros(len(self._unit))

    @property
    def visited(self) -> int:
        """Return at how many groups of nodes all pairs have been visited so far."""
        return len(self._sums)

    def at(self, nodes: Nodes, unit: Array, rows: Tensor | None) -> Tensor:
        """Return the self energy for the nodes of a distance, in its unit, `(B,)`; rows `(B,)` select the mixtures."""
        t, weights, constant, first = (as_like(x, self._unit) for x in nodes[:4])
        in_unit = torch.as_tensor(unit, device=self._unit.device)
        rows = torch.arange(len(self._unit), device=self._unit.device) if rows is None else rows
        firsts, which = first.long().unique(return_inverse=True)
        count = t.shape[-1] - below_lattice(0, self.tolerance, self._unit).shape[-1]
        low, high = int(firsts[0]) // _RUN, int(firsts[-1] + count - 1) // _RUN
        lows = [_Group(index, low=True) for index in firsts.tolist()]
        runs = [_Group(index, low=False) for index in range(low, high + 1)]
        self._visit([group for group in lows + runs if group not in self._sums])
        below = torch.stack([self._sums[group] for group in lows], 1)[rows, which]
        positions = firsts[which].unsqueeze(-1) + torch.arange(count, device=rows.device) - low * _RUN
        above = torch.cat([self._sums[group] for group in runs], -1)[rows].gather(-1, positions)
        rule = constant * self._mass[rows] + (weights * torch.cat((below, above), -1)).sum(-1)
        return rule + self._unit[rows] / in_unit * self._norm[rows]

    def _visit(self, groups: list[_Group]) -> None:
        """Sum over all pairs at some groups of nodes."""
        if not groups:
            return
        parts = [group.nodes(self.tolerance, self._unit) for group in groups]
        t = torch.cat(parts, -1)
        rises, mass, norm = (torch.zeros_like(t), *torch.zeros(2, len(t), dtype=t.dtype, device=t.device))
        for shapes, offsets, weights in self._tiles(t.shape[-1]):
            flat = shapes.variances.sum(-1) == 0  # (M, 1 or E)
            if flat.any():  # pairs without covariance have the plain norm, as in the other terms
                norm += (torch.where(flat, weights, 0) * offsets.norm(dim=-1)).sum(-1)
                weights = torch.where(flat, 0, weights)
            mass += weights.sum(-1)
            rises += self._rises(t, shapes, offsets, weights)
        self._mass, self._norm = mass, norm
        self._sums.update(zip(groups, rises.split([x.shape[-1] for x in parts], -1), strict=True))

    def _rises(self, t: Tensor, shapes: Ellipsoids, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return `sum w (1 - L(t))` over some pairs, `(B, Q)`."""
        if not self._shared:
            rises = pair_rises(t, shapes, self._multiplicity, offsets)
            return (weights.unsqueeze(1) @ rises).squeeze(1)
        nodes = Nodes(t, t, t[:, 0], t[:, 0], t.shape[-1])  # only t is used
        return Rows(nodes, shapes, self._multiplicity, t.dtype, False).rises(offsets.mT, weights)

    def _tiles(self, count: int) -> Iterator[tuple[Ellipsoids, Tensor, Tensor]]:
        """Yield shapes, offsets `(B, E, d)` and weights `(B, E)` of all pairs, each once except some near i = j."""
        batch, n, dim = self._means.shape
        dense, covariances = self._covariances.ndim == 4, self._covariances
        width = count + dim if self._shared else covariances[0, 0].numel() + 5 * covariances.shape[-1] * count
        side = max(1, math.isqrt(array_size(covariances, self._block) // (batch * width)))
        common = ellipsoids(2 * covariances, dense) if self._shared else None
        for start in range(0, n, side):
            i = slice(start, start + side)
            for begin in range(start, n, side):
                j = slice(begin, begin + side)
                half = 0.5 if i == j else 1.0
                weights = half * self._weights[:, i].unsqueeze(-1) * self._weights[:, j].unsqueeze(-2)
                offsets = self._means[:, i].unsqueeze(2) - self._means[:, j].unsqueeze(1)
                shapes = common
                if shapes is None:
                    sums = covariances[:, i].unsqueeze(2) + covariances[:, j].unsqueeze(1)
                    shapes = ellipsoids(sums.flatten(1, 2), dense)
                yield shapes, offsets.flatten(1, 2), weights.flatten(1)
