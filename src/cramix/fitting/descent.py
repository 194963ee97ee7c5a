"""Gradient descent on the Cramér loss or the likelihood, by a quasi-Newton method or by first-order steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cramix.checks import check_choice, check_integer, check_number
from cramix.fitting.bandwidth import default_bandwidth
from cramix.fitting.descending import Descent, descend
from cramix.fitting.em import Data
from cramix.fitting.families import Family
from cramix.fitting.free import PARAMETRIZATIONS, Chart
from cramix.fitting.merge import MergeDown, best_sound
from cramix.fitting.objectives import Cramer, Likelihood, Objective
from cramix.fitting.optimizers import DEFAULTS, LearningRate, rates_of
from cramix.fitting.problem import Found, Method, Problem, Units, moments, standard_units
from cramix.fitting.starts import draw_starts
from cramix.mixture import MultivariateNormalMixture

# Entries in a history, about.
_ENTRIES = 200


@dataclass(frozen=True)
class GradientDescent(Method):
    """Follow a gradient down from one start; if none is named, from where merging leads (`MergeDown.search`).

    Args:
        objective: "cramer", the sliced Cramér loss, or "nll", minus the mean log likelihood of samples.
        optimizer: "lbfgs", "adam", "lion" or "rmsprop".
        steps: at most so many.
        learning_rate: one for all, three for weights, means and covariances, or a mapping from some of these names; in
            the units of the fit. L-BFGS, which finds its own steps, divides the free tensors by them.
        directions: of the Cramér loss: "exact", a number of random slices anew in each step, or directions `(t, d)`.
        bandwidth: of the Cramér loss to samples: the scale, in the units of the fit, of the normal component that
            stands for each. None is about their distance, see `default_bandwidth`, for "exact" in two dimensions or
            more, else 0: with slices its time is quadratic in the samples.
        batch_size: samples drawn by their weights for each step, for gradients without bias; None for all. Only their
            rows are read, so that a tensor over a file on disk is never copied.
        tolerance: gain of the loss at which to stop, see `descend`.
        parametrization: "cholesky" or "gram", see `Chart`.
        scaling: units of the fit: "each" coordinate by its standard deviation, "one" number for all, which keeps the
            meaning of the Cramér loss, or "none", the units of the data, in which the floor is meant, too.

    Example:
        >>> from cramix import fit
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 5 + torch.randn(100, 2, generator=g)])
        >>> fit(x, 2, method=GradientDescent("nll"), generator=g).mixture.weights.sort().values
        tensor([0.4969, 0.5031])
    """

    name: ClassVar[str] = "descent"
    objective: str = "cramer"
    optimizer: str = "lbfgs"
    steps: int = 1000
    learning_rate: LearningRate = None
    directions: str | int | Tensor = "exact"
    bandwidth: float | None = None
    batch_size: int | None = None
    tolerance: float = 1e-8
    parametrization: str = "cholesky"
    scaling: str = "each"

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, ("cramer", "nll"))
        check_choice("optimizer", self.optimizer, tuple(DEFAULTS))
        check_choice("parametrization", self.parametrization, PARAMETRIZATIONS)
        check_choice("scaling", self.scaling, ("each", "one", "none"))
        check_integer("steps", self.steps, 1)
        rates_of(self.learning_rate, self.optimizer)
        check_number("bandwidth", 0.0 if self.bandwidth is None else self.bandwidth)
        check_number("tolerance", self.tolerance)
        if isinstance(self.directions, str):
            check_choice("directions", self.directions, ("exact",))
        elif not isinstance(self.directions, Tensor):
            check_integer("directions", self.directions, 1)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        noise = "batch_size" if self.batch_size is not None else "directions"
        if self.optimizer == "lbfgs" and (self.batch_size is not None or isinstance(self.directions, int)):
            raise ValueError(
                f'optimizer must be "adam", "lion" or "rmsprop" with {noise} drawn anew in each step; got "lbfgs" and '
                f'{noise}={getattr(self, noise)!r}. Use optimizer="adam".'
            )

    def units(self, target: MultivariateNormalMixture, family: type[Family]) -> Units:
        """Return the units that the scaling asks for."""
        if self.scaling == "none":
            return centred_units(target)
        units = standard_units(target, family)
        if self.scaling == "each":
            return units
        return units._replace(scale=units.scale.square().mean().sqrt().expand_as(units.scale))

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        return found_at(follow(problem, self.descents(problem), self.steps))

    def descents(self, problem: Problem) -> Iterator[tuple[str, Descent]]:
        """Yield the places on the way down, from the start on, with the name of their stage."""
        objective = self._objective(problem)
        chart = Chart(problem.family, self.parametrization)
        sums = self._start(problem, objective.batches.for_start())
        start = chart.free(*problem.family.parameters(sums.squeeze(0)))
        rates = rates_of(self.learning_rate, self.optimizer)
        for place in descend(chart, start, objective, self.optimizer, rates, self.steps, self.tolerance):
            yield "descent", place

    def _start(self, problem: Problem, data: Data) -> Tensor:
        """Return the start that is asked for, `(1, k, F)`, and if none is the end of a short search."""
        if problem.start is None:
            return best_sound(data, MergeDown().search(problem, data))
        return draw_starts(problem, "k-means++", data, problem.n_components, 1)

    def _objective(self, problem: Problem) -> Objective:
        if self.objective == "nll":
            return Likelihood(problem, self.batch_size)
        bandwidth = self._bandwidth(problem) if self.bandwidth is None else self.bandwidth
        if bandwidth and not problem.target.only_points:
            raise ValueError(f"bandwidth must be 0 for a mixture as the target; got {bandwidth!r}. Leave it out.")
        return Cramer(problem, self.batch_size, self.directions, bandwidth)

    def _bandwidth(self, problem: Problem) -> float:
        sliced = problem.target.dim == 1 or not isinstance(self.directions, str)
        return 0.0 if sliced or not problem.target.only_points else default_bandwidth(problem)


def centred_units(target: MultivariateNormalMixture) -> Units:
    """Return units of the size of those of the data, around its mean."""
    centre, _ = moments(target)
    return Units(centre, torch.ones_like(centre))


def follow(problem: Problem, descents: Iterator[tuple[str, Descent]], steps: int) -> Descent:
    """Go all the way down, note some of its many steps, and return the last place."""
    every, noted = -(-steps // _ENTRIES), None
    for name, place in descents:
        # The last place comes again if only the search for another one shows that it is.
        if noted != (name, place.step) and (place.step % every == 0 or place.reason is not None):
            problem.history.add(name, problem.n_components, place.loss)
            noted = name, place.step
    return place


def found_at(place: Descent) -> Found:
    """Return a last place as what a method has found."""
    assert place.reason is not None, "the last place says why it is"
    return Found(*place.chart.parameters(place.free), place.converged, place.reason, place.step)
