"""Expectation maximisation for weighted data, many fits at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.families import Family

# Numbers in the responsibilities at a time.
_BLOCK = 1 << 20
# A component without data keeps this much weight, and its place.
_LEAST = 1e-12


class Data:
    """Samples with weights that sum to one, as features of a family.

    A target of normal components has the means of the features over each of them instead. The likelihood is then that
    of samples of which those of one component stay together, a lower bound of the other one's.

    Being a sum of products, a log density is right to rounding times the square of the data's size in scales of the
    narrowest component: give standardised data.

    Args:
        family: which features.
        x: samples `(n, d)`, or the means of components.
        weights: `(n,)`, of any positive sum.
        spread: covariances of components, `(n or 1, d, d)`.
    """

    def __init__(self, family: Family, x: Tensor, weights: Tensor, spread: Tensor | None = None) -> None:
        self.family, self.x = family, x
        self.weights = weights / weights.sum()
        self.spread = spread
        self._features = family.features(x, spread).T.contiguous()  # (F, n)
        self._weighted = (self._features * self.weights).T.contiguous()  # (n, F)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def covariance(self) -> Tensor:
        """Return the covariance matrix of the whole, `(d, d)`."""
        offset = self.x - (self.weights.unsqueeze(-1) * self.x).sum(0)
        between = (self.weights.unsqueeze(-1) * offset).T @ offset
        if self.spread is None:
            return between
        return between + (self.weights[:, None, None] * self.spread).sum(0)

    def sums(self, shares: Tensor) -> Tensor:
        """Return the sums of features `(*, k, F)` for shares of each sample in each component, `(*, k, n)`."""
        return shares @ self._weighted

    def step(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums `(B, k, F)` after one step, and the mean log likelihood before it, `(B,)`."""
        coefficients = self.family.coefficients(sums)
        new, likelihood = torch.zeros_like(sums), sums.new_zeros(len(sums))
        step = max(1, _BLOCK // sums[..., 0].numel())
        for start in range(0, len(self.x), step):
            part = slice(start, start + step)
            joint = coefficients @ self._features[:, part]  # (B, k, n)
            top = joint.amax(-2, keepdim=True)
            shares = joint.sub_(top).exp_()
            total = shares.sum(-2, keepdim=True)
            likelihood += (top.add_(total.log()).squeeze(-2) * self.weights[part]).sum(-1)
            new += shares.div_(total) @ self._weighted[part]
        empty = new[..., :1] < _LEAST
        return torch.where(empty, _LEAST / sums[..., :1] * sums, new), likelihood


class Outcome(NamedTuple):
    """Sums of features `(B, k, F)`, mean log likelihoods `(B,)`, and how it went."""

    sums: Tensor
    log_likelihood: Tensor
    iterations: int
    converged: bool

    @property
    def reason(self) -> str:
        """Say why it stopped."""
        return "the log likelihood gains less than the tolerance" if self.converged else "out of iterations"


def maximize(data: Data, sums: Tensor, iterations: int, tolerance: float = 0.0) -> Outcome:
    """Take steps until the mean log likelihood of every fit gains less than the tolerance."""
    last = sums.new_full((len(sums),), -torch.inf)
    for i in range(1, iterations + 1):
        sums, likelihood = data.step(sums)
        if tolerance and bool((likelihood - last < tolerance).all()):
            return Outcome(sums, likelihood, i, True)
        last = likelihood
    return Outcome(sums, last, iterations, False)
