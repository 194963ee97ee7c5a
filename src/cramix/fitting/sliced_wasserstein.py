"""A fit by the sliced Wasserstein distance, after Kolouri, Rohde and Hoffmann 2018.

"Sliced Wasserstein Distance for Learning Gaussian Mixture Models", CVPR 2018. Theirs: the mean over random directions,
drawn anew in each step, of `W2^2` between the projections of the mixture and of the samples; RMSProp; weights, means
and covariances are all learned. What differs:

- The transport on a line is exact, by quantiles of the mixture, where they go over a discretised density.
- Weights are a softmax, and covariances come from their Cholesky factors, where they project on what is valid.
- Directions come in orthogonal blocks, two in a step, for an exact transport takes its time.
- The units are standard, the start is random samples, and the numbers of steps and the rate are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cramix.checks import check_integer
from cramix.fitting.descending import descend
from cramix.fitting.descent import follow, found_at
from cramix.fitting.free import Chart
from cramix.fitting.objectives import Objective
from cramix.fitting.optimizers import LearningRate, rates_of
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import draw_starts
from cramix.loss import sliced_wasserstein_loss


@dataclass(frozen=True)
class SlicedWasserstein(Method):
    """Follow the sliced Wasserstein distance down, squared, by RMSProp.

    Args:
        steps: all of which are taken.
        slices: random directions in each step.
        learning_rate: one for all, three for weights, means and covariances, or a mapping from some of these names.
    """

    name: ClassVar[str] = "sliced-wasserstein"
    steps: int = 300
    slices: int = 2
    learning_rate: LearningRate = 0.02

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1)
        check_integer("slices", self.slices, 1)
        rates_of(self.learning_rate, "rmsprop")

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        chart = Chart(problem.family)
        sums = draw_starts(problem, "random_from_data", problem.data, problem.n_components, 1)
        start = chart.free(*problem.family.parameters(sums.squeeze(0)))
        rates = rates_of(self.learning_rate, "rmsprop")
        places = descend(chart, start, _Transport(problem, self.slices), "rmsprop", rates, self.steps)
        return found_at(follow(problem, (("sliced Wasserstein loss", place) for place in places), self.steps))


class _Transport(Objective):
    """The mean of `W2^2` over random slices."""

    def __init__(self, problem: Problem, slices: int) -> None:
        super().__init__(problem)
        self._slices = 1 if problem.target.dim == 1 else slices

    @property
    def random(self) -> bool:
        """Whether two losses of one mixture differ."""
        return self.problem.target.dim > 1

    def __call__(self, weights: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """Return the loss, with a gradient."""
        mixture, generator = self.mixture(weights, means, spread), self.problem.generator
        return sliced_wasserstein_loss(mixture, self.batches.next(), directions=self._slices, generator=generator)
