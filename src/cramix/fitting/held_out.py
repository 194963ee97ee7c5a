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
from cramix.fitting.merge import merged
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
# Fits from each kind of start, EM steps at the first strength, at each of the others, and at the only one, and the gain
# at which to stop.
_BATCH, _FIRST, _NEXT, _ONLY, _TOL = 2, 10, 4, 60, 1e-4


class Choice(NamedTuple):
    """Fits of the best start and shrinkage to parts of the samples, `(B, k, F)`, and that shrinkage."""

    sums: Tensor
    shrinkage: float


class Score(NamedTuple):
    """The mean log likelihood of samples that were set aside, and standard errors over these samples.

    Args:
        mean: over the samples.
        error: of the mean.
        error_of_difference: of the difference to the best of several scores of the same samples; it is smaller than the
            errors of both.

    Example:
        >>> Score(mean=-2.1, error=0.1, error_of_difference=0.02).mean
        -2.1
    """

    mean: float
    error: float
    error_of_difference: float = 0.0


class Scored(NamedTuple):
    """The held-out log densities of fits, `(V, n)`, their score, and whether no fit has collapsed."""

    densities: Tensor
    score: Score
    sound: bool


def is_scarce(problem: Problem) -> bool:
    """Return whether there are few samples for each number to learn."""
    return can_choose(problem) and _per_number(problem) < _AMPLE


def can_choose(problem: Problem) -> bool:
    """Return whether there is something to choose, and samples to set aside."""
    enough = _LEAST * problem.n_components <= int(problem.target.weights.count_nonzero())
    return problem.target.is_empirical and problem.n_components > 1 and enough


def needs_choice(problem: Problem) -> bool:
    """Return whether held-out scores choose the start, and the shrinkage unless that is given."""
    return is_scarce(problem) if problem.shrinkage is None else problem.shrinkage > 0 and can_choose(problem)


def strengths_of(problem: Problem) -> Sequence[float]:
    """Return the strengths of shrinkage to try, from weak to strong."""
    if problem.shrinkage is not None:
        return (problem.shrinkage,)
    return STRENGTHS if is_scarce(problem) else (0.0,)


def choose(problem: Problem, data: Data, surplus: int | None) -> Choice | None:
    """Return the start and the shrinkage with the best held-out score; None if components always collapse.

    Args:
        problem: whose generator draws the parts and the starts.
        data: the samples to search with.
        surplus: of merged components.
    """
    folds = Folds.of(problem, data)
    clusters = folds.clusters(problem)
    found = merged(problem, folds.fitted, surplus, folds.batch)
    return compare(problem, folds, clusters, found, strengths_of(problem))[0]


def compare(
    problem: Problem,
    folds: Folds,
    clusters: Tensor,
    found: Tensor | None,
    strengths: Sequence[float],
) -> tuple[Choice | None, Scored]:
    """Return the start and the shrinkage with the best held-out score, and this score in the units of the problem.

    It is slightly too high, as the best of several. With ample samples there is no choice, and the score is that of the
    fits that are most likely on their own samples. If components of all fits collapse, the choice is None, and the
    score is the best of these.

    Args:
        problem: with the number of components k.
        folds: the samples to fit, and those to score.
        clusters: starts from k-means, `(B, k, F)`.
        found: merged components, `(B, k, F)`; None without.
        strengths: of shrinkage, from weak to strong.
    """
    if len(strengths) > 1:
        strengths = _limited(problem, strengths)
    paths = [_Path("k-means", clusters, strengths[::-1])]
    if found is not None and needs_choice(problem):
        paths.append(_Path("merged", found, strengths))
    elif found is not None:
        paths = [_Path("k-means and merged", folds.joined(clusters, found), strengths)]
    first = _FIRST if len(strengths) > 1 else _ONLY
    best, scores = None, dict[bool, Scored]()  # without collapsed fits, and with
    for i in range(len(strengths)):
        paths = [path for path in paths if path.worse < 2]
        for path, scored in zip(paths, folds.advance(paths, i, _NEXT if i else first), strict=True):
            score, sound, strength = scored.score.mean, scored.sound, path.strengths[i]
            problem.note_likelihood(f"{HELD_OUT}, {path.name}, shrinkage {strength:g}", problem.n_components, score)
            mean = score if sound else -math.inf
            path.worse = path.worse + 1 if mean <= path.best and math.isfinite(path.best) else 0
            path.best = max(path.best, mean)
            if sound not in scores or score > scores[sound].score.mean:
                scores[sound] = scored
                best = Choice(path.sums, strength) if sound else best
    return best, scores[best is not None]


@dataclass
class _Path:
    """Fits `(B, k, F)` that are continued from one strength to the next; the best score, and how often it was worse."""

    name: str
    sums: Tensor
    strengths: Sequence[float]
    best: float = -math.inf
    worse: int = 0


class Folds(NamedTuple):
    """Samples to fit, and samples that are set aside.

    Args:
        fitted: the samples, with a row of weights for each of B fits, `(B, n)`; those of a part are in succession.
        aside: weights of the samples in each of V parts that are set aside, `(V, n)`, which sum to one.
        n_samples: the number of samples that a fit gets.
        n_aside: the number of samples that are set aside in all parts together.
        least: the least number of samples with a weight that a fit gets.
    """

    fitted: Data
    aside: Tensor
    n_samples: float
    n_aside: float
    least: int

    @classmethod
    def of(cls, problem: Problem, data: Data, parts: int | None = None) -> Folds:
        """Divide samples at random.

        Args:
            problem: whose generator draws the parts.
            data: the samples.
            parts: number of parts, each of which is set aside in turn; None for quarters, one or more of them.
        """
        device, generator = data.x.device, problem.generator
        present = data.weights.nonzero().squeeze(-1)
        n = len(present)
        count = parts or max(1, min(_PARTS, math.ceil(_PARTS * _ENOUGH / n)))
        parts = parts or _PARTS
        order = torch.randperm(n, generator=generator, device=device if generator else None).to(device)
        part = torch.full_like(data.weights, -1).index_copy(0, present, (order * parts // n).to(data.weights))
        aside = torch.where(part == torch.arange(min(count, n), device=device).unsqueeze(-1), data.weights, 0)
        aside = aside[aside.any(-1)]  # fewer samples than parts leave some empty
        fitted = (data.weights - aside).repeat_interleave(_BATCH, 0)
        # A subset of the samples has been drawn by their weights.
        total = problem.n_samples if len(data) == problem.target.n_components else len(data)
        return cls(
            data.weighted(fitted),
            aside / aside.sum(),
            (1 - 1 / parts) * problem.n_samples,
            aside.sum().item() * total,
            n - int(aside.count_nonzero(-1).max()),
        )

    @property
    def batch(self) -> int:
        """The number of fits, B."""
        return len(self.fitted.weights)

    def clusters(self, problem: Problem) -> Tensor:
        """Return the k-means clusters of the samples that are fitted, `(B, k, F)`."""
        return STARTS["kmeans"](self.fitted, problem.n_components, self.batch, problem.generator)

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the fits of two batches, `(2 B, k, F)`, those to the same samples together."""
        parts = len(self.aside)
        return torch.cat([x.unflatten(0, (parts, -1)) for x in (first, second)], 1).flatten(0, 1)

    def advance(self, paths: list[_Path], i: int, steps: int) -> list[Scored]:
        """Continue the fits of all paths at their strength i; return their scores, and whether no fit has collapsed."""
        if not paths:
            return []
        batch, parts, family = len(paths[0].sums), len(self.aside), self.fitted.family
        weights = self.fitted.weights[::_BATCH].repeat_interleave(batch // parts, 0)
        data = self.fitted.weighted(weights.repeat(len(paths), 1))
        sums = torch.cat([path.sums for path in paths])
        strengths = sums.new_tensor([path.strengths[i] for path in paths]).repeat_interleave(batch)
        prior = family.shrinkage(strengths, self.n_samples)
        outcome = maximize(data, sums, steps, _TOL, prior)
        for path, part in zip(paths, outcome.sums.split(batch), strict=True):
            path.sums = part
        weights, means, values = family.parameters(outcome.sums, prior)
        shape = len(paths), parts, batch // parts
        sound = ~family.collapsed(means, values).any(-1).view(shape)
        # Of each part the fit that is most likely on its own samples, among those that have not collapsed if any.
        likely = outcome.log_likelihood.view(shape)
        best = likely.where(sound | ~sound.any(-1, keepdim=True), -torch.inf).argmax(-1, keepdim=True)
        densities = data.log_densities(family.coefficients(weights, means, values)).view(*shape, -1)
        densities = densities.take_along_dim(best.unsqueeze(-1), 2).squeeze(2)  # (paths, V, n)
        return [
            Scored(x, Score(*self.mean(x)), y) for x, y in zip(densities, sound.any(-1).all(-1).tolist(), strict=True)
        ]

    def mean(self, values: Tensor) -> tuple[float, float]:
        """Return the mean of values `(V, n)` over the samples that are set aside, and its standard error."""
        mean = (values * self.aside).sum()
        variance = ((values - mean).square() * self.aside).sum()
        return mean.item(), (variance / max(self.n_aside - 1, 1)).sqrt().item()


def strongest(problem: Problem) -> float:
    """Return the largest shrinkage that "auto" may choose: it falls to 0 where samples become ample."""
    if not is_scarce(problem):
        return 0.0
    limit = _LIMIT * (_AMPLE / _per_number(problem) - 1)
    return limit if limit < _LIMIT else math.inf


def _limited(problem: Problem, strengths: Sequence[float]) -> list[float]:
    """Return the strengths below the largest, and that."""
    limit = strongest(problem)
    return [*(x for x in strengths if x < limit), limit]


def _per_number(problem: Problem) -> float:
    return problem.n_samples / problem.family.n_parameters(problem.n_components)
