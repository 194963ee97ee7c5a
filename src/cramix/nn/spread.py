"""Covariances of a head: from free numbers, `(*batch, k, n_free)`, to a kind of covariances, with a least scale.

A kind is a small class with the same methods as its siblings. Scales are a floor and the softplus of free numbers,
which never changes faster than they do, so gradients stay bounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from cramix.mixture import Covariance, Diagonal, Factor, Spherical
from cramix.parameters import POSITIVE


class Spread(ABC):
    """Covariances in d dimensions; abstract."""

    name: ClassVar[str]

    def __init__(self, dim: int, rank: int) -> None:
        self.dim, self.rank = dim, rank

    @property
    @abstractmethod
    def n_free(self) -> int:
        """How many free numbers a component has."""

    def units(self, scales: Tensor) -> Tensor:
        """Return the unit of each coordinate, `(d,)`, for targets with these standard deviations, `(d,)`."""
        return scales

    @abstractmethod
    def free(self, scales: Tensor) -> Tensor:
        """Return free numbers `(n_free,)` of a component with these scales above the floor, `(d,)`, in units."""

    @abstractmethod
    def covariances(self, free: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        """Return covariances for free numbers `(*batch, k, n_free)`, a floor of scales in units `(d,)`, and units."""


class DiagonalSpread(Spread):
    """A scale for each coordinate."""

    name = "diag"

    @property
    def n_free(self) -> int:
        """One a coordinate."""
        return self.dim

    def free(self, scales: Tensor) -> Tensor:
        """Invert the softplus."""
        return POSITIVE.unconstrain(scales)

    def scales(self, free: Tensor, least: Tensor, unit: Tensor) -> Tensor:
        """Return scales `(*batch, k, d)`."""
        return unit * (least + softplus(free))

    def covariances(self, free: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        """Square the scales."""
        return Diagonal(self.scales(free, least, unit).square())


class SphericalSpread(Spread):
    """One scale for all coordinates, which therefore have one unit."""

    name = "spherical"

    @property
    def n_free(self) -> int:
        """One."""
        return 1

    def units(self, scales: Tensor) -> Tensor:
        """Return the same for all: the root of the mean variance."""
        return scales.square().mean().sqrt().expand(scales.shape).clone()

    def free(self, scales: Tensor) -> Tensor:
        """Invert the softplus of the mean."""
        return POSITIVE.unconstrain(scales.mean().unsqueeze(0))

    def covariances(self, free: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        """Square the scales."""
        return Spherical((unit[0] * (least[0] + softplus(free.squeeze(-1)))).square())


class LowRankSpread(Spread):
    """A scale for each coordinate, and a few directions in which there is more: covariances `D + V V^T`."""

    name = "low_rank"

    @property
    def n_free(self) -> int:
        """Scales, and as many vectors as the rank."""
        return self.dim * (1 + self.rank)

    def free(self, scales: Tensor) -> Tensor:
        """Begin without further directions, but not at zero, where all of them would move alike."""
        signs = scales.new_ones(self.rank, self.dim)
        signs.view(-1)[1::2] = -1
        return torch.cat((POSITIVE.unconstrain(scales), (0.1 * scales * signs).flatten()))

    def covariances(self, free: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        """Put diagonal and vectors below each other, the factor S of `S^T S`."""
        diagonal = torch.diag_embed(least + softplus(free[..., : self.dim]))
        vectors = free[..., self.dim :].unflatten(-1, (self.rank, self.dim))
        return Factor(unit * torch.cat((diagonal, vectors), -2))


class FullSpread(Spread):
    """Lower triangular factors, `L L^T`."""

    name = "full"

    @property
    def n_free(self) -> int:
        """The lower triangle."""
        return self.dim * (self.dim + 1) // 2

    def free(self, scales: Tensor) -> Tensor:
        """Begin with a diagonal."""
        return torch.cat((POSITIVE.unconstrain(scales), scales.new_zeros(self.n_free - self.dim)))

    def covariances(self, free: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        """Fill the triangle: first its diagonal, then the rest, row by row."""
        below = free[..., self.dim :].split(list(range(1, self.dim)), -1)  # a row each
        rows = [pad(row, (0, self.dim - row.shape[-1])) for row in (free[..., :0], *below)]
        lower = torch.stack(rows, -2) + torch.diag_embed(least + softplus(free[..., : self.dim]))
        return Factor.from_scale_tril(unit.unsqueeze(-1) * lower)


SPREADS: dict[str, type[Spread]] = {s.name: s for s in (DiagonalSpread, FullSpread, SphericalSpread, LowRankSpread)}
