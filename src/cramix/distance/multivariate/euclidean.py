"""Energies of weighted points in any dimension: all pairs of them, in blocks (docs/math.md, eq. 30)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Points to a side of a block of distances: on the CPU they stay in cache, a GPU wants much to do at a time.
_SIDE = {"cpu": 512, "cuda": 8192}
# Up to this many points distances are in float64.
_SMALL = 1 << 14


class Energy(NamedTuple):
    """`1/2 sum_ij s_i s_j |x_i - x_j|`, `(B,)`, and where asked for its derivatives in s and in x."""

    value: Tensor
    at_weights: Tensor | None  # (B, n)
    at_points: Tensor | None  # (B, n, d)


def energy(points: Tensor, weights: Tensor, derivatives: bool = False) -> Energy:
    """Evaluate the energy of points `(B, n, d)` with weights of any sign, `(B, n)`, in float64."""
    batch, n, _ = points.shape
    working = points.dtype if n > _SMALL else torch.float64
    points = (points.double() - points.double().mean(-2, keepdim=True)).to(working)
    signed = weights.to(working)
    potential = points.new_zeros(batch, n, dtype=torch.float64)
    pull = torch.zeros_like(points, dtype=torch.float64) if derivatives else None
    squares = points.square().sum(-1, keepdim=True)
    side = _SIDE["cpu" if points.device.type == "cpu" else "cuda"]
    for b in range(batch):
        x, s, x2 = points[b], signed[b], squares[b]
        # Squares below this are rounding: the points are equal.
        rounding = 8 * torch.finfo(working).eps * x2 + torch.finfo(working).tiny
        for i in range(0, n, side):
            rows = slice(i, i + side)
            for j in range(i, n, side):
                columns = slice(j, j + side)
                distance = torch.addmm(x2[columns].T, x[rows], x[columns].T, alpha=-2).add_(x2[rows])
                floor = rounding[rows] + rounding[columns].T
                torch.threshold_(distance.div_(floor), 1, 0).mul_(floor).sqrt_()  # three times as fast as a mask
                if i == j:
                    distance.fill_diagonal_(0)
                potential[b, rows] += distance @ s[columns]
                if i != j:
                    potential[b, columns] += s[rows] @ distance
                if pull is not None:
                    inverse = distance.reciprocal_().nan_to_num_(posinf=0)
                    _pull(pull[b], inverse, x, s, rows, columns)
                    if i != j:
                        _pull(pull[b], inverse.T, x, s, columns, rows)
    value = 0.5 * (weights.double() * potential).sum(-1)
    if pull is None:
        return Energy(value, None, None)
    return Energy(value, potential, weights.double().unsqueeze(-1) * pull)


def _pull(pull: Tensor, inverse: Tensor, x: Tensor, s: Tensor, at: slice, of: slice) -> None:
    """Add `sum_j s_j (x_i - x_j) / |x_i - x_j|` over the points j in `of` to those i in `at`."""
    pull[at] += x[at] * (inverse @ s[of]).unsqueeze(-1) - inverse @ (s[of].unsqueeze(-1) * x[of])
