"""The paper's fit: gradient descent on the sliced Cramér loss; see `paper` for what is theirs and what is ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cramix.checks import check_integer
from cramix.fitting.objectives import Objective
from cramix.fitting.paper import PaperDescent, sliced_cramer
from cramix.fitting.problem import Problem


@dataclass(frozen=True)
class SlicedCramer(PaperDescent):
    """Follow the sliced Cramér loss down.

    Args:
        steps: all of which are taken.
        learning_rate: of the logits of weights, of means, and of S in covariances `S^T S`.
        slices: directions to project on.
    """

    name: ClassVar[str] = "sc2"
    slices: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("slices", self.slices, 1)

    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield the one stage."""
        yield "sliced Cramér loss", sliced_cramer(problem, self.slices), self.steps
