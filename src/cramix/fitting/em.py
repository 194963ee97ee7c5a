"""Expectation maximisation: plain steps of many fits at once, accelerated steps of one, and the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.fitting.features import Data
from cramix.fitting.problem import NO_ITERATIONS, OUT_OF_ITERATIONS, Components, Method, Problem, Solution
from cramix.fitting.starts import draw_starts
from cramix.mixture.covariance import Prior

# The longest first extrapolation in steps, the factor by which that limit grows after a gain and shrinks after a loss,
# and its minimum.
_FIRST, _GROWTH, _LEAST = 4.0, 4.0, 2.0


class Outcome(NamedTuple):
    """Fits after some steps.

    Args:
        sums: of features, `(B, k, F)`.
        log_likelihood: mean over the samples, `(B,)`.
        n_iter: number of steps.
        converged: whether they converged.
        prior: of the fits.
        history: mean log likelihoods before each step, of a fit that was polished.
    """

    sums: Tensor
    log_likelihood: Tensor
    n_iter: int
    converged: bool
    prior: Prior | None = None
    history: tuple[float, ...] = ()

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Return the fits of several outcomes as one batch, with the steps and convergence of the last one."""
        return outcomes[-1]._replace(
            sums=torch.cat([outcome.sums for outcome in outcomes]),
            log_likelihood=torch.cat([outcome.log_likelihood for outcome in outcomes]),
        )

    def best(self, rounding: float = 0.0) -> Tensor:
        """Return the sums of the most likely fit, `(1, k, F)`; the first of those that differ by `rounding` at most."""
        likely = self.log_likelihood >= self.log_likelihood.max() - rounding
        return self.sums[likely.to(torch.uint8).argmax()].unsqueeze(0)

    @property
    def one_prior(self) -> Prior | None:
        """The prior of one fit: all fits of a solution have the same."""
        if self.prior is None:
            return None
        moments = self.prior.moments
        return Prior(self.prior.weight[:1], moments if moments is None or moments.ndim == 1 else moments[:1])

    def solution(self, problem: Problem) -> Solution:
        """Return the most likely fit as the solution of a problem."""
        stopped = OUT_OF_ITERATIONS if self.n_iter else NO_ITERATIONS
        reason = "the log likelihood gains less than tol" if self.converged else stopped
        components = Components(*(x.squeeze(0) for x in problem.family.parameters(self.best(), self.one_prior)))
        return Solution(components, self.converged, reason, self.n_iter)


def settled(data: Data, outcome: Outcome, tol: float) -> Outcome:
    """Return an outcome that ran out of iterations as converged if the last step of the best fit gained less than tol.

    A fit that is continued one iteration at a time shows that way when it is done.
    """
    if outcome.converged or not outcome.n_iter:
        return outcome
    _, likelihood = data.step(outcome.best(), outcome.one_prior)
    return outcome._replace(converged=bool(likelihood - outcome.log_likelihood.max() < tol))


def maximize(
    data: Data,
    sums: Tensor,
    max_iter: int,
    tol: float = 0.0,
    prior: Prior | None = None,
    watch: Callable[[float], None] | None = None,
) -> Outcome:
    """Take EM steps until the mean log likelihood of every fit gains less than `tol`.

    Args:
        data: the target.
        sums: the starts, `(B, k, F)`.
        max_iter: the largest number of steps; 0 returns the starts.
        tol: 0 takes all steps. With a prior, changes count, because it may lower the likelihood.
        prior: pseudo-samples that every component has in addition to its data.
        watch: called with the best mean log likelihood before each step.
    """
    last = sums.new_full((len(sums),), -torch.inf)
    for i in range(1, max_iter + 1):
        sums, likelihood = data.step(sums, prior)
        if watch is not None:
            watch(likelihood.max().item())
        gain = likelihood - last
        if tol and bool(((gain if prior is None else gain.abs()) < tol).all()):  # shrinkage may lower the likelihood
            return Outcome(sums, likelihood, i, True, prior)
        last = likelihood
    return Outcome(sums, last, max_iter, False, prior)


def polish(
    data: Data,
    sums: Tensor,
    max_iter: int,
    tol: float,
    watch: Callable[[float], None] = lambda log_likelihood: None,
    prior: Prior | None = None,
) -> Outcome:
    """Take EM steps with extrapolation until a step gains less than `tol`.

    Near an optimum steps shrink by a constant factor, which is close to one where components overlap. After two steps,
    SQUAREM (Varadhan and Roland 2008) extrapolates to where they seem to lead, and keeps that point only if its mean
    log likelihood is higher.

    Args:
        data: the target.
        sums: the start, `(1, k, F)`.
        max_iter: the largest number of steps, including those at extrapolated points; 0 returns the start.
        tol: gain of the mean log likelihood at which to stop.
        watch: called with the mean log likelihood before each step.
        prior: pseudo-samples that every component has in addition to its data, with moments; or with an infinite
            weight, which makes components share one covariance.
    """
    if max_iter == 0:
        return maximize(data, sums, 0, prior=prior)
    history = list[float]()

    def of_prior(point: Tensor) -> float:
        if prior is None or prior.moments is None:
            return 0.0
        return data.family.log_prior(*data.family.parameters(point, prior)[1:], prior).item()

    def step(point: Tensor) -> tuple[Tensor, float]:
        following, likelihood = data.step(point, prior)
        history.append(likelihood.item())
        watch(history[-1])
        return following, history[-1] + of_prior(point)

    def outcome(following: Tensor, point: Tensor, value: float, converged: bool) -> Outcome:
        likelihood = point.new_tensor([value - of_prior(point)])
        return Outcome(following, likelihood, len(history), converged, prior, tuple(history))

    longest = _FIRST
    first, value = step(sums)
    while len(history) < max_iter:
        second, first_value = step(first)
        if first_value - value < tol:
            return outcome(second, first, first_value, True)
        length, point = _extrapolate(sums, first, second, longest)
        sums, value, first = first, first_value, second
        if point is None or len(history) == max_iter:
            continue
        try:
            landing, there = step(point)
        except torch.linalg.LinAlgError:  # no valid mixture
            there = -torch.inf
        if there >= first_value:
            sums, value, first = point, there, landing
            longest = longest * _GROWTH if length == longest else longest
        else:
            longest = max(longest / _GROWTH, _LEAST)
    return outcome(first, sums, value, False)


def _extrapolate(start: Tensor, first: Tensor, second: Tensor, longest: float) -> tuple[float, Tensor | None]:
    """Return the length of the extrapolation in steps and its end; None if that is no farther than the steps."""
    step = first - start
    change = second - first - step
    length = min((step.norm() / change.norm().clamp_min(1e-300)).item(), longest)
    if length <= 1:
        return length, None
    point = start + 2 * length * step + length**2 * change
    return length, point if bool((point[..., 0] > 0).all()) else None


@dataclass(frozen=True)
class ExpectationMaximization(Method):
    """Climb to the nearest optimum of the likelihood from several starts and keep the best; starts are k-means.

    Args:
        n_init: number of starts, which run in one batch.
        tol: gain of the mean log likelihood in a step at which to stop.
        max_iter: the largest number of steps; 0 returns the best start.
    """

    name: ClassVar[str] = "em"
    shrinks: ClassVar[bool] = True
    n_init: int = 1
    tol: float = 1e-6
    max_iter: int = 1000

    def __post_init__(self) -> None:
        check_integer("n_init", self.n_init, 1)
        check_integer("max_iter", self.max_iter, 0)
        check_number("tol", self.tol)

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""

        def watch(log_likelihood: float) -> None:
            problem.note_likelihood("expectation maximisation", problem.n_components, log_likelihood)

        sums = draw_starts(problem, "kmeans", problem.data, problem.n_components, self.n_init)
        strength = problem.shrinkage or 0.0
        prior = problem.shrinkage_prior(strength, self.n_init)
        outcome = maximize(problem.data, sums, self.max_iter, self.tol, prior, watch)
        if not self.max_iter:
            _, likelihood = problem.data.step(sums, prior)
            outcome = outcome._replace(log_likelihood=likelihood)
        return settled(problem.data, outcome, self.tol).solution(problem)._replace(shrinkage=strength)
