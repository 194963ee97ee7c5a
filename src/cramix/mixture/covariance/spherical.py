"""One variance for all directions, and none at all."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.diagonal import AxisAligned


class Spherical(AxisAligned):
    """One variance for all directions, `(*batch, k)`."""

    name = "spherical"
    _value_axes = 0

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 1:
            raise ValueError(f"variances must be (*batch, k); got {tuple(self.values.shape)}. Use unsqueeze(-1).")

    def spread(self) -> Tensor:
        return self.values.unsqueeze(-1)

    def _n_each(self, dim: int) -> int:
        return 1

    def marginal(self, dims: list[int]) -> Covariance:
        return self

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self


class Points(Spherical):
    """Variances that are known to be 0 without a look at them, `(1,)`: the components are points."""

    name = "points"

    def check(self) -> None:
        """Zeros need no check."""

    def _n_each(self, dim: int) -> int:
        return 0

    def transform(self, matrix: Tensor) -> Covariance:
        return self

    def scale(self, factor: Tensor) -> Self:
        return self
