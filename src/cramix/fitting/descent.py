"""Gradient descent on the Cramér loss or the likelihood, by L-BFGS or first-order optimisers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_choice, check_integer, check_number
from cramix.fitting.features import Data
from cramix.fitting.lbfgs import minimize
from cramix.fitting.learning_rates import DEFAULTS, LearningRate, Rates, first_order, rates_of
from cramix.fitting.objectives import Cramer, Likelihood, Objective, default_bandwidth
from cramix.fitting.problem import OUT_OF_ITERATIONS, Components, Method, Problem, Solution, Units
from cramix.fitting.search import MergeDown, best_sound
from cramix.fitting.starts import draw_starts
from cramix.fitting.unconstrained import PARAMETRIZATIONS, WIDEST, Parametrization
from cramix.mixture import MultivariateNormalMixture

# Approximate number of entries in a history.
_ENTRIES = 200
# L-BFGS steps over which the gain is measured.
_STEPS_BACK = 5
# First-order optimisers compare mean losses over windows of this many steps, or this fraction of all steps if losses
# are noisy; where these stop falling, learning rates are multiplied by the third number, at most so many times.
_WINDOW, _FRACTION, _DECAY, _DECAYS = 50, 0.1, 0.25, 3


@dataclass(frozen=True)
class GradientDescent(Method):
    """Follow a gradient from one start; by default from where the search of `MergeDown` ends.

    Args:
        objective: "cramer", the sliced Cramér loss, or "likelihood", the negative mean log likelihood of samples.
        optimizer: "lbfgs", "adam", "lion" or "rmsprop".
        max_iter: the largest number of steps.
        learning_rate: one for all, three for weights, means and covariances, or a mapping from some of these names; in
            the units of the fit. L-BFGS, which determines its step sizes, divides the unconstrained tensors by them.
        directions: of the Cramér loss: "exact", a number of random slices drawn in each step, or directions `(t, d)`.
        bandwidth: of the Cramér loss to samples: the scale, in the units of the fit, of a normal kernel around each
            sample. None is about the distance between samples, see `default_bandwidth`, for "exact" directions in two
            dimensions or more, else 0: with slices the time would be quadratic in the samples.
        batch_size: samples drawn by their weights in each step, for unbiased gradients; None for all. Only their rows
            are read, so that a tensor over a file on disk is never copied.
        tol: gain of the loss at which to stop, see `descend`.
        parametrization: "cholesky" or "gram", see `Parametrization`.
        scaling: units of the fit: "each" coordinate in its standard deviation, "one" unit for all, which keeps the
            meaning of the Cramér loss, or "none", the units of the data.

    Example:
        >>> from cramix import fit
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 5 + torch.randn(100, 2, generator=g)])
        >>> fit(x, 2, method=GradientDescent("likelihood"), generator=g).mixture.weights.sort().values
        tensor([0.4969, 0.5031])
    """

    name: ClassVar[str] = "descent"
    objective: str = "cramer"
    optimizer: str = "lbfgs"
    max_iter: int = 1000
    learning_rate: LearningRate = None
    directions: str | int | Tensor = "exact"
    bandwidth: float | None = None
    batch_size: int | None = None
    tol: float = 1e-8
    parametrization: str = "cholesky"
    scaling: str = "each"

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, ("cramer", "likelihood"))
        check_choice("optimizer", self.optimizer, tuple(DEFAULTS))
        check_choice("parametrization", self.parametrization, PARAMETRIZATIONS)
        check_choice("scaling", self.scaling, ("each", "one", "none"))
        check_integer("max_iter", self.max_iter, 1)
        rates_of(self.learning_rate, self.optimizer)
        check_number("bandwidth", 0.0 if self.bandwidth is None else self.bandwidth)
        check_number("tol", self.tol)
        if isinstance(self.directions, str):
            check_choice("directions", self.directions, ("exact",))
        elif not isinstance(self.directions, Tensor):
            check_integer("directions", self.directions, 1)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        noise = "batch_size" if self.batch_size is not None else "directions"
        if self.optimizer == "lbfgs" and (self.batch_size is not None or isinstance(self.directions, int)):
            raise ValueError(
                f'optimizer must be "adam", "lion" or "rmsprop" if {noise} makes the loss random; got "lbfgs" and '
                f"{noise}={getattr(self, noise)!r}."
            )

    def units(self, standard: Units) -> Units:
        """Return the units that the scaling asks for."""
        if self.scaling == "none":
            return standard._replace(scale=torch.ones_like(standard.scale))
        if self.scaling == "each":
            return standard
        return standard._replace(scale=standard.scale.square().mean().sqrt().expand_as(standard.scale))

    @property
    def sets_outliers_aside(self) -> bool:
        """Whether all samples are read: batches of a file must not become a copy of it."""
        return self.batch_size is None

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""
        return solution_at(follow(problem, self.descents(problem), self.max_iter))

    def descents(self, problem: Problem) -> Iterator[tuple[str, Iterate]]:
        """Yield the iterates, from the start on, each with the name of its stage."""
        objective = self._objective(problem)
        parametrization = Parametrization(problem.family, self.parametrization)
        sums = self._start(problem, objective.batches.for_start())
        start = parametrization.unconstrained(Components(*problem.family.parameters(sums.squeeze(0))))
        rates = rates_of(self.learning_rate, self.optimizer)
        for iterate in descend(parametrization, start, objective, self.optimizer, rates, self.max_iter, self.tol):
            yield "descent", iterate

    def _start(self, problem: Problem, data: Data) -> Tensor:
        """Return the requested start, `(1, k, F)`, by default the end of a short search."""
        if problem.init_params is None:
            return best_sound(data, MergeDown().search(problem, data))
        return draw_starts(problem, "k-means++", data, problem.n_components, 1)

    def _objective(self, problem: Problem) -> Objective:
        if self.objective == "likelihood":
            return Likelihood(problem, self.batch_size)
        bandwidth = self._bandwidth(problem) if self.bandwidth is None else self.bandwidth
        if bandwidth and not problem.target.is_empirical:
            raise ValueError(f"bandwidth must be 0 if X is a mixture; got {bandwidth!r}.")
        return Cramer(problem, self.batch_size, self.directions, bandwidth)

    def _bandwidth(self, problem: Problem) -> float:
        sliced = problem.target.dim == 1 or not isinstance(self.directions, str)
        return 0.0 if sliced or not problem.target.is_empirical else default_bandwidth(problem)


class Iterate(NamedTuple):
    """One iterate of a descent.

    Args:
        step: 0 is the start.
        loss: as the history records it.
        unconstrained: its tensors, which later steps do not change.
        parametrization: what they stand for.
        reason: why the descent ended here; None if it continues.
        converged: whether it ended because it converged.

    Example:
        >>> place = Iterate(3, 1.5, None, None, reason="max_iter was reached")  # as `descend` yields them
        >>> place.step, place.loss, place.converged
        (3, 1.5, False)
    """

    step: int
    loss: float
    unconstrained: Components
    parametrization: Parametrization
    reason: str | None = None
    converged: bool = False

    def mixture(self) -> MultivariateNormalMixture:
        """Return the mixture in the units of the problem."""
        return self.parametrization.mixture(self.unconstrained)


def descend(
    parametrization: Parametrization,
    start: Components,
    objective: Objective,
    optimizer: str,
    rates: Rates,
    max_iter: int,
    tol: float = 0.0,
) -> Iterator[Iterate]:
    """Yield the start and the iterate after each step; the last one has a reason.

    A loss or a gradient that is not finite ends the descent at the last iterate where both were.

    Args:
        parametrization: what the unconstrained tensors stand for.
        start: unconstrained tensors.
        objective: the loss.
        optimizer: "lbfgs", which needs losses without noise, or a name of `first_order`.
        rates: for each group of tensors. L-BFGS sees the tensors divided by them.
        max_iter: the largest number of steps.
        tol: gain of the loss at which to stop, relative to losses above 1: over a few steps of L-BFGS; of the mean
            loss over a window of first-order steps, once smaller learning rates gain no more either. With 0,
            first-order optimisers take all steps at constant learning rates.

    Example:
        >>> from cramix.fitting.objectives import Likelihood
        >>> from cramix.fitting.problem import standard_units
        >>> from cramix.mixture.covariance import FAMILIES
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> target, kind = MultivariateNormalMixture.from_samples(x), FAMILIES["diag"]
        >>> problem = Problem(target, 1, kind(2, 1e-6), standard_units(target, kind))
        >>> chart = Parametrization(problem.family)
        >>> one = torch.ones(1, 2, dtype=torch.float64)
        >>> start = chart.unconstrained(Components(one[:, 0], 2 * one, one))
        >>> *_, last = descend(chart, start, Likelihood(problem), "lbfgs", Rates(1.0, 1.0, 1.0), 100, 1e-9)
        >>> last.converged, bool(last.mixture().mean.abs().max() < 1e-3)  # the target is standardised
        (True, True)
    """
    if optimizer == "lbfgs":
        return _quasi_newton(parametrization, start, objective, rates, max_iter, tol)
    return _first_order(parametrization, start, objective, optimizer, rates, max_iter, tol)


def _first_order(
    parametrization: Parametrization,
    start: Components,
    objective: Objective,
    name: str,
    rates: Rates,
    max_iter: int,
    tol: float,
) -> Iterator[Iterate]:
    tensors = _copied(start)
    optimizer = first_order(name, tensors, rates)
    window, least, decays = list[float](), math.inf, 0
    width = max(_WINDOW, int(_FRACTION * max_iter)) if objective.random else _WINDOW
    iterate = Iterate(0, math.nan, start, parametrization)
    for step in range(max_iter + 1):
        loss, gradients = _evaluate(parametrization, objective, tensors)
        if math.isinf(loss):
            yield iterate._replace(reason=f"the loss at step {step} was not finite")
            return
        iterate = Iterate(step, objective.shown(loss), _copied(tensors), parametrization)
        window.append(loss)
        if tol and len(window) == width:
            mean = sum(window) / width
            if not mean < least - _threshold(tol, mean):
                decays += 1
                for group in optimizer.param_groups:
                    group["lr"] *= _DECAY
            least = min(least, mean)
            window.clear()
        if decays > _DECAYS:
            yield iterate._replace(reason="the mean loss gains less than tol", converged=True)
            return
        if step < max_iter:
            yield iterate
            for x, gradient in zip(tensors, gradients, strict=True):
                x.grad = gradient
            optimizer.step()
    yield iterate._replace(reason=OUT_OF_ITERATIONS if tol else "all steps were taken", converged=not tol)


def _quasi_newton(
    parametrization: Parametrization,
    start: Components,
    objective: Objective,
    rates: Rates,
    max_iter: int,
    tol: float,
) -> Iterator[Iterate]:
    like, sizes = start.weights, [x.numel() for x in start]
    factors = torch.cat([torch.full((n,), rate, dtype=like.dtype) for n, rate in zip(sizes, rates, strict=True)])

    def tensors(scaled: np.ndarray) -> Components:
        parts = (factors * torch.from_numpy(scaled)).to(like).split(sizes)
        return Components(*(part.clone().view_as(x) for part, x in zip(parts, start, strict=True)))

    def slope(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradients = _evaluate(parametrization, objective, tensors(scaled))
        return loss, (factors * torch.cat([x.flatten().cpu() for x in gradients])).numpy()

    begin = torch.cat([x.flatten().cpu() for x in start]) / factors
    last = deque[float](maxlen=_STEPS_BACK + 1)
    for step, point in enumerate(minimize(slope, begin.numpy())):
        if math.isinf(point.value):
            yield Iterate(0, math.nan, start, parametrization, "the loss of the start was not finite")
            return
        iterate = Iterate(step, objective.shown(point.value), tensors(point.x), parametrization)
        last.append(point.value)
        if len(last) > _STEPS_BACK and last[0] - point.value <= _threshold(tol, point.value):
            break
        if step == max_iter:
            yield iterate._replace(reason=OUT_OF_ITERATIONS)
            return
        yield iterate
    yield iterate._replace(reason="the loss gains less than tol", converged=True)


def follow(problem: Problem, iterates: Iterator[tuple[str, Iterate]], max_iter: int) -> Iterate:
    """Exhaust a descent, record some of its steps, and return the last iterate."""
    every, noted = -(-max_iter // _ENTRIES), None
    for name, iterate in iterates:
        # The last iterate is repeated if only the attempt at another step shows that it is the last.
        if noted != (name, iterate.step) and (iterate.step % every == 0 or iterate.reason is not None):
            problem.history.add(name, problem.n_components, iterate.loss)
            noted = name, iterate.step
    return iterate


def solution_at(iterate: Iterate) -> Solution:
    """Return the last iterate of a descent as a solution."""
    assert iterate.reason is not None, "the last iterate has a reason"
    components = iterate.parametrization.components(iterate.unconstrained)
    return Solution(components, iterate.converged, iterate.reason, iterate.step)


def _copied(tensors: Components) -> Components:
    return Components(*(x.detach().clone() for x in tensors))


def _threshold(tol: float, loss: float) -> float:
    return tol * max(1.0, abs(loss))


def _evaluate(
    parametrization: Parametrization, objective: Objective, tensors: Components
) -> tuple[float, tuple[Tensor, ...]]:
    """Return the loss and its gradients in the unconstrained tensors; infinity and zeros where one is not finite."""
    invalid = math.inf, tuple(torch.zeros_like(x) for x in tensors)
    with torch.enable_grad():
        leaves = Components(*(x.detach().requires_grad_() for x in tensors))
        components = parametrization.components(leaves)
        weights, means, values = components
        widest = WIDEST * parametrization.least_floor
        valid = [weights.isfinite().all(), means.isfinite().all(), values.abs().amax() <= widest]
        if not all(map(bool, valid)):
            return invalid
        try:
            loss = objective(components)
        except torch.linalg.LinAlgError:  # rounding has made a covariance singular
            return invalid
        gradients = torch.autograd.grad(loss, leaves)
    finite = [loss.isfinite(), *(x.isfinite().all() for x in gradients)]
    return (loss.item(), gradients) if all(map(bool, finite)) else invalid
