"""The energy distance under function transforms and torch.compile, where no code may depend on the data.

The evaluation is a single operator for them, with distances and gradients as its outputs. The gradients are outputs of
the autograd function too, non-differentiable: that is how function transforms let backward see them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.derivatives import constant_gradient
from cramix.distance.energy import ladder
from cramix.distance.energy.flat_mixtures import Components, Points
from cramix.distance.energy.numpy_or_torch import Array, as_tensor
from cramix.distance.energy.signature import Problem, no_energy


def transformable_energy(
    p: tuple[Tensor, ...], q: tuple[Tensor, ...], grad_p: bool, grad_q: bool, tolerance: float, target_self_energy: bool
) -> Tensor:
    """Return the distance `(B,)` of two flat sides; a side without covariances is points.

    Args:
        p: weights, means and covariances of components, or weights and points.
        q: the other side; points come second.
        grad_p: whether gradients for p may be requested.
        grad_q: the same for q.
        tolerance: error of a mean distance, relative to the size of the problem.
        target_self_energy: whether to subtract the self energy of q.
    """
    # Where nothing needs a gradient, the compiler of torch 2.13 fails on the function.
    energy = _TransformableEnergy.apply if grad_p or grad_q else _TransformableEnergy.forward
    return energy(len(p), grad_p, grad_q, tolerance, target_self_energy, *p, *q)[0]


class _TransformableEnergy(Function):
    @staticmethod
    def forward(n_p, grad_p, grad_q, tolerance, target_self_energy, *tensors):
        return tuple(_energy_op(list(tensors), n_p, grad_p, grad_q, tolerance, target_self_energy))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[5:], *output[1:])

    @staticmethod
    def backward(ctx, grad, *_):
        return *(None,) * 5, *chained(grad, ctx.saved_tensors)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        # The mapped axis becomes part of the batch, which all sides then have in full.
        call, tensors, mapped = arguments[:5], arguments[5:], info.batch_size
        moved = [x[None] if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, in_dims[5:], strict=True)]
        rows = max(x.shape[1] for x in moved)
        merged = [x.expand(mapped, rows, *x.shape[2:]).reshape(mapped * rows, *x.shape[2:]) for x in moved]
        outputs = _TransformableEnergy.apply(*call, *merged)
        separated = tuple(x.reshape(mapped, rows if len(x) else 0, *x.shape[1:]) for x in outputs)
        return separated, (0,) * len(outputs)


def chained(grad: Tensor, saved: tuple[Any, ...]) -> list[Tensor | None]:
    """Return the gradients for some tensors, the first half of what is saved; the rest are those of the distances.

    Each known gradient `(B, *)`, None or empty where there is none, is multiplied by that of the result, `(*batch)`,
    and summed to the shape of its tensor.
    """
    tensors, known = saved[: len(saved) // 2], saved[len(saved) // 2 :]
    gradients: list[Tensor | None] = [None] * len(tensors)
    for i, (x, at) in enumerate(zip(tensors, known, strict=True)):
        if at is not None and at.numel():
            product = grad.reshape(*grad.shape, *(1,) * (at.ndim - 1)) * at.reshape(*grad.shape, *at.shape[1:])
            gradient = (product if product.shape == x.shape else product.sum_to_size(x.shape)).to(grad.dtype)
            gradients[i] = gradient if torch.compiler.is_compiling() else constant_gradient(gradient, *tensors)
    return gradients  # compiled ones have no gradients anyway


def ordinary(x: Array) -> Tensor:
    """Return the result of inference mode or of NumPy as an ordinary tensor, which autograd may save."""
    if not isinstance(x, Tensor):
        return as_tensor(x)
    return x.clone() if x.is_inference() else x


@torch.library.custom_op("cramix::energy", mutates_args=())
def _energy_op(
    tensors: list[Tensor], n_p: int, grad_p: bool, grad_q: bool, tolerance: float, target_self_energy: bool
) -> list[Tensor]:
    """Return the distance, and its gradient for each tensor, empty ones where not requested."""
    like, rows = tensors[0], max(len(x) for x in tensors)
    known_q = None if target_self_energy else no_energy(torch.Size((rows,)), like)
    p, q = (Components(*x) if len(x) == 3 else Points(*x) for x in (tensors[:n_p], tensors[n_p:]))
    found = ladder.evaluate(Problem(p, q, None, known_q, tolerance, grad_p, grad_q))
    distances = ordinary(found.distances)
    distances = distances.clamp_min_(0) if target_self_energy else distances
    empty = like.new_empty(0, dtype=torch.float64)
    known = *(found.at_p or [empty] * n_p), *(found.at_q or [empty] * (len(tensors) - n_p))
    return [distances.to(like.dtype), *(as_tensor(x).double().clone() for x in known)]


@_energy_op.register_fake
def _(tensors, n_p, grad_p, grad_q, tolerance, target_self_energy):
    rows = max(len(x) for x in tensors)
    requested = [grad_p] * n_p + [grad_q] * (len(tensors) - n_p)
    known = [
        x.new_empty((rows, *x.shape[1:]), dtype=torch.float64) if at else x.new_empty(0, dtype=torch.float64)
        for x, at in zip(tensors, requested, strict=True)
    ]
    return [tensors[0].new_empty(rows), *known]
