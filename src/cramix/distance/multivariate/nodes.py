"""Nodes of the rule for mean lengths, the same for all pairs of a distance (docs/math.md, eq. 26 and 27)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Nodes(NamedTuple):
    """The rule `E|Z| = linear * E|Z|^2 + constant + sum_q weights_q (1 - L(t_q))`, in float64."""

    t: Tensor  # (B, Q)
    weights: Tensor  # (B, Q)
    linear: Tensor  # (B,)
    constant: Tensor  # (B,)
    first: Tensor  # (B,), the number of the first node on the lattice of all nodes there may be


def choose_nodes(
    variances: Tensor, multiplicity: int, radius: Tensor, tolerance: float, unit: Tensor | None = None
) -> Nodes:
    """Choose nodes for vectors of a size around 1, to an absolute error of `tolerance`, or relative for longer ones.

    Args:
        variances: along the axes of the covariances, `(B, k, g)`, each for `multiplicity` axes. Sums of them are no
            worse than they are by themselves; those that are 0 need no nodes.
        multiplicity: d / g.
        radius: no vector is much longer, `(B,)`.
        tolerance: of the rule.
        unit: of the lengths, `(B or 1,)`, 1 if None.
    """
    tolerance = 0.8 * tolerance  # of the step, of the begin and of the end, which add up to 1.25 of it at most
    step = _step(tolerance)
    phase = torch.zeros_like(radius) if unit is None else unit.log()
    # Where the rule begins: the fourth moment, which is left out, is small there. On a lattice that stays the same
    # when the radius and the unit change, so that the loss is the same function all along an optimisation.
    first = (((6 * math.sqrt(math.pi) * tolerance) ** (1 / 3) / radius).log() - phase).div(step).floor()
    if not math.isfinite(first.sum().item()):
        raise ValueError(
            "means, covariances and samples must have finite squares; got a size of inf or NaN. Scale them."
        )
    last = ((math.log(1 / tolerance) - phase) / step).ceil()
    u = _on_lattice(first, max(2, int((last - first).amax().item()) + 1), step, phase)
    weights = step / (math.sqrt(math.pi) * u)
    # Where it ends: what L has left, at worst in the centre of a component, is below the tolerance.
    count = _needed(u, weights, variances, multiplicity, tolerance)
    below = step / math.sqrt(math.pi) / math.expm1(step) * u[:, 0]
    above = weights[:, count - 1] / math.expm1(step)
    u, weights = u[:, :count], weights[:, :count]
    return Nodes(u.square(), weights, below, above, first)


def lattice(first: int, count: int, tolerance: float, unit: Tensor) -> Tensor:
    """Return `t` at some numbers of the lattice that `choose_nodes` has for a tolerance, `(B, count)`."""
    return _on_lattice(torch.full_like(unit, first), count, _step(0.8 * tolerance), unit.log()).square()


def _on_lattice(first: Tensor, count: int, step: float, phase: Tensor) -> Tensor:
    numbers = first.unsqueeze(-1) + torch.arange(count, dtype=first.dtype, device=first.device)
    return torch.exp(step * numbers + phase.unsqueeze(-1))


def _step(tolerance: float) -> float:
    """Solve `sqrt(2) h / pi exp(-pi^2 / (2 h)) = tolerance`, the error of the trapezoid rule for a point."""
    step = 0.3
    for _ in range(20):
        step = math.pi**2 / 2 / math.log(math.sqrt(2) * step / (math.pi * tolerance))
    return step


def _needed(u: Tensor, weights: Tensor, variances: Tensor, multiplicity: int, tolerance: float) -> int:
    """Count the nodes after which `sum_q weights_q L(t_q)` at delta = 0 is below the tolerance for all of them."""
    growth = 2 * u.square()[:, None, None] * variances.unsqueeze(-1)  # (B, k, g, Q)
    at_centre = torch.exp(-0.5 * multiplicity * growth.log1p_().sum(-2))
    mass = torch.where(variances.amax(-1, keepdim=True) > 0, at_centre, 0).amax(1) * weights
    left = (mass.flip(-1).cumsum(-1).flip(-1) - mass).amax(0)  # after each node
    enough = (left <= tolerance).nonzero()
    return int(enough[0].item()) + 1 if len(enough) else u.shape[-1]
