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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.em import maximize
from cramix.fitting.features import Data
from cramix.fitting.merge import FEW_PLACING, FEW_SETTLING, merged
from cramix.fitting.problem import Problem
from cramix.fitting.starts import STARTS

# How the names of steps with held-out scores begin.
HELD_OUT = "held out"
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
_BATCH, _FIRST, _NEXT, _TOL = 2, 10, 4, 1e-4


class Choice(NamedTuple):
    """Fits of the best start and shrinkage to parts of the samples, `(B, k, F)`, and that shrinkage."""

    sums: Tensor
    shrinkage: float


def is_scarce(problem: Problem) -> bool:
    """Return whether there are few samples for each number to learn."""
    return can_choose(problem) and _per_number(problem) < _AMPLE


def can_choose(problem: Problem) -> bool:
    """Return whether there is something to choose, and samples to set aside."""
    enough = _LEAST * problem.n_components <= int(problem.target.weights.count_nonzero())
    return problem.target.is_empirical and problem.n_components > 1 and enough


def choose(problem: Problem, data: Data, surplus: int | None, strengths: Sequence[float] = STRENGTHS) -> Choice | None:
    """Return the start and the shrinkage with the best held-out score; None if components always collapse.

    Args:
        problem: whose generator draws the parts and the starts.
        data: the samples to search with.
        surplus: of merged components.
        strengths: of shrinkage, from weak to strong.
    """
    folds, k = _Folds.of(problem, data), problem.n_components
    paths = [
        _Path("k-means", STARTS["kmeans"](folds.fitted, k, folds.batch, problem.generator), strengths[::-1]),
        _Path("merged", merged(problem, folds.fitted, surplus, folds.batch, FEW_PLACING, FEW_SETTLING), strengths),
    ]
    best, score = None, -math.inf
    for i in range(len(strengths)):
        paths = [path for path in paths if path.worse < 2]
        for path, found in zip(paths, folds.advance(paths, i), strict=True):
            strength = path.strengths[i]
            problem.note_likelihood(f"{HELD_OUT}, {path.name}, shrinkage {strength:g}", k, found)
            path.worse = path.worse + 1 if found <= path.best and math.isfinite(path.best) else 0
            path.best = max(path.best, found)
            if found > score:
                best, score = Choice(path.sums, strength), found
    if best is None:
        return None
    limit = _LIMIT * (_AMPLE / _per_number(problem) - 1)
    if len(strengths) > 1 and limit < _LIMIT:
        best = best._replace(shrinkage=min(best.shrinkage, limit))
    return best


@dataclass
class _Path:
    """Fits `(B, k, F)` that are continued from one strength to the next; the best score, and how often it was worse."""

    name: str
    sums: Tensor
    strengths: Sequence[float]
    best: float = -math.inf
    worse: int = 0


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
        """The number of fits, B."""
        return len(self.fitted.weights)

    def advance(self, paths: list[_Path], i: int) -> list[float]:
        """Continue the fits of all paths at their strength i, and return their held-out scores."""
        if not paths:
            return []
        data, family = self.fitted.weighted(self.fitted.weights.repeat(len(paths), 1)), self.fitted.family
        sums = torch.cat([path.sums for path in paths])
        strengths = sums.new_tensor([path.strengths[i] for path in paths]).repeat_interleave(self.batch)
        prior = family.shrinkage(strengths, self.n_samples)
        outcome = maximize(data, sums, _NEXT if i else _FIRST, _TOL, prior)
        for path, part in zip(paths, outcome.sums.split(self.batch), strict=True):
            path.sums = part
        weights, means, values = family.parameters(outcome.sums, prior)
        densities = data.log_densities(family.coefficients(weights, means, values))
        scores = (densities.view(len(paths), len(self.aside), _BATCH, -1) * self.aside.unsqueeze(1)).sum(-1)
        sound = ~family.collapsed(means, values).any(-1).view_as(scores)
        # Of each part the fit that is most likely on its own samples.
        best = outcome.log_likelihood.view_as(scores).where(sound, -torch.inf).argmax(-1, keepdim=True)
        return scores.where(sound, -torch.inf).gather(-1, best).mean((-2, -1)).tolist()


def _per_number(problem: Problem) -> float:
    return problem.n_samples / problem.family.n_parameters(problem.n_components)
