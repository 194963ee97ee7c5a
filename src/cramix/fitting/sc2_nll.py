"""The paper's best fit: the sliced Cramér loss first, then the negative log likelihood; see `paper`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cramix.checks import check_integer
from cramix.fitting.objectives import Likelihood, Objective
from cramix.fitting.problem import Problem
from cramix.fitting.sc2 import SlicedCramer


@dataclass(frozen=True)
class SlicedCramerThenLikelihood(SlicedCramer):
    """Follow the sliced Cramér loss down, and from there the negative log likelihood.

    Args:
        steps: on the Cramér loss.
        learning_rate: of the logits of weights, of means, and of S in covariances `S^T S`, in both stages.
        slices: directions to project on.
        likelihood_steps: after these.
    """

    name: ClassVar[str] = "sc2+nll"
    likelihood_steps: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("likelihood_steps", self.likelihood_steps, 1)

    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield both stages."""
        likelihood = Likelihood(problem)
        yield from super().stages(problem)
        yield "negative log likelihood", likelihood, self.likelihood_steps
