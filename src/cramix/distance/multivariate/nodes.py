"""Nodes of the rule for mean lengths, the same for all pairs of a distance (docs/math.md, eq. 26 and 27)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Nodes t below this are those where L is close to 1, for vectors of the size of the problem.
_LOW = 1 / 16


class Nodes(NamedTuple):
    """The rule `E|Z| = linear * E|Z|^2 + constant + sum_q weights_q (1 - L(t_q))`, in float64."""

    t: Tensor  # (B, Q)
    weights: Tensor  # (B, Q)
    linear: Tensor  # (B,)
    constant: Tensor  # (B,)
    first: Tensor  # (B,), the number of the first node on the lattice of all nodes there may be
    low: int  # how many come first of which L is close to 1


def choose_nodes(
    variances: Tensor, multiplicity: int, radius: Tensor, tolerance: float, unit: Tensor | None = None
) -> Nodes:
    """Choose nodes for vectors of a size around 1, to an absolute error of `tolerance`, or relative for longer ones.

    These are few numbers, which are NumPy's until they are chosen: its calls take less time.

    Args:
        variances: along the axes of the covariances, `(B, k, g)`, each for `multiplicity` axes. Sums of them are no
            worse than they are by themselves; those that are 0 need no nodes.
        multiplicity: d / g.
        radius: no vector is much longer, `(B,)`.
        tolerance: of the rule.
        unit: of the lengths, `(B or 1,)`, 1 if None.
    """
    tolerance = 0.8 * tolerance  # of the step, of the begin and of the end, which add up to 1.25 of it at most
    step, longest = _step(tolerance), radius.cpu().numpy()
    phase = np.zeros_like(longest) if unit is None else np.log(unit.cpu().numpy())
    # Where the rule begins: the fourth moment, which is left out, is small there. On a lattice that stays the same
    # when the radius and the unit change, so that the loss is the same function all along an optimisation.
    begin = math.log(6 * math.sqrt(math.pi) * tolerance) / 3
    first = np.floor((begin - np.log(longest) - phase) / step)
    if not np.isfinite(first).all():
        raise ValueError(
            "means, covariances and samples must have finite squares; got a size of inf or NaN. Scale them."
        )
    last = np.ceil((math.log(1 / tolerance) - phase) / step)
    u = _on_lattice(first, max(2, int((last - first).max()) + 1), step, phase)
    weights = step / (math.sqrt(math.pi) * u)
    # Where it ends: what L has left, at worst in the centre of a component, is below the tolerance.
    mass = weights * np.exp(_largest_log(torch.as_tensor(u * u, device=variances.device), variances, multiplicity))
    left = (mass[:, ::-1].cumsum(-1)[:, ::-1] - mass).max(0)  # after each node
    count = int(np.argmax(left <= tolerance)) + 1
    u, weights = u[:, :count], weights[:, :count]
    t = u * u
    below = step / math.sqrt(math.pi) / math.expm1(step) * u[:, 0]
    above = weights[:, -1] / math.expm1(step)
    low = int((t.max(0) < _LOW).sum())
    parts = [torch.as_tensor(x, device=variances.device) for x in (t, weights, below, above, first)]
    return Nodes(parts[0], parts[1], parts[2], parts[3], parts[4], low)


def lattice(first: int, count: int, tolerance: float, unit: Tensor) -> Tensor:
    """Return `t` at some numbers of the lattice that `choose_nodes` has for a tolerance, `(B, count)`."""
    phase = np.log(unit.cpu().numpy())
    u = _on_lattice(np.full_like(phase, first), count, _step(0.8 * tolerance), phase)
    return torch.as_tensor(u * u, device=unit.device)


def _on_lattice(first: np.ndarray, count: int, step: float, phase: np.ndarray) -> np.ndarray:
    return np.exp(step * (first[:, None] + np.arange(count)) + phase[:, None])


@lru_cache
def _step(tolerance: float) -> float:
    """Solve `sqrt(2) h / pi exp(-pi^2 / (2 h)) = tolerance`, the error of the trapezoid rule for a point."""
    step = 0.3
    for _ in range(20):
        step = math.pi**2 / 2 / math.log(math.sqrt(2) * step / (math.pi * tolerance))
    return step


def _largest_log(t: Tensor, variances: Tensor, multiplicity: int) -> np.ndarray:
    """Return the largest `log L(t)` at delta = 0 of all components that have a spread, `(B, Q)`."""
    growth = t[:, None, None] * (2 * variances).unsqueeze(-1)  # (B, k, g, Q)
    logs = -0.5 * multiplicity * growth.log1p_().sum(-2)
    flat = variances.amax(-1, keepdim=True) == 0
    return logs.masked_fill_(flat, -torch.inf).amax(1).cpu().numpy()
