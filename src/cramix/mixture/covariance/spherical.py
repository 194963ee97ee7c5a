"""One variance for all directions, and none at all."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.diagonal import AxisAligned, DiagonalFamily
from cramix.mixture.covariance.family import Prior
from cramix.mixture.covariance.head import HeadCovariance
from cramix.parameters import POSITIVE


class Spherical(AxisAligned):
    """One variance for all directions, `(*batch, k)`.

    Example:
        >>> Spherical(torch.tensor([1.0, 4.0])).matrices(2)[1]  # k = 2, d = 2
        tensor([[4., 0.],
                [0., 4.]])
    """

    name = "spherical"
    _value_axes = 0

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 1:
            raise ValueError(f"variances must be (*batch, k); got {tuple(self.values.shape)}. Use unsqueeze(-1).")

    def compact(self) -> Tensor:
        return self.values.unsqueeze(-1)

    def _n_each(self, dim: int) -> int:
        return 1

    def marginal(self, dims: list[int]) -> Covariance:
        return self

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        return None, self


class Points(Spherical):
    """Variances that are known to be 0 without reading them, `(1,)`: the components are points."""

    name = "points"

    def check(self) -> None:
        """Zeros need no check."""

    def surely_valid(self) -> Tensor:
        return self.values.new_ones((), dtype=torch.bool)

    def _n_each(self, dim: int) -> int:
        return 0

    def transform(self, matrix: Tensor) -> Covariance:
        return self

    def scale(self, factor: Tensor) -> Self:
        return self


class SphericalFamily(DiagonalFamily):
    """Sums of features for one variance for all directions."""

    kind = Spherical

    def stretched(self, values: Tensor, scales: Tensor) -> Tensor:
        return values * scales[0].square()  # all scales are equal

    def _values(self, weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
        return super()._values(weights, moments, prior).mean(-1)

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return self.dim * (moments.clamp_min(0) + self.floor).mean(-1).log()

    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        variance = values.unsqueeze(-1)
        return means / variance, (-0.5 / variance).expand_as(means), self.dim * values.log()


class SphericalHead(HeadCovariance):
    """One scale for all coordinates, which therefore have one unit."""

    name = "spherical"

    @property
    def n_outputs(self) -> int:
        return 1

    def units(self, scales: Tensor) -> Tensor:
        return scales.square().mean().sqrt().expand(scales.shape).clone()

    def outputs(self, scales: Tensor) -> Tensor:
        return POSITIVE.unconstrain(scales.mean().unsqueeze(0))

    def covariances(self, outputs: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        return Spherical((unit[0] * (least[0] + softplus(outputs.squeeze(-1)))).square())


Spherical.family, Spherical.head = SphericalFamily, SphericalHead
Points.family = Points.head = None
