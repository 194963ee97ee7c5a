"""Covariances of the components of a multivariate mixture: what every kind can do.

A kind holds one tensor of values. Its batch and component axes broadcast against those of the mixture, so that what
components share is stored, decomposed and differentiated once. Covariances may be singular, down to zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cramix.mixture.covariance.family import Family
    from cramix.mixture.covariance.head import HeadCovariance


class Covariance(ABC):
    """Covariances of k components in d dimensions; abstract.

    Args:
        values: the numbers, in the shape that the kind asks for.

    Example:
        >>> from cramix import Diagonal
        >>> variances = Diagonal(torch.ones(3, 2))  # k = 3, d = 2
        >>> variances.shape, variances.matrices(2).shape
        (torch.Size([3]), torch.Size([3, 2, 2]))
    """

    name: ClassVar[str]
    axis_aligned: ClassVar[bool]  # whether all ellipsoids lie along the coordinate axes
    family: ClassVar[type[Family] | None] = None  # for fits by likelihood, where there are some
    head: ClassVar[type[HeadCovariance] | None] = None  # for networks, where there is one
    _value_axes: ClassVar[int]  # axes of the values after the component axis

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.values.shape)})"

    def like(self, values: Tensor) -> Self:
        """Return the same kind with other values."""
        return type(self)(values)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the same kind with a function applied to its values; itself if that changes nothing."""
        values = function(self.values)
        return self if values is self.values else self.like(values)

    @property
    def shape(self) -> torch.Size:
        """What broadcasts against `(*batch, k)`."""
        return self.values.shape[: self.values.ndim - self._value_axes]

    @classmethod
    def values_shape(cls, n_components: int, dim: int) -> tuple[int, ...]:
        """Return the shape of the values without batch."""
        return n_components, *(dim,) * cls._value_axes

    @property
    def shared(self) -> bool:
        """Whether the components are known to have one covariance, without reading the values."""
        return self.shape[-1] == 1 or self.values.stride(len(self.shape) - 1) == 0

    def expand(self, batch: torch.Size) -> Self:
        """Return the kind with all batch axes in its values, sharing memory."""
        trailing = self.values.shape[len(self.shape) - 1 :]
        return self.map(lambda x: x if x.shape == batch + trailing else x.expand(batch + trailing))

    def n_parameters(self, dim: int) -> int:
        """Return the number of free parameters of one batch element."""
        return (1 if self.shared else self.shape[-1]) * self._n_each(dim)

    def take(self, components: Tensor) -> Self:
        """Return the kind for some components, by a mask `(k,)` or by an order `(*batch, k)`."""
        if self.shape[-1] == 1:
            return self  # shared by all
        axis = len(self.shape) - 1
        if components.dtype == torch.bool:
            (index,) = components.nonzero(as_tuple=True)
            return self.like(self.values.index_select(axis, index))
        whole = self.expand(components.shape[:-1]).values
        index = components.reshape(*components.shape, *(1,) * self._value_axes)
        return self.like(whole.take_along_dim(index, components.ndim - 1))

    def scale(self, factor: Tensor) -> Self:
        """Return the covariances of `factor X` for one number, or one for each batch element, `(*batch)`."""
        trailing = self.values.ndim - (len(self.shape) - 1)
        return self.like(factor.square().reshape(*factor.shape, *(1,) * trailing) * self.values)

    @abstractmethod
    def _n_each(self, dim: int) -> int:
        """Return the number of free parameters of one component."""

    @abstractmethod
    def check_shape(self, dim: int) -> None:
        """Raise a ValueError for values of a wrong shape."""

    @abstractmethod
    def check(self) -> None:
        """Raise a ValueError for values that are no covariances."""

    @abstractmethod
    def surely_valid(self) -> Tensor:
        """Return whether the values pass the check for sure, as a tensor: nothing waits for a GPU."""

    @abstractmethod
    def compact(self) -> Tensor:
        """Return matrices `(*batch, k, d, d)`, or for axis-aligned ellipsoids variances `(*batch, k, d or 1)`."""

    @abstractmethod
    def matrices(self, dim: int) -> Tensor:
        """Return covariance matrices, `(*batch, k, d, d)`."""

    @abstractmethod
    def scales_along(self, directions: Tensor) -> Tensor:
        """Return the standard deviations of projections on directions `(t, d)`, `(*batch, k, t)`."""

    @abstractmethod
    def roots(self, dim: int) -> Tensor:
        """Return R with covariance `R R^T`, `(*batch, k, d, d)`; if axis-aligned its diagonal `(*batch, k, d or 1)`."""

    @abstractmethod
    def whiten(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return z with `offset = L z`, `(*, k, d)`, for lower Cholesky factors L, and the log of their diagonals."""

    @abstractmethod
    def transform(self, matrix: Tensor) -> Covariance:
        """Return the covariances of `matrix X` for a matrix `(*batch, m, d)`."""

    @abstractmethod
    def marginal(self, dims: list[int]) -> Covariance:
        """Return the covariances of some coordinates."""

    @abstractmethod
    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        """Return the regression of the rest on the given coordinates, `(*batch, k, rest, given)`, and what remains.

        The regression is None where it is 0.
        """
