"""Covariances of the components of a multivariate mixture, one class a kind, all with the same methods.

A kind holds one tensor of values. Its batch axes and its component axis broadcast against those of the mixture, so that
what is shared is stored, decomposed and differentiated once. Covariances may be singular, down to zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from cramix.checks import check_covariances, check_finite, check_variances, readable
from cramix.mixture.components import safe_root


class Covariance(ABC):
    """Covariances of k components in d dimensions; abstract."""

    name: str
    axis_aligned: bool  # whether all ellipsoids lie along the coordinate axes
    _own_axes: int  # axes of the values behind the component axis

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def like(self, values: Tensor) -> Self:
        """Return the same kind with other values."""
        return type(self)(values)

    @property
    def shape(self) -> torch.Size:
        """What broadcasts against `(*batch, k)`."""
        return self.values.shape[: self.values.ndim - self._own_axes]

    def take(self, components: Tensor) -> Self:
        """Return the kind for some components, chosen by a mask `(k,)`."""
        if self.shape[-1] == 1:
            return self  # shared by all
        (index,) = components.nonzero(as_tuple=True)
        return self.like(self.values.index_select(len(self.shape) - 1, index))

    @abstractmethod
    def check_shape(self, dim: int) -> None:
        """Raise a ValueError for values of a shape that does not fit."""

    @abstractmethod
    def check(self) -> None:
        """Raise a ValueError for values that are no covariances."""

    @abstractmethod
    def spread(self) -> Tensor:
        """Return matrices `(*batch, k, d, d)`, or for ellipsoids along the axes variances `(*batch, k, d or 1)`."""

    @abstractmethod
    def matrices(self, dim: int) -> Tensor:
        """Return `(*batch, k, d, d)`."""

    @abstractmethod
    def scales_along(self, directions: Tensor) -> Tensor:
        """Return standard deviations of the projections on `(t, d)` directions, `(*batch, k, t)`."""

    @abstractmethod
    def roots(self, dim: int) -> Tensor:
        """Return R with covariance `R R^T`, `(*batch, k, d, d)`, or for the axes its diagonal `(*batch, k, d or 1)`."""

    @abstractmethod
    def whiten(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return z with `offset = L z`, L the lower Cholesky factor, `(*, k, d)`, and the logarithm of L's diagonal."""

    @abstractmethod
    def transform(self, matrix: Tensor) -> Covariance:
        """Return the covariances of `matrix X` for a matrix `(*batch, m, d)`."""

    @abstractmethod
    def marginal(self, dims: list[int]) -> Covariance:
        """Return the covariances of some coordinates."""

    @abstractmethod
    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        """Return the regression `(*batch, k, rest, given)` of the rest on the given (None for 0), and what is left."""


class _Dense(Covariance):
    """What all kinds with full matrices share."""

    axis_aligned = False

    @abstractmethod
    def marginal(self, dims: list[int]) -> _Dense:
        """Return the covariances of some coordinates."""

    def lower(self) -> Tensor:
        """Return the lower Cholesky factors `(*batch, k, d, d)`; a ValueError where a covariance is singular."""
        return cholesky(self.spread())

    def matrices(self, dim: int) -> Tensor:
        return self.spread()

    def scales_along(self, directions: Tensor) -> Tensor:
        return safe_root(((directions @ self.spread()) * directions).sum(-1))

    def roots(self, dim: int) -> Tensor:
        variances, axes = torch.linalg.eigh(self.spread())
        return axes * variances.clamp_min(0).sqrt().unsqueeze(-2)

    def whiten(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.lower()
        sample = offsets.shape[: offsets.ndim - lower.ndim + 1]
        columns = offsets.reshape(-1, *offsets.shape[len(sample) :]).movedim(0, -1)  # (*batch, k, d, n)
        z = torch.linalg.solve_triangular(lower.expand(*columns.shape[:-1], -1), columns, upper=False)
        return z.movedim(-1, 0).reshape(offsets.shape), lower.diagonal(dim1=-2, dim2=-1).log()

    def transform(self, matrix: Tensor) -> Covariance:
        matrix = matrix.unsqueeze(-3)
        return Full(matrix @ self.spread() @ matrix.mT)

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        spread = self.spread()
        across = spread[..., given, :][..., rest]
        gain = torch.cholesky_solve(across, self.marginal(given).lower()).mT
        left = spread[..., rest, :][..., rest] - gain @ across
        return gain, Full(0.5 * (left + left.mT))


def cholesky(matrices: Tensor) -> Tensor:
    """Return the lower Cholesky factors of matrices `(*, d, d)`; a ValueError where one is singular up to rounding."""
    lower, info = torch.linalg.cholesky_ex(matrices)
    if readable(matrices):
        with torch.no_grad():
            refuse_singular((info > 0) | ~(least_share(lower) > _rounding(matrices)))
    return lower


def least_share(lower: Tensor) -> Tensor:
    """Return the least share of a coordinate's variance that the others do not explain, `(*)`, of factors `(*, d, d)`.

    It is one over the diagonal of the inverse correlations. Rounding may leave a singular matrix with small positive
    pivots, and its density without a digit; this tells, whatever the units and the order of the coordinates.
    """
    scales = torch.linalg.vector_norm(lower, dim=-1)
    inverse = torch.linalg.solve_triangular(lower, torch.diag_embed(scales), upper=False)
    return 1 / inverse.square().sum(-2).amax(-1)


def refuse_singular(singular: Tensor) -> None:
    """Raise a ValueError if any is."""
    if singular.any():
        raise ValueError(
            f"covariances must be positive definite here; got {int(singular.sum())} singular ones. "
            "Add a small multiple of the identity."
        )


def _rounding(x: Tensor) -> float:
    # Random singular matrices keep shares of at most 2 sqrt(d) eps or so.
    return 4 * x.shape[-1] ** 0.5 * torch.finfo(x.dtype).eps


class Full(_Dense):
    """A covariance matrix each, `(*batch, k, d, d)`."""

    name = "full"
    _own_axes = 2

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 3 or self.values.shape[-2:] != (dim, dim):
            raise ValueError(
                f"covariances must be (*batch, k, {dim}, {dim}) for means in {dim} dimensions; "
                f"got {tuple(self.values.shape)}. For one matrix see Tied, for variances Diagonal and Spherical."
            )

    def check(self) -> None:
        check_covariances(self.values)

    def spread(self) -> Tensor:
        return self.values

    def marginal(self, dims: list[int]) -> _Dense:
        return Full(self.values[..., dims, :][..., dims])


class Tied(_Dense):
    """One covariance matrix for all components, `(*batch, d, d)`."""

    name = "tied"
    _own_axes = 2

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.values.shape[:-2], 1))

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 2 or self.values.shape[-2:] != (dim, dim):
            raise ValueError(
                f"covariances must be (*batch, {dim}, {dim}) for means in {dim} dimensions; "
                f"got {tuple(self.values.shape)}. For a matrix each see Full."
            )

    def check(self) -> None:
        check_covariances(self.values)

    def spread(self) -> Tensor:
        return self.values.unsqueeze(-3)

    def transform(self, matrix: Tensor) -> Covariance:
        return Tied(matrix @ self.values @ matrix.mT)

    def marginal(self, dims: list[int]) -> _Dense:
        return Tied(self.values[..., dims, :][..., dims])

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        gain, left = super().condition(given, rest)
        return gain, Tied(left.values.squeeze(-3))


class Factor(_Dense):
    """A factor S each, `(*batch, k, r, d)`, with covariance `S^T S`; for lower factors see `from_scale_tril`.

    It is the paper's parametrisation. Any S is valid, r may be smaller than d, and gradients in S are bounded.
    """

    name = "factor"
    _own_axes = 2

    @classmethod
    def from_scale_tril(cls, scale_tril: Tensor) -> Self:
        """Build from lower Cholesky factors `(*batch, k, d, d)`, covariance `L L^T`."""
        return cls(scale_tril.tril().mT)

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 3 or self.values.shape[-1] != dim:
            raise ValueError(
                f"factors must be (*batch, k, r, {dim}) for means in {dim} dimensions; got {tuple(self.values.shape)}. "
                "Covariances are S^T S."
            )

    def check(self) -> None:
        check_finite(factors=self.values)

    def spread(self) -> Tensor:
        return self.values.mT @ self.values

    def lower(self) -> Tensor:
        # Of S rather than of S^T S, where half of the digits would be lost.
        if self.values.shape[-2] < self.values.shape[-1]:
            refuse_singular(torch.ones(self.shape, dtype=torch.bool))
        upper = torch.linalg.qr(self.values).R
        lower = (upper * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT
        if readable(self.values):
            with torch.no_grad():
                refuse_singular(~(least_share(lower) > _rounding(lower) ** 2))
        return lower

    def scales_along(self, directions: Tensor) -> Tensor:
        return safe_root((self.values @ directions.mT).square().sum(-2))

    def roots(self, dim: int) -> Tensor:
        missing = max(0, dim - self.values.shape[-2])
        root = pad(self.values, (0, 0, 0, missing)).mT  # (d, r) with r >= d
        return root if root.shape[-1] == dim else torch.linalg.qr(root.mT, mode="r").R.mT

    def transform(self, matrix: Tensor) -> Covariance:
        return Factor(self.values @ matrix.unsqueeze(-3).mT)

    def marginal(self, dims: list[int]) -> _Dense:
        return Factor(self.values[..., dims])


class _Axes(Covariance):
    """What all kinds along the coordinate axes share."""

    axis_aligned = True

    def matrices(self, dim: int) -> Tensor:
        variances = self.spread()
        return torch.diag_embed(variances.expand(*variances.shape[:-1], dim))

    def scales_along(self, directions: Tensor) -> Tensor:
        return safe_root((self.spread().unsqueeze(-2) * directions.square()).sum(-1))

    def roots(self, dim: int) -> Tensor:
        return self.spread().sqrt()

    def whiten(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        scales = self.spread().sqrt()
        return offsets / scales, scales.log().expand(*scales.shape[:-1], offsets.shape[-1])

    def transform(self, matrix: Tensor) -> Covariance:
        scaled = matrix.unsqueeze(-3) * self.spread().unsqueeze(-2)
        return Full(scaled @ matrix.unsqueeze(-3).mT)


class Diagonal(_Axes):
    """Variances along the coordinate axes, `(*batch, k, d)`."""

    name = "diagonal"
    _own_axes = 1

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 2 or self.values.shape[-1] != dim:
            raise ValueError(
                f"variances must be (*batch, k, {dim}) for means in {dim} dimensions; got {tuple(self.values.shape)}. "
                "For one a component see Spherical."
            )

    def check(self) -> None:
        check_variances(self.values)

    def spread(self) -> Tensor:
        return self.values

    def marginal(self, dims: list[int]) -> Covariance:
        return Diagonal(self.values[..., dims])

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self.marginal(rest)


class Spherical(_Axes):
    """One variance for all directions, `(*batch, k)`."""

    name = "spherical"
    _own_axes = 0

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 1:
            raise ValueError(f"variances must be (*batch, k); got {tuple(self.values.shape)}. Use unsqueeze(-1).")

    def check(self) -> None:
        check_variances(self.values)

    def spread(self) -> Tensor:
        return self.values.unsqueeze(-1)

    def marginal(self, dims: list[int]) -> Covariance:
        return self

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self


class Points(Spherical):
    """No spread at all: the components are points, known to be without looking at the zeros, `(1,)`."""

    name = "points"

    def check(self) -> None:
        """Zeros need no check."""

    def transform(self, matrix: Tensor) -> Covariance:
        return self
