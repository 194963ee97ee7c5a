"""Expectation maximisation from a start, the method that most people know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cramix.checks import check_integer, check_number
from cramix.fitting.em import maximize
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import draw_starts


@dataclass(frozen=True)
class ExpectationMaximization(Method):
    """Climb to the nearest optimum of the likelihood from several starts, k-means if none is named; keep the best.

    Args:
        starts: how many, all at once.
        tolerance: gain of the mean log likelihood in a step at which to stop.
        max_iterations: of all starts.
    """

    name: ClassVar[str] = "em"
    starts: int = 1
    tolerance: float = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        check_integer("starts", self.starts, 1)
        check_integer("max_iterations", self.max_iterations, 1)
        check_number("tolerance", self.tolerance)

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""

        def watch(log_likelihood: float) -> None:
            problem.note_likelihood("expectation maximisation", problem.n_components, log_likelihood)

        sums = draw_starts(problem, "kmeans", problem.data, problem.n_components, self.starts)
        outcome = maximize(problem.data, sums, self.max_iterations, self.tolerance, watch=watch)
        parameters = problem.family.parameters(outcome.best().squeeze(0))
        return Found(*parameters, outcome.converged, outcome.reason, outcome.iterations)
