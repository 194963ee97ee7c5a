"""Built-in data, drawn by a seeded generator."""

from __future__ import annotations

import torch
from torch import Tensor


def ring_line_square(n: int = 850, seed: int = 0) -> Tensor:
    """Draw n points on a ring, a line and the edge of a square, `(n, 2)`, like those of the paper's experiments.

    No mixture of a few components fits it, and a fit that starts badly leaves a part without any.
    """
    g = torch.Generator().manual_seed(seed)
    shape = torch.multinomial(torch.tensor([0.53, 0.09, 0.38]), n, replacement=True, generator=g)
    u, v = torch.rand(2, n, generator=g, dtype=torch.float64)
    angle, radius = 2 * torch.pi * u, (0.4 + 0.6 * v).sqrt()  # even over the area
    ring = torch.stack((1.5 + radius * angle.cos(), 1.5 + radius * angle.sin()), -1)
    line = torch.stack((2.5 + 1.5 * u, 1.4 + 0.2 * v), -1)
    # The lower side of the square, and how often to turn it.
    side = torch.stack((2.2 * (4 * u).frac(), 0.2 * v), -1) - 1.1
    quarter = 0.5 * torch.pi * (4 * u).floor()
    x = side[:, 0] * quarter.cos() - side[:, 1] * quarter.sin()
    y = side[:, 0] * quarter.sin() + side[:, 1] * quarter.cos()
    square = torch.stack((5.1 + x, 1.5 + y), -1)
    return torch.stack((ring, line, square))[shape, torch.arange(n)]
