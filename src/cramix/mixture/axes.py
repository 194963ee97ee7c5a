"""Kinds of covariances whose ellipsoids lie along the coordinate axes: variances, one variance, none."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_variances
from cramix.mixture.components import safe_root
from cramix.mixture.covariance import Covariance
from cramix.mixture.dense import Full


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

    def _n_own(self, dim: int) -> int:
        return dim

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

    def _n_own(self, dim: int) -> int:
        return 1

    def marginal(self, dims: list[int]) -> Covariance:
        return self

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self


class Points(Spherical):
    """No spread at all: the components are points, known to be without looking at the zeros, `(1,)`."""

    name = "points"

    def check(self) -> None:
        """Zeros need no check."""

    def _n_own(self, dim: int) -> int:
        return 0

    def transform(self, matrix: Tensor) -> Covariance:
        return self
