"""Covariances of the components of a multivariate mixture: what every kind of them can do.

The kinds are small classes with these methods: full matrices in `dense`, ellipsoids along the axes in `axes`.

A kind holds one tensor of values. Its batch axes and its component axis broadcast against those of the mixture, so that
what is shared is stored, decomposed and differentiated once. Covariances may be singular, down to zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor


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

    @property
    def shared(self) -> bool:
        """Whether the components are known to have one covariance, without looking at the values."""
        return self.shape[-1] == 1 or self.values.stride(len(self.shape) - 1) == 0

    def n_parameters(self, dim: int) -> int:
        """Return how many free numbers there are in one batch element."""
        return (1 if self.shared else self.shape[-1]) * self._n_own(dim)

    def take(self, components: Tensor) -> Self:
        """Return the kind for some components, chosen by a mask `(k,)`."""
        if self.shape[-1] == 1:
            return self  # shared by all
        (index,) = components.nonzero(as_tuple=True)
        return self.like(self.values.index_select(len(self.shape) - 1, index))

    @abstractmethod
    def _n_own(self, dim: int) -> int:
        """Free numbers of one component."""

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
