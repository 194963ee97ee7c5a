"""The number of components: fits with each number, from one that is merged down, and their criteria."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.fitting.api import Options, conclude, prepare
from cramix.fitting.diagnosis import convergence_warning
from cramix.fitting.em import maximize, polish
from cramix.fitting.features import Data
from cramix.fitting.merge import PLACING, merge_down, priors
from cramix.fitting.problem import Problem
from cramix.fitting.result import FitResult, Step
from cramix.fitting.search import MergeDown
from cramix.fitting.starts import STARTS

# Fits in a batch, EM steps before they are compared, and EM steps of fits that only get a held-out score.
_BATCH, _CHOOSING, _SCORING = 4, 30, 60


@dataclass(frozen=True)
class Score:
    """The mean log likelihood of samples left out of the fit, and its standard error over the folds."""

    mean: float
    error: float


@dataclass(frozen=True)
class Selection:
    """Fits with several numbers of components, and their criteria.

    Args:
        results: a `FitResult` for each number of components.
        held_out: a score for each number of components; empty without folds.
    """

    results: Mapping[int, FitResult]
    held_out: Mapping[int, Score]

    def __repr__(self) -> str:
        parts = [f"n_components={list(self.results)}", f"by_bic={self.by_bic}"]
        parts += [f"by_held_out={self.by_held_out}"] if self.held_out else []
        parts += [f"warnings={self.warnings}"] if self.warnings else []
        return f"Selection({', '.join(parts)})"

    @property
    def warnings(self) -> dict[int, tuple[str, ...]]:
        """What is wrong with the fits, by number of components; those without a warning are left out."""
        return {k: result.warnings for k, result in self.results.items() if result.warnings}

    @property
    def bic(self) -> dict[int, float]:
        """The Bayesian information criterion for each number of components; lower is better."""
        return {k: result.bic for k, result in self.results.items()}

    @property
    def by_bic(self) -> int:
        """The number of components with the least BIC."""
        return min(self.bic, key=self.bic.__getitem__)

    @property
    def by_held_out(self) -> int:
        """The number of components with the best held-out score."""
        if not self.held_out:
            raise ValueError("There is no held-out score: select was called with folds=0.")
        return max(self.held_out, key=lambda k: self.held_out[k].mean)


def select(
    X: Any,
    n_components: Iterable[int] = range(1, 11),
    *,
    covariance_type: str = "full",
    sample_weight: Any = None,
    folds: int = 5,
    reg_covar: float | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
) -> Selection:
    """Fit mixtures with several numbers of components, to choose one by BIC or by a held-out likelihood.

    Over-complete fits are merged down, so that all numbers together take little more time than one. Held-out scores
    repeat that for each fold.

    Returns a `Selection`: `results[k]` is the `FitResult` with k components, `by_bic` and `by_held_out` are the best k,
    `warnings` holds what is wrong with each fit. If the fit that `by_bic` or `by_held_out` chooses has warnings, they
    are raised as `ConvergenceWarning`.

    Args:
        X: samples `(n, d)` or `(n,)`: a tensor, a NumPy array, or a table of pandas or Polars.
        n_components: the numbers to try.
        covariance_type: "full", "tied", "diag" or "spherical".
        sample_weight: weights of the samples, `(n,)`, with any positive sum.
        folds: number of parts that are left out in turn; 0 for no held-out score.
        reg_covar: added to every variance, in squared units of the data; None is 1e-6 of the variance of each column.
        generator: for starts and folds.
        progress: called with each `Step`.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 6 + torch.randn(100, 2, generator=g)])
        >>> choice = select(x, range(1, 5), generator=g)
        >>> choice.by_bic, choice.by_held_out
        (2, 2)
        >>> choice.results[choice.by_bic].mixture.weights.sort().values
        tensor([0.5000, 0.5000])
    """
    wanted = _wanted(n_components)
    method = MergeDown()
    options = Options(covariance_type, sample_weight, None, reg_covar, generator, progress)
    problem = prepare(X, wanted[0], method, options)
    _check_folds(folds, wanted[0], problem)
    with torch.no_grad():
        results = {}
        for k, sums in _path(problem, problem.data, wanted):
            outcome = maximize(problem.data, sums, _CHOOSING)
            outcome = polish(problem.data, outcome.best(), method.max_iter, method.tol)
            part = replace(problem, n_components=k)
            part.note_likelihood("polishing", k, outcome.log_likelihood.item())
            results[k] = conclude(part, outcome.solution(part))
        scores = _held_out(problem, wanted, folds) if folds else {}
    selection = Selection(dict(sorted(results.items())), dict(sorted(scores.items())))
    for k in sorted({selection.by_bic, *([selection.by_held_out] if scores else [])}):
        for warning in selection.results[k].warnings:
            warnings.warn(f"n_components={k}: {warning}", convergence_warning(), stacklevel=2)
    return selection


def _path(problem: Problem, data: Data, wanted: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield fits `(B, k, F)` for each number of components, largest first: merged ones, and ones from k components."""
    top = wanted[0]
    start, prior = STARTS["k-means++"], priors(data, _BATCH, top)
    for outcome in merge_down(data, start(data, min(len(data), 2 * top + 4), _BATCH, problem.generator), prior):
        k = outcome.sums.shape[1]
        problem.note_likelihood("merging", k, outcome.log_likelihood.max().item())
        if k in wanted:
            plain = maximize(data, start(data, k, _BATCH, problem.generator), PLACING, prior=prior)
            yield k, torch.cat((outcome.sums, plain.sums))
        if k == wanted[-1]:
            return


def _held_out(problem: Problem, wanted: list[int], folds: int) -> dict[int, Score]:
    """Score each number of components on each fold, by fits to the other folds."""
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
    """Return the samples with a weight: a fold of others would have no score."""
    return _part(data, data.weights > 0)


def _part(data: Data, mask: Tensor) -> Data:
    return Data(data.family, data.x[mask], data.weights[mask])


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    scores = torch.tensor(values, dtype=torch.float64)
    return scores.mean().item(), scores.std().item() / math.sqrt(len(values))


def _wanted(n_components: object) -> list[int]:
    """Return the numbers of components, largest first."""
    values = list(n_components) if isinstance(n_components, Iterable) else []
    if not values:
        raise ValueError(f"n_components must be one or more numbers, such as range(1, 11); got {n_components!r}.")
    for k in values:
        check_integer("n_components", k, 1)
    return sorted({int(k) for k in values}, reverse=True)


def _check_folds(folds: int, most: int, problem: Problem) -> None:
    check_integer("folds", folds, 0)
    if not problem.target.is_empirical:
        raise ValueError("X must be samples; got a mixture. To reduce its number of components, see compress.")
    n = len(_weighted(problem.data))
    if folds == 1 or (folds and n - -(-n // folds) < most):
        raise ValueError(
            f"folds must be 0, or at least 2 and leave {most} samples to fit; got {folds} for {n} samples."
        )
