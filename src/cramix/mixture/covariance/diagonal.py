"""Variances along the coordinate axes, and what all kinds along these axes share."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from cramix.checks import check_nonnegative
from cramix.mixture.components import safe_root
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.family import Family, Prior, shrunk
from cramix.mixture.covariance.full import Full
from cramix.mixture.covariance.head import HeadCovariance
from cramix.parameters import POSITIVE


class AxisAligned(Covariance):
    """Covariances without entries off the diagonal; abstract."""

    axis_aligned = True

    def check(self) -> None:
        check_nonnegative(variances=self.values)

    def surely_valid(self) -> Tensor:
        return ((self.values >= 0) & self.values.isfinite()).all()

    def matrices(self, dim: int) -> Tensor:
        variances = self.compact()
        return torch.diag_embed(variances.expand(*variances.shape[:-1], dim))

    def scales_along(self, directions: Tensor) -> Tensor:
        return safe_root((self.compact().unsqueeze(-2) * directions.square()).sum(-1))

    def roots(self, dim: int) -> Tensor:
        return self.compact().sqrt()

    def whiten(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        scales = self.compact().sqrt()
        return offsets / scales, scales.log().expand(*scales.shape[:-1], offsets.shape[-1])

    def transform(self, matrix: Tensor) -> Covariance:
        scaled = matrix.unsqueeze(-3) * self.compact().unsqueeze(-2)
        return Full(scaled @ matrix.unsqueeze(-3).mT)


class Diagonal(AxisAligned):
    """Variances along the coordinate axes, `(*batch, k, d)`.

    Example:
        >>> Diagonal(torch.tensor([[1.0, 4.0]])).matrices(2)  # k = 1, d = 2
        tensor([[[1., 0.],
                 [0., 4.]]])
    """

    name = "diag"
    _value_axes = 1

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 2 or self.values.shape[-1] != dim:
            raise ValueError(
                f"variances must be (*batch, k, {dim}) for means in {dim} dimensions; got {tuple(self.values.shape)}. "
                "For one variance for each component see Spherical."
            )

    def compact(self) -> Tensor:
        return self.values

    def _n_each(self, dim: int) -> int:
        return dim

    def marginal(self, dims: list[int]) -> Covariance:
        return Diagonal(self.values[..., dims])

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self.marginal(rest)


class DiagonalFamily(Family):
    """Sums of features for variances along the coordinate axes: products are squares."""

    kind: ClassVar[type[Covariance]] = Diagonal

    @property
    def pseudo_samples(self) -> float:
        return 3.0

    def narrower(self, values: Tensor, variances: Tensor) -> Tensor:
        return (self.kind(values).compact() < variances).any(-1)

    def stretched(self, values: Tensor, scales: Tensor) -> Tensor:
        return values * scales.square()

    def _products(self, x: Tensor) -> Tensor:
        return x.square()

    def _write_products(self, x: Tensor, out: Tensor) -> None:
        torch.square(x, out=out)

    def of_matrices(self, covariances: Tensor) -> Tensor:
        return covariances.diagonal(dim1=-2, dim2=-1)

    def _values(self, weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
        return shrunk(weights, moments, prior).clamp_min(0) + self.floor

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return (moments.clamp_min(0) + self.floor).log().sum(-1)

    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return means / values, -0.5 / values, values.log().sum(-1)


class DiagonalHead(HeadCovariance):
    """A scale for each coordinate."""

    name = "diag"

    @property
    def n_outputs(self) -> int:
        return self.dim

    def outputs(self, scales: Tensor) -> Tensor:
        return POSITIVE.unconstrain(scales)

    def covariances(self, outputs: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        return Diagonal((unit * (least + softplus(outputs))).square())


Diagonal.family, Diagonal.head = DiagonalFamily, DiagonalHead
