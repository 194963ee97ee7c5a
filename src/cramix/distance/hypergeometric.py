"""Kummer's confluent hypergeometric function `1F1(a; b; -x)`, for means over the sphere (docs/others.md, eq. O1 to O5).

For `a = 1/2 + m` it is the mean of `exp(-x T)` over `T ~ Beta(a, b - a)`, an integral of positive numbers for every x.
Up to `_SMALL_X` a Gauss-Jacobi rule with fixed nodes computes it. Beyond, `T = tanh(y)^2` makes the integrand a bump
that decays on both sides, and the trapezoid rule in steps of a fraction of its width converges geometrically.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from cramix.torch_internals import readable

# Up to this x the Gauss-Jacobi rule is exact to rounding: its error is below 2 (x / 4)^(2n) / (2n)!.
_SMALL_X = 50.0
_JACOBI_NODES = 32
# Step of the trapezoid rule in widths of the bump, and the number of steps after which the rest is negligible.
_STEP = 0.4
_STEPS = 24


def kummer(a: float, b: float, x: Tensor) -> Tensor:
    """Return `1F1(a; b; -x)` elementwise for x >= 0, to 1e-13 in float64; differentiable any number of times.

    Args:
        a: -1/2, 1/2, 3/2 and so on.
        b: at least a and 1/2; half the dimension for means over the sphere.
        x: numbers >= 0 of any shape.

    Example:
        >>> kummer(0.5, 1.5, torch.tensor([0.0, 1.0, 4.0]))  # sqrt(pi / x) erf(sqrt x) / 2
        tensor([1.0000, 0.7468, 0.4410])
    """
    if (a + 0.5) % 1 or a < -0.5 or b < max(a, 0.5):
        raise ValueError(f"a must be half an odd number >= -1/2, and b at least a and 1/2; got a = {a} and b = {b}.")
    return _Kummer.apply(x, a, b)


def gamma_ratio(z: float) -> float:
    """Return `Gamma(z + 1/2) / Gamma(z)` for z > 0, to rounding (eq. O5); a difference of log gammas loses digits."""
    shift = 1.0
    while z < 16:
        shift *= z / (z + 0.5)
        z += 1

    def stirling(z: float) -> float:
        return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / z**2) / z**2) / z**2) / z**2) / z

    rest = z * math.log1p(0.5 / z) - 0.5 + stirling(z + 0.5) - stirling(z)
    return shift * math.sqrt(z) * math.exp(rest)


class _Kummer(Function):
    """`d/dx 1F1(a; b; -x) = -(a / b) 1F1(a + 1; b + 1; -x)`, which has the same form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, a, b):
        if a > 0:
            return _mean_of_exp(x, a, b - a)
        return _mean_of_exp(x, 0.5, b - 0.5) + x / b * _mean_of_exp(x, 0.5, b + 0.5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.a, ctx.b = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -ctx.a / ctx.b * grad * kummer(ctx.a + 1, ctx.b + 1, x), None, None


def _mean_of_exp(x: Tensor, a: float, c: float) -> Tensor:
    """Return `E exp(-x T)` for `T ~ Beta(a, c)`; for c = 0, T is 1."""
    if c == 0:
        return torch.exp(-x)
    small = x < _SMALL_X
    if readable(x) and small.all():
        return _jacobi(x, a, c)
    return torch.where(
        small, _jacobi(torch.where(small, x, 0), a, c), _trapezoid(torch.where(small, _SMALL_X, x), a, c)
    )


def _jacobi(x: Tensor, a: float, c: float) -> Tensor:
    nodes, masses = _jacobi_rule(a, c)
    total = torch.zeros_like(x)
    for node, mass in zip(nodes, masses, strict=True):
        total += mass * torch.exp(-node * x)
    return total


def _trapezoid(x: Tensor, a: float, c: float) -> Tensor:
    """Return `2 / B(a, c)` times the integral of `tanh(y)^(2a - 1) cosh(y)^(-2c) exp(-x tanh(y)^2)` over y > 0."""
    power = int(2 * a - 1)  # even, so that the integrand is even too, and the rule covers the whole line
    root = x.sqrt()
    step = _STEP * (x + c).rsqrt()
    total = torch.full_like(x, 0.5 if power == 0 else 0)
    for i in range(1, _STEPS + 1):
        y = i * step
        at = torch.tanh(y)
        # log cosh(y) in a form that loses no digits at small y.
        total += at**power * torch.exp(-(root * at).square() + c * torch.log1p(-at.square()))
    # 1 / B(a, c) = Gamma(a + c) / (Gamma(a) Gamma(c)), from Gamma(1/2) = sqrt(pi) in steps of one.
    constant = gamma_ratio(c) / math.sqrt(math.pi)
    for j in range(round(a - 0.5)):
        constant *= (c + 0.5 + j) / (0.5 + j)
    return 2 * constant * step * total


@lru_cache(maxsize=64)
def _jacobi_rule(a: float, c: float) -> tuple[list[float], list[float]]:
    """Return nodes and weights for means over `Beta(a, c)`, from the three-term recurrence of its polynomials."""
    n = np.arange(1, _JACOBI_NODES)
    total = a + c - 2
    first = (a - c) / (a + c)
    centre = np.append(first, (a - c) * total / ((2 * n + total) * (2 * n + total + 2)))
    first = 4 * a * c / ((a + c) ** 2 * (a + c + 1))
    m = n[1:]
    double = 2 * m + total
    later = 4 * m * (m + a - 1) * (m + c - 1) * (m + total) / (double**2 * (double + 1) * (double - 1))
    beside = np.sqrt(np.append(first, later))
    nodes, vectors = np.linalg.eigh(np.diag(centre) + np.diag(beside, -1))
    return (0.5 + 0.5 * nodes).tolist(), np.square(vectors[0]).tolist()
