"""Variances along the coordinate axes, and what all kinds along these axes share."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_variances
from cramix.mixture.components import safe_root
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.full import Full


class AxisAligned(Covariance):
    """Covariances without entries off the diagonal; abstract."""

    axis_aligned = True

    def check(self) -> None:
        check_variances(self.values)

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


class Diagonal(AxisAligned):
    """Variances along the coordinate axes, `(*batch, k, d)`."""

    name = "diag"
    _value_axes = 1

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 2 or self.values.shape[-1] != dim:
            raise ValueError(
                f"variances must be (*batch, k, {dim}) for means in {dim} dimensions; got {tuple(self.values.shape)}. "
                "For one variance for each component see Spherical."
            )

    def spread(self) -> Tensor:
        return self.values

    def _n_each(self, dim: int) -> int:
        return dim

    def marginal(self, dims: list[int]) -> Covariance:
        return Diagonal(self.values[..., dims])

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self.marginal(rest)
