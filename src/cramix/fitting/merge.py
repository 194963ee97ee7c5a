"""The fit that finds the best optimum from random starts: more components than asked, merged.

Fits run in rounds of some at once, each from more components than asked. Expectation maximisation places them. Then the
two whose merging costs least become one, with a few steps after it, until as many are left as asked. The surplus finds
the places that a start has missed, and merging takes from where there are too many. Beside them run fits that begin
with as many components as asked, half of them from clusters, which cost little and sometimes end where merging never
leads. When the best optimum has been found twice no further round is needed, and it is polished.

The likelihood decides between fits as long as it can: it has no bound where a component collapses onto a few samples.
If the best fit ends so, fits with narrow components drop out. If all have some, the Cramér loss decides, which is
bounded and does not reward them.

All but the polishing works on a part of large data, and in float32 if its rounding permits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.distance.sliced import sliced_cramer_squared
from cramix.fitting.em import Data, Outcome, maximize
from cramix.fitting.families import Family
from cramix.fitting.merging import PLACING, merging, priors
from cramix.fitting.polishing import polish
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import STARTS, regrouped, sums_of
from cramix.mixture import MultivariateNormalMixture

# Steps of expectation maximisation before fits are compared.
_CHOOSING = 30
# The variance of a component that may be about to collapse, in the data's variances; a larger floor keeps it from that.
_NARROW = 1e-4
# In units of the data's deviations.
_FAR = 50.0
# Fits of either sort in a round.
_AT_ONCE = 4
# Mean log likelihoods that differ by less are of one optimum.
_SAME = 1e-3


@dataclass(frozen=True)
class MergeDown(Method):
    """Fit more components than asked, merge them, and polish the best.

    Args:
        starts: how many fits to merge down at most, in rounds of four.
        surplus: components to begin with beyond k; k + 4 if None.
        rows: samples to search with; if there are more, so many drawn at random.
        tolerance: gain of the mean log likelihood in a step at which to stop.
        max_iterations: of the last stage.
    """

    name: ClassVar[str] = "merge"
    starts: int = 8
    surplus: int | None = None
    rows: int = 20_000
    tolerance: float = 1e-7
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        check_integer("starts", self.starts, 1)
        check_integer("surplus", self.surplus or 0, 0)
        check_integer("rows", self.rows, 1)
        check_integer("max_iterations", self.max_iterations, 1)
        check_number("tolerance", self.tolerance)

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        data = problem.data
        some = self._some(problem)
        fits = self.search(problem, data.like(some, _dtype(data)))
        some_data = data if some is None else data.like(some)
        outcome = self._polished(problem, some_data, fits.best())
        if data.spread is None and _has_collapsed(problem.family, outcome.sums):
            outcome = self._polished(problem, some_data, best_sound(some_data, fits))
        if some is not None:
            outcome = self._polished(problem, data, outcome.sums)
        parameters = problem.family.parameters(outcome.sums.squeeze(0))
        return Found(*parameters, outcome.converged, outcome.reason, outcome.iterations)

    def _polished(self, problem: Problem, data: Data, sums: Tensor) -> Outcome:
        def watch(log_likelihood: float) -> None:
            problem.note_likelihood("polishing", problem.n_components, log_likelihood)

        return polish(data, sums, self.max_iterations, self.tolerance, watch)

    def _some(self, problem: Problem) -> Tensor | None:
        """Return the numbers of the samples to search with, none for all."""
        rows = max(self.rows, 10 * problem.n_components)
        return problem.data.resample(rows, problem.generator) if len(problem.data) > rows else None

    def search(self, problem: Problem, data: Data) -> Outcome:
        """Return the fits of all rounds."""
        found = list[Outcome]()
        if isinstance(problem.start, MultivariateNormalMixture):
            found.append(maximize(data, sums_of(problem, problem.start), PLACING + _CHOOSING))
        for begun in range(0, self.starts, _AT_ONCE):
            found.append(self._round(problem, data, min(self.starts - begun, _AT_ONCE)))
            fits = Outcome.of(found)
            problem.note_likelihood("choosing", problem.n_components, fits.log_likelihood.max().item())
            if problem.n_components == 1 or _twice(fits.log_likelihood[_sound(data, fits)]):
                break
        # Through the parameters, because float32 sums may be of no covariance to the last digit of float64.
        weights, means, spread = data.family.parameters(fits.sums)
        covariances = data.family.kind(spread).matrices(data.family.dim)
        sums = problem.family.sums(weights, means, covariances.expand(*means.shape, -1))
        return fits._replace(sums=sums)

    def _round(self, problem: Problem, data: Data, batch: int) -> Outcome:
        """Run some fits with more components and some without."""
        k = problem.n_components
        if k == 1:
            return maximize(data, data.sums(data.x.new_ones(1, 1, len(data))), 1)
        most = min(len(data), k + (k + 4 if self.surplus is None else self.surplus))
        prior = priors(data, batch, k)
        for outcome in merging(data, _starts(problem, data, most, batch), prior):
            components = outcome.sums.shape[1]
            problem.note_likelihood("merging", components, outcome.log_likelihood.max().item())
            if components == k:
                break
        plain = _starts(problem, data, k, batch)
        plain = torch.cat((plain[: batch // 2], regrouped(data, plain[batch // 2 :])))
        plain = maximize(data, plain, PLACING, prior=prior).sums
        return maximize(data, torch.cat((outcome.sums, plain)), _CHOOSING, _SAME / 100)


def _dtype(data: Data) -> torch.dtype:
    """Return float32 unless squares of samples far out would take too many digits from the others."""
    return torch.float32 if data.x.abs().max() < _FAR else torch.float64


def _starts(problem: Problem, data: Data, k: int, batch: int) -> Tensor:
    name = problem.start if isinstance(problem.start, str) else "k-means++"
    return STARTS[name](data, k, batch, problem.generator)


def _twice(likelihoods: Tensor) -> bool:
    """Whether the best optimum has been found more than once."""
    return len(likelihoods) > 1 and bool(likelihoods.topk(2).values.diff().abs() < _SAME)


def _has_collapsed(family: Family, sums: Tensor) -> bool:
    _, means, spread = family.parameters(sums)
    return family.floor < _NARROW and bool(family.collapsed(means, spread).any())


def _sound(data: Data, fits: Outcome) -> Tensor:
    """Return which fits have no component that may be about to collapse, `(B,)`."""
    _, _, spread = data.family.parameters(fits.sums)
    return (data.family.least_variances(spread) > _NARROW).all(-1)


def best_sound(data: Data, fits: Outcome) -> Tensor:
    """Return the most likely sound fit, `(1, k, F)`; the nearest one if none is."""
    sound = _sound(data, fits)
    if bool(sound.any()):
        return fits._replace(sums=fits.sums[sound], log_likelihood=fits.log_likelihood[sound]).best()
    return _nearest(data, fits.sums)


def _nearest(data: Data, sums: Tensor) -> Tensor:
    """Return the fit with the least Cramér loss to the data, `(1, k, F)`, of those with sums `(B, k, F)`."""
    weights, means, spread = data.family.parameters(sums)
    fits = MultivariateNormalMixture(weights, means, data.family.kind(spread), validate_args=False)
    points = MultivariateNormalMixture.from_samples(data.x, data.weights)
    losses = sliced_cramer_squared(fits, points, target_self_energy=False)
    return sums[losses.argmin()].unsqueeze(0)
