"""Quadrature nodes for mean lengths, the same for all pairs of a distance (docs/math.md, eq. 26 to 28).

They lie on a lattice in `log u`, from an index on that depends on the size of the problem. The infinite lower end of
the lattice is a sum over a smooth function of t, which a few Gauss nodes replace.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.distance.energy.numpy_or_torch import Array, as_like, as_numpy, library

_ROOT_PI = math.sqrt(math.pi)
# At nodes t below this L is close to 1, for vectors of the size of the problem.
_LOW = 1 / 256
_MOST_GAUSS = 12
# No vector of a weight that counts is longer, in units of the size of the problem.
LARGEST_REACH = 1e12


class Nodes(NamedTuple):
    """The rule `E|Z| = constant + sum_q weights_q (1 - L(t_q))`, in float64."""

    t: Array  # (B, Q), ascending: Gauss nodes, then nodes of the lattice
    weights: Array  # (B, Q)
    constant: Array  # (B,)
    first: Array  # (B,), the index of the first lattice node
    low: int  # how many of the first nodes have L close to 1


class LowEnd(NamedTuple):
    """A Gauss rule for `sum_j weights_j (1 - L(t_j))` over the lattice up to t = 1, j <= 0, in units of weights_0."""

    t: np.ndarray  # (m,)
    weights: np.ndarray  # (m,)
    longest: float  # the root of E|Z|^2 up to which the rule meets the tolerance


def choose_nodes(
    variances: Array, multiplicity: int, radius: Array, tolerance: float, unit: Array | None = None
) -> Nodes:
    """Choose nodes for vectors of a size around 1, to an absolute error of `tolerance`, or relative for longer ones.

    Args:
        variances: along the axes of the covariances, `(B, k, g)`, each for `multiplicity` axes. Sums of them need no
            more nodes than each of them; zeros need none.
        multiplicity: d / g.
        radius: no vector has a larger root of `E|Z|^2`, `(B,)`.
        tolerance: of the rule.
        unit: of the lengths, `(B or 1,)`, 1 if None.
    """
    tolerance = 0.8 * tolerance  # the errors of the step, the low end and the high end add up to 1.25 of it at most
    step, end, largest = lattice_step(tolerance), low_end(tolerance), as_numpy(radius)
    phase = np.log(np.ones_like(largest) if unit is None else as_numpy(unit))
    # The lattice does not move when the radius and the unit change, so that the loss stays the same function all along
    # an optimisation.
    first = np.floor((math.log(end.longest) - np.log(largest) - phase) / step) + 1
    if not math.isfinite(first.sum()):
        raise ValueError(
            "means, covariances and samples must have finite squares; got a size of inf or NaN. Scale them."
        )
    last = np.ceil((math.log(1 / tolerance) - phase) / step)
    u = _on_lattice(first - 1, max(3, int((last - first).max()) + 2), step, phase)
    t, weights = u * u, step / (_ROOT_PI * u)
    # Truncation: what remains of L, at most that in the centre of a component, is below the tolerance.
    mass = weights * np.exp(_largest_log(as_like(t, variances), variances, multiplicity))
    left = mass[:, ::-1].cumsum(-1)[:, ::-1] - mass  # after each node
    count = max(2, int((left.max(0) > tolerance).sum()) + 1)
    t = np.concatenate((t[:, :1] * end.t, t[:, 1:count]), -1)
    constant = weights[:, count - 1] / math.expm1(step)
    weights = np.concatenate((weights[:, :1] * end.weights, weights[:, 1:count]), -1)
    low = int((t.max(0) < _LOW).sum())
    arrays = [as_like(x, variances) for x in (t, weights, constant, first)]
    return Nodes(arrays[0], arrays[1], arrays[2], arrays[3], low)


def lattice(first: int, count: int, tolerance: float, unit: Tensor) -> Tensor:
    """Return `t` at `count` nodes of the lattice that `choose_nodes` uses for a tolerance, `(B, count)`."""
    phase = np.log(unit.cpu().numpy())
    u = _on_lattice(np.full_like(phase, first), count, lattice_step(0.8 * tolerance), phase)
    return torch.as_tensor(u * u, device=unit.device)


def below_lattice(first: int, tolerance: float, unit: Tensor) -> Tensor:
    """Return `t` at the Gauss nodes that `choose_nodes` uses below the first lattice node, `(B, m)`."""
    gauss = torch.as_tensor(low_end(0.8 * tolerance).t, device=unit.device)
    return lattice(first - 1, 1, tolerance, unit) * gauss


def _on_lattice(first: np.ndarray, count: int, step: float, phase: np.ndarray) -> np.ndarray:
    return np.exp(step * (first[:, None] + np.arange(count)) + phase[:, None])


@lru_cache
def lattice_step(tolerance: float) -> float:
    """Solve `sqrt(2) h / pi exp(-pi^2 / (2 h)) = tolerance`, the error of the trapezoid rule for a point."""
    step = 0.3
    for _ in range(20):
        step = math.pi**2 / 2 / math.log(math.sqrt(2) * step / (math.pi * tolerance))
    return step


@lru_cache
def low_end(tolerance: float) -> LowEnd:
    """Return the low end with the number of Gauss nodes that makes the total number of nodes smallest.

    `(1 - L) / t` is smooth, and the weights times t are a measure, `exp(h j)` at `exp(2 h j)`, for which the Lanczos
    recurrence gives the Gauss rules. The error of m nodes is `h / sqrt(pi) |p|^2 E|Z|^(2 n) / n!` at most, with
    n = 2 m + 1 and |p| the norm of the monic orthogonal polynomial, and `E|Z|^(2 n) <= (2 n - 1)!! (E|Z|^2)^n`.
    """
    step = lattice_step(tolerance)
    roots = np.exp(-step * np.arange(math.ceil(50 / step)))
    points, basis = roots**2, [np.sqrt(roots / roots.sum())]
    jacobi = np.zeros((_MOST_GAUSS + 1, _MOST_GAUSS + 1))
    best, fewest, norm = None, math.inf, roots.sum()
    for m in range(1, _MOST_GAUSS + 1):
        following = points * basis[-1]
        jacobi[m - 1, m - 1] = following @ basis[-1]
        for known in 2 * basis:
            following = following - (following @ known) * known
        length = math.sqrt(following @ following)
        jacobi[m - 1, m] = jacobi[m, m - 1] = length
        basis.append(following / length)
        norm *= length**2
        n = 2 * m + 1
        odd = math.prod(range(1, 2 * n, 2)) / math.factorial(n)
        longest = (tolerance * _ROOT_PI / (step * norm * odd)) ** (1 / (2 * n - 1))
        if m - math.log(longest) / step < fewest:
            fewest = m - math.log(longest) / step
            t, vectors = np.linalg.eigh(jacobi[:m, :m])
            best = LowEnd(t, roots.sum() * vectors[0] ** 2 / t, float(longest))
    assert best is not None, "the loop is not empty"
    return best


def decay(t: Array, variances: Array, multiplicity: int) -> tuple[Array, Array]:
    """Return `t rho` along the axes, `(B, k, g, Q)`, and `log L(t)` at delta = 0, `(B, k, Q)`.

    Args:
        t: nodes, `(B, Q)`.
        variances: along the axes, `(B, k, g)`.
        multiplicity: how many axes share one of them.
    """
    growth = (2 * t)[:, None, None] * variances[..., None]
    log_l = _log_at_centre(growth, multiplicity)
    growth += 1
    return t[:, None, None] / growth, log_l


def _log_at_centre(growth: Array, multiplicity: int) -> Array:
    lib = library(growth)
    return (-0.5 * multiplicity) * lib.einsum("bkgq->bkq", lib.log1p(growth))


def _largest_log(t: Array, variances: Array, multiplicity: int) -> np.ndarray:
    """Return the largest `log L(t)` at delta = 0 of all components with a covariance other than 0, `(B, Q)`."""
    lib, log_l = library(variances), _log_at_centre((2 * t)[:, None, None] * variances[..., None], multiplicity)
    positive = variances.sum(-1)[..., None] > 0
    return as_numpy(lib.amax(lib.where(positive, log_l, -torch.inf), 1))
