"""The fit that finds the best optimum from random starts: more components than asked, merged.

Fits run in rounds of some at once, each from more components than asked. Expectation maximisation places them. Then the
two whose merging costs least become one, with a few steps after it, until as many are left as asked. The surplus finds
the places that a start has missed, and merging takes from where there are too many. Beside them run fits that begin
with as many components as asked, which cost little and sometimes end where merging never leads. When the best optimum
has been found twice no further round is needed, and it is polished.

All but the polishing works on a part of large data, and in float32 if its rounding permits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.fitting.em import Data, Outcome, maximize
from cramix.fitting.families import Prior
from cramix.fitting.merging import merge_cheapest
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import STARTS, start_covariance, sums_of
from cramix.mixture import MultivariateNormalMixture

# Steps of expectation maximisation after the start, after each merge, and before fits are compared.
_PLACING, _SETTLING, _CHOOSING = 20, 5, 30
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

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        some = self._some(problem)
        best = self._search(problem, problem.data.like(some, self._dtype(problem)))
        if some is not None:
            best = maximize(problem.data.like(some), best, self.max_iterations, self.tolerance).sums

        def watch(log_likelihood: float) -> None:
            problem.note_likelihood("polishing", problem.n_components, log_likelihood)

        outcome = maximize(problem.data, best, self.max_iterations, self.tolerance, watch=watch)
        parameters = problem.family.parameters(outcome.sums.squeeze(0))
        return Found(*parameters, outcome.converged, outcome.reason, outcome.iterations)

    def _some(self, problem: Problem) -> Tensor | None:
        """Return the numbers of the samples to search with, none for all."""
        rows = max(self.rows, 10 * problem.n_components)
        return problem.data.resample(rows, problem.generator) if len(problem.data) > rows else None

    def _dtype(self, problem: Problem) -> torch.dtype:
        """Return float32 unless squares of samples far out would take too many digits from the others."""
        return torch.float32 if problem.data.x.abs().max() < _FAR else torch.float64

    def _search(self, problem: Problem, data: Data) -> Tensor:
        """Return the sums of features of the best fit of all rounds, `(1, k, F)`."""
        found = list[Outcome]()
        if isinstance(problem.start, MultivariateNormalMixture):
            found.append(maximize(data, sums_of(problem, problem.start), _PLACING + _CHOOSING))
        for begun in range(0, self.starts, _AT_ONCE):
            found.append(self._round(problem, data, min(self.starts - begun, _AT_ONCE)))
            best = max(found, key=lambda outcome: outcome.log_likelihood.max().item())
            _note(problem, "choosing", best)
            if problem.n_components == 1 or _twice(found):
                break
        # Through the parameters, because float32 sums may be of no covariance to the last digit of float64.
        weights, means, spread = data.family.parameters(best.best())
        covariances = data.family.kind(spread).matrices(data.family.dim)
        return problem.family.sums(weights, means, covariances.expand(*means.shape, -1))

    def _round(self, problem: Problem, data: Data, batch: int) -> Outcome:
        """Run some fits with more components and some without."""
        k = problem.n_components
        if k == 1:
            return maximize(data, data.sums(data.x.new_ones(1, 1, len(data))), 1)
        most = min(len(data), k + (k + 4 if self.surplus is None else self.surplus))
        prior = _priors(data, batch, k)
        outcome = maximize(data, _starts(problem, data, most, batch), _PLACING, prior=prior)
        _note(problem, "placing", outcome)
        while outcome.sums.shape[1] > k:
            merged = merge_cheapest(data.family, outcome.sums, prior)
            outcome = maximize(data, merged, _SETTLING, prior=prior)
            _note(problem, "merging", outcome)
        plain = maximize(data, _starts(problem, data, k, batch), _PLACING, prior=prior)
        return maximize(data, torch.cat((outcome.sums, plain.sums)), _CHOOSING, _SAME / 100)


def _priors(data: Data, batch: int, k: int) -> Prior:
    """Give the components of every other fit d + 2 samples of the shape that starts have.

    In many dimensions, where components have few samples for each number in their covariance, those fits end higher;
    those without find narrow components.
    """
    samples = torch.arange(batch, device=data.x.device) % 2 * (data.family.dim + 2.0)
    return data.family.prior(samples.double() / len(data), start_covariance(data, k))


def _starts(problem: Problem, data: Data, k: int, batch: int) -> Tensor:
    name = problem.start if isinstance(problem.start, str) else "k-means++"
    return STARTS[name](data, k, batch, problem.generator)


def _twice(found: list[Outcome]) -> bool:
    """Whether the best optimum has been found more than once."""
    likelihoods = torch.cat([outcome.log_likelihood for outcome in found]).sort().values
    return len(likelihoods) > 1 and bool(likelihoods[-1] - likelihoods[-2] < _SAME)


def _note(problem: Problem, name: str, outcome: Outcome) -> None:
    problem.note_likelihood(name, outcome.sums.shape[1], outcome.log_likelihood.max().item())
