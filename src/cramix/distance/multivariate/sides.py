"""The two sides of an energy distance as flat tensors: components, and points, which may share one spread."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Vectors shorter than this, in units of the size of the problem, have no direction.
TINY = 1e-12


class Components(NamedTuple):
    """Weights `(B, k)`, means `(B, k, d)`, and covariances `(B, k, d, d)` or variances `(B, k, g)`, in float64."""

    weights: Tensor
    means: Tensor
    spread: Tensor

    @property
    def dense(self) -> bool:
        """Whether the spread is matrices."""
        return self.spread.ndim == 4

    @property
    def multiplicity(self) -> int:
        """How many axes share one of the variances."""
        return self.means.shape[-1] // self.spread.shape[-1]


class Points(NamedTuple):
    """Weights `(B or 1, n)` and places `(B or 1, n, d)`, in the dtype to compute in.

    Components that all have one covariance are points too, with that as their spread: `(B or 1, 1, d, d)` or variances
    `(B or 1, 1, g)`, as the other side has them.
    """

    weights: Tensor
    places: Tensor
    spread: Tensor | None = None


Side = Components | Points


class Ellipsoids(NamedTuple):
    """Variances along the axes, `(*, g)`, and the axes as columns, `(*, d, d)`, None for those of the coordinates."""

    variances: Tensor
    axes: Tensor | None


def ellipsoids(spread: Tensor, dense: bool) -> Ellipsoids:
    """Decompose covariances `(*, d, d)`, or take variances `(*, g)` as they are; no derivative is ever needed."""
    if not dense:
        return Ellipsoids(spread, None)
    variances, axes = torch.linalg.eigh(0.5 * (spread + spread.mT))
    return Ellipsoids(variances.clamp_min(0), axes)


def normalized(side: Side) -> tuple[Side, Tensor]:
    """Return the side with weights that sum to one, and their sum as it was, `(B or 1, 1)`."""
    total = side.weights.double().sum(-1, keepdim=True)
    return side._replace(weights=side.weights / total), total


def mean(side: Side) -> Tensor:
    """Return `E X`, `(B, 1, d)`, in float64."""
    return (side.weights.to(side[1].dtype).unsqueeze(-2) @ side[1]).double()


def mean_square(side: Side, centre: Tensor) -> Tensor:
    """Return `E|X - centre|^2`, `(B,)`."""
    squares = (side[1] - centre).square().sum(-1)
    if side.spread is not None:
        squares = squares + trace(side.spread, side[1].shape[-1])
    # Hardly any weight counts as a little, so that what has it is not beyond all numbers in units of the size.
    return (side.weights.clamp_min(1e-32) * squares).sum(-1).double()


def trace(spread: Tensor, dim: int) -> Tensor:
    """Return the variances of all coordinates added up, `(B, k)`, of covariances `(B, k, d, d)` or `(B, k, g)`."""
    variances = spread.diagonal(dim1=-2, dim2=-1) if spread.ndim == 4 else spread
    return dim // spread.shape[-1] * variances.sum(-1)


def power_of_two(size: Tensor) -> Tensor:
    """Return a unit of about the size, which divides without rounding; 1 where there is no size."""
    return torch.where((size > 0) & (size < torch.inf), size, 1).log2().round().exp2()


def moved(side: Side, centre: Tensor, unit: Tensor) -> Side:
    """Count places from the centre, `(B or 1, 1, d)`, in units, `(B or 1,)`."""
    spread = side.spread
    if spread is not None:
        spread = spread.double() / unit.square().view(-1, *(1,) * (spread.ndim - 1))
    if isinstance(side, Points):
        return Points(side.weights, (side.places - centre) / unit.to(centre.dtype)[:, None, None], spread)
    assert spread is not None, "components have one"
    means = (side.means.double() - centre.double()) / unit[:, None, None]
    return Components(side.weights.double(), means, spread)
