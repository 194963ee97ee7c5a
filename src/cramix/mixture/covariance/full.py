"""A covariance matrix for each component, and what all kinds with matrices share."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.checks import check_covariances, surely_covariances
from cramix.mixture.components import safe_root
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.cholesky import cholesky, fitted_factors
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
    """A covariance matrix for each component, `(*batch, k, d, d)`.

    Example:
        >>> Full(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])).marginal([1]).values  # k = 1, d = 2
        tensor([[[2.]]])
    """

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

    def surely_valid(self) -> Tensor:
        return surely_covariances(self.values)

    def compact(self) -> Tensor:
        return self.values

    def marginal(self, dims: list[int]) -> Dense:
        return Full(self.values[..., dims, :][..., dims])


class _Triangle(NamedTuple):
    """The upper triangle of `(d, d)` matrices: P = d (d + 1) / 2 entries, row by row.

    Args:
        row: index of each entry, `(P,)`.
        column: index of each entry, `(P,)`.
        flat: index of each entry in a flattened matrix, `(P,)`.
        entry: the entry for each element of a flattened symmetric matrix, `(d^2,)`.
        on_diagonal: 1 for entries on the diagonal, else 0, `(P,)`.
    """

    row: Tensor
    column: Tensor
    flat: Tensor
    entry: Tensor
    on_diagonal: Tensor


@lru_cache(maxsize=32)
def _triangle(dim: int, device: torch.device) -> _Triangle:
    row, column = torch.triu_indices(dim, dim, device=device)
    entry = torch.empty(dim, dim, dtype=torch.int64, device=device)
    entry[row, column] = entry[column, row] = torch.arange(len(row), device=device)
    return _Triangle(row, column, dim * row + column, entry.flatten(), (row == column).double())


class DenseFamily(Family):
    """Sums of features of kinds with matrices: products are those of the upper triangle; abstract."""

    @property
    def pseudo_samples(self) -> float:
        return self.dim + 2.0

    def narrower(self, values: Tensor, variances: Tensor) -> Tensor:
        difference = self.kind(values).matrices(self.dim) - torch.diag_embed(variances)
        return torch.linalg.cholesky_ex(difference).info != 0

    def stretched(self, values: Tensor, scales: Tensor) -> Tensor:
        return scales.unsqueeze(-1) * values * scales

    def forms(self, quadratic: Tensor) -> Tensor:
        """Return the matrices Q `(*, d, d)` whose forms `x^T Q x` have the coefficients `(*, P)`."""
        return self._symmetric((0.5 + 0.5 * self._triangle(quadratic).on_diagonal).to(quadratic) * quadratic)

    def of_matrices(self, covariances: Tensor) -> Tensor:
        return covariances.flatten(-2).index_select(-1, self._triangle(covariances).flat)

    def _products(self, x: Tensor) -> Tensor:
        triangle = self._triangle(x)
        return x.index_select(-1, triangle.row) * x.index_select(-1, triangle.column)

    def _write_products(self, x: Tensor, out: Tensor) -> None:
        first = 0
        for i in range(self.dim):  # much faster than by indices
            last = first + self.dim - i
            torch.mul(x[i], x[i:], out=out[first:last])
            first = last

    def _central(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        means, products = (sums[..., 1:] / sums[..., :1]).split((self.dim, sums.shape[-1] - 1 - self.dim), -1)
        # A difference of large numbers where the data lie far out; rounding must not make it indefinite.
        rounded = torch.addcmul(products, products, self._triangle(sums).on_diagonal, value=self.rounding)
        return means, rounded - self._products(means)

    def _matrices(self, moments: Tensor) -> Tensor:
        matrices = self._symmetric(moments)
        matrices.diagonal(dim1=-2, dim2=-1).mul_(1 + self.rounding).add_(self.floor)
        return matrices

    def _symmetric(self, upper: Tensor) -> Tensor:
        return upper.index_select(-1, self._triangle(upper).entry).unflatten(-1, (self.dim, self.dim))

    def _triangle(self, like: Tensor) -> _Triangle:
        return _triangle(self.dim, like.device)

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return _log_determinant(fitted_factors(self._matrices(moments)))

    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lower = fitted_factors(values)
        precision = torch.cholesky_inverse(lower)
        linear = (precision @ means.unsqueeze(-1)).squeeze(-1)
        # Off the diagonal a product stands for two.
        twice = 0.5 * self._triangle(values).on_diagonal - 1
        return linear, twice * self.of_matrices(precision), _log_determinant(lower)


class FullFamily(DenseFamily):
    """Sums of features for a matrix for each component."""

    kind = Full

    def _values(self, weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
        return self._matrices(shrunk(weights, moments, prior))


def _log_determinant(lower: Tensor) -> Tensor:
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


Full.family = FullFamily
