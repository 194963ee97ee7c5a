"""What the three fits of the paper share: units, start, optimiser and learning rates.

Zhang 2023, "Cramer Type Distances for Learning Gaussian Mixture Models by Gradient Descent", its experiment with 850
points in the plane. Theirs: Lion with learning rates 5e-6, 2e-2 and 3e-3 for the logits of weights, the means, and S in
the covariances `S^T S`; 7 slices, the corners of a heptagon, and the sum of their losses; 1200 steps. What differs or
had to be chosen:

- The start is not described. Ours has equal weights, standard normal means around the centre of the data, and S = 1.
- The data are moved to the centre, which the start needs, and not scaled: the learning rates mean the data's own units.
- A floor of 1e-6 is added to variances, so that a likelihood exists wherever the descent leads.
- Log densities are added up by log-sum-exp. The overflows that the paper meets with the likelihood do not occur.
- Where covariances are not full, S is shared, or diagonal, or a number.
- Where the space is not a plane, as many slices are drawn anew in each step, as in the paper's algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from cramix.checks import check_integer
from cramix.directions import equispaced
from cramix.fitting.descending import Descent, descend
from cramix.fitting.descent import centred_units, follow, found_at
from cramix.fitting.families import Family
from cramix.fitting.free import Chart, Free
from cramix.fitting.objectives import Cramer, Objective
from cramix.fitting.optimizers import LearningRate, rates_of
from cramix.fitting.problem import Found, Method, Problem, Units
from cramix.fitting.starts import draw_starts
from cramix.mixture import MultivariateNormalMixture


@dataclass(frozen=True)
class PaperDescent(Method):
    """Lion from a random start, in stages; abstract.

    Args:
        steps: of the first stage, all of which are taken.
        learning_rate: of the logits of weights, of means, and of S.
    """

    steps: int = 1200
    learning_rate: LearningRate = (5e-6, 2e-2, 3e-3)

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1)
        rates_of(self.learning_rate, "lion")

    @abstractmethod
    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield the name, the loss and the number of steps of each stage."""

    def units(self, target: MultivariateNormalMixture, family: type[Family]) -> Units:
        """Return the units of the data, around its centre."""
        return centred_units(target)

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        return found_at(follow(problem, self.descents(problem), self.steps))

    def descents(self, problem: Problem) -> Iterator[tuple[str, Descent]]:
        """Yield the places on the way down with the name of their stage; each stage begins where the last one ends."""
        chart = Chart(problem.family, "gram")
        free, rates = _start(problem, chart), rates_of(self.learning_rate, "lion")
        for name, objective, steps in self.stages(problem):
            for place in descend(chart, free, objective, "lion", rates, steps):
                yield name, place
            if not place.converged:
                return
            free = place.free


def sliced_cramer(problem: Problem, slices: int) -> Cramer:
    """Return the sum of the Cramér losses over slices: a regular polygon in the plane, elsewhere random ones."""
    dim = problem.target.dim
    directions = torch.ones(1, 1) if dim == 1 else equispaced(slices, dtype=torch.float64) if dim == 2 else slices
    return Cramer(problem, directions=directions, normalization="sum")


def _start(problem: Problem, chart: Chart) -> Free:
    k, dim, like = problem.n_components, problem.target.dim, problem.units.scale
    if problem.start is not None:
        sums = draw_starts(problem, "random_from_data", problem.data, k, 1)
        return chart.free(*problem.family.parameters(sums.squeeze(0)))
    means = torch.randn(k, dim, generator=problem.generator, dtype=like.dtype, device=like.device)
    standard = torch.eye(dim).to(like).expand(k, dim, dim)
    return chart.free(
        *problem.family.parameters(problem.family.sums(torch.full_like(means[:, 0], 1 / k), means, standard))
    )
