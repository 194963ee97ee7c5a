"""How far to trust the training likelihood: the start and the shrinkage whose fits do best on held-out samples.

With few samples for each number to learn, the best optimum of the likelihood is often useless for new samples. Two
things help: shrinking the covariance of each component to the pooled one, and another start. Which start and how much
shrinkage is measured: parts of the samples are set aside before anything is fitted, fits to the others start from
k-means clusters and from merged components, and go through all strengths. Clusters begin at the largest, where
components share one covariance, and merged components at none, where they were found. The choice with the best score
on the samples that were set aside is then continued with all samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.em import Outcome, maximize
from cramix.fitting.features import Data
from cramix.fitting.merge import merged
from cramix.fitting.problem import Problem
from cramix.fitting.starts import STARTS
from cramix.mixture.covariance import Prior

# The strengths to try.
STRENGTHS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
# With as many samples for each number to learn, shrinkage changes nothing that could be seen. From half as many on, it
# is limited to this number times the distance to the first, so that nothing jumps.
_AMPLE, _LIMIT = 10.0, 30.0
# With fewer samples for each component nothing can be set aside.
_LEAST = 3
# Samples are set aside in quarters, each in turn until that many have been.
_PARTS, _ENOUGH = 4, 500
# Fits from each kind of start, EM steps at the first strength and at each of the others, and the gain at which to stop.
_BATCH, _FIRST, _NEXT, _TOL = 2, 20, 8, 1e-4


class Choice(NamedTuple):
    """Fits of the best start and shrinkage to parts of the samples, `(B, k, F)`, and that shrinkage."""

    sums: Tensor
    shrinkage: float


def is_scarce(problem: Problem) -> bool:
    """Return whether there are few samples for each number to learn."""
    enough = _LEAST * problem.n_components <= int(problem.target.weights.count_nonzero())
    return problem.target.is_empirical and problem.n_components > 1 and enough and _per_number(problem) < _AMPLE


def choose(problem: Problem, data: Data, surplus: int | None, strengths: Sequence[float] = STRENGTHS) -> Choice:
    """Return the start and the shrinkage with the best held-out score.

    Args:
        problem: whose generator draws the parts and the starts.
        data: the samples to search with.
        surplus: of merged components.
        strengths: of shrinkage, from weak to strong.
    """
    folds = _Folds.of(problem, data)
    best, score = None, -math.inf
    for name, sums, order in (
        ("k-means", STARTS["kmeans"](folds.fitted, problem.n_components, folds.batch, problem.generator), -1),
        ("merged", merged(problem, folds.fitted, problem.n_components, surplus, folds.batch), 1),
    ):
        for strength, outcome, found in _path(folds, sums, strengths[::order]):
            problem.note_likelihood(f"held out, {name}, shrinkage {strength:g}", problem.n_components, found)
            if best is None or found > score:
                best, score = Choice(outcome.sums, strength), found
    assert best is not None
    limit = _LIMIT * (_AMPLE / _per_number(problem) - 1)
    if len(strengths) > 1 and limit < _LIMIT:
        best = best._replace(shrinkage=min(best.shrinkage, limit))
    return best


class _Folds(NamedTuple):
    """Samples that are fitted, with weights `(B, n)`, and the weights of those set aside, `(V, n)`."""

    fitted: Data
    aside: Tensor
    n_samples: float

    @classmethod
    def of(cls, problem: Problem, data: Data) -> _Folds:
        device, generator = data.x.device, problem.generator
        present = data.weights.nonzero().squeeze(-1)
        n = len(present)
        count = max(1, min(_PARTS, math.ceil(_PARTS * _ENOUGH / n)))
        order = torch.randperm(n, generator=generator, device=device if generator else None).to(device)
        part = torch.full_like(data.weights, -1).index_copy(0, present, (order * _PARTS // n).to(data.weights))
        aside = torch.where(part == torch.arange(count, device=device).unsqueeze(-1), data.weights, 0)
        fitted = (data.weights - aside).repeat_interleave(_BATCH, 0)
        share = 1 - 1 / _PARTS
        return cls(data.weighted(fitted), aside / aside.sum(-1, keepdim=True), share * problem.n_samples)

    @property
    def batch(self) -> int:
        return len(self.fitted.weights)

    def score(self, outcome: Outcome, prior: Prior) -> float:
        """Return the held-out mean log likelihood of the fits that are most likely on their own samples."""
        family = self.fitted.family
        weights, means, values = family.parameters(outcome.sums, prior)
        densities = self.fitted.log_densities(family.coefficients(weights, means, values)).view(
            -1, _BATCH, self.aside.shape[1]
        )
        scores = (densities * self.aside.unsqueeze(1)).sum(-1)  # (V, batch)
        scores = torch.where(family.collapsed(means, values).any(-1).view_as(scores), -torch.inf, scores)
        best = outcome.log_likelihood.view_as(scores).argmax(-1, keepdim=True)
        return scores.gather(-1, best).mean().item()


def _path(folds: _Folds, sums: Tensor, strengths: Sequence[float]) -> Iterator[tuple[float, Outcome, float]]:
    """Yield strengths, the fits that are continued from one to the next, and their held-out scores."""
    best, worse = -math.inf, 0
    for i, strength in enumerate(strengths):
        prior = folds.fitted.family.shrinkage(sums.new_full((folds.batch,), strength), folds.n_samples)
        outcome = maximize(folds.fitted, sums, _NEXT if i else _FIRST, _TOL, prior)
        sums, score = outcome.sums, folds.score(outcome, prior)
        yield strength, outcome, score
        worse = 0 if score > best else worse + 1
        best = max(score, best)
        if worse == 2:
            return


def _per_number(problem: Problem) -> float:
    return problem.n_samples / problem.family.n_parameters(problem.n_components)
