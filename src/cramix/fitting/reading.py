"""Samples that are fitted where they lie: in memory, or in a source that is read in passes.

Of a source, the first pass draws a sample. Where that holds all rows, the fit is the one to an array. Otherwise the
search runs on the sample, and further passes continue it over all rows.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.checks import check_integer
from cramix.data import is_source_like, source
from cramix.data.local import release_memory
from cramix.data.source import Source
from cramix.data.survey import Rows, Survey
from cramix.fitting.checkpoint import Checkpoint
from cramix.fitting.corrected import sample_of
from cramix.fitting.em import ExpectationMaximization
from cramix.fitting.features import Data
from cramix.fitting.outliers import Bounds, Outliers, find_outliers
from cramix.fitting.passes import Passes, Start, refine
from cramix.fitting.problem import OUT_OF_PASSES, Components, Method, Problem, Solution
from cramix.fitting.result import FitResult, Step
from cramix.fitting.search import MergeDown, search_dtype
from cramix.fitting.solve import Options, conclude, prepare
from cramix.fitting.stepwise import Stepwise, sums_at
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates

# Rows of the sample, and passes by default.
SAMPLE, _MOST_PASSES = 1_000_000, 10
# A fit to n rows has a statistical error of `parameters / (2 n)` in its mean log likelihood. Passes end when they gain
# less than this fraction of it.
_OF_ERROR = 0.1
# The reason that a fit to a source which is read once ends.
_STEPWISE = "the source was read once"
# Components with less variance in some direction, relative to the data, need passes in float64.
_NARROW = 1e-2


@dataclass(frozen=True)
class InMemory:
    """Samples in memory, or a mixture.

    Args:
        X: the samples, as `fit` takes them.
        method: of the fit.
        options: of the fit.
        passes: that it took to read them; None if they were in memory.
        n_bad: rows that were skipped.
    """

    X: Any
    method: Method
    options: Options
    passes: int | None = None
    n_bad: int = 0

    def prepare(self, n_components: int) -> Problem:
        """Return the problem of a fit with so many components."""
        return prepare(self.X, n_components, self.method, self.options)

    def conclude(self, problems: Sequence[Problem], solutions: Sequence[Solution]) -> list[FitResult]:
        """Return solutions of problems as results."""
        refuse = self.options.reg_covar == 0
        found = [conclude(*pair, refuse_collapse=refuse) for pair in zip(problems, solutions, strict=True)]
        return [replace(result, passes=self.passes, n_bad=self.n_bad) for result in found]


@dataclass(frozen=True)
class Sampled:
    """A source with more rows than its sample.

    Args:
        passes: over the source, of which the first is done.
        survey: what that has told.
        method: of the fit, which maximises the likelihood.
        options: of the fit.
        checkpoint: to remove when it is done.
        rows: of the sample, without outliers.
        outliers: that are left out.
        bounds: of all other rows.
        stepwise: fits that have seen all rows of a source that is read once, by their numbers of components.
    """

    passes: Passes
    survey: Survey
    method: MergeDown | ExpectationMaximization
    options: Options
    checkpoint: Checkpoint | None
    rows: Rows
    outliers: Outliers
    bounds: Bounds | None
    stepwise: Mapping[int, Stepwise]

    def prepare(self, n_components: int) -> Problem:
        """Return the problem of a fit with so many components to the sample."""
        source = self.passes.source
        x = self.rows.rows[:, 0] if source.univariate else self.rows.rows
        options = replace(
            self.options,
            sample_weight=self.rows.weights if source.weighted else None,
            outliers=self.outliers,
            n_samples=self.survey.n_samples,
        )
        return prepare(x, n_components, self.method, options)

    def conclude(self, problems: Sequence[Problem], solutions: Sequence[Solution]) -> list[FitResult]:
        """Continue fits to the sample over all rows, and return them as results."""
        if self.passes.left:
            solutions = self._refined(problems, solutions)
        elif self.stepwise:
            solutions = [self._better(*pair) for pair in zip(problems, solutions, strict=True)]
        refuse = self.options.reg_covar == 0
        results = []
        for problem, solution in zip(problems, solutions, strict=True):
            result = conclude(problem, solution, refuse_collapse=refuse)
            warnings = result.warnings + tuple(self._warnings(result))
            results.append(
                replace(
                    result,
                    n_samples=self.survey.n_rows - len(self.outliers.rows),
                    warnings=warnings,
                    outliers=self.outliers.rows if self.outliers.indexed else (),
                    passes=self.passes.count,
                    n_bad=self.survey.n_bad,
                )
            )
        if self.checkpoint is not None:
            self.checkpoint.remove()
        return results

    def _refined(self, problems: Sequence[Problem], solutions: Sequence[Solution]) -> list[Solution]:
        dtype = _dtype(problems, solutions)
        sample = sample_of(problems[0].data, self.survey.n_rows, self.options.generator)
        starts = [self._start(*pair, sample) for pair in zip(problems, solutions, strict=True)]
        for problem in problems:
            problem.release()
        outcomes = refine(self.passes, starts, problems[0].units, dtype, self.bounds)
        found = []
        for problem, solution, outcome in zip(problems, solutions, outcomes, strict=True):
            new = outcome.solution(problem)
            reason = new.reason if outcome.converged else OUT_OF_PASSES
            likelihood = outcome.log_likelihood.item()
            found.append(new._replace(reason=reason, shrinkage=solution.shrinkage, log_likelihood=likelihood))
        return found

    def _better(self, problem: Problem, solution: Solution) -> Solution:
        """Return the stepwise fit unless the sample says that it is worse than the fit to the sample.

        The fit to the sample is the best for the sample. The best fit to all rows is expected to be `parameters / (2n)`
        below it, for n rows of the sample. More than twice that is a sign of rows that are not in random order.
        """
        fit = self.stepwise.get(problem.n_components)
        if fit is None or solution.shrinkage:
            return solution
        mixture, units, family = fit.mixture, problem.units, problem.family
        likelihood = problem.log_likelihood(mixture) + problem.log_volume
        best = solution.log_likelihood
        if best is None:
            best = problem.data.step(sums_at(family, solution.components))[1].item()
        if not likelihood > best - family.n_parameters(problem.n_components) / len(self.rows):
            return solution
        values = family.stretched(mixture.covariance_kind.values, 1 / units.scale)
        components = Components(mixture.weights, units.of(mixture.means), values)
        return Solution(components, True, _STEPWISE, solution.n_iter, 0.0, likelihood)

    def _start(self, problem: Problem, solution: Solution, sample: Data) -> Start:
        family = problem.family
        sums = sums_at(family, solution.components)
        prior = problem.shrinkage_prior(solution.shrinkage, 1)
        if math.isfinite(solution.shrinkage):
            prior = family.completed(prior, sums)  # a fixed one: otherwise steps would maximise nothing

        def watch(log_likelihood: float) -> None:
            problem.note_likelihood("pass over all rows", problem.n_components, log_likelihood)

        error = family.n_parameters(problem.n_components) / (2 * self.survey.n_samples)
        return Start(sample, sums, max(self.method.tol, _OF_ERROR * error), prior, watch)

    def _warnings(self, result: FitResult) -> list[str]:
        n, size = self.survey.n_rows, len(self.rows)
        if self.passes.count == 1 and result.reason != _STEPWISE:
            loss = result.n_parameters / 2 * (1 / size - 1 / n)
            cure = "Increase max_passes" if self.passes.source.repeatable else "Give a source that can be read again"
            return [
                f"The fit is to a sample of {size:,} of {n:,} rows. Its mean log likelihood is expected to be "
                f"{loss:.2g} below that of a fit to all rows ({result.n_parameters:.0f} parameters / 2, times the "
                f"difference of 1 / rows). {cure}."
            ]
        if not result.converged and result.reason == OUT_OF_PASSES:
            return [
                "Best performing initialization did not converge. It stopped after "
                f"{self.passes.count} passes over the data. Increase max_passes, or tol of the method."
            ]
        return []


Reading = InMemory | Sampled


def read(
    X: Any,
    method: Method,
    options: Options,
    wanted: Sequence[int],
    max_passes: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    sample: int = SAMPLE,
    task: str = "fit",
) -> Reading:
    """Return samples in memory, or a source after its first pass.

    Args:
        X: as `fit` takes it.
        method: of the fit.
        options: of the fit.
        wanted: numbers of components of the fits.
        max_passes: the largest number of passes over a source; None for the default.
        checkpoint: a file for finished passes over a source; None without.
        sample: the largest number of rows in memory.
        task: what else determines the fits, so that a checkpoint of another task is refused.
    """
    if not is_source_like(X):
        if not takes_passes(X, method, sample):
            refuse_passes(max_passes=max_passes, checkpoint=checkpoint)
            return InMemory(X, method, options)
        X = as_tensor("X", X).detach()
    if isinstance(X, Source) and options.sample_weight is not None:
        raise ValueError("sample_weight must be None for a source, which has its own. Pass it to cramix.source.")
    rows = source(X, sample_weight=options.sample_weight)
    most = _MOST_PASSES if max_passes is None else max_passes
    check_integer("max_passes", most, 1)
    seed = _seed(options.generator)
    kept = (
        None
        if checkpoint is None
        else Checkpoint(checkpoint, _fingerprint(rows, options, f"{task} {wanted} {method} {sample} {seed}"))
    )
    passes, stepwise = Passes(rows, most, _reporter(options), kept), dict[int, Stepwise]()
    if rows.repeatable:
        survey = passes.survey(sample, seed)
    else:
        survey, stepwise = passes.survey_and_fit(sample, seed, partial(_searched, wanted, method, options))
    if not survey.sampled:
        found = survey.sample.rows
        if kept is not None:
            kept.remove()
        x = found.rows[:, 0] if rows.univariate else found.rows
        options = replace(options, sample_weight=found.weights if rows.weighted else None)
        return InMemory(x, method, options, 1, survey.n_bad)
    if not isinstance(method, MergeDown | ExpectationMaximization):
        raise ValueError(
            f'method="{method.name}" fits up to {sample:,} rows; got {survey.n_rows:,}. Use "merge" or "em", or fit a '
            "sample of the rows."
        )
    drawn = survey.sample.rows
    survey = replace(survey, sample=replace(survey.sample, parts=()))  # which takes memory
    inner, outliers, bounds = _without_outliers(drawn, survey, indexed=rows.n_rows is not None)
    release_memory()  # what the parts of the sample took
    return Sampled(passes, survey, method, options, kept, inner, outliers, bounds, stepwise)


def _searched(wanted: Sequence[int], method: Method, options: Options, survey: Survey) -> dict[int, Stepwise]:
    """Return fits to the first rows of a source, to be continued with the others."""
    rows = survey.sample.rows
    state = options.generator.get_state() if options.generator is not None else None
    fits = dict[int, Stepwise]()
    for k in wanted:
        problem = prepare(rows.rows, k, method, replace(options, sample_weight=rows.weights, progress=None))
        result = conclude(problem, method.run(problem))
        if not result.shrinkage and not result.collapsed:
            mixture = in_coordinates(result.mixture.to(dtype=torch.float64))
            fits[k] = Stepwise.after(mixture, options.covariance_type, survey.weight, options.reg_covar)
    if options.generator is not None and state is not None:
        options.generator.set_state(state)  # as if this had not been
    return fits


def _without_outliers(sample: Rows, survey: Survey, *, indexed: bool) -> tuple[Rows, Outliers, Bounds | None]:
    """Return the rows of the sample without outliers, those of all rows, and the bounds of the others.

    Outliers need not be in the sample, but they are among the extremes.
    """
    extremes = survey.extremes.rows
    if extremes is None:
        return sample, Outliers(), None
    others = extremes[~torch.isin(extremes.positions, sample.positions)]
    every = Rows.cat([sample, others])
    shares = torch.cat((sample.weights * (survey.n_rows / len(sample)), others.weights))
    found = find_outliers(every.rows, shares / shares.max(), keep=len(sample) // 2)
    bounds = Bounds.between(every.rows, found)
    if bounds is None:
        return sample, Outliers(), None
    rows = tuple(sorted(every.positions[list(found.rows)].tolist()))
    outliers = found._replace(rows=rows, n_samples=survey.n_rows, indexed=indexed)
    return sample[bounds.hold(sample.rows)], outliers, bounds


def _dtype(problems: Sequence[Problem], solutions: Sequence[Solution]) -> torch.dtype:
    """Return float32 if its rounding is far below the variances of all components in all directions."""
    for problem, solution in zip(problems, solutions, strict=True):
        _, means, values = solution.components
        if bool(problem.family.narrower(values, torch.full_like(means, _NARROW)).any()):
            return torch.float64
    return search_dtype(problems[0].data)


def takes_passes(X: Any, method: Method, sample: int = SAMPLE) -> bool:
    """Return whether data in memory are so many that they are read in passes, as a source of the same rows would be."""
    if isinstance(X, NormalMixture | MultivariateNormalMixture) or not hasattr(X, "__len__") or len(X) <= sample:
        return False
    if not isinstance(method, MergeDown | ExpectationMaximization) or method.max_iter < _MOST_PASSES:
        return False
    half = getattr(X, "dtype", None) in (torch.float16, torch.bfloat16, np.float16)
    return not (isinstance(X, Tensor) and X.device.type != "cpu") and not half


def refuse_passes(**given: object) -> None:
    """Raise a ValueError for arguments of passes over a source, which data in memory do not need."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is for data that are read in passes: sources, and arrays of more than {SAMPLE:,} rows; got "
                f"{value!r} for fewer rows in memory."
            )


def _fingerprint(rows: Source, options: Options, task: str) -> str:
    """Return a hash of everything that determines the passes."""
    start = options.init_params
    chosen = start if start is None or isinstance(start, str) else repr((start.weights, start.means))
    settings = options.covariance_type, chosen, options.reg_covar, options.relative_reg_covar, options.shrinkage
    return hashlib.sha256(repr((rows.fingerprint(), settings, rows.skip_bad, task)).encode()).hexdigest()


def _reporter(options: Options) -> Callable[[str], None] | None:
    if options.progress is None:
        return None
    progress, began = options.progress, time.perf_counter()
    return lambda text: progress(Step(text, 0, math.nan, time.perf_counter() - began))


def _seed(generator: torch.Generator | None) -> int:
    """Return a number that follows from the state of a generator, without a change: the search is that for an array."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return int.from_bytes(hashlib.sha256(state.cpu().numpy().tobytes()).digest()[:8], "little")
