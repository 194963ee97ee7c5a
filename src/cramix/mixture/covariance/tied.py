"""One covariance matrix for all components."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_covariances
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.full import Dense


class Tied(Dense):
    """One covariance matrix for all components, `(*batch, d, d)`."""

    name = "tied"
    _value_axes = 2

    @property
    def shape(self) -> torch.Size:
        """What broadcasts against `(*batch, k)`."""
        return torch.Size((*self.values.shape[:-2], 1))

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 2 or self.values.shape[-2:] != (dim, dim):
            raise ValueError(
                f"covariances must be (*batch, {dim}, {dim}) for means in {dim} dimensions; "
                f"got {tuple(self.values.shape)}. For a matrix for each component see Full."
            )

    def check(self) -> None:
        check_covariances(self.values)

    def spread(self) -> Tensor:
        return self.values.unsqueeze(-3)

    def transform(self, matrix: Tensor) -> Covariance:
        return Tied(matrix @ self.values @ matrix.mT)

    def marginal(self, dims: list[int]) -> Dense:
        return Tied(self.values[..., dims, :][..., dims])

    def condition(self, given: list[int], rest: list[int]) -> tuple[Tensor | None, Covariance]:
        regression, remaining = super().condition(given, rest)
        return regression, Tied(remaining.values.squeeze(-3))
