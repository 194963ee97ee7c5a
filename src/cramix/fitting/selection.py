"""The number of components: fits with each number, from one path of merges, and their criteria."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.fitting import html
from cramix.fitting.diagnosis import convergence_warning
from cramix.fitting.em import maximize
from cramix.fitting.features import Data
from cramix.fitting.held_out import (
    Choice,
    Folds,
    Score,
    Scored,
    compare,
    is_scarce,
    needs_choice,
    strengths_of,
    strongest,
)
from cramix.fitting.merge import PLACING, drawn, merged_to, priors
from cramix.fitting.problem import Problem
from cramix.fitting.reading import Reading, read
from cramix.fitting.result import FitResult, Step
from cramix.fitting.search import MergeDown, comparable, with_enough_digits
from cramix.fitting.solve import Options
from cramix.fitting.threads import threads_for

# Fits to all samples in a batch.
_BATCH = 4


@dataclass(frozen=True)
class Selection:
    """Fits with several numbers of components, and their criteria.

    The likelihood has no upper bound where components collapse. Fits with collapsed components are therefore not
    chosen, unless all have some.

    Args:
        results: a `FitResult` for each number of components.
        held_out: a `Score` for each number of components; none with `folds=0`, nor where too few samples are left.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), torch.randn(100, 2, generator=g) + 6])  # samples (n, d)
        >>> choice = cramix.select(x, range(1, 4), generator=g)
        >>> choice.by_bic, sorted(choice.results), choice.held_out[2].mean > choice.held_out[1].mean
        (2, [1, 2, 3], True)
    """

    results: Mapping[int, FitResult]
    held_out: Mapping[int, Score]

    def __repr__(self) -> str:
        parts = [f"n_components={list(self.results)}", f"by_bic={self.by_bic}"]
        parts += [f"by_held_out={self.by_held_out}"] if self.held_out else []
        parts += [f"collapsed={list(self.collapsed)}"] if self.collapsed else []
        warnings = {k: self.warnings[k] for k in self._chosen if k in self.warnings}
        parts += [f"warnings={warnings}"] if warnings else []
        return f"Selection({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return html.of_selection(self)

    @property
    def collapsed(self) -> dict[int, int]:
        """The number of collapsed components, by number of components; fits without any are left out."""
        return {k: result.collapsed for k, result in self.results.items() if result.collapsed}

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
        """The number of components with the least BIC, of fits without collapsed components."""
        return min(self._eligible(self.bic), key=self.bic.__getitem__)

    @property
    def by_held_out(self) -> int:
        """The number of components by held-out scores, of fits without collapsed components.

        It is the smallest whose score is at most one standard error of their difference below the best.
        """
        if not self.held_out:
            raise ValueError("There is no held-out score: folds is 0, or too few samples are left to fit.")
        numbers = self._eligible(self.held_out)
        best = max(self.held_out[k].mean for k in numbers)
        return min(k for k in numbers if self.held_out[k].mean + self.held_out[k].error_of_difference >= best)

    @property
    def passed_over(self) -> list[int]:
        """The numbers of components with a better BIC or held-out score than the best, whose fits have collapsed."""
        best = self.bic[self.by_bic]
        found = {k for k in self.collapsed if self.bic[k] < best}
        if self.held_out:
            score = self.held_out[self.by_held_out].mean
            found |= {k for k in self.collapsed if k in self.held_out and self.held_out[k].mean > score}
        return sorted(found)

    @property
    def _chosen(self) -> list[int]:
        return sorted({self.by_bic, *([self.by_held_out] if self.held_out else [])})

    def _eligible(self, numbers: Collection[int]) -> Collection[int]:
        return [k for k in numbers if not self.results[k].collapsed] or numbers


def select(
    X: Any,
    n_components: Iterable[int] = range(1, 11),
    *,
    covariance_type: str = "full",
    sample_weight: Any = None,
    folds: int | None = None,
    reg_covar: float | None = None,
    shrinkage: float | str = "auto",
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
    max_passes: int | None = None,
    checkpoint: str | os.PathLike | None = None,
) -> Selection:
    """Fit mixtures with several numbers of components, to choose one by BIC or by a held-out likelihood.

    Over-complete fits are merged down, so that all numbers share one search. Held-out scores come from fits to parts of
    the samples, which run in the same batch. With few samples for each number to learn, these scores also choose the
    start of each fit, as in `fit`, and the shrinkage, which all such fits share.

    Returns a `Selection`: `results[k]` is the `FitResult` with k components, `by_bic` and `by_held_out` are the best k,
    `collapsed` counts collapsed components, `warnings` holds what is wrong with each fit. Fits with collapsed
    components are not chosen unless all have some. A `ConvergenceWarning` is raised for each warning of the chosen
    fits, and if a collapsed fit with a better criterion was passed over.

    Args:
        X: samples `(n, d)` or `(n,)`: a tensor, a NumPy array, or a table of pandas or Polars; or a source of any size,
            see `cramix.source`. Fits with all numbers share the passes over a source.
        n_components: the numbers to try.
        covariance_type: "full", "tied", "diag" or "spherical".
        sample_weight: weights of the samples, `(n,)`, with any positive sum; for a source, the name of a column.
        folds: number of parts, each of which is set aside in turn to score fits to the others. None sets aside
            quarters until 500 samples have a score, or all; 0 gives no scores, but with few samples still chooses
            the shrinkage by quarters.
        reg_covar: added to every variance, in squared units of the data; None is 1e-6 of the variance of each column.
        shrinkage: as in `fit`: "auto", or a number for all fits, 0 for plain maximum likelihood.
        generator: for starts and folds.
        progress: called with each `Step`.
        max_passes: for a source, how often it may be read, as in `fit`.
        checkpoint: for a source, a file that keeps the passes that are done, as in `fit`.

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
    options = Options(covariance_type, sample_weight, None, reg_covar, generator, progress, shrinkage=shrinkage)
    reading = read(X, MergeDown(), options, wanted, max_passes, checkpoint, task=f"select, folds {folds}")
    problem = reading.prepare(wanted[0])
    _check_folds(folds, wanted[0], problem)
    with torch.no_grad(), threads_for(problem):
        results, scores = _fits(reading, problem, wanted, folds)
    selection = Selection(dict(sorted(results.items())), dict(sorted(scores.items())))
    for text in _warnings(problem, selection):
        warnings.warn(text, convergence_warning(), stacklevel=2)
    return selection


def _fits(
    reading: Reading, problem: Problem, wanted: list[int], folds: int | None
) -> tuple[dict[int, FitResult], dict[int, Score]]:
    """Return fits with each number of components, and the held-out scores of those that have one."""
    rows = MergeDown().subset(problem)
    return with_enough_digits(problem, rows, partial(_fits_with, reading, problem, wanted, folds, rows))


def _fits_with(
    reading: Reading, problem: Problem, wanted: list[int], folds: int | None, rows: Tensor | None, data: Data
) -> tuple[dict[int, FitResult], dict[int, Score]]:
    """Do the same, with the samples to search with and their indices."""
    method = MergeDown()
    parts = Folds.of(problem, data, folds or None)
    problems = [replace(problem, n_components=k) for k in wanted]
    compared = {part.n_components for part in problems if folds != 0 or needs_choice(part)} & set(
        range(parts.least + 1)
    )
    merged = _merged(problem, data, parts if compared else None, [k for k in wanted if k > 1])
    choices, scored, candidates = dict[int, Choice](), dict[int, Scored](), dict[int, Tensor]()
    for part in problems:
        k, choice = part.n_components, None
        found, found_in_parts = next(merged) if k > 1 else (None, None)
        if k in compared:
            choice, scored[k] = compare(part, parts, parts.clusters(part), found_in_parts, strengths_of(part))
        starts = []
        if choice is not None:
            choices[k] = choice
            starts.append(choice.sums)
        if choice is None or not needs_choice(part):
            starts.append(_from_all(part, data, found))
        candidates[k] = torch.cat(starts)
    shrinkage = _shared_shrinkage(problems, choices, scored)
    solutions = []
    for part in problems:
        strength = min(shrinkage, strongest(part)) if part.shrinkage is None else part.shrinkage
        fits = comparable(part, data, candidates[part.n_components], strength)
        solutions.append(method.finish(part, rows, data, [fits], strength))
        part.release()  # or there is a copy of the samples for each number of components
    results = dict(zip(wanted, reading.conclude(problems, solutions), strict=True))
    return results, {} if folds == 0 else _scores(problem, parts, scored, results)


def _shared_shrinkage(
    problems: Sequence[Problem], choices: Mapping[int, Choice], scored: Mapping[int, Scored]
) -> float:
    """Return the shrinkage of the best held-out score with few samples, which all such fits get.

    With shrinkages of their own, BIC would prefer the fits with the strongest, which have the fewest parameters.
    """
    scarce = [part.n_components for part in problems if part.n_components in choices and is_scarce(part)]
    if not scarce:
        return 0.0
    return choices[max(scarce, key=lambda k: scored[k].score.mean)].shrinkage


def _scores(
    problem: Problem, parts: Folds, scored: Mapping[int, Scored], results: Mapping[int, FitResult]
) -> dict[int, Score]:
    """Return held-out scores in the units of the caller, with the errors of their differences to the best."""
    if not scored:
        return {}
    eligible = [k for k in scored if not results[k].collapsed] or list(scored)
    best = scored[max(eligible, key=lambda k: scored[k].score.mean)].densities
    found = {}
    for k, (densities, (mean, error, _), _) in scored.items():
        found[k] = Score(mean - problem.units.log_volume, error, parts.mean(densities - best)[1])
    return found


def _merged(
    problem: Problem, data: Data, parts: Folds | None, wanted: list[int]
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield fits `(B, k, F)` for each number of components: to all samples, and to those of the parts.

    They are merged in one batch.
    """
    if not wanted:
        return
    weights = data.weights.expand(_BATCH, -1)
    if parts is not None:
        weights = torch.cat((weights, parts.fitted.weights))
    for _, sums in merged_to(problem, data.weighted(weights), wanted, None, len(weights)):
        yield sums[:_BATCH], None if parts is None else sums[_BATCH:]


def _from_all(problem: Problem, data: Data, found: Tensor | None) -> Tensor:
    """Return fits to all samples, `(B, k, F)`: merged ones, and ones that start with k components."""
    if found is None:
        return data.sums(data.x.new_ones(1, 1, len(data)))
    k = problem.n_components
    plain = maximize(data, drawn(problem, data, k, _BATCH), PLACING, prior=priors(data, _BATCH, k))
    return torch.cat((found, plain.sums))


def _warnings(problem: Problem, selection: Selection) -> Iterator[str]:
    """Yield what is wrong with the data, with the chosen fits, and with fits that would have been chosen."""
    outliers = problem.outliers.warning if problem.outliers.rows else None
    if outliers:
        yield outliers
    for k in selection._chosen:
        yield from (f"n_components={k}: {text}" for text in selection.results[k].warnings if text != outliers)
    if selection.passed_over:
        numbers = ", ".join(map(str, selection.passed_over))
        yield (
            f"n_components={numbers}: not chosen in spite of a better BIC or held-out score, because components have "
            "collapsed; see the warnings of the selection."
        )


def _wanted(n_components: object) -> list[int]:
    """Return the numbers of components, largest first."""
    values = list(n_components) if isinstance(n_components, Iterable) else []
    if not values:
        raise ValueError(f"n_components must be one or more numbers, such as range(1, 11); got {n_components!r}.")
    for k in values:
        check_integer("n_components", k, 1)
    return sorted({int(k) for k in values}, reverse=True)


def _check_folds(folds: int | None, most: int, problem: Problem) -> None:
    if not problem.target.is_empirical:
        raise ValueError("X must be samples; got a mixture. To reduce its number of components, see compress.")
    if folds is None:
        return
    check_integer("folds", folds, 0)
    n = int(problem.target.weights.count_nonzero())
    if folds and not (2 <= folds <= n and n - -(-n // folds) >= most):
        raise ValueError(
            f"folds must be None, 0, or at least 2 and leave {most} samples to fit; got {folds} for {n} samples."
        )
