"""Expectation maximisation for weighted data, many fits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.families import Family, Prior

# Numbers in the responsibilities at a time.
_BLOCK = 1 << 20
# Up to this many features are kept; more are made anew for each block of samples.
_KEPT = 1 << 24
# A component without data keeps this much weight, and its place.
LEAST = 1e-12
# Shares below exp(this) are no longer told apart: processors are slow at numbers that underflow.
_FAINTEST = -80.0


class Data:
    """Samples with weights that sum to one, as features of a family.

    A target of normal components has the means of the features over each of them instead. The likelihood is then that
    of samples of which those of one component stay together, a lower bound of the other one's.

    Being a sum of products, a log density is right to rounding times the square of the data's size in scales of the
    narrowest component: give standardised data.

    Args:
        family: which features.
        x: samples `(n, d)`, or the means of components, in float64.
        weights: `(n,)`, of any positive sum.
        spread: covariances of components, `(n or 1, d, d)`.
        dtype: of the sums over samples. Parameters are always computed in float64.
    """

    def __init__(
        self,
        family: Family,
        x: Tensor,
        weights: Tensor,
        spread: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.family, self.x, self.spread, self.dtype = family, x, spread, dtype
        self.weights = weights / weights.sum()

    def __len__(self) -> int:
        return len(self.x)

    def like(self, rows: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Data:
        """Return some of the samples with equal weights, or all of them as they are, with sums in a dtype."""
        family = type(self.family)(self.family.dim, self.family.floor, dtype)
        if rows is None:
            return Data(family, self.x, self.weights, self.spread, dtype)
        spread = self.spread if self.spread is None or len(self.spread) == 1 else self.spread[rows]
        return Data(family, self.x[rows], torch.ones_like(self.weights[rows]), spread, dtype)

    def resample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return the numbers of n samples drawn by their weights, spread evenly."""
        # One at random from each n-th part: at equal distances they might keep time with the order of the data.
        within = torch.rand(n, generator=generator, dtype=self.x.dtype, device=self.x.device)
        levels = (torch.arange(n, dtype=self.x.dtype, device=self.x.device) + within) / n
        return torch.searchsorted(self.weights.cumsum(0), levels).clamp_max(len(self) - 1)

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
        components = shares[..., 0].numel()
        pairs = zip(shares.to(self.dtype).split(self._rows(components), -1), self._parts(components), strict=True)
        return torch.stack([_products(share, weighted) for share, (_, weighted, _) in pairs]).sum(0).double()

    def step(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums `(B, k, F)` after one step, and the mean log likelihood before it, `(B,)`."""
        new, likelihood = self.expect(self.family.coefficients(*self.family.parameters(sums, prior)))
        empty = new[..., :1] < LEAST
        return torch.where(empty, LEAST / sums[..., :1] * sums, new), likelihood

    def expect(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of features over the samples by responsibilities, and the mean log likelihood, `(B,)`.

        These sums are the derivative of that likelihood in the coefficients of the log densities, `(B, k, F)` as well.
        """
        new, likelihood = torch.zeros_like(coefficients), coefficients.new_zeros(len(coefficients))
        coefficients = coefficients.to(self.dtype)
        for features, weighted, weights in self._parts(coefficients[..., 0].numel()):
            joint = coefficients @ features  # (B, k, n)
            top = joint.amax(-2, keepdim=True)
            shares = joint.sub_(top).clamp_min_(_FAINTEST).exp_()
            total = shares.sum(-2, keepdim=True)
            likelihood += (top.add_(total.log()).squeeze(-2) @ weights).double()
            new += _products(shares.div_(total), weighted).double()
        return new, likelihood

    def _rows(self, components: int) -> int:
        """How many samples go into a block."""
        return max(1, _BLOCK // components)

    def _parts(self, components: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features `(F, n)`, the same times weights, and weights `(n,)`, in blocks."""
        rows = self._rows(components)
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            if self.family.count * len(self) <= _KEPT:
                features, weighted, weights = self._kept
                yield features[:, part], weighted[:, part], weights[part]
            else:
                yield self._featured(part)

    @cached_property
    def _kept(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._featured(slice(None))

    def _featured(self, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        spread = self.spread if self.spread is None or len(self.spread) == 1 else self.spread[part]
        features, weights = self.family.features(self.x[part], spread).T.contiguous(), self.weights[part]
        return features.to(self.dtype), (features * weights).to(self.dtype), weights.to(self.dtype)


def _products(shares: Tensor, features: Tensor) -> Tensor:
    """Return `shares @ features^T`, `(*, k, F)`; few features are faster on the left."""
    return (features @ shares.flatten(0, -2).T).T.view(*shares.shape[:-1], len(features))


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

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Return the fits of several outcomes as those of one, which went as the last one."""
        return outcomes[-1]._replace(
            sums=torch.cat([outcome.sums for outcome in outcomes]),
            log_likelihood=torch.cat([outcome.log_likelihood for outcome in outcomes]),
        )

    def best(self) -> Tensor:
        """Return the sums of the most likely fit, `(1, k, F)`."""
        return self.sums[self.log_likelihood.argmax()].unsqueeze(0)


def maximize(
    data: Data,
    sums: Tensor,
    iterations: int,
    tolerance: float = 0.0,
    prior: Prior | None = None,
    watch: Callable[[float], None] | None = None,
) -> Outcome:
    """Take steps until the mean log likelihood of every fit gains less than the tolerance.

    Args:
        data: what to fit.
        sums: where the fits are, `(B, k, F)`.
        iterations: at most so many.
        tolerance: 0 to take all of them.
        prior: what every component has beside its data.
        watch: called with the best mean log likelihood of each step.
    """
    last = sums.new_full((len(sums),), -torch.inf)
    for i in range(1, iterations + 1):
        sums, likelihood = data.step(sums, prior)
        if watch is not None:
            watch(likelihood.max().item())
        if tolerance and bool((likelihood - last < tolerance).all()):
            return Outcome(sums, likelihood, i, True)
        last = likelihood
    return Outcome(sums, last, iterations, False)
