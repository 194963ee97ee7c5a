"""The paper's rival of its own: gradient descent on the negative log likelihood, with the same settings as `sc2`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cramix.fitting.objectives import Likelihood, Objective
from cramix.fitting.paper import PaperDescent
from cramix.fitting.problem import Problem


@dataclass(frozen=True)
class GradientLikelihood(PaperDescent):
    """Follow the negative log likelihood of samples down.

    Args:
        steps: all of which are taken.
        learning_rate: of the logits of weights, of means, and of S in covariances `S^T S`.
    """

    name: ClassVar[str] = "nll"

    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield the one stage."""
        yield "negative log likelihood", Likelihood(problem), self.steps
