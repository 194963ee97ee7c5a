"""Expectation maximisation: plain steps of many fits at once, accelerated steps of one, and the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.fitting.features import Data
from cramix.fitting.problem import NO_ITERATIONS, OUT_OF_ITERATIONS, Components, Method, Problem, Solution
from cramix.fitting.starts import draw_starts
from cramix.mixture.covariance import Family, Prior

# The longest first extrapolation in steps, the factor by which that limit grows after a gain and shrinks after a loss,
# and its minimum.
_FIRST, _GROWTH, _LEAST = 4.0, 4.0, 2.0
# Steps on a GPU between looks at their results, for which the host has to wait.
_LOOK = 5


class Steps(Protocol):
    """Something whose likelihood EM steps climb: data, or an estimate of the likelihood of more of them."""

    family: Family

    @property
    def is_large(self) -> bool:
        """Whether a step on a GPU takes longer than the host waits for its result."""
        ...

    def step(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums `(B, k, F)` after one EM step, and the mean log likelihood before it, `(B,)`."""
        ...


# Yields points to take a step at, gets the sums after it and the mean log likelihood before it, and returns an outcome.
Stepping = Generator[Tensor, tuple[Tensor, Tensor], "Outcome"]


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
    every = _LOOK if sums.is_cuda else 1
    recent, gains = list[Outcome](), list[Tensor]()
    for i in range(1, max_iter + 1):
        sums, likelihood = data.step(sums, prior)
        gain = likelihood - last
        recent.append(Outcome(sums, likelihood, i, True, prior))
        gains.append(gain if prior is None else gain.abs())  # shrinkage may lower the likelihood
        last = likelihood
        if len(recent) < every and i < max_iter:
            continue
        converged = (torch.stack(gains) < tol).all(-1).tolist() if tol else [False] * len(recent)
        for outcome, ended in zip(recent, converged, strict=True):
            if watch is not None:
                watch(outcome.log_likelihood.max().item())
            if ended:
                return outcome
        recent, gains = [], []
    return Outcome(sums, last, max_iter, False, prior)


def polish(
    data: Steps,
    sums: Tensor,
    max_iter: int,
    tol: float,
    watch: Callable[[float], None] = lambda log_likelihood: None,
    prior: Prior | None = None,
) -> Outcome:
    """Take EM steps with extrapolation until a step gains less than `tol`.

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
        return Outcome(sums, sums.new_full((1,), -torch.inf), 0, False, prior)
    # On a GPU a leap is computed before the host reads anything, for which it has to wait, unless a step takes longer.
    ahead = sums.is_cuda and not data.is_large
    return driven(data, polishing_of(data.family, sums, max_iter, tol, watch, prior, ahead), prior)


def driven(data: Steps, fit: Stepping, prior: Prior | None = None) -> Outcome:
    """Return the outcome of a generator as that of `polishing_of`, which gets its steps from some data."""
    point = next(fit)
    while True:
        try:
            try:
                point = fit.send(data.step(point, prior))
            except torch.linalg.LinAlgError as error:
                point = fit.throw(error)
        except StopIteration as end:
            return end.value


def polishing_of(
    family: Family,
    sums: Tensor,
    max_iter: int,
    tol: float,
    watch: Callable[[float], None],
    prior: Prior | None,
    ahead: bool = False,
) -> Stepping:
    """Yield points `(1, k, F)` to take an EM step at, and return the outcome; see `polish` for the arguments.

    The caller sends back the sums after the step and the mean log likelihood before it, `(1,)`, or throws a
    LinAlgError if the point is no valid mixture. Steps may thus be passes over data of any size.

    Near an optimum steps shrink by a constant factor, which is close to one where components overlap. After two steps,
    SQUAREM (Varadhan and Roland 2008) extrapolates to where they seem to lead, and keeps that point only if its mean
    log likelihood is higher.

    Args:
        family: the kind of covariances.
        sums: the start, `(1, k, F)`.
        max_iter: the largest number of steps, at least 1.
        tol: gain at which to stop.
        watch: called with the mean log likelihood before each step.
        prior: pseudo-samples.
        ahead: whether to step at an extrapolated point before the likelihoods of the others are read.
    """
    history = list[float]()

    def step(point: Tensor) -> Generator[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the sums after a step, and the log likelihood before it with, if there is one, the log prior."""
        following, value = yield point
        return following, with_log_prior(family, point, value, prior)

    def note(value: list[float]) -> None:
        history.append(value[0])
        watch(value[0])

    def outcome(following: Tensor, point: Tensor, value: list[float], converged: bool) -> Outcome:
        likelihood = point.new_tensor([sum(value) - sum(value[1:])])
        return Outcome(following, likelihood, len(history), converged, prior, tuple(history))

    longest = _FIRST
    first, at_start = yield from step(sums)
    value = at_start.tolist()
    note(value)
    while len(history) < max_iter:
        second, at_first = yield from step(first)
        leap = _Leap.of(sums, first, second, longest)
        if ahead:
            landing, at_landing = yield from step(leap.point)
            (length, farther), first_value, there = _read(leap.numbers, at_first, at_landing)
        else:
            (length, farther), first_value = _read(leap.numbers, at_first)
        note(first_value)
        if not sum(first_value) - sum(value) >= tol:  # NaN ends it, too
            return outcome(second, first, first_value, True)
        sums, value, first = first, first_value, second
        if not farther or len(history) == max_iter:
            continue
        if not ahead:
            try:
                landing, at_landing = yield from step(leap.point)
                there = at_landing.tolist()
            except torch.linalg.LinAlgError:  # no valid mixture
                there = [-torch.inf]
        if math.isfinite(sum(there)):
            note(there)
        if 0 <= sum(there) - sum(value) < tol:  # farther than a step, and yet no gain
            return outcome(landing, leap.point, there, True)
        if sum(there) >= sum(value):
            sums, value, first = leap.point, there, landing
            longest = longest * _GROWTH if length == longest else longest
        else:
            longest = max(longest / _GROWTH, _LEAST)
    return outcome(first, sums, value, False)


def with_log_prior(family: Family, point: Tensor, log_likelihood: Tensor, prior: Prior | None) -> Tensor:
    """Return the terms of what EM steps maximise at a point `(1, k, F)`: the log likelihood `(1,)`, and a log prior."""
    if prior is None or prior.moments is None:
        return log_likelihood
    _, means, values = family.parameters(point, prior)
    return torch.cat((log_likelihood, family.log_prior(means, values, prior)))


class _Leap(NamedTuple):
    """An extrapolation of two steps.

    Args:
        point: its end, `(1, k, F)`.
        numbers: its length in steps, and 1 if it leads farther than these to positive weights, else 0.
    """

    point: Tensor
    numbers: Tensor

    @classmethod
    def of(cls, start: Tensor, first: Tensor, second: Tensor, longest: float) -> _Leap:
        """Extrapolate at most so many steps."""
        step = first - start
        change = second - first - step
        ratio = (step.norm() / change.norm().clamp_min(1e-300)).clamp_max(longest)
        length = ratio if ratio.is_cuda else ratio.item()
        point = start + 2 * length * step + length**2 * change
        farther = (ratio > 1) & (point[..., 0] > 0).all()
        return cls(point, torch.stack((ratio, farther.to(ratio))))


def _read(*tensors: Tensor) -> list[list[float]]:
    """Return the numbers of tensors `(m,)` in one transfer."""
    numbers = iter(torch.cat(tensors).tolist())
    return [[next(numbers) for _ in range(len(tensor))] for tensor in tensors]


@dataclass(frozen=True)
class ExpectationMaximization(Method):
    """Climb to the nearest optimum of the likelihood from several starts and keep the best; starts are k-means.

    Args:
        n_init: number of starts, which run in one batch.
        tol: gain of the mean log likelihood in a step at which to stop.
        max_iter: the largest number of steps; 0 returns the best start.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=ExpectationMaximization(n_init=3), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
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
