"""Roots of increasing functions: a safeguarded solver, and gradients by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function

# Bisection alone, every third turn, exhausts a float64 bracket in this many; Newton's method needs about six.
MAX_TURNS = 200


def solve_increasing(
    newton: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor, unit: Tensor
) -> Tensor:
    """Find where an increasing function crosses zero, elementwise, by Newton's method inside a shrinking bracket.

    Args:
        newton: maps x to (whether the root is at or below x, Newton's next x).
        low: a point at or below the root.
        high: a point at or above it.
        unit: the length on which the function bends; a step of 1e-8 of it is Newton's last.
    """
    x = 0.5 * low + 0.5 * high
    done = torch.zeros_like(x, dtype=torch.bool)
    eps = torch.finfo(x.dtype).eps
    for turn in range(MAX_TURNS):
        below, proposal = newton(x)
        low, high = torch.where(below, low, torch.maximum(low, x)), torch.where(below, torch.minimum(high, x), high)
        inside = (proposal >= low) & (proposal <= high)
        close = inside & ((proposal - x).abs() <= 1e-8 * unit + 4 * eps * x.abs())
        # Newton may creep along a plateau or jump off it; bisection every third turn bounds the work.
        use_newton = close | (inside & (turn % 3 != 2))
        x = torch.where(done, x, torch.where(use_newton, proposal, 0.5 * low + 0.5 * high))
        done = done | close | (high - low <= 4 * eps * x.abs())
        if not torch.compiler.is_compiling() and done.all():
            break
    return x


class _Root(Function):
    """A root that knows how it moves: `dx = -(dr/dparameters) / (dr/dx)` for a residual `r(x, *parameters)`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(residual, x, *parameters):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.residual, _, *parameters = inputs
        ctx.save_for_backward(output, *parameters)

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        residual, pull = torch.func.vjp(ctx.residual, x, *parameters)  # type: ignore[misc] # torch annotates the variant with aux
        slope = pull(torch.ones_like(residual))[0]
        slope = torch.where(slope > 0, slope, torch.inf)  # on a plateau every point is a root, and none moves
        return (None, None, *pull(-grad / slope)[1:])


def differentiable_root(residual: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
    """Return `x`, a root of `residual(x, *parameters)`, with the root's gradients to the parameters, of any order.

    The residual is elementwise in x. The `x` given is a constant.
    """
    return _Root.apply(residual, x.detach(), *parameters)
