"""Weight, mean and covariance of rows, as sums that can be added (Chan, Golub and LeVeque 1983)."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Totals(NamedTuple):
    """The number, weight, mean and scatter matrix `sum w (x - mean)(x - mean)^T` of rows, in float64 on the CPU.

    Args:
        n_rows: number of rows.
        weight: their total weight.
        mean: `(d,)`; 0 where there are no rows.
        scatter: `(d, d)`.
    """

    n_rows: int
    weight: float
    mean: Tensor
    scatter: Tensor

    @classmethod
    def none(cls, dim: int) -> Self:
        """Return those of no rows."""
        return cls(0, 0.0, torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64))

    @classmethod
    def of(cls, x: Tensor, weights: Tensor | None) -> Self:
        """Return those of rows `(n, d)` in float64 with weights `(n,)` > 0, n >= 1."""
        origin = x[0]
        offset = x - origin  # so that the mean of equal rows is exact
        total = float(len(x)) if weights is None else weights.sum().item()
        shift = (offset.sum(0) if weights is None else weights @ offset) / total
        offset -= shift
        weighted = offset if weights is None else offset * weights.unsqueeze(-1)
        return cls(len(x), total, (origin + shift).cpu(), (weighted.T @ offset).cpu())

    def plus(self, other: Totals) -> Self:
        """Return those of both sets of rows."""
        if not other.n_rows:
            return self
        weight = self.weight + other.weight
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.weight / weight) if self.n_rows else other.mean
        between = torch.outer(delta, delta) * (self.weight * other.weight / weight)
        return type(self)(self.n_rows + other.n_rows, weight, mean, self.scatter + other.scatter + between)

    @property
    def covariance(self) -> Tensor:
        """The scatter matrix divided by the weight, `(d, d)`."""
        return self.scatter / self.weight if self.weight else torch.full_like(self.scatter, torch.nan)
