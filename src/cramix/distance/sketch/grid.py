"""Grids of bins on the line whose widths are powers of two and whose edges are multiples of them.

Such bins nest: two neighbours, the first of even index, are one bin of twice the width. A grid is a function of the
least and the largest number it has to hold, so that it does not matter in which order the numbers came.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

# Bins are at least this many powers of two narrower than the numbers are large, so that positions inside of bins keep
# twelve bits and indices of bins are exact in float64.
_FINEST = 40
# The width of the bins of numbers that all are 0.
_SMALLEST = -1000
FEWEST_BINS = 8


class Grid(NamedTuple):
    """Equal bins for each of s slices: bin i covers `[start + i, start + i + 1) * 2^exponent`.

    Args:
        exponent: `(s,)`, int64.
        start: `(s,)`, int64.
    """

    exponent: Tensor
    start: Tensor

    @classmethod
    def over(cls, low: Tensor, high: Tensor, bins: int) -> Self:
        """Return the finest grids whose `bins` bins cover the intervals `[low, high]`, each `(s,)` in float64.

        Wider intervals never get finer bins.

        Example:
            >>> grid = Grid.over(torch.tensor([-1.0]), torch.tensor([6.5]), 8)
            >>> grid.exponent, grid.start  # bins of width 1 from -1 on
            (tensor([0]), tensor([-1]))
        """
        lows, highs = low.double().numpy(), high.double().numpy()
        largest, span = np.maximum(np.abs(lows), np.abs(highs)), highs - lows
        finest = np.where(largest > 0, np.frexp(largest)[1] - _FINEST, _SMALLEST)
        # Bins of this width just reach across the interval if an edge is at its start; twice the width always suffices.
        exponent = np.where(span > 0, np.frexp(span / bins)[1], _SMALLEST)
        exponent = np.maximum(np.maximum(exponent, finest), _SMALLEST)
        covered = np.floor(np.ldexp(highs, -exponent)) - np.floor(np.ldexp(lows, -exponent))
        exponent = exponent + (covered >= bins)
        start = np.floor(np.ldexp(lows, -exponent))
        return cls(torch.from_numpy(exponent.astype(np.int64)), torch.from_numpy(start.astype(np.int64)))

    @property
    def width(self) -> Tensor:
        """The widths of the bins, `(s,)` in float64."""
        return torch.from_numpy(np.ldexp(1.0, self.exponent.numpy()))

    def rows(self, chosen: slice | Tensor) -> Self:
        """Return the grids of some slices."""
        return type(self)(self.exponent[chosen], self.start[chosen])

    def doubled(self) -> Self:
        """Return the grids of bins twice as wide."""
        return type(self)(self.exponent + 1, self.start >> 1)

    def edges(self, bins: int) -> Tensor:
        """Return the edges of the bins, `(s, bins + 1)`."""
        return (self.start.unsqueeze(-1) + torch.arange(bins + 1)).double() * self.width.unsqueeze(-1)

    def inside(self, coarser: Grid, bins: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the bins of this grid lie in those of one that covers more.

        Returns:
            The positions of their bins there, `(s, bins)`, 0 or the last one for those beyond its ends; and for a
            number at `u` in a bin, counted from its centre in units of its width, what gives its place `scale * u +
            shift` in the other bin: scale `(s, 1)` and shift `(s, bins)`.
        """
        doublings = (coarser.exponent - self.exponent).unsqueeze(-1)
        index = self.start.unsqueeze(-1) + torch.arange(bins)
        outer = index >> doublings.clamp_max(62)
        scale = torch.from_numpy(np.ldexp(1.0, -doublings.numpy()))
        shift = (index.double() + 0.5) * scale - outer - 0.5
        return (outer - coarser.start.unsqueeze(-1)).clamp(0, bins - 1), scale, shift
