"""What likelihood fits need of a covariance kind: sums of features, the sufficient statistics of a component.

A component is the sums of 1, of the coordinates and of their products over its share of the data. Its weight, mean and
covariance follow from them, the log density is linear in these features, and two components merge by adding their sums,
which preserves all moments. Everything has leading batch axes, so that many fits run at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from cramix.mixture.covariance.base import Covariance

A = TypeVar("A", Tensor, np.ndarray)
_LOG_2PI = math.log(2 * math.pi)


class Prior(NamedTuple):
    """Pseudo-samples of every component, which keep it from collapsing while there are too many components.

    Args:
        weight: of these samples relative to all data, `(B, 1, 1)`: one number for each fit.
        moments: their products of coordinates around the component's mean, `(P,)`.
    """

    weight: Tensor
    moments: Tensor


class Family(ABC):
    """Mixtures in d dimensions with one kind of covariances; abstract.

    Args:
        dim: d.
        floor: added to every variance, so that none collapses to 0; one number, or one for each coordinate, `(d,)`.
        dtype: of the sums; its rounding error must not make covariances indefinite.
    """

    kind: ClassVar[type[Covariance]]

    def __init__(self, dim: int, floor: float | Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.dim, self.floor = dim, floor
        self._rounding = 16 * dim * torch.finfo(dtype).eps

    @property
    def count(self) -> int:
        """The number of features, F."""
        return 1 + self.dim + self._products(torch.zeros(self.dim)).shape[-1]

    def features(self, x: Tensor, covariances: Tensor | None = None) -> Tensor:
        """Return `(n, F)`: 1, the coordinates of x, `(n, d)`, and their products.

        For normal components with means x and covariances `(n or 1, d, d)` these are expected values.
        """
        products = self._products(x)
        if covariances is not None:
            products = products + self._of_matrices(covariances)
        return torch.cat((x.new_ones(len(x), 1), x, products), -1)

    def sums(self, weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
        """Return the sums of features of components, `(*, k, F)`, with covariances `(*, k, d, d)`."""
        weights = weights.unsqueeze(-1)
        moments = self._of_matrices(covariances) + self._products(means)
        return torch.cat((weights, weights * means, weights * moments), -1)

    def prior(self, weight: Tensor, covariance: Tensor) -> Prior:
        """Return the prior with weights `(B,)` and a covariance matrix."""
        return Prior(weight[:, None, None], self._of_matrices(covariance))

    def parameters(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights `(*, k)`, means `(*, k, d)` and values of the kind, with the floor added."""
        weights = sums[..., :1]
        means, moments = self._central(sums, prior)
        counting = weights if prior is None else weights + prior.weight
        return weights.squeeze(-1) / weights.sum(-2), means, self._values(counting, moments)

    def coefficients(self, weights: Tensor, means: Tensor, values: Tensor) -> Tensor:
        """Return the coefficients of log(weight * density) in the features, `(*, k, F)`."""
        linear, quadratic, log_determinant = self._precision(means, values)
        constant = weights.log() - 0.5 * (log_determinant + self.dim * _LOG_2PI + (linear * means).sum(-1))
        return torch.cat((constant.unsqueeze(-1), linear, quadratic), -1)

    def merge_costs(self, sums: Tensor, prior: Prior | None = None) -> Tensor:
        """Return Runnalls' cost of merging each pair of k components, `(*, k (k - 1) / 2)`, in the order of `pairs`."""
        first, second = self.pairs(sums.shape[-2])
        each = sums[..., 0] * self._log_determinants(sums, prior)
        both = sums[..., first, :] + sums[..., second, :]
        merged = both[..., 0] * self._log_determinants(both, prior)
        return runnalls_cost(merged, each[..., first], each[..., second])

    @staticmethod
    def pairs(k: int) -> Tensor:
        """Return the indices of the first and the second component of each pair, `(2, k (k - 1) / 2)`."""
        return torch.triu_indices(k, k, 1)

    def least_variances(self, values: Tensor) -> Tensor:
        """Return the smallest variance of each component in any direction, `(*, k)`; `(*, 1)` if they share it."""
        return torch.linalg.eigvalsh(self.kind(values).matrices(self.dim))[..., 0]

    def collapsed(self, means: Tensor, values: Tensor, narrow: float = 1e-6) -> Tensor:
        """Return which components have less variance in some direction than `narrow`, not counting the floor, `(*, k)`.

        Far from the origin, variances below the rounding error of the moments count as 0.
        """
        added = torch.as_tensor(self.floor, dtype=values.dtype, device=values.device).expand(self.dim)
        without = self.kind(values).matrices(self.dim) - torch.diag_embed(added)
        return torch.linalg.eigvalsh(without)[..., 0] < narrow + 2 * self._rounding * means.square().amax(-1)

    def _log_determinants(self, sums: Tensor, prior: Prior | None) -> Tensor:
        return self._log_determinant(self._central(sums, prior)[1])

    def _central(self, sums: Tensor, prior: Prior | None) -> tuple[Tensor, Tensor]:
        """Return means `(*, d)` and central moments `(*, P)`."""
        weights = sums[..., :1]
        means, moments = (sums[..., 1:] / weights).split((self.dim, sums.shape[-1] - 1 - self.dim), -1)
        moments = moments - self._products(means)
        if prior is None:
            return means, moments
        return means, (weights * moments + prior.weight * prior.moments) / (weights + prior.weight)

    @abstractmethod
    def stretched(self, values: Tensor, scales: Tensor) -> Tensor:
        """Return the values of the kind after a multiplication of the coordinates by scales `(d,)`."""

    @abstractmethod
    def _products(self, x: Tensor) -> Tensor:
        """Return products of coordinates, `(*, P)`."""

    @abstractmethod
    def _of_matrices(self, covariances: Tensor) -> Tensor:
        """Return the entries of covariances `(*, d, d)` that belong to the products, `(*, P)`."""

    @abstractmethod
    def _values(self, weights: Tensor, moments: Tensor) -> Tensor:
        """Return values of the kind from weights `(*, k, 1)`, including the prior, and central moments `(*, k, P)`."""

    @abstractmethod
    def _log_determinant(self, moments: Tensor) -> Tensor:
        """Return the log determinant of each component alone, from central moments `(*, P)`."""

    @abstractmethod
    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the coefficients of coordinates and of products, and the log determinant."""


def runnalls_cost(merged: A, first: A, second: A) -> A:
    """Return Runnalls' cost of a merge from `weight * log|covariance|` of the merged and of both components."""
    return 0.5 * (merged - first - second)
