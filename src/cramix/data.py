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


def ring_line_square(n: int = 850, seed: int = 0) -> Tensor:
    """Draw n points on a ring, a line and the edge of a square, `(n, 2)`, as in the paper's experiments.

    No mixture of a few components fits it, and a fit that starts badly leaves a part without any.
    """
    g = torch.Generator().manual_seed(seed)
    shape = torch.multinomial(torch.tensor([0.53, 0.09, 0.38]), n, replacement=True, generator=g)
    u, v = torch.rand(2, n, generator=g, dtype=torch.float64)
    angle, radius = 2 * torch.pi * u, (0.4 + 0.6 * v).sqrt()  # even over the area of the ring
    ring = torch.stack((1.5 + radius * angle.cos(), 1.5 + radius * angle.sin()), -1)
    line = torch.stack((2.5 + 1.5 * u, 1.4 + 0.2 * v), -1)
    side, along, across = (4 * u).floor(), 2.2 * (4 * u).frac(), 0.2 * v
    x = torch.where(side == 0, along, torch.where(side == 1, 2.2 - across, torch.where(side == 2, 2.2 - along, across)))
    y = torch.where(side == 0, across, torch.where(side == 1, along, torch.where(side == 2, 2.2 - across, 2.2 - along)))
    square = torch.stack((4 + x, 0.4 + y), -1)
    return torch.stack((ring, line, square))[shape, torch.arange(n)]
