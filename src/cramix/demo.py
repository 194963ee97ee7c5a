"""The main job: the built-in ring, line and square, fitted by every method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.data import ring_line_square
from cramix.distance.sliced import sliced_cramer_distance
from cramix.fitting import METHODS, FitResult
from cramix.fitting.api import Options, solve
from cramix.mixture.coordinates import in_coordinates

COMPONENTS = 10


class Contest(NamedTuple):
    """The data `(n, 2)`, and what each method makes of them."""

    x: Tensor
    results: dict[str, FitResult]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a table: method, mean log likelihood, sliced Cramér distance, seconds."""
        return [
            (
                name,
                f"{result.log_likelihood:.4f}",
                f"{sliced_cramer_distance(in_coordinates(result.mixture), self.x).item():.4f}",
                f"{result.seconds:.2f}",
            )
            for name, result in self.results.items()
        ]


def run(seed: int = 0, say: Callable[[str], None] = lambda text: None) -> Contest:
    """Fit ten components by every method, each from its own favourite start; say which one is at work."""
    x = ring_line_square()
    results = {}
    for name in METHODS:
        say(name)
        results[name] = solve(x, COMPONENTS, name, Options(generator=torch.Generator().manual_seed(seed)))
    return Contest(x, results)
