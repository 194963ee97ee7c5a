"""Drift: which columns and directions differ between two sets of parts, and whether by more than chance.

The parts, such as files, days or machines, are what chance is measured by: without drift it would not matter which of
them are in the first set and which in the second. So the p-values hold however much rows within a part depend on each
other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.distance.sketch import SliceSketch, comparison
from cramix.distance.sketch.bins import polynomial_fit
from cramix.distance.sketch.histograms import Histograms
from cramix.markup import COLORS, Picture, card, drawable, more, number, table

# Numbers of the fits of all parts that are held at a time, and of the products for permutations.
_BLOCK = 1 << 22
# Columns in the table of a notebook, those that moved most, and bars in its picture.
_MOST_COLUMNS, _MOST_BARS = 10, 100
# Rounding must not tell the given order from others that give the same distance.
_TIE = 1e-9


@dataclass(frozen=True)
class Drift:
    """How far two sets of parts are from each other; distances are in standard deviations of both together.

    Args:
        distance: the root of the mean Cramér loss over all columns and directions.
        p_value: the probability of a distance at least as large if parts were assigned to the two sets by chance.
        smallest_p_value: what the p-value would be for the largest possible drift, with so few parts.
        columns: the Cramér distance of each column, `(d,)`.
        column_p_values: the probability that any column would move as far by chance, `(d,)`.
        mean_shifts: the mean of each column in the second set less that in the first, `(d,)`.
        directions: unit vectors `(t, d)` in the units of the data, those that moved most first.
        direction_distances: the Cramér distance along each of them, `(t,)`.
        n_parts: the numbers of parts of both sets, without empty ones.
        n_permutations: how many assignments of parts were compared, the given one included.
        exact: whether these are all there are.
    """

    distance: float
    p_value: float
    smallest_p_value: float
    columns: Tensor
    column_p_values: Tensor
    mean_shifts: Tensor
    directions: Tensor = field(repr=False)
    direction_distances: Tensor = field(repr=False)
    n_parts: tuple[int, int]
    n_permutations: int
    exact: bool

    def __repr__(self) -> str:
        j = int(self.columns.argmax())
        return (
            f"{type(self).__name__}(distance={self.distance:.3g}, p_value={self.p_value:.3g} (at least "
            f"{self.smallest_p_value:.3g} with {self.n_parts[0]} and {self.n_parts[1]} parts), largest in column {j}: "
            f"{self.columns[j].item():.3g}, p_value={self.column_p_values[j].item():.3g})"
        )

    def _repr_html_(self) -> str:
        order = self.columns.argsort(descending=True, stable=True)[:_MOST_COLUMNS].tolist()
        numbers = self.columns, self.column_p_values, self.mean_shifts
        rows = [(str(j), *(number(x[j].item()) for x in numbers)) for j in order]
        facts = [
            ("distance", number(self.distance)),
            ("p-value", number(self.p_value)),
            ("smallest possible p-value", number(self.smallest_p_value)),
            ("parts", f"{self.n_parts[0]} and {self.n_parts[1]}"),
            ("assignments compared", f"{self.n_permutations:,}{', all' if self.exact else ''}"),
        ]
        left_out = more((len(self.columns) - len(rows), "column"))
        head = ("column", "distance", "p-value", "shift of mean")
        title = "Drift, in standard deviations of both sets together"
        return card(title, self._picture(order), table(head, rows, left_out=left_out), table((), facts))

    def _picture(self, order: Sequence[int]) -> str:
        """Return bars of the distances of all columns, or if they are many of those that moved most."""
        shown = sorted(order) if len(self.columns) > _MOST_BARS else range(len(self.columns))
        heights = [self.columns[j].item() for j in shown]
        if not drawable(heights):
            return ""
        ends = (shown[0] - 0.5, shown[-1] + 0.5)
        picture = Picture(ends, (0.0, max(heights)), "distance of each column", ("column", "distance"), whole=True)
        for j, height in zip(shown, heights, strict=True):
            picture.bar(j, height, max(0.8, len(self.columns) / _MOST_BARS), COLORS[0])
        return picture.svg()


def drift(
    first: Iterable[SliceSketch], second: Iterable[SliceSketch], *, n_permutations: int = 9999, seed: int = 0
) -> Drift:
    """Return how far two sets of parts of data are from each other, and whether that is more than chance.

    The p-values are those of permutation tests: the share of all assignments of the parts to two sets of these sizes,
    the given one included, that are at least as far from each other. Where there are more than `n_permutations`, that
    many random ones are compared. Rows keep their weights, and large parts count for more. The p-values of columns are
    adjusted for their number (Westfall and Young 1993).

    Args:
        first: sketches of parts, all made with the same arguments; empty ones are left out.
        second: the same.
        n_permutations: the most assignments to compare, at least 1.
        seed: of random permutations.

    Example:
        >>> x = torch.randn(8, 500, 2, generator=torch.Generator().manual_seed(0))
        >>> x[4:, :, 1] += 0.5  # the second column moves after four parts
        >>> parts = [SliceSketch(2, 16, 256).update(part) for part in x]
        >>> drift(parts[:4], parts[4:])
        Drift(distance=0.177, p_value=0.0286 (at least 0.0286 with 4 and 4 parts),
        largest in column 1: 0.25, p_value=0.0286)
    """
    check_integer("n_permutations", n_permutations, 1)
    check_integer("seed", seed, 0)
    before, after = _parts("first", first), _parts("second", second)
    for part in (*before, *after):
        before[0].require_comparable(part, "first[0]", "all other parts")
    p, q = _sum(before), _sum(after)
    both = p + q
    unit = _deviations(both)
    losses = comparison.losses(p.histograms, q.histograms)
    losses = torch.where(unit > 0, losses / unit, 0)
    dim = p.dim
    chosen, exact = _assignments(len(before), len(after), n_permutations, seed)
    statistics = _statistics((*before, *after), both.histograms, unit, dim, chosen)
    p_value, column_p_values = _p_values(statistics)
    along = losses[-len(p.directions) :].sqrt()
    order = along.argsort(descending=True)
    scale = torch.where(unit[:dim] > 0, unit[:dim], 1)
    return Drift(
        distance=losses.mean().item() ** 0.5,
        p_value=p_value,
        smallest_p_value=_smallest(len(before), len(after), len(chosen), exact),
        columns=losses[:dim].sqrt(),
        column_p_values=column_p_values,
        mean_shifts=(q.mean - p.mean) / scale,
        directions=p.directions[order],
        direction_distances=along[order],
        n_parts=(len(before), len(after)),
        n_permutations=len(chosen),
        exact=exact,
    )


def _parts(name: str, sketches: Any) -> list[SliceSketch]:
    """Return sketches that are not empty as a list."""
    if isinstance(sketches, SliceSketch):
        sketches = [sketches]
    if not isinstance(sketches, Iterable) or isinstance(sketches, str):
        raise ValueError(f"{name} must be a list of SliceSketches; got {type(sketches).__name__}.")
    listed = list(sketches)
    for part in listed:
        if not isinstance(part, SliceSketch):
            raise ValueError(f"{name} must be a list of SliceSketches; got one of {type(part).__name__}.")
    filled = [part for part in listed if part.n_samples]
    if not filled:
        raise ValueError(f"{name} must hold a sketch with rows; got {len(listed)}, all empty.")
    return filled


def _sum(parts: Sequence[SliceSketch]) -> SliceSketch:
    total = parts[0].__copy__()
    for part in parts[1:]:
        total.merge(part)
    return total


def _deviations(sketch: SliceSketch) -> Tensor:
    """Return the standard deviation along each slice, columns first, `(s,)`; 0 where all rows are the same."""
    along = torch.cat((torch.eye(sketch.dim, dtype=torch.float64), sketch.directions))[: len(sketch.histograms.low)]
    deviations = ((along @ sketch.covariance) * along).sum(1).clamp_min(0).sqrt()
    low, high = sketch.histograms.low, sketch.histograms.high
    constant = high - low <= 1e-13 * torch.maximum(low.abs(), high.abs())
    return deviations.masked_fill(constant, 0)


def _assignments(first: int, second: int, most: int, seed: int) -> tuple[Tensor, bool]:
    """Return which parts are in the first set, `(a, parts)`, the given assignment first; and whether these are all."""
    parts = first + second
    if math.comb(parts, first) <= most:
        index, exact = torch.tensor(list(combinations(range(parts), first))), True
    else:
        generator = torch.Generator().manual_seed(seed)
        steps = [min(_BLOCK // parts + 1, most - i) for i in range(0, most, _BLOCK // parts + 1)]
        orders = [torch.rand(n, parts, generator=generator).argsort(1)[:, :first] for n in steps]
        index, exact = torch.cat((torch.arange(first).unsqueeze(0), *orders)), False
    return torch.zeros(len(index), parts, dtype=torch.bool).scatter_(1, index, True), exact


def _statistics(parts: Sequence[SliceSketch], both: Histograms, unit: Tensor, dim: int, chosen: Tensor) -> Tensor:
    """Return the losses of each assignment, `(a, 1 + d)`: the mean over all slices, and that of each column.

    They are those of polynomials fitted to the distribution functions, which are linear in the moments. So for each
    slice a matrix of products between parts gives the loss of every assignment.
    """
    weights = torch.tensor([part.total_weight for part in parts], dtype=torch.float64)
    weights = weights / weights.sum()
    products = _products(parts, weights, both, dim, torch.where(unit > 0, 1 / unit, 0))
    losses = []
    for some in chosen.split(max(1, _BLOCK // len(parts))):
        mask = some.double()
        mass = (mask @ weights).unsqueeze(1)
        signed = mask / mass - (1 - mask) / (1 - mass)
        losses.append(torch.stack([((signed @ product) * signed).sum(1) for product in products], 1))
    return torch.cat(losses).clamp_min(0)


def _products(parts: Sequence[SliceSketch], weights: Tensor, both: Histograms, dim: int, factors: Tensor) -> Tensor:
    """Return the products between the parts' fits, less the fit to all: the mean over slices, and those of columns."""
    slices, n = len(factors), len(parts)
    total = torch.zeros(n, n, dtype=torch.float64)
    columns = torch.zeros(dim, n, n, dtype=torch.float64)
    step = max(1, _BLOCK // (3 * both.bins * n))
    share = (weights / torch.tensor([part.total_weight for part in parts], dtype=torch.float64)).tolist()
    for start in range(0, slices, step):
        some = slice(start, min(start + step, slices))
        grid = both.grid.rows(some)
        moments = (part.histograms.rows(some).on(grid) for part in parts)
        fits = torch.stack([polynomial_fit(c * x, grid.width) for c, x in zip(share, moments, strict=True)], 1)
        # Signed weights of parts sum to 0, so that this changes no loss; the products are small, and so is rounding.
        fits -= weights.view(-1, 1) * fits.sum(1, keepdim=True)
        products = fits @ fits.mT * factors[some].view(-1, 1, 1)
        total += products.sum(0) / slices
        if start < dim:
            columns[start : min(some.stop, dim)] = products[: dim - start]
    return torch.cat((total.unsqueeze(0), columns))


def _p_values(statistics: Tensor) -> tuple[float, Tensor]:
    """Return the p-value of the first row, over all, and those of the columns, adjusted for their number."""
    given = statistics[0] * (1 - _TIE)
    overall = (statistics[:, 0] >= given[0]).double().mean().item()
    # In units of what chance does to each column, so that each has the same part in their maximum.
    columns = statistics[:, 1:]
    typical = columns.mean(0)
    relative = torch.where(typical > 0, columns / torch.where(typical > 0, typical, 1), 0)
    largest = relative.amax(1, keepdim=True)
    return overall, (largest >= relative[0] * (1 - _TIE)).double().mean(0)


def _smallest(first: int, second: int, compared: int, exact: bool) -> float:
    """Return the smallest possible p-value: two sets of equal size are as far from each other when exchanged."""
    return (2 if exact and first == second else 1) / compared
