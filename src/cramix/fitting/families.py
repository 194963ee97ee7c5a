"""What likelihood fits need of data, one class a kind of covariances: sums of features, which are the state of a fit.

A component is the sums of 1, of the coordinates and of their products over its share of the data. Its weight, mean and
covariance follow from them, the log density is linear in these features, and two components merge by adding their sums,
which keeps all moments. Everything has leading batch axes, so that many fits run at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from cramix.mixture import Diagonal, Full, Spherical, Tied
from cramix.mixture.covariance import Covariance

A = TypeVar("A", Tensor, np.ndarray)
_LOG_2PI = math.log(2 * math.pi)


class Prior(NamedTuple):
    """Samples that every component has beside its own, which keep it from collapsing while there are too many.

    Args:
        weight: of these samples, as a part of all data, `(B, 1, 1)`: one number a fit.
        moments: their products of coordinates around the component's mean, `(P,)`.
    """

    weight: Tensor
    moments: Tensor


class Family(ABC):
    """Mixtures in d dimensions with one kind of covariances; abstract.

    Args:
        dim: d.
        floor: what is added to every variance, so that none collapses to 0; one number, or one a coordinate, `(d,)`.
        dtype: in which sums are taken; its rounding may not make covariances indefinite either.
    """

    kind: type[Covariance]

    def __init__(self, dim: int, floor: float | Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.dim, self.floor = dim, floor
        self._rounding = 16 * dim * torch.finfo(dtype).eps

    @property
    def count(self) -> int:
        """How many features there are, F."""
        return 1 + self.dim + self._products(torch.zeros(self.dim)).shape[-1]

    def features(self, x: Tensor, spread: Tensor | None = None) -> Tensor:
        """Return `(n, F)`: 1, the coordinates of x, `(n, d)`, and their products; their means if x has a spread."""
        products = self._products(x)
        if spread is not None:
            products = products + self._of_matrices(spread)
        return torch.cat((x.new_ones(len(x), 1), x, products), -1)

    def sums(self, weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
        """Return the sums of features of components, `(*, k, F)`, with covariances `(*, k, d, d)`."""
        weights = weights.unsqueeze(-1)
        moments = self._of_matrices(covariances) + self._products(means)
        return torch.cat((weights, weights * means, weights * moments), -1)

    def prior(self, weight: Tensor, covariance: Tensor) -> Prior:
        """Return the prior of weights `(B,)` and a covariance matrix."""
        return Prior(weight[:, None, None], self._of_matrices(covariance))

    def parameters(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights `(*, k)`, means `(*, k, d)` and what `kind` holds, with the floor added."""
        weights = sums[..., :1]
        means, moments = self._central(sums, prior)
        counting = weights if prior is None else weights + prior.weight
        return weights.squeeze(-1) / weights.sum(-2), means, self._spread(counting, moments)

    def coefficients(self, weights: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """Return what the log of weight times density is in the features, `(*, k, F)`, of what `parameters` gives."""
        linear, quadratic, log_determinant = self._precision(means, spread)
        constant = weights.log() - 0.5 * (log_determinant + self.dim * _LOG_2PI + (linear * means).sum(-1))
        return torch.cat((constant.unsqueeze(-1), linear, quadratic), -1)

    def merge_costs(self, sums: Tensor, prior: Prior | None = None) -> Tensor:
        """Return how much merging each two of k components costs, `(*, k (k - 1) / 2)`, in the order of `pairs`.

        It is Runnalls' bound of the divergence.
        """
        first, second = self.pairs(sums.shape[-2])
        each = sums[..., 0] * self._log_determinants(sums, prior)
        both = sums[..., first, :] + sums[..., second, :]
        merged = both[..., 0] * self._log_determinants(both, prior)
        return runnalls_cost(merged, each[..., first], each[..., second])

    @staticmethod
    def pairs(k: int) -> Tensor:
        """Return the numbers of the first and of the second component of each pair, `(2, k (k - 1) / 2)`."""
        return torch.triu_indices(k, k, 1)

    def _log_determinants(self, sums: Tensor, prior: Prior | None) -> Tensor:
        """Each component by itself."""
        return self._log_determinant(self._central(sums, prior)[1])

    def least_variances(self, spread: Tensor) -> Tensor:
        """Return the least variance of each component in any direction, `(*, k)`, or of all if they share it."""
        return torch.linalg.eigvalsh(self.kind(spread).matrices(self.dim))[..., 0]

    def collapsed(self, means: Tensor, spread: Tensor, narrow: float = 1e-6) -> Tensor:
        """Return which components have less variance in some direction than `narrow`, apart from the floor, `(*, k)`.

        Far from the origin, variances below the rounding error of the moments count as none.
        """
        added = torch.as_tensor(self.floor, dtype=spread.dtype, device=spread.device).expand(self.dim)
        own = self.kind(spread).matrices(self.dim) - torch.diag_embed(added)
        return torch.linalg.eigvalsh(own)[..., 0] < narrow + 2 * self._rounding * means.square().amax(-1)

    def _central(self, sums: Tensor, prior: Prior | None) -> tuple[Tensor, Tensor]:
        """Return means `(*, d)` and central moments `(*, P)`."""
        weights = sums[..., :1]
        means, moments = (sums[..., 1:] / weights).split((self.dim, sums.shape[-1] - 1 - self.dim), -1)
        moments = moments - self._products(means)
        if prior is None:
            return means, moments
        return means, (weights * moments + prior.weight * prior.moments) / (weights + prior.weight)

    @abstractmethod
    def stretched(self, spread: Tensor, scales: Tensor) -> Tensor:
        """Return what `kind` holds when coordinates are multiplied by scales `(d,)`."""

    @abstractmethod
    def _products(self, x: Tensor) -> Tensor:
        """Products of coordinates, `(*, P)`."""

    @abstractmethod
    def _of_matrices(self, covariances: Tensor) -> Tensor:
        """The same of covariances `(*, d, d)`."""

    @abstractmethod
    def _spread(self, weights: Tensor, moments: Tensor) -> Tensor:
        """From weights `(*, k, 1)`, with those of a prior, and central moments `(*, k, P)` to what the kind holds."""

    @abstractmethod
    def _log_determinant(self, moments: Tensor) -> Tensor:
        """Of components with central moments `(*, P)`, one by one."""

    @abstractmethod
    def _precision(self, means: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients of coordinates and of products, and the log determinant."""


class _Dense(Family):
    """What kinds with full matrices share: products are those of the upper triangle."""

    def __init__(self, dim: int, floor: float | Tensor, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dim, floor, dtype)
        self._row, self._column = torch.triu_indices(dim, dim)
        (self._diagonal,) = (self._row == self._column).nonzero(as_tuple=True)

    def stretched(self, spread: Tensor, scales: Tensor) -> Tensor:
        return scales.unsqueeze(-1) * spread * scales

    def _products(self, x: Tensor) -> Tensor:
        return x[..., self._row] * x[..., self._column]

    def _of_matrices(self, covariances: Tensor) -> Tensor:
        return covariances[..., self._row, self._column]

    def _central(self, sums: Tensor, prior: Prior | None) -> tuple[Tensor, Tensor]:
        means, moments = super()._central(sums, prior)
        # The difference of two large numbers where the data lie far out; rounding may not make it indefinite.
        moments[..., self._diagonal] += self._rounding * (means.square() + moments[..., self._diagonal])
        return means, moments

    def _matrices(self, moments: Tensor) -> Tensor:
        matrices = moments.new_empty(*moments.shape[:-1], self.dim, self.dim)
        matrices[..., self._row, self._column] = moments
        matrices[..., self._column, self._row] = moments
        matrices.diagonal(dim1=-2, dim2=-1).add_(self.floor)
        return matrices

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return _log_determinant(torch.linalg.cholesky(self._matrices(moments)))

    def _precision(self, means: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lower = torch.linalg.cholesky(spread)
        precision = torch.cholesky_inverse(lower)
        linear = (precision @ means.unsqueeze(-1)).squeeze(-1)
        # Off the diagonal a product stands for two.
        twice = torch.where(self._row == self._column, -0.5, -1.0).to(spread.device)
        return linear, twice * self._of_matrices(precision), _log_determinant(lower)


class FullFamily(_Dense):
    """A covariance matrix each."""

    kind = Full

    def _spread(self, weights: Tensor, moments: Tensor) -> Tensor:
        return self._matrices(moments)


class TiedFamily(_Dense):
    """One covariance matrix for all."""

    kind = Tied

    def _spread(self, weights: Tensor, moments: Tensor) -> Tensor:
        return self._matrices((weights * moments).sum(-2) / weights.sum(-2))

    def _precision(self, means: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        linear, quadratic, log_determinant = super()._precision(means, spread.unsqueeze(-3))
        return linear, quadratic.expand(*means.shape[:-1], -1), log_determinant

    def merge_costs(self, sums: Tensor, prior: Prior | None = None) -> Tensor:
        """Return how much the common covariance grows: `1/2 log(1 + w delta^T C^-1 delta)`."""
        weights, means, spread = self.parameters(sums, prior)
        lower = torch.linalg.cholesky(spread).unsqueeze(-3)
        white = torch.linalg.solve_triangular(lower, means.unsqueeze(-1), upper=False).squeeze(-1)
        first, second = self.pairs(sums.shape[-2])
        share = weights[..., first] * weights[..., second] / (weights[..., first] + weights[..., second])
        return 0.5 * torch.log1p(share * (white[..., first, :] - white[..., second, :]).square().sum(-1))


class DiagonalFamily(Family):
    """Variances along the coordinate axes."""

    kind = Diagonal

    def stretched(self, spread: Tensor, scales: Tensor) -> Tensor:
        """Multiply variances."""
        return spread * scales.square()

    def _products(self, x: Tensor) -> Tensor:
        return x.square()

    def _of_matrices(self, covariances: Tensor) -> Tensor:
        return covariances.diagonal(dim1=-2, dim2=-1)

    def _spread(self, weights: Tensor, moments: Tensor) -> Tensor:
        return moments.clamp_min(0) + self.floor

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return (moments.clamp_min(0) + self.floor).log().sum(-1)

    def _precision(self, means: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return means / spread, -0.5 / spread, spread.log().sum(-1)


class SphericalFamily(DiagonalFamily):
    """One variance for all directions."""

    kind = Spherical  # type: ignore[assignment]

    def stretched(self, spread: Tensor, scales: Tensor) -> Tensor:
        """Multiply variances by the square of the one scale there is."""
        return spread * scales[0].square()

    def _spread(self, weights: Tensor, moments: Tensor) -> Tensor:
        return super()._spread(weights, moments).mean(-1)

    def _log_determinant(self, moments: Tensor) -> Tensor:
        return self.dim * self._spread(moments, moments).log()

    def _precision(self, means: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        variance = spread.unsqueeze(-1)
        return means / variance, (-0.5 / variance).expand_as(means), self.dim * spread.log()


FAMILIES: dict[str, type[Family]] = {
    "full": FullFamily,
    "tied": TiedFamily,
    "diag": DiagonalFamily,
    "spherical": SphericalFamily,
}


def runnalls_cost(merged: A, first: A, second: A) -> A:
    """Return Runnalls' cost of a merge from `weight * log|covariance|` of the merged and of both components."""
    return 0.5 * (merged - first - second)


def _log_determinant(lower: Tensor) -> Tensor:
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
