"""What likelihood fits need of a covariance kind: sums of features, the sufficient statistics of a component.

A component is the sums of 1, of the coordinates and of their products over its share of the data. Its weight, mean and
covariance follow from them, the log density is linear in these features, and two components merge by adding their sums,
which preserves all moments. Everything has leading batch axes, so that many fits run at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from cramix.mixture.covariance.base import Covariance

A = TypeVar("A", Tensor, np.ndarray)
_LOG_2PI = math.log(2 * math.pi)


class Prior(NamedTuple):
    """Pseudo-samples of every component, which keep its covariance near a common one.

    Args:
        weight: of these samples relative to all data, `(B, 1, 1)`: one number for each fit, which may be infinite.
        moments: their products of coordinates around the component's mean, `(*, P)`; None for those of the covariance
            that a family shrinks to, see `Family.pooled`.
    """

    weight: Tensor
    moments: Tensor | None


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
        self.rounding = 16 * dim * torch.finfo(dtype).eps

    @cached_property
    def count(self) -> int:
        """The number of features, F."""
        return 1 + self.dim + len(self._products(torch.zeros(self.dim)))

    def n_parameters(self, k: int) -> int:
        """Return the number of free parameters of a mixture of k components."""
        kind = self.kind(torch.empty(self.kind.values_shape(k, self.dim)))
        return k - 1 + k * self.dim + kind.n_parameters(self.dim)

    def effective_parameters(self, counts: Tensor, strength: float) -> float:
        """Return the number of free parameters if components of `counts` samples, `(k,)`, are shrunk with a strength.

        A covariance that is half its own counts half; what components share counts once.
        """
        own = counts / (counts + strength * self.pseudo_samples)
        each = self.n_parameters(1) - self.dim
        return len(counts) * (1 + self.dim) - 1 + each * (own.sum() + 1 - own.mean()).item()

    def features(self, x: Tensor, covariances: Tensor | None = None) -> Tensor:
        """Return `(F, n)`: 1, the coordinates of x, `(n, d)`, and their products.

        For normal components with means x and covariances `(n or 1, d, d)` these are expected values.
        """
        features = x.new_empty(self.count, len(x))
        features[0] = 1
        features[1 : 1 + self.dim] = x.T
        self._write_products(features[1 : 1 + self.dim], features[1 + self.dim :])
        if covariances is not None:
            features[1 + self.dim :] += self.of_matrices(covariances).T
        return features

    def sums(self, weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
        """Return the sums of features of components, `(*, k, F)`, with covariances `(*, k, d, d)`."""
        weights = weights.unsqueeze(-1)
        moments = self.of_matrices(covariances) + self._products(means)
        return torch.cat((weights, weights * means, weights * moments), -1)

    def prior(self, weight: Tensor, covariance: Tensor) -> Prior:
        """Return the prior with weights `(B,)` and covariance matrices `(d, d)` or `(B, 1, d, d)`."""
        return Prior(weight[:, None, None], self.of_matrices(covariance))

    def shrinkage(self, strength: Tensor, n: float) -> Prior:
        """Return the prior that shrinks the covariances of fits to n samples, with strengths `(B,)`."""
        return Prior((strength * self.pseudo_samples / n)[:, None, None], None)

    def completed(self, prior: Prior | None, sums: Tensor) -> Prior | None:
        """Return the prior with the moments that it has for fits with sums `(B, k, F)`."""
        return self._completed(prior, sums[..., :1], self._central(sums)[1])

    def parameters(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights `(*, k)`, means `(*, k, d)` and values of the kind, with the floor added."""
        weights = sums[..., :1]
        means, moments = self._central(sums)
        prior = self._completed(prior, weights, moments)
        return weights.squeeze(-1) / weights.sum(-2), means, self._values(weights, moments, prior)

    def coefficients(self, weights: Tensor, means: Tensor, values: Tensor) -> Tensor:
        """Return the coefficients of log(weight * density) in the features, `(*, k, F)`."""
        linear, quadratic, log_determinant = self._precision(means, values)
        constant = weights.log() - 0.5 * (log_determinant + self.dim * _LOG_2PI + (linear * means).sum(-1))
        return torch.cat((constant.unsqueeze(-1), linear, quadratic), -1)

    def merge_costs(self, sums: Tensor, prior: Prior | None = None) -> Tensor:
        """Return Runnalls' cost of merging each pair of k components, `(*, k (k - 1) / 2)`, in the order of `pairs`."""
        first, second = self.pairs(sums.shape[-2], sums.device)
        prior = self.completed(prior, sums)
        each = sums[..., 0] * self._log_determinants(sums, prior)
        both = sums[..., first, :] + sums[..., second, :]
        merged = both[..., 0] * self._log_determinants(both, prior)
        return runnalls_cost(merged, each[..., first], each[..., second])

    def log_prior(self, means: Tensor, values: Tensor, prior: Prior) -> Tensor:
        """Return the mean log density of the pseudo-samples of a prior with moments, less that under its own, `(B,)`.

        EM with the prior raises the sum of this and the log likelihood.
        """
        assert prior.moments is not None
        _, quadratic, log_determinant = self._precision(means, values)
        own = self._log_determinant(prior.moments) + self.dim
        each = (quadratic * prior.moments).sum(-1) + 0.5 * (own - log_determinant)
        return prior.weight[:, 0, 0] * each.expand(means.shape[:-1]).sum(-1)

    @staticmethod
    def pairs(k: int, device: torch.device | None = None) -> Tensor:
        """Return the indices of the first and the second component of each pair, `(2, k (k - 1) / 2)`."""
        return torch.triu_indices(k, k, 1, device=device)

    def collapsed(self, means: Tensor, values: Tensor, narrow: float = 1e-6) -> Tensor:
        """Return which components have less variance in some direction than `narrow`, not counting the floor, `(*, k)`.

        Far from the origin, variances below the rounding error of the moments count as 0.
        """
        floor = torch.as_tensor(self.floor, dtype=values.dtype, device=values.device)
        rounding = 2 * self.rounding * means.square().amax(-1, keepdim=True)
        return self.narrower(values, (floor + narrow + rounding).expand_as(means))

    @abstractmethod
    def narrower(self, values: Tensor, variances: Tensor) -> Tensor:
        """Return which components, `(*, k)`, have in some direction less than variances along the axes, `(*, k, d)`."""

    def _log_determinants(self, sums: Tensor, prior: Prior | None) -> Tensor:
        _, moments = self._central(sums)
        return self._log_determinant(shrunk(sums[..., :1], moments, prior))

    def _central(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return means `(*, d)` and central moments `(*, P)`."""
        means, moments = (sums[..., 1:] / sums[..., :1]).split((self.dim, sums.shape[-1] - 1 - self.dim), -1)
        return means, moments - self._products(means)

    def _completed(self, prior: Prior | None, weights: Tensor, moments: Tensor) -> Prior | None:
        if prior is None or prior.moments is not None:
            return prior
        return prior._replace(moments=self.pooled(weights, moments))

    def pooled(self, weights: Tensor, moments: Tensor) -> Tensor:
        """Return the central moments `(*, 1, P)` to which those of components, `(*, k, P)`, are shrunk: their mean."""
        return (weights * moments).sum(-2, keepdim=True) / weights.sum(-2, keepdim=True)

    @abstractmethod
    def stretched(self, values: Tensor, scales: Tensor) -> Tensor:
        """Return the values of the kind after a multiplication of the coordinates by scales `(d,)`."""

    @property
    @abstractmethod
    def pseudo_samples(self) -> float:
        """The samples that a shrinkage of 1 adds to each component."""

    @abstractmethod
    def _products(self, x: Tensor) -> Tensor:
        """Return products of coordinates, `(*, P)`."""

    @abstractmethod
    def _write_products(self, x: Tensor, out: Tensor) -> None:
        """Write products of the coordinates of points `(d, n)` into `(P, n)`."""

    @abstractmethod
    def of_matrices(self, covariances: Tensor) -> Tensor:
        """Return the entries of covariances `(*, d, d)` that belong to the products, `(*, P)`."""

    @abstractmethod
    def _values(self, weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
        """Return values of the kind from weights `(*, k, 1)`, central moments `(*, k, P)` and a prior with moments."""

    @abstractmethod
    def _log_determinant(self, moments: Tensor) -> Tensor:
        """Return the log determinant of each component alone, from central moments `(*, P)`."""

    @abstractmethod
    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the coefficients of coordinates and of products, and the log determinant."""


def shrunk(weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
    """Return central moments `(*, k, P)` with those of the pseudo-samples of a prior with moments."""
    if prior is None or prior.moments is None:
        return moments
    # Two fractions, so that neither cancellation nor a weight of 0 or infinity does harm.
    return weights / (weights + prior.weight) * moments + prior.moments / (1 + weights / prior.weight)


def runnalls_cost(merged: A, first: A, second: A) -> A:
    """Return Runnalls' cost of a merge from `weight * log|covariance|` of the merged and of both components."""
    return 0.5 * (merged - first - second)
