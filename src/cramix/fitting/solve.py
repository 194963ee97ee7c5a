"""From data or a mixture to a problem, and from its solution to the result of a fit, by any method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from cramix.arrays import as_tensor
from cramix.checks import check_choice, check_integer, check_number
from cramix.fitting.descent import GradientDescent
from cramix.fitting.diagnosis import ILL_DEFINED, collapsed, warnings_of
from cramix.fitting.em import ExpectationMaximization
from cramix.fitting.kmeans import HardAssignment
from cramix.fitting.outliers import Outliers, find_outliers
from cramix.fitting.paper import GradientLikelihood, SlicedCramer, SlicedCramerThenLikelihood
from cramix.fitting.problem import (
    NO_ITERATIONS,
    OUT_OF_ITERATIONS,
    History,
    Method,
    Problem,
    Solution,
    floor_in,
    standard_units,
)
from cramix.fitting.result import FitResult, Step
from cramix.fitting.samples import Target, check_range, n_samples, read_target, rows_at_a_time, without_rows
from cramix.fitting.search import MergeDown
from cramix.fitting.sliced_wasserstein import SlicedWasserstein
from cramix.fitting.starts import STARTS
from cramix.fitting.threads import threads_for, threads_for_samples
from cramix.fitting.wfr import WassersteinFisherRao
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES

_METHODS: tuple[type[Method], ...] = (
    MergeDown,
    ExpectationMaximization,
    GradientDescent,
    SlicedCramer,
    GradientLikelihood,
    SlicedCramerThenLikelihood,
    HardAssignment,
    SlicedWasserstein,
    WassersteinFisherRao,
)

METHODS: dict[str, type[Method]] = {method.name: method for method in _METHODS}


@dataclass(frozen=True)
class Options:
    """The arguments of `fit` that describe a problem, with their defaults; see there."""

    covariance_type: str = "full"
    sample_weight: Any = None
    init_params: str | NormalMixture | MultivariateNormalMixture | None = None
    reg_covar: float | None = None
    generator: torch.Generator | None = None
    progress: Callable[[Step], None] | None = None
    relative_reg_covar: float = 1e-6  # for `reg_covar=None`: of the variance of each column
    outliers: Outliers | None = None  # which X lacks already; None to look for some
    shrinkage: float | str = "auto"
    n_samples: float | None = None  # that the weights stand for; None to derive it from them


def solve(X: Any, n_components: int, method: str | Method, options: Options = Options()) -> FitResult:
    """Do what `fit` does, without raising warnings: they are in the result."""
    method = as_method(method)
    problem = prepare(X, n_components, method, options)
    with torch.no_grad(), threads_for(problem):
        return conclude(problem, method.run(problem), refuse_collapse=options.reg_covar == 0)


def as_method(method: str | Method) -> Method:
    """Return a method by its name, or as it is."""
    if isinstance(method, Method):
        return method
    check_choice("method", method, METHODS)
    return METHODS[method]()


def prepare(X: Any, n_components: int, method: Method, options: Options = Options()) -> Problem:
    """Check what `fit` is given, and return it as a problem in the units of the method."""
    history = History(options.progress)
    check_choice("covariance_type", options.covariance_type, FAMILIES)
    check_integer("n_components", n_components, 1)
    if options.reg_covar is not None:
        check_number("reg_covar", options.reg_covar)
    shrinkage = _read_shrinkage(options.shrinkage, method)
    target = read_target(X, options.sample_weight)
    if shrinkage and not target.samples:
        raise ValueError(
            f"shrinkage is for samples; got {options.shrinkage!r} for a mixture, whose covariances are exact."
        )
    _check_count(target.mixture, n_components)
    family = FAMILIES[options.covariance_type]
    with threads_for_samples(len(target.mixture.weights), family(target.mixture.dim, 0.0)):
        outliers = options.outliers or Outliers()
        if options.outliers is None and target.samples and method.sets_outliers_aside:
            outliers = find_outliers(target.mixture.means, target.mixture.weights, n_components)
            target = without_rows(target, outliers.rows, weighted=options.sample_weight is not None)
        check_range(target.mixture.means)
        standard = standard_units(target.mixture, family)
    units = method.units(standard)
    floor = floor_in(units, standard, options.reg_covar, options.relative_reg_covar)
    return Problem(
        target.mixture,
        int(n_components),
        family(target.mixture.dim, floor),
        units,
        _start(options.init_params, n_components, target),
        options.generator,
        history,
        target.univariate,
        standard,
        shrinkage,
        _count(target, outliers, options),
        outliers,
    )


def conclude(problem: Problem, solution: Solution, *, refuse_collapse: bool = False) -> FitResult:
    """Return a solution in the units of the caller.

    Args:
        problem: that was solved.
        solution: in its units.
        refuse_collapse: raise a ValueError if a component has collapsed, unless the method was stopped early. It is
            what scikit-learn does for `reg_covar=0`.
    """
    family, units, (weights, means, covariances) = problem.family, problem.units, solution.components
    narrow = collapsed(problem, solution)
    if refuse_collapse and bool(narrow.any()) and solution.reason not in (OUT_OF_ITERATIONS, NO_ITERATIONS):
        raise ValueError(ILL_DEFINED)
    kind = family.kind(family.stretched(covariances, units.scale))
    mixture = MultivariateNormalMixture(weights, units.centre + units.scale * means, kind, validate_args=False)
    samples = problem.target.is_empirical
    found = _in_dtype(mixture, problem.target.means.dtype)
    return FitResult(
        found.marginal(0) if problem.univariate else found,
        _log_likelihood(problem, solution, mixture) if samples else None,
        solution.converged,
        solution.reason,
        int(narrow.sum()),
        solution.n_iter,
        tuple(problem.history.steps),
        problem.history.seconds,
        problem.target.n_components if samples else None,
        _n_parameters(problem, solution),
        tuple(warnings_of(problem, solution, narrow, can_shrink=problem.shrinkage == 0)),
        problem.outliers.rows,
        solution.shrinkage,
    )


def _log_likelihood(problem: Problem, solution: Solution, mixture: MultivariateNormalMixture) -> float:
    if solution.log_likelihood is None:
        return problem.log_likelihood(mixture)
    return solution.log_likelihood - problem.log_volume


def _n_parameters(problem: Problem, solution: Solution) -> float:
    if not solution.shrinkage:
        return problem.family.n_parameters(problem.n_components)
    counts = problem.n_samples * solution.components.weights
    return problem.family.effective_parameters(counts, solution.shrinkage)


def _in_dtype(mixture: MultivariateNormalMixture, dtype: torch.dtype) -> MultivariateNormalMixture:
    """Return the mixture in a dtype, which must be able to hold its variances."""
    found = mixture.to(dtype)
    variances = found.covariance_kind.matrices(found.dim).diagonal(dim1=-2, dim2=-1)
    if not bool(((variances > 0) & variances.isfinite()).all()):
        raise ValueError(
            f"X must have variances in the range of {dtype}; got a standard deviation of "
            f"{mixture.variance.sqrt().min().item():.3g}. Use float64, or rescale it."
        )
    return found


def _check_count(target: MultivariateNormalMixture, n_components: int) -> None:
    count = sum(int(part.count_nonzero()) for part in target.weights.split(rows_at_a_time(target.weights)))
    if n_components > count:
        what = "samples with a weight" if target.is_empirical else "components of X"
        raise ValueError(f"n_components must be at most the number of {what}, {count}; got {n_components}.")


def _read_shrinkage(shrinkage: object, method: Method) -> float | None:
    """Return the strength of shrinkage; None for the method to choose."""
    if isinstance(shrinkage, str) and shrinkage == "auto":
        return None if method.shrinks else 0.0
    if isinstance(shrinkage, bool) or not isinstance(shrinkage, Real) or not float(shrinkage) >= 0:
        raise ValueError(f'shrinkage must be "auto" or a number >= 0; got {shrinkage!r}.')
    if shrinkage and not method.shrinks:
        raise ValueError(
            f'shrinkage has no effect with method="{method.name}"; got {shrinkage!r}. Use "merge" or "em".'
        )
    return float(shrinkage)


def _count(target: Target, outliers: Outliers, options: Options) -> float:
    """Return the number of samples that the target stands for."""
    if options.n_samples is not None:
        return options.n_samples
    if options.sample_weight is None:
        return float(target.mixture.n_components)
    weights = as_tensor("sample_weight", options.sample_weight).double()
    return n_samples(weights.index_fill(0, torch.tensor(outliers.rows, dtype=torch.int64, device=weights.device), 0))


def _start(start: object, n_components: int, target: Target) -> str | MultivariateNormalMixture | None:
    if start is None or (isinstance(start, str) and start in STARTS):
        return start
    if not isinstance(start, NormalMixture | MultivariateNormalMixture):
        raise ValueError(f"init_params must be one of {', '.join(STARTS)}, or a mixture; got {start!r}.")
    dim = 1 if isinstance(start, NormalMixture) else start.dim
    if start.batch_shape or start.n_components != n_components or dim != target.mixture.dim:
        raise ValueError(
            f"init_params must be a mixture of {n_components} components in {target.mixture.dim} dimensions; got one "
            f"of {start.n_components} in {dim}"
            + (f", of batch shape {tuple(start.batch_shape)}." if start.batch_shape else ".")
        )
    return in_coordinates(start)
