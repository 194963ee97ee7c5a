"""The two sides of an energy distance as flat arrays: components, and points, which may share one spread."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate.arrays import (
    Array,
    as_like,
    diagonal,
    in_dtype,
    in_float64,
    library,
    squared_lengths,
)
from cramix.torch_internals import as_numpy, shares_memory_with_numpy

# Vectors shorter than this, in units of the size of the problem, have no direction.
TINY = 1e-12
# A problem is small up to so many variances of pairs of components, and coordinates of points.
_FEW = 1 << 12
_FEW_POINTS = 1 << 15


class Components(NamedTuple):
    """Weights `(B, k)`, means `(B, k, d)`, and covariances `(B, k, d, d)` or variances `(B, k, g)`."""

    weights: Array
    means: Array
    spread: Array

    @property
    def dense(self) -> bool:
        """Whether the spread is matrices."""
        return self.spread.ndim == 4

    @property
    def multiplicity(self) -> int:
        """How many axes share one of the variances."""
        return self.means.shape[-1] // self.spread.shape[-1]


class Factors(NamedTuple):
    """Components with factors F `(B, k, r, d)` of their covariances, `F^T F`, as they are given."""

    weights: Tensor
    means: Tensor
    spread: Tensor


class Points(NamedTuple):
    """Weights `(B or 1, n)` and places `(B or 1, n, d)`, in the dtype to compute in.

    Components that all have one covariance are points too, with that as their spread: `(B or 1, 1, d, d)` or variances
    `(B or 1, 1, g)`, as the other side has them.
    """

    weights: Array
    places: Array
    spread: Array | None = None


Side = Components | Points
Given = Side | Factors


class Ellipsoids(NamedTuple):
    """Variances along the axes, `(*, g)`, and the axes as columns, `(*, d, d)`, None for those of the coordinates."""

    variances: Array
    axes: Array | None


def ellipsoids(spread: Array, dense: bool) -> Ellipsoids:
    """Decompose symmetric matrices `(*, d, d)`, or take variances `(*, g)` as they are; no derivative is needed."""
    if not dense:
        return Ellipsoids(spread, None)
    variances, axes = torch.linalg.eigh(torch.as_tensor(spread))  # by torch in any case, which is faster
    return Ellipsoids(as_like(variances.clamp_min_(0), spread), as_like(axes, spread))


def are_small(p: Given, q: Given) -> bool:
    """Whether the time would go into calls, so that NumPy takes less; points to points take few."""
    if isinstance(p, Points):
        return False
    k = p.means.shape[1] + (0 if isinstance(q, Points) else q.means.shape[1])
    few = len(p.weights) * k * k * p.spread.shape[-1] <= _FEW and q[1].numel() <= _FEW_POINTS
    return few and shares_memory_with_numpy(*p, *(x for x in q if x is not None))


def prepared(side: Given, small: bool) -> tuple[Side, Array | None]:
    """Return a side as it is computed with, NumPy's if small, in float64 but for places, and its factors if any."""
    weights, places, spread = (as_numpy(x) if small and x is not None else x for x in side)
    weights = in_float64(weights)
    if isinstance(side, Points):
        return Points(weights, places, None if spread is None else _symmetric(spread)), None
    if isinstance(side, Factors):
        factors = in_float64(spread)
        return Components(weights, in_float64(places), factors.swapaxes(-2, -1) @ factors), factors
    return Components(weights, in_float64(places), _symmetric(spread)), None


def _symmetric(spread: Array) -> Array:
    """Return the spread in float64, matrices without what rounding has left of a difference to their transposes."""
    spread = in_float64(spread)
    return 0.5 * (spread + spread.swapaxes(-2, -1)) if spread.ndim == 4 else spread


def normalized(side: Side) -> tuple[Side, Array]:
    """Return the side with weights that sum to one, and their sum as it was, `(B or 1, 1)`."""
    total = side.weights.sum(-1, keepdims=True)
    return side._replace(weights=side.weights / total), total


def mean(side: Side) -> Array:
    """Return `E X`, `(B, 1, d)`, in the dtype of the places."""
    places = side[1]
    return in_dtype(side.weights, places)[:, None] @ places


def centred(side: Side, centre: Array) -> Side:
    """Count places from the centre, `(B or 1, 1, d)`."""
    places = side[1] - in_dtype(as_like(centre, side[1]), side[1])
    return type(side)(side.weights, places, side.spread)


def squares(side: Side) -> Array:
    """Return `E|X|^2` of each component or point, `(B or 1, k)`."""
    places, spread = side[1], side.spread
    lengths = squared_lengths(places)
    return lengths if spread is None else lengths + trace(spread, places.shape[-1])


def mean_square(side: Side, lengths: Array) -> Array:
    """Return `E|X|^2`, `(B or 1,)`, from that of each component or point."""
    # Hardly any weight counts as a little, so that what has it is not beyond all numbers in units of the size.
    return (library(lengths).where(side.weights > 1e-32, side.weights, 1e-32) * lengths).sum(-1)


def trace(spread: Array, dim: int) -> Array:
    """Return the variances of all coordinates added up, `(B, k)`, of covariances `(B, k, d, d)` or `(B, k, g)`."""
    variances = diagonal(spread) if spread.ndim == 4 else spread
    return dim // spread.shape[-1] * variances.sum(-1)


def power_of_two(size: Array) -> Array:
    """Return a unit of about the size, which divides without rounding; 1 where there is no size."""
    lib = library(size)
    return lib.exp2(lib.round(lib.log2(lib.where((size > 0) & (size < torch.inf), size, 1.0))))


def scaled(side: Side, unit: Array) -> Side:
    """Count lengths in units, `(B or 1,)`."""
    unit, (weights, places, spread) = as_like(unit, side[1]), side
    if spread is not None:
        spread = spread / (unit * unit).reshape(-1, *(1,) * (spread.ndim - 1))
    return type(side)(weights, places / in_dtype(unit, places)[:, None, None], spread)
