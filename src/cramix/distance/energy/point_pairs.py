"""Energies of weighted points in any dimension: all pairs of them, in blocks (docs/math.md, eq. 31)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.kernels import block_size, normalized

# Up to this many points distances are computed in float64.
_FEW_POINTS = 1 << 14


class Energy(NamedTuple):
    """`1/2 sum_ij s_i s_j |x_i - x_j|`, `(B,)`, and where requested its derivatives in s and in x."""

    energies: Tensor
    derivatives: tuple[Tensor, ...] = ()  # (B, n) and (B, n, d)


def self_energy(points: Tensor, weights: Tensor, block: int | None = None) -> Tensor:
    """Return `1/2 E|Y - Y'|`, `(B,)`, of points `(B, n, d)` with weights `(B, n)` of any positive sum, in float64."""
    return energy(points, normalized(weights.double())[0], block=block).energies


def energy(points: Tensor, weights: Tensor, derivatives: bool = False, block: int | None = None) -> Energy:
    """Evaluate the energy of points `(B, n, d)` with weights of any sign, `(B, n)`, in float64."""
    batch, n, _ = points.shape
    most = block_size(points.device, block)
    working = points.dtype if n > min(_FEW_POINTS, most) else torch.float64
    points = (points.double() - points.double().mean(-2, keepdim=True)).to(working)
    signed = weights.to(working)
    potential = points.new_zeros(batch, n, dtype=torch.float64)
    pull = torch.zeros_like(points, dtype=torch.float64) if derivatives else None
    squares = points.square().sum(-1, keepdim=True)
    side = max(1, math.isqrt(most // 4))  # points to a side of a block of distances
    for b in range(batch):
        x, s, x2 = points[b], signed[b], squares[b]
        # Squared distances below this are rounding errors of equal points.
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
    energies = 0.5 * (weights.double() * potential).sum(-1)
    return Energy(energies, () if pull is None else (potential, weights.double().unsqueeze(-1) * pull))


def _pull(pull: Tensor, inverse: Tensor, x: Tensor, s: Tensor, at: slice, of: slice) -> None:
    """Add `sum_j s_j (x_i - x_j) / |x_i - x_j|` over the points j in `of` to those i in `at`."""
    pull[at] += x[at] * (inverse @ s[of]).unsqueeze(-1) - inverse @ (s[of].unsqueeze(-1) * x[of])
