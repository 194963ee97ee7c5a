"""Derivatives at their limits: results that have first derivatives only, and roots at zero.

A gradient that was derived with a quantity held fixed, because the derivative in that quantity vanishes, is right. The
gradient of that gradient is not, since the quantity moves. Autograd would return it without notice; here it raises an
error.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function


def first_order_only(result: Tensor, *parameters: Tensor) -> Tensor:
    """Return the result; second derivatives in the parameters it was computed from raise an error."""
    return _Differentiable.apply(1, result, *parameters)


def constant_gradient(gradient: Tensor, *parameters: Tensor) -> Tensor:
    """Return a gradient whose own derivatives raise an error, unless the parameters are constants."""
    watched = torch.is_grad_enabled() and any(x.requires_grad for x in parameters)
    return _Differentiable.apply(0, gradient, *parameters) if watched else gradient


def root(power: Tensor, order: float) -> Tensor:
    """Return `power ** (1 / order)` of numbers >= 0; the derivative at 0 is defined as 0, and NaN stays NaN."""
    zero = power == 0
    return torch.where(zero, 0, torch.where(zero, 1, power) ** (1 / order))


class _Differentiable(Function):
    """A result, unchanged, that has derivatives in its parameters up to an order of 0 or 1 only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(order, result, *parameters):
        return result.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.order = inputs[0]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx, grad):
        if ctx.order == 0:
            raise RuntimeError(
                "This distance has first derivatives only; second derivatives were requested. "
                "cramer_loss, and sliced_cramer_loss with directions, have both."
            )
        return None, constant_gradient(grad, *ctx.saved_tensors), *(None for _ in ctx.saved_tensors)
