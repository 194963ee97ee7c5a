"""Built-in data, drawn by a seeded generator."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.mixture import NormalMixture


def truth() -> NormalMixture:
    """Return a density of five modes that become narrower and lighter from left to right."""
    return NormalMixture(
        weights=torch.tensor([0.30, 0.25, 0.20, 0.15, 0.10], dtype=torch.float64),
        means=torch.tensor([-2.5, -0.4, 1.2, 2.4, 3.2], dtype=torch.float64),
        scales=torch.tensor([0.50, 0.40, 0.30, 0.20, 0.12], dtype=torch.float64),
    )


def sample(n: int = 5000, seed: int = 0) -> Tensor:
    """Draw n points of `truth()`, `(n,)`, always the same ones for the same seed."""
    return truth().sample((n,), generator=torch.Generator().manual_seed(seed))
