"""Synthetic data sets, drawn by a seeded generator."""

from __future__ import annotations

import torch
from torch import Tensor


def ring_line_square(n: int = 850, seed: int = 0) -> Tensor:
    """Draw n points on a ring, a line and the outline of a square, `(n, 2)`, like those of the paper's experiments.

    No mixture of a few components fits them exactly, and a fit from a bad start leaves one of the shapes uncovered.

    Example:
        >>> ring_line_square(100).shape
        torch.Size([100, 2])
    """
    g = torch.Generator().manual_seed(seed)
    shape = torch.multinomial(torch.tensor([0.53, 0.09, 0.38]), n, replacement=True, generator=g)
    u, v = torch.rand(2, n, generator=g, dtype=torch.float64)
    angle, radius = 2 * torch.pi * u, (0.4 + 0.6 * v).sqrt()  # uniform over the area
    ring = torch.stack((1.5 + radius * angle.cos(), 1.5 + radius * angle.sin()), -1)
    line = torch.stack((2.5 + 1.5 * u, 1.4 + 0.2 * v), -1)
    # Points on the lower side of the square, each then rotated to its side by quarter turns.
    side = torch.stack((2.2 * (4 * u).frac(), 0.2 * v), -1) - 1.1
    quarter = 0.5 * torch.pi * (4 * u).floor()
    x = side[:, 0] * quarter.cos() - side[:, 1] * quarter.sin()
    y = side[:, 0] * quarter.sin() + side[:, 1] * quarter.cos()
    square = torch.stack((5.1 + x, 1.5 + y), -1)
    return torch.stack((ring, line, square))[shape, torch.arange(n)]


def parallel_groups(n: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw five measurements of n animals in four groups, `(n, 5)`, and the group of each, `(n,)`.

    The groups are two species of two sexes. Animals of all groups differ far more in size than the groups differ in
    shape, so the groups are long, thin and nearly parallel, as in Campbell and Mahon's measurements of crabs (1974).
    k-means cuts them by size, and EM does not recover from such a start.

    Example:
        >>> x, group = parallel_groups()
        >>> x.shape, group.bincount()
        (torch.Size([400, 5]), tensor([100, 100, 100, 100]))
    """
    g = torch.Generator().manual_seed(seed)
    group = torch.arange(n) % 4
    species, sex = (2.0 * (group // 2) - 1).unsqueeze(-1), (2.0 * (group % 2) - 1).unsqueeze(-1)
    size = 10 + 4 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    growth, by_species, by_sex = torch.tensor(
        [[1.5, 1.2, 3.2, 3.6, 1.4], [1.0, 0.0, -0.3, -0.8, 1.0], [0.0, 1.0, -0.8, -0.3, -0.2]], dtype=torch.float64
    )
    difference = 0.5 * (1 + 0.03 * size)  # between groups, slightly larger in large animals
    noise = 0.3 * torch.randn(n, 5, generator=g, dtype=torch.float64)
    return size * growth + difference * (species * by_species + sex * by_sex) + noise, group
