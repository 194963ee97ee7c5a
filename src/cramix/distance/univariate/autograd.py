"""The Cramér loss for autograd, function transforms and the compiler, with its gradients written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.operands import Operand
from cramix.distance.univariate import atoms
from cramix.distance.univariate.evaluate import Evaluation, evaluate
from cramix.distance.univariate.plain import plain_cramer
from cramix.distance.univariate.reduction import Share, total
from cramix.torch_internals import plain_eager


def differentiable_cramer(p: Operand, q: Operand, share: Share | None = None) -> Tensor:
    """Return the Cramér loss of a mixture p and a mixture or atoms q, `(*batch)`, or their `reduction.total`."""
    within_q = atoms.half_mean_difference(q.means, q.weights) if q.scales is None else None
    arguments = *p, *q, within_q, p.needs_grad, q.needs_grad
    if plain_eager():
        return _Eager.apply(*arguments, share)
    return total(_Transformable.apply(*arguments)[0], share)


class _Eager(Function):
    """The loss in plain eager mode: one output, added up already, and no more than must be done at each call."""

    @staticmethod
    def forward(ctx, *arguments):
        value, *ctx.known = _evaluate(*arguments)
        ctx.save_for_backward(*arguments[:7])
        return value

    @staticmethod
    def backward(ctx, grad):
        return *_backward(ctx, grad, ctx.saved_tensors, *ctx.known), None


class _Transformable(Function):
    """The same for function transforms and the compiler.

    The gradients are outputs too, non-differentiable: that is how function transforms let backward see them.
    """

    @staticmethod
    def forward(p_weights, p_means, p_scales, q_weights, q_means, q_scales, within_q, grad_p, grad_q):
        p, q = (p_weights, p_means, p_scales), (q_weights, q_means, q_scales)
        value, *known, _, _ = _evaluate(*p, *q, within_q, grad_p, grad_q)
        return (value, *(value.new_empty(0) if x is None else x for x in known))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, at_p, at_q = output
        ctx.mark_non_differentiable(at_p, at_q)
        ctx.save_for_backward(*inputs[:7], at_p, at_q)

    @staticmethod
    def backward(ctx, grad, *_):
        *saved, at_p, at_q = ctx.saved_tensors
        return _backward(ctx, grad, tuple(saved), at_p, at_q)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        *tensors, grad_p, grad_q = arguments
        rank = max(x.ndim - (dim is not None) for x, dim in zip(tensors[:6], in_dims, strict=False) if x is not None)
        ranks = [rank] * 6 + [rank - 1]
        moved = [_batch_first(x, dim, r) for x, dim, r in zip(tensors, in_dims, ranks, strict=False)]
        p, q = _broadcast(moved[:3]), _broadcast(moved[3:6])  # the mapped axis may be on one of a side's tensors only
        value, at_p, at_q = _Transformable.apply(*p, *q, moved[6], grad_p, grad_q)
        return (value, at_p, at_q), (0, 1 if grad_p else None, 1 if grad_q else None)


class _Gradient(Function):
    """The gradient of the loss for one side, known already; differentiable in its turn by the plain formula."""

    generate_vmap_rule = True

    @staticmethod
    def forward(first, share, grad, known, *inputs):
        parts = ((grad.unsqueeze(-1) if grad.ndim else grad) * known).unbind()
        shape = parts[0].shape
        side = inputs[first : first + len(parts)]
        if all(x.shape == shape for x in side):
            return parts
        return tuple(part.sum_to_size(x.shape) for part, x in zip(parts, side, strict=True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.first, ctx.share, grad, _, *tensors = inputs
        ctx.save_for_backward(grad, *tensors)

    @staticmethod
    def backward(ctx, *cotangents):
        grad, *inputs = ctx.saved_tensors
        present = [i for i, x in enumerate(inputs) if x is not None]

        def loss(grad, *tensors):
            full = dict(zip(present, tensors, strict=True))
            return ctx.share * (grad * plain_cramer(*(full.get(i) for i in range(6)))).sum()  # type: ignore[arg-type]

        side = tuple(1 + k for k, i in enumerate(present) if ctx.first <= i < ctx.first + 3)
        second = torch.func.grad(loss, side)
        _, pull = torch.func.vjp(second, grad, *(inputs[i] for i in present))  # type: ignore[misc]
        for_grad, *rest = pull(cotangents)
        by_input = dict(zip(present, rest, strict=True))
        return (None, None, for_grad, None, *(by_input.get(i) for i in range(6)))


def _evaluate(*arguments: Any) -> Evaluation:
    return evaluate(Operand(*arguments[:3]), Operand(*arguments[3:6]), *arguments[6:])


def _backward(
    ctx: Any,
    grad: Tensor,
    saved: tuple,
    at_p: Tensor | None,
    at_q: Tensor | None,
    batch: torch.Size | None = None,
    share: float = 1.0,
) -> tuple:
    """Return the gradients for all arguments of the functions above; at_p and at_q are those of the total."""
    *inputs, within_q = saved
    for_p = for_q = (None, None, None)
    gradient = _Gradient.apply if torch.is_grad_enabled() else _Gradient.forward
    if any(ctx.needs_input_grad[:3]):
        for_p = gradient(0, share, grad, at_p, *inputs)
    if any(ctx.needs_input_grad[3:6]):
        for_q = gradient(3, share, grad, at_q, *inputs)
        for_q = for_q if len(for_q) == 3 else (*for_q, None)
    for_within = None
    if within_q is not None:
        each = grad if batch is None else (share * grad).expand(batch)
        for_within = -each.to(within_q.dtype).sum_to_size(within_q.shape)
    return (*for_p, *for_q, for_within, None, None)


def _batch_first(x: Tensor | None, dim: int | None, rank: int) -> Tensor | None:
    """Move the mapped axis to the front of a tensor with `rank` other axes, which may be missing on the left."""
    if x is None or dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _broadcast(side: list[Tensor | None]) -> list[Tensor | None]:
    present = iter(torch.broadcast_tensors(*(x for x in side if x is not None)))
    return [x if x is None else next(present) for x in side]
