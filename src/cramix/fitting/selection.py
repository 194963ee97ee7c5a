"""How many components: fits with every number of them from one that is merged downwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.fitting.door import conclude, prepare
from cramix.fitting.em import Data, maximize
from cramix.fitting.merge import MergeDown
from cramix.fitting.merging import PLACING, merging, priors
from cramix.fitting.polishing import polish
from cramix.fitting.problem import Found, Problem
from cramix.fitting.result import FitResult, Step
from cramix.fitting.starts import STARTS

# Fits at once, steps before they are compared, and of those that are only scored on held-out samples.
_AT_ONCE, _CHOOSING, _SCORING = 4, 30, 60


@dataclass(frozen=True)
class Score:
    """The mean log likelihood of samples left out of the fit, and its standard error over the folds."""

    mean: float
    error: float


@dataclass(frozen=True)
class Selection:
    """Fits by their number of components, and what speaks for each.

    Args:
        results: a fit for each number.
        held_out: a score for each; empty without folds.
    """

    results: Mapping[int, FitResult]
    held_out: Mapping[int, Score]

    def __repr__(self) -> str:
        scores = (f"by_bic={self.by_bic}", *((f"by_held_out={self.by_held_out}",) if self.held_out else ()))
        return f"Selection(counts={list(self.results)}, {', '.join(scores)})"

    @property
    def bic(self) -> dict[int, float]:
        """Schwarz's criterion for each number of components; lower is better."""
        return {k: result.bic for k, result in self.results.items()}

    @property
    def by_bic(self) -> int:
        """The number of components with the least BIC."""
        return min(self.bic, key=self.bic.__getitem__)

    @property
    def by_held_out(self) -> int:
        """The number of components with the best score on held-out samples."""
        if not self.held_out:
            raise ValueError("folds must be at least 2 for a held-out score; got none. Give folds to select.")
        return max(self.held_out, key=lambda k: self.held_out[k].mean)


def select(
    x: Tensor,
    counts: Sequence[int],
    *,
    covariances: str = "full",
    weights: Tensor | None = None,
    folds: int = 5,
    floor: float = 1e-6,
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
) -> Selection:
    """Fit mixtures with several numbers of components, to choose one by BIC or by its score on held-out samples.

    Fits with more components than any that is asked for are merged downwards, so that all of them cost little more
    than one. The held-out score does the same once a fold. Nothing is warned of: what is wrong with a fit, as where
    there are too many components, is in its `warnings`.

    Returns a `Selection`: `results[k]` is the `FitResult` with k components, `by_bic` and `by_held_out` are the best k.

    Args:
        x: samples `(n, d)` or `(n,)`.
        counts: numbers of components, as `range(1, 11)`.
        covariances: "full", "tied", "diag" or "spherical".
        weights: of the samples, `(n,)`, of any positive sum.
        folds: parts to leave out in turn; 0 for no held-out score.
        floor: added to every variance, as a part of the variance of the data.
        generator: for starts and folds.
        progress: called with every step as it comes.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 6 + torch.randn(100, 2, generator=g)])
        >>> choice = select(x, range(1, 5), generator=g)
        >>> choice.by_bic, choice.by_held_out
        (2, 2)
        >>> choice.results[choice.by_bic].mixture.weights.sort().values
        tensor([0.5000, 0.5000])
    """
    wanted = _wanted(counts)
    method = MergeDown()
    problem = prepare(x, wanted[0], method, covariances, weights, None, floor, generator, progress)
    _check_folds(folds, wanted[0], problem)
    with torch.no_grad():
        results = {}
        for k, sums in _path(problem, problem.data, wanted):
            outcome = maximize(problem.data, sums, _CHOOSING)
            outcome = polish(problem.data, outcome.best(), method.max_iterations, method.tolerance)
            part = replace(problem, n_components=k)
            part.note_likelihood("polishing", k, outcome.log_likelihood.item())
            parameters = problem.family.parameters(outcome.sums.squeeze(0))
            results[k] = conclude(part, Found(*parameters, outcome.converged, outcome.reason, outcome.iterations))
        scores = _held_out(problem, wanted, folds) if folds else {}
    return Selection(dict(sorted(results.items())), dict(sorted(scores.items())))


def _path(problem: Problem, data: Data, wanted: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield fits `(B, k, F)` for each number of components, from the largest down: merged ones and plain ones."""
    top = wanted[0]
    start, prior = STARTS["k-means++"], priors(data, _AT_ONCE, top)
    for outcome in merging(data, start(data, min(len(data), 2 * top + 4), _AT_ONCE, problem.generator), prior):
        k = outcome.sums.shape[1]
        problem.note_likelihood("merging", k, outcome.log_likelihood.max().item())
        if k in wanted:
            plain = maximize(data, start(data, k, _AT_ONCE, problem.generator), PLACING, prior=prior)
            yield k, torch.cat((outcome.sums, plain.sums))
        if k == wanted[-1]:
            return


def _held_out(problem: Problem, wanted: list[int], folds: int) -> dict[int, Score]:
    """Score each number of components on each fold with fits to the others."""
    data, device = _weighted(problem.data), problem.data.x.device
    order = torch.randperm(len(data), generator=problem.generator, device=device if problem.generator else None)
    fold = order.to(device) % folds
    scores: dict[int, list[float]] = {k: [] for k in wanted}
    for i in range(folds):
        rest, out = (_part(data, mask) for mask in (fold != i, fold == i))
        for k, sums in _path(problem, rest, wanted):
            best = maximize(rest, sums, _SCORING).best()
            scores[k].append(out.step(best)[1].item() - problem.units.log_volume)
    return {k: Score(*_mean_and_error(values)) for k, values in scores.items()}


def _weighted(data: Data) -> Data:
    """Return the samples that have a weight: a fold of others would have no score."""
    return _part(data, data.weights > 0)


def _part(data: Data, mask: Tensor) -> Data:
    return Data(data.family, data.x[mask], data.weights[mask])


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    scores = torch.tensor(values, dtype=torch.float64)
    return scores.mean().item(), scores.std().item() / math.sqrt(len(values))


def _wanted(counts: Sequence[int]) -> list[int]:
    """Return the numbers of components from the largest down."""
    if not isinstance(counts, Iterable):
        raise ValueError(f"counts must be numbers of components; got {counts!r}. Try range(1, 11).")
    values = list(counts)
    if not values:
        raise ValueError("counts must hold a number of components; got none. Try range(1, 11).")
    for k in values:
        check_integer("counts", k, 1)
    return sorted({int(k) for k in values}, reverse=True)


def _check_folds(folds: int, most: int, problem: Problem) -> None:
    check_integer("folds", folds, 0)
    if not problem.target.only_points:
        raise ValueError("x must be samples; got a mixture. See compress.")
    n = len(_weighted(problem.data))
    if folds == 1 or (folds and n - -(-n // folds) < most):
        raise ValueError(f"folds must be 0, or 2 and more with {most} samples left to fit; got {folds} of {n}. Use 0.")
