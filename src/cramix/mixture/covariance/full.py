"""A covariance matrix for each component, and what all kinds with matrices share."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from cramix.checks import check_covariances
from cramix.mixture.components import safe_root
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.cholesky import cholesky


class Dense(Covariance):
    """Covariances with entries off the diagonal; abstract."""

    axis_aligned = False

    @abstractmethod
    def marginal(self, dims: list[int]) -> Dense: ...

    def lower(self) -> Tensor:
        """Return the lower Cholesky factors `(*batch, k, d, d)`; a ValueError where a covariance is singular."""
        return cholesky(self.spread())

    def _n_each(self, dim: int) -> int:
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
        matrices = self.spread()
        across = matrices[..., given, :][..., rest]
        regression = torch.cholesky_solve(across, self.marginal(given).lower()).mT
        remaining = matrices[..., rest, :][..., rest] - regression @ across
        return regression, Full(0.5 * (remaining + remaining.mT))


class Full(Dense):
    """A covariance matrix for each component, `(*batch, k, d, d)`."""

    name = "full"
    _value_axes = 2

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

    def marginal(self, dims: list[int]) -> Dense:
        return Full(self.values[..., dims, :][..., dims])
