"""A covariance matrix for each component, and what all kinds with matrices share."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from cramix.checks import check_covariances
from cramix.mixture.components import safe_root
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.cholesky import cholesky
from cramix.mixture.covariance.family import Family, Prior, shrunk


class Dense(Covariance):
    """Covariances with entries off the diagonal; abstract."""

    axis_aligned = False

    @abstractmethod
    def marginal(self, dims: list[int]) -> Dense: ...

    def lower(self) -> Tensor:
        """Return the lower Cholesky factors `(*batch, k, d, d)`; a ValueError where a covariance is singular."""
        return cholesky(self.compact())

    def _n_each(self, dim: int) -> int:
        return dim * (dim + 1) // 2

    def matrices(self, dim: int) -> Tensor:
        return self.compact()

    def scales_along(self, directions: Tensor) -> Tensor:
        return safe_root(((directions @ self.compact()) * directions).sum(-1))

    def roots(self, dim: int) -> Tensor:
        variances, axes = torch.linalg.eigh(self.compact())
        return axes * variances.clamp_min(0).sqrt().unsqueeze(-2)

    def whiten(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.lower()
        sample = offsets.shape[: offsets.ndim - lower.ndim + 1]
        columns = offsets.reshape(-1, *offsets.shape[len(sample) :]).movedim(0, -1)  # (*batch, k, d, n)
        z = torch.linalg.solve_triangular(lower.expand(*columns.shape[:-1], -1), columns, upper=False)
        return z.movedim(-1, 0).reshape(offsets.shape), lower.diagonal(dim1=-2, dim2=-1).log()

    def transform(self, matrix: Tensor) -> Covariance:
        matrix = matrix.unsqueeze(-3)
        return Full(matrix @ self.compact() @ matrix.mT)

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        matrices = self.compact()
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

    def compact(self) -> Tensor:
        return self.values

    def marginal(self, dims: list[int]) -> Dense:
        return Full(self.values[..., dims, :][..., dims])


class DenseFamily(Family):
    """Sums of features of kinds with matrices: products are those of the upper triangle; abstract."""

    def __init__(self, dim: int, floor: float | Tensor, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dim, floor, dtype)
        self._row, self._column = torch.triu_indices(dim, dim)
        (self._diagonal,) = (self._row == self._column).nonzero(as_tuple=True)

    @property
    def pseudo_samples(self) -> float:
        return self.dim + 2.0

    def stretched(self, values: Tensor, scales: Tensor) -> Tensor:
        return scales.unsqueeze(-1) * values * scales

    def _products(self, x: Tensor) -> Tensor:
        return x[..., self._row] * x[..., self._column]

    def _write_products(self, x: Tensor, out: Tensor) -> None:
        first = 0
        for i in range(self.dim):  # much faster than by indices
            last = first + self.dim - i
            torch.mul(x[i], x[i:], out=out[first:last])
            first = last

    def forms(self, quadratic: Tensor) -> Tensor:
        """Return the matrices Q `(*, d, d)` whose forms `x^T Q x` have the coefficients `(*, P)`."""
        return self._symmetric(torch.where(self._row == self._column, 1, 0.5).to(quadratic) * quadratic)

    def of_matrices(self, covariances: Tensor) -> Tensor:
        return covariances[..., self._row, self._column]

    def _central(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        means, moments = super()._central(sums)
        # A difference of large numbers where the data lie far out; rounding must not make it indefinite.
        moments[..., self._diagonal] += self._rounding * (means.square() + moments[..., self._diagonal])
        return means, moments

    def _matrices(self, moments: Tensor) -> Tensor:
        matrices = self._symmetric(moments)
        matrices.diagonal(dim1=-2, dim2=-1).add_(self.floor)
        return matrices

    def _symmetric(self, upper: Tensor) -> Tensor:
        matrices = upper.new_empty(*upper.shape[:-1], self.dim, self.dim)
        matrices[..., self._row, self._column] = upper
        matrices[..., self._column, self._row] = upper
        return matrices

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return _log_determinant(torch.linalg.cholesky(self._matrices(moments)))

    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lower = torch.linalg.cholesky(values)
        precision = torch.cholesky_inverse(lower)
        linear = (precision @ means.unsqueeze(-1)).squeeze(-1)
        # Off the diagonal a product stands for two.
        twice = torch.where(self._row == self._column, -0.5, -1.0).to(values.device)
        return linear, twice * self.of_matrices(precision), _log_determinant(lower)


class FullFamily(DenseFamily):
    """Sums of features for a matrix for each component."""

    kind = Full

    def _values(self, weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
        return self._matrices(shrunk(weights, moments, prior))


def _log_determinant(lower: Tensor) -> Tensor:
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


Full.family = FullFamily
