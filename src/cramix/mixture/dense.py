"""Kinds of covariances with full matrices: one each, one for all, or factors of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from cramix.checks import check_covariances, check_finite
from cramix.mixture.cholesky import cholesky, least_share, refuse_singular, rounding
from cramix.mixture.components import safe_root
from cramix.mixture.covariance import Covariance
from cramix.torch_internals import readable


class _Dense(Covariance):
    """What all kinds with full matrices share."""

    axis_aligned = False

    @abstractmethod
    def marginal(self, dims: list[int]) -> _Dense:
        """Return the covariances of some coordinates."""

    def lower(self) -> Tensor:
        """Return the lower Cholesky factors `(*batch, k, d, d)`; a ValueError where a covariance is singular."""
        return cholesky(self.spread())

    def _n_own(self, dim: int) -> int:
        return dim * (dim + 1) // 2

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

    def _n_own(self, dim: int) -> int:
        rank = min(self.values.shape[-2], dim)
        # Rotating S changes nothing.
        return rank * dim - rank * (rank - 1) // 2

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
                refuse_singular(~(least_share(lower) > rounding(lower) ** 2))
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
