"""The target of a fit in its units: the whole, or a few components at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.fitting.em import Data
from cramix.fitting.problem import Problem
from cramix.mixture import MultivariateNormalMixture

# Samples that a start is drawn from, where a method reads only batches.
_ENOUGH = 1 << 14


class Batches:
    """A target in the units of its problem: all of it, or so many of its components drawn by their weights.

    A batch has equal weights, so that its mean of anything is an unbiased estimate of that of the whole. Of samples
    only the rows of a batch are read, which may lie in a file.

    Args:
        problem: whose target it is.
        size: of a batch; None for all.
    """

    def __init__(self, problem: Problem, size: int | None) -> None:
        self._problem, self.size = problem, size
        weights = problem.target.weights
        equal = weights.stride() == (0,)
        self._mass = None if equal or size is None else weights.double().cumsum(0)
        self._whole = self._taken(slice(None), weights.double()) if size is None else None

    def next(self) -> MultivariateNormalMixture:
        """Return the whole, or the next batch, without gradients."""
        if self._whole is not None:
            return self._whole
        assert self.size is not None, "there is a whole otherwise"
        rows = self._drawn(self.size)
        return self._taken(rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64, device=rows.device))

    def for_start(self) -> Data:
        """Return what to draw a start from: the whole, or where that is not to be read some samples."""
        problem, n = self._problem, self._problem.target.n_components
        enough = max(_ENOUGH, 10 * problem.n_components)
        if self.size is None or not problem.target.only_points or n <= enough:
            return problem.data
        rows, times = self._drawn(enough).unique(return_counts=True)
        return Data(problem.family, problem.units.of(problem.target.means[rows]), times.double())

    def _drawn(self, count: int) -> Tensor:
        """Draw rows by their weights, with replacement."""
        target, generator = self._problem.target, self._problem.generator
        n, device = target.n_components, target.means.device
        if self._mass is None:
            return torch.randint(n, (count,), generator=generator, device=device)
        levels = torch.rand(count, generator=generator, dtype=torch.float64, device=device) * self._mass[-1]
        return torch.searchsorted(self._mass, levels, right=True).clamp_max(n - 1)

    def _taken(self, rows: Tensor | slice, weights: Tensor) -> MultivariateNormalMixture:
        target, units = self._problem.target, self._problem.units
        means = units.of(target.means[rows])
        if target.only_points:
            return MultivariateNormalMixture.from_samples(means, weights)
        kind = target.covariance_kind
        values = kind.values if kind.shape[-1] == 1 else kind.values[rows]
        stretched = kind.like(values.double()).transform(torch.diag(1 / units.scale))
        return MultivariateNormalMixture(weights, means, stretched, validate_args=False)
