"""The operands of an energy distance as flat arrays: components, and points, which may share one covariance."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cramix.distance.energy.numpy_or_torch import (
    Array,
    as_like,
    as_tensor,
    in_dtype,
    in_float64,
    library,
    squared_lengths,
)

# Vectors shorter than this, in units of the size of the problem, have no direction.
TINY = 1e-12


class Components(NamedTuple):
    """Weights `(B, k)`, means `(B, k, d)`, and covariances `(B, k, d, d)` or variances `(B, k, g)`, g = d or 1."""

    weights: Array
    means: Array
    covariances: Array

    @property
    def dense(self) -> bool:
        """Return whether the covariances are matrices."""
        return self.covariances.ndim == 4

    @property
    def multiplicity(self) -> int:
        """Return how many axes share one variance."""
        return self.means.shape[-1] // self.covariances.shape[-1]


class Points(NamedTuple):
    """Weights `(B or 1, n)` and points `(B or 1, n, d)`, in the dtype to compute in.

    Components that all have one covariance are points too, with that covariance: `(B or 1, 1, d, d)` or variances
    `(B or 1, 1, g)`, in the same form as those of the other side.
    """

    weights: Array
    means: Array
    covariances: Array | None = None


Side = Components | Points


class Ellipsoids(NamedTuple):
    """Variances along the axes, `(*, g)`, and the axes as columns, `(*, d, d)`, None for the coordinate axes."""

    variances: Array
    axes: Array | None


def ellipsoids(covariances: Array, dense: bool) -> Ellipsoids:
    """Decompose symmetric matrices `(*, d, d)`, or take variances `(*, g)` as they are, without derivatives."""
    if not dense:
        return Ellipsoids(covariances, None)
    variances, axes = torch.linalg.eigh(as_tensor(covariances))  # faster than NumPy's
    return Ellipsoids(as_like(variances.clamp_min_(0), covariances), as_like(axes, covariances))


def working_form(side: Side) -> tuple[Side, Array]:
    """Return a side as it is computed with, and the sum of its weights as it was, `(B or 1, 1)`.

    Weights sum to one, matrices are symmetric up to the last bit, and all but points are in float64.
    """
    weights, means, covariances = in_float64(side.weights), side.means, side.covariances
    total = weights.sum(-1)[..., None]
    if covariances is not None:
        covariances = in_float64(covariances)
        covariances = 0.5 * (covariances + covariances.swapaxes(-2, -1)) if covariances.ndim == 4 else covariances
    means = in_float64(means) if isinstance(side, Components) else means
    return type(side)(weights / total, means, covariances), total  # type: ignore[arg-type]


def mean(side: Side) -> Array:
    """Return `E X`, `(B, 1, d)`, in the dtype of the means."""
    return in_dtype(side.weights, side.means)[:, None] @ side.means


def centred(side: Side, centre: Array) -> Side:
    """Return the side relative to a centre, `(B or 1, 1, d)`."""
    return side._replace(means=side.means - in_dtype(as_like(centre, side.means), side.means))


def mean_squares(side: Side) -> Array:
    """Return `E|X|^2` of each component or point, `(B or 1, k)`."""
    lengths, covariances = squared_lengths(side.means), side.covariances
    if covariances is None:
        return lengths
    variances = covariances.diagonal(0, -2, -1) if covariances.ndim == 4 else covariances
    return lengths + side.means.shape[-1] // covariances.shape[-1] * variances.sum(-1)


def mean_square(side: Side, squares: Array) -> Array:
    """Return `E|X|^2`, `(B or 1,)`, from that of each component or point."""
    # A negligible weight counts as 1e-32, so that its component does not overflow in units of the size.
    return (library(squares).where(side.weights > 1e-32, side.weights, 1e-32) * squares).sum(-1)


def power_of_two(size: Array) -> Array:
    """Return a unit of about the size, which divides without rounding; 1 where the size is 0 or infinite."""
    lib = library(size)
    return lib.exp2(lib.round(lib.log2(lib.where((size > 0) & (size < torch.inf), size, 1.0))))


def scaled(side: Side, unit: Array) -> Side:
    """Return the side with lengths in units, `(B or 1,)`."""
    unit, covariances = as_like(unit, side.means), side.covariances
    if covariances is not None:
        covariances = covariances / (unit * unit).reshape(-1, *(1,) * (covariances.ndim - 1))
    means = side.means / in_dtype(unit, side.means)[:, None, None]
    return type(side)(side.weights, means, covariances)  # type: ignore[arg-type]
