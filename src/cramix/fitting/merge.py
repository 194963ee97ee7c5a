"""The fit that finds the best optimum from random starts: more components than asked, merged.

Several fits run at once, each from random points with more components than asked. Expectation maximisation places them.
Then the two whose merging costs least become one, with a few steps after it, until as many are left as asked, and the
best fit is polished. The surplus finds the places that a start has missed, and merging takes from where there are too
many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cramix.checks import check_integer
from cramix.fitting.em import Outcome, maximize
from cramix.fitting.merging import merge_cheapest
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import draw_starts

# Steps of expectation maximisation after the start, after each merge, and before the best is chosen.
_PLACING, _SETTLING, _CHOOSING = 20, 5, 30


@dataclass(frozen=True)
class MergeDown(Method):
    """Fit more components than asked, merge them, and polish the best.

    Args:
        starts: how many fits run at once.
        surplus: components to begin with beyond k; k + 4 if None.
        tolerance: gain of the mean log likelihood in a step at which to stop.
        max_iterations: of the last stage.
    """

    name: ClassVar[str] = "merge"
    starts: int = 8
    surplus: int | None = None
    tolerance: float = 1e-7
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        check_integer("starts", self.starts, 1)
        check_integer("surplus", self.surplus or 0, 0)
        check_integer("max_iterations", self.max_iterations, 1)

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        data, k = problem.data, problem.n_components
        most = min(len(data), k + (k + 4 if self.surplus is None else self.surplus))
        outcome = maximize(data, draw_starts(problem, "random_from_data", most, self.starts), _PLACING)
        _note(problem, "placing", outcome)
        while outcome.sums.shape[1] > k:
            outcome = maximize(data, merge_cheapest(problem.family, outcome.sums), _SETTLING)
            _note(problem, "merging", outcome)
        outcome = maximize(data, outcome.sums, _CHOOSING)
        _note(problem, "choosing", outcome)
        best = outcome.sums[outcome.log_likelihood.argmax()].unsqueeze(0)
        outcome = maximize(data, best, self.max_iterations, self.tolerance)
        _note(problem, "polishing", outcome)
        parameters = problem.family.parameters(outcome.sums.squeeze(0))
        return Found(*parameters, outcome.converged, outcome.reason, outcome.iterations)


def _note(problem: Problem, name: str, outcome: Outcome) -> None:
    problem.note_likelihood(name, outcome.sums.shape[1], outcome.log_likelihood.max().item())
