"""One covariance matrix for all components."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_covariances, surely_covariances
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.cholesky import fitted_factors
from cramix.mixture.covariance.family import Prior, shrunk
from cramix.mixture.covariance.full import Dense, DenseFamily


class Tied(Dense):
    """One covariance matrix for all components, `(*batch, d, d)`.

    Example:
        >>> from cramix import MultivariateNormalMixture
        >>> p = MultivariateNormalMixture(torch.ones(3) / 3, torch.zeros(3, 2), Tied(torch.eye(2)))  # k = 3, d = 2
        >>> p.covariances.shape
        torch.Size([3, 2, 2])
    """

    name = "tied"
    _value_axes = 2

    @property
    def shape(self) -> torch.Size:
        """What broadcasts against `(*batch, k)`."""
        return torch.Size((*self.values.shape[:-2], 1))

    @classmethod
    def values_shape(cls, n_components: int, dim: int) -> tuple[int, ...]:
        """Return the shape of the values without batch."""
        return dim, dim

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 2 or self.values.shape[-2:] != (dim, dim):
            raise ValueError(
                f"covariances must be (*batch, {dim}, {dim}) for means in {dim} dimensions; "
                f"got {tuple(self.values.shape)}. For a matrix for each component see Full."
            )

    def check(self) -> None:
        check_covariances(self.values)

    def surely_valid(self) -> Tensor:
        return surely_covariances(self.values)

    def compact(self) -> Tensor:
        return self.values.unsqueeze(-3)

    def transform(self, matrix: Tensor) -> Covariance:
        return Tied(matrix @ self.values @ matrix.mT)

    def marginal(self, dims: list[int]) -> Dense:
        return Tied(self.values[..., dims, :][..., dims])

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        regression, remaining = super().condition(given, rest)
        return regression, Tied(remaining.values.squeeze(-3))


class TiedFamily(DenseFamily):
    """Sums of features for one matrix for all components, which shrinks to its diagonal."""

    kind = Tied

    def effective_parameters(self, counts: Tensor, strength: float) -> float:
        """Return the number of free parameters if the covariance is shrunk to its diagonal, which counts in full."""
        own = (counts.mean() / (counts.mean() + strength * self.pseudo_samples)).item()
        k, correlations = len(counts), self.dim * (self.dim - 1) / 2
        return self.n_parameters(k) - (1 - own) * correlations

    def pooled(self, weights: Tensor, moments: Tensor) -> Tensor:
        """Return the central moments `(*, 1, P)` to which those of components are shrunk: uncorrelated ones."""
        return super().pooled(weights, moments) * self._triangle(moments).on_diagonal

    def _values(self, weights: Tensor, moments: Tensor, prior: Prior | None) -> Tensor:
        moments, k = super().pooled(weights, moments), weights.shape[-2]
        return self._matrices(shrunk(weights.sum(-2, keepdim=True) / k, moments, prior).squeeze(-2))

    def _precision(self, means: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        linear, quadratic, log_determinant = super()._precision(means, values.unsqueeze(-3))
        return linear, quadratic.expand(*means.shape[:-1], -1), log_determinant

    def merge_costs(self, sums: Tensor, prior: Prior | None = None) -> Tensor:
        """Return the growth of the log determinant, `1/2 log(1 + w delta^T C^-1 delta)`, for each pair."""
        weights, means, values = self.parameters(sums, prior)
        lower = fitted_factors(values).unsqueeze(-3)
        white = torch.linalg.solve_triangular(lower, means.unsqueeze(-1), upper=False).squeeze(-1)
        first, second = self.pairs(sums.shape[-2], sums.device)
        share = weights[..., first] * weights[..., second] / (weights[..., first] + weights[..., second])
        return 0.5 * torch.log1p(share * (white[..., first, :] - white[..., second, :]).square().sum(-1))


Tied.family = TiedFamily
