"""Results that may be differentiated once: a second time is an error, where autograd would be silently wrong.

A gradient that was derived with a part held fixed, because the derivative in that part vanishes, is right. The gradient
of that gradient is not, for the part moves.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function


def once(result: Tensor, *parameters: Tensor) -> Tensor:
    """Return the result; its second derivatives in the parameters, from which it was computed, are an error."""
    return _Once.apply(result, *parameters)


def last_gradient(gradient: Tensor, *parameters: Tensor) -> Tensor:
    """Return a gradient; its derivatives are an error, unless the parameters are constants or no graph is built."""
    watched = torch.is_grad_enabled() and any(x.requires_grad for x in parameters)
    return _Last.apply(gradient, *parameters) if watched else gradient


class _Once(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(result, *parameters):
        return result.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, grad):
        parameters = ctx.saved_tensors
        return last_gradient(grad, *parameters), *(None for _ in parameters)


class _Last(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(gradient, *parameters):
        return gradient.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "This distance has first derivatives only; got asked for second ones. Use cramer_loss, or slices."
        )
