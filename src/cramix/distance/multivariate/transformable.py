"""The energy distance under function transforms and the compiler, which must not look at what depends on the data.

The evaluation is one operation to them, with value and gradients as its outputs. The gradients are outputs of the
function too, non-differentiable: that is how function transforms let backward see them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.multivariate.arrays import Array
from cramix.distance.multivariate.exact import Known, evaluate
from cramix.distance.multivariate.sides import Components, Points
from cramix.distance.once import last_gradient


def transformable_energy(
    p: tuple[Tensor, ...], q: tuple[Tensor, ...], at_p: bool, at_q: bool, tolerance: float, target_term: bool
) -> Tensor:
    """Return the distance `(B,)` of two sides as `exact.evaluate` has it, each flat: without a spread it is points.

    Args:
        p: weights, means and spread of components, or weights and places of points.
        q: the other side; points come second.
        at_p: whether gradients for p may be asked for.
        at_q: the same for q.
        tolerance: error of a mean distance, as a part of the size of the problem.
        target_term: whether the own energy of q is part of it.
    """
    call = len(p), at_p, at_q, tolerance, target_term
    # Where nothing needs a gradient, the compiler of torch 2.13 stumbles over the function.
    energy = _Energy.apply if at_p or at_q else _Energy.forward
    return energy(*call, *p, *q)[0]


class _Energy(Function):
    @staticmethod
    def forward(n_p, at_p, at_q, tolerance, target_term, *tensors):
        return tuple(_energy_op(list(tensors), n_p, at_p, at_q, tolerance, target_term))

    @staticmethod
    def setup_context(ctx, inputs, output):
        n_p, at_p, at_q, *_ = inputs
        ctx.asked = [at_p] * n_p + [at_q] * (len(output) - 1 - n_p)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[5:], *output[1:])

    @staticmethod
    def backward(ctx, grad, *_):
        saved = ctx.saved_tensors
        tensors, known = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        gradients = [
            pulled_back(grad, at, x.shape) if asked else None
            for x, at, asked in zip(tensors, known, ctx.asked, strict=True)
        ]
        if not torch.compiler.is_compiling():  # compiled gradients have no gradients anyway
            gradients = [x if x is None else last_gradient(x, *tensors) for x in gradients]
        return *(None,) * 5, *gradients

    @staticmethod
    def vmap(info, in_dims, n_p, at_p, at_q, tolerance, target_term, *tensors):
        # A mapped axis joins the batch, which all sides then have in full.
        mapped = info.batch_size
        moved = [x[None] if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, in_dims[5:], strict=True)]
        rows = max(x.shape[1] for x in moved)
        flat = [x.expand(mapped, rows, *x.shape[2:]).reshape(mapped * rows, *x.shape[2:]) for x in moved]
        outputs = _Energy.apply(n_p, at_p, at_q, tolerance, target_term, *flat)
        apart = tuple(x.reshape(mapped, rows if len(x) else 0, *x.shape[1:]) for x in outputs)
        return apart, (0,) * len(outputs)


def pulled_back(grad: Tensor, known: Tensor, shape: torch.Size) -> Tensor:
    """Return the known gradient `(B, *)` times that of the result, `(*batch)`, for a tensor that it may share."""
    own = known.shape[1:]
    product = grad.reshape(*grad.shape, *(1,) * len(own)) * known.reshape(*grad.shape, *own)
    return (product if product.shape == shape else product.sum_to_size(shape)).to(grad.dtype)


def held(x: Array) -> Tensor:
    """Return what was computed, in inference mode or by NumPy, as a tensor that may be saved."""
    return x.clone() if isinstance(x, Tensor) else torch.as_tensor(x)


@torch.library.custom_op("cramix::energy", mutates_args=())
def _energy_op(
    tensors: list[Tensor], n_p: int, at_p: bool, at_q: bool, tolerance: float, target_term: bool
) -> list[Tensor]:
    """Return the distance, and its gradient for each tensor, empty ones where not asked for."""
    p_tensors, q_tensors = tensors[:n_p], tensors[n_p:]
    p = Components(*p_tensors) if n_p == 3 else Points(*p_tensors)
    q = Components(*q_tensors) if len(q_tensors) == 3 else Points(*q_tensors)
    rows = max(len(x) for x in tensors)
    like = tensors[0]
    nothing = Known(like.new_zeros(1, dtype=torch.float64), like.new_zeros(rows, dtype=torch.long))
    value, for_p, for_q = evaluate(p, q, None, None if target_term else nothing, tolerance, at_p=at_p, at_q=at_q)
    value = held(value).clamp_min_(0) if target_term else held(value)
    known = [*(for_p or [like.new_empty(0)] * n_p), *(for_q or [like.new_empty(0)] * (len(tensors) - n_p))]
    return [value.to(like.dtype), *(held(x).to(torch.float64) for x in known)]


@_energy_op.register_fake
def _(tensors, n_p, at_p, at_q, tolerance, target_term):
    rows = max(len(x) for x in tensors)
    asked = [at_p] * n_p + [at_q] * (len(tensors) - n_p)
    known = [
        x.new_empty((rows, *x.shape[1:]), dtype=torch.float64) if at else x.new_empty(0, dtype=torch.float64)
        for x, at in zip(tensors, asked, strict=True)
    ]
    return [tensors[0].new_empty(rows), *known]
