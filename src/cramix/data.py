"""Built-in data, drawn by a seeded generator."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.mixture import NormalMixture


def comb() -> NormalMixture:
    """Return a density of five modes whose widths and weights halve from left to right.

    After the asymmetric examples of Marron and Wand (1992); a fit has to find both the broad and the narrow modes.
    """
    halves = 0.5 ** torch.arange(5, dtype=torch.float64)
    means = torch.tensor([-2.0, 0.2, 1.5, 2.3, 2.75], dtype=torch.float64)
    return NormalMixture(halves / halves.sum(), means, 0.55 * halves)


def comb_sample(n: int = 2000, seed: int = 0) -> Tensor:
    """Draw n points of `comb()`, always the same ones for the same seed."""
    return comb().sample((n,), generator=torch.Generator().manual_seed(seed))
