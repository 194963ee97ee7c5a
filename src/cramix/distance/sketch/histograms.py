"""Histograms of many slices that keep the moments of each bin; see `bins`."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from cramix.distance.sketch.bins import gauss_points
from cramix.distance.sketch.grid import Grid


class Histograms:
    """Histograms of s slices, which grow with the range of the data.

    Args:
        moments: `(4, s, bins)` in float64, on the CPU.
        low: the least number in each slice, `(s,)`; infinite where there is none.
        high: the largest, `(s,)`.
    """

    def __init__(self, moments: Tensor, low: Tensor, high: Tensor) -> None:
        self.moments, self.low, self.high = moments, low, high
        self.grid = Grid.over(*_finite(low, high), self.bins)

    @classmethod
    def empty(cls, slices: int, bins: int) -> Self:
        """Return histograms of no data."""
        far = torch.full((slices,), torch.inf, dtype=torch.float64)
        return cls(torch.zeros(4, slices, bins, dtype=torch.float64), far, -far)

    @property
    def bins(self) -> int:
        """The number of bins of each slice."""
        return self.moments.shape[-1]

    @property
    def normalized(self) -> Tensor:
        """The moments for a total mass of one, `(4, s, bins)`."""
        return self.moments / self.moments[0].sum(1, keepdim=True)

    def add(self, y: Tensor, weights: Tensor | None) -> None:
        """Add numbers `(s, n)` in float64, n >= 1, with weights `(n,)`; y is overwritten."""
        self._cover(y.amin(1).cpu(), y.amax(1).cpu())
        start, width = (x.to(y.device, torch.float64).unsqueeze(-1) for x in (self.grid.start, self.grid.width))
        y.mul_(1 / width)
        index = y.floor()
        u = y.sub_(index).sub_(0.5)
        index = index.sub_(start).to(torch.int64)
        sums = self.moments if y.is_cpu else torch.zeros_like(self.moments, device=y.device)
        term = y.new_ones(1, 1).expand_as(y) if weights is None else weights.expand_as(y)
        sums[0].scatter_add_(1, index, term)
        term = u if weights is None else u * weights
        sums[1].scatter_add_(1, index, term)
        term = term * u
        sums[2].scatter_add_(1, index, term)
        sums[3].scatter_add_(1, index, term.mul_(u))
        if sums is not self.moments:
            self.moments += sums.cpu()

    def merge(self, other: Histograms) -> None:
        """Add the data of others, with the same number of bins."""
        self._cover(other.low, other.high)
        self.moments = self.moments + other.on(self.grid)

    def widened(self, other: Histograms) -> Self:
        """Return the same data in bins that cover the range of others, too."""
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return type(self)(self.on(Grid.over(low, high, self.bins)), low, high)

    def on(self, grid: Grid) -> Tensor:
        """Return the moments on a grid that covers at least as much, `(4, s, bins)`."""
        if torch.equal(grid.exponent, self.grid.exponent) and torch.equal(grid.start, self.grid.start):
            return self.moments
        position, a, b = self.grid.inside(grid, self.bins)
        zeroth, first, second, third = self.moments
        shifted = (
            zeroth,
            a * first + b * zeroth,
            a * (a * second + 2 * b * first) + b**2 * zeroth,
            a * (a * (a * third + 3 * b * second) + 3 * b**2 * first) + b**3 * zeroth,
        )
        return torch.stack([torch.zeros_like(x).scatter_add_(1, position, x) for x in shifted])

    def rows(self, chosen: slice | Tensor) -> Self:
        """Return the histograms of some slices."""
        return type(self)(self.moments[:, chosen], self.low[chosen], self.high[chosen])

    def atoms(self) -> tuple[Tensor, Tensor]:
        """Return the two Gauss points of each bin: weights that sum to one, and points, both `(s, m)`.

        They share mass, mean, variance and third moment with the bin. Empty bins are left out, as far as all slices
        have some.
        """
        filled = self.moments[0] > 0
        most = int(filled.sum(1).max())
        # Filled bins come first, in order. (A stable sort keeps it.)
        kept = (~filled).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
        moments = self.moments.gather(2, kept.expand(4, -1, -1))
        shares, places = gauss_points(moments)
        centre = (self.grid.start.unsqueeze(-1) + kept).double() + 0.5
        points = (centre + places) * self.grid.width.unsqueeze(-1)
        mass = shares * (moments[0] / moments[0].sum(1, keepdim=True))
        return mass.movedim(0, -1).flatten(1), points.movedim(0, -1).flatten(1)

    def _cover(self, low: Tensor, high: Tensor) -> None:
        """Widen the bins so that they cover an interval, too."""
        if bool(((low >= self.low) & (high <= self.high)).all()):
            return
        low, high = torch.minimum(low, self.low), torch.maximum(high, self.high)
        grid = Grid.over(*_finite(low, high), self.bins)
        self.moments = self.on(grid) if bool((self.low <= self.high).any()) else self.moments
        self.low, self.high, self.grid = low, high, grid


def _finite(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of the data, [0, 0] where there are none."""
    none = low > high
    return low.masked_fill(none, 0), high.masked_fill(none, 0)
