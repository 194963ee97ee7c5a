"""The Cramér loss for autograd, function transforms and the compiler, with its gradients written by hand.

Autograd functions take tensors, not records: those of p, those of q, and the self energy of q.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.cramer import atoms, ladder, reference
from cramix.distance.cramer.signature import Evaluation, Operand, Problem, batch_of, operand_of
from cramix.mixture import NormalMixture
from cramix.torch_internals import plain_eager


class _Call(NamedTuple):
    """What an evaluation needs besides tensors."""

    grad_p: bool
    grad_q: bool
    reduction: str = "none"
    backend: str = "auto"
    block: int | None = None


def cramer_of_mixtures(
    p: NormalMixture,
    q: NormalMixture,
    self_energy_q: Tensor | None = None,
    *,
    reduction: str = "none",
    backend: str = "auto",
    block: int | None = None,
) -> Tensor:
    """Return the Cramér loss of mixtures of one dtype, `(*batch)`, or reduced to a number.

    The reduction by "mean" or "sum" could as well follow outside. In plain eager mode it is part of the autograd
    function, which saves a tenth of the time of a small loss.

    Args:
        p: mixture with batch shape `(*batch)`.
        q: the same; batch shapes broadcast.
        self_energy_q: `1/2 E|Y - Y'|` in float64, if q is samples and it is known.
        reduction: "none", "mean" or "sum" over the batch.
        backend: the implementation, see `ladder`.
        block: see `kernels.block_size`.
    """
    a, b = operand_of(p), operand_of(q)
    if a.scales is None and b.scales is None:
        losses = atoms.squared_distance(a.means, a.weights, b.means, b.weights)
        return _reduced(losses.to(a.means.dtype), reduction)
    if a.scales is None:
        a, b, self_energy_q = b, a, None
    if b.scales is None and self_energy_q is None:
        self_energy_q = atoms.self_energy(b.means, b.weights)
    call = _Call(a.needs_grad, b.needs_grad, reduction, backend, block)
    if plain_eager():
        return _Eager.apply(call, *a, *b, self_energy_q)
    # Where nothing needs a gradient, the compiler of torch 2.13 fails on the function.
    evaluated = _InTransforms.apply if call.grad_p or call.grad_q else _InTransforms.forward
    return _reduced(evaluated(*call, *a, *b, self_energy_q)[0], reduction)


def _evaluate(call: _Call, tensors: Any, each: float = 1.0) -> tuple[Evaluation, str]:
    """Return losses and gradients times `each`, and the name of the implementation that computed them."""
    p, q = Operand(*tensors[:3]), Operand(*tensors[3:6])
    name = ladder.choose(p, q) if call.backend == "auto" else call.backend
    return ladder.IMPLEMENTATIONS[name](Problem(p, q, tensors[6], call.grad_p, call.grad_q, call.block, each)), name


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    """Return losses `(*batch)` as they are, their mean or their sum."""
    if reduction == "none" or losses.ndim == 0:
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


class _Eager(Function):
    """The loss in plain eager mode: a single output, reduced already, and as few calls as possible."""

    @staticmethod
    def forward(ctx, call, *tensors):
        p, q = Operand(*tensors[:3]), Operand(*tensors[3:6])
        ctx.batch = batch_of(p, q)
        # The common case, which should cost as little as possible: no other gradients, and no broadcasting.
        whole, energy = all(x is not None and x.shape[:-1] == ctx.batch for x in p), tensors[6]
        ctx.only_p = whole and not call.grad_q and (energy is None or not energy.requires_grad)
        reduced = call.reduction != "none" and len(ctx.batch) > 0
        count = ctx.batch.numel()
        ctx.each = 1.0 if not reduced or call.reduction == "sum" else 1 / count if count else math.nan
        (losses, *ctx.known), name = _evaluate(call, tensors, ctx.each)
        ctx.save_for_backward(*tensors)
        return _total(losses, ctx.each, in_numpy=name == "small") if reduced else losses

    @staticmethod
    def backward(ctx, grad):
        if ctx.only_p and not torch.is_grad_enabled():
            return None, *((grad.unsqueeze(-1) if grad.ndim else grad) * ctx.known[0]).unbind(), None, None, None, None
        return None, *_backward(ctx.needs_input_grad[1:], grad, ctx.batch, ctx.each, ctx.saved_tensors, ctx.known)


def _total(losses: Tensor, each: float, in_numpy: bool) -> Tensor:
    """Return `each` times the sum of the losses; for few losses NumPy takes a fifth of the time of torch."""
    if in_numpy:
        return torch.from_numpy(np.asarray(np.add.reduce(losses.numpy(), None) * each))
    return losses.sum() if each == 1 else losses.mean()


class _InTransforms(Function):
    """The same for function transforms and the compiler, without reduction.

    The gradients are outputs too, non-differentiable: that is how function transforms let backward see them. The
    compiler takes no records as arguments, so the call is flattened, too.
    """

    @staticmethod
    def forward(grad_p, grad_q, reduction, backend, block, *tensors):
        (losses, *known), _ = _evaluate(_Call(grad_p, grad_q, reduction, backend, block), tensors)
        return (losses, *(losses.new_empty(0) if x is None else x for x in known))

    @staticmethod
    def setup_context(ctx, inputs, output):
        losses, at_p, at_q = output
        ctx.batch = losses.shape
        ctx.mark_non_differentiable(at_p, at_q)
        ctx.save_for_backward(*inputs[5:], at_p, at_q)

    @staticmethod
    def backward(ctx, grad, *_):
        *tensors, at_p, at_q = ctx.saved_tensors
        return *(None,) * 5, *_backward(ctx.needs_input_grad[5:], grad, ctx.batch, 1.0, tensors, (at_p, at_q))

    @staticmethod
    def vmap(info, in_dims, *arguments):
        call, tensors, in_dims = _Call(*arguments[:5]), arguments[5:], in_dims[5:]
        rank = max(x.ndim - (dim is not None) for x, dim in zip(tensors[:6], in_dims, strict=False) if x is not None)
        ranks = [rank] * 6 + [rank - 1]
        moved = [_batch_first(x, dim, r) for x, dim, r in zip(tensors, in_dims, ranks, strict=True)]
        # The mapped axis may be on one of a side's tensors only.
        p, q = _broadcast(moved[:3]), _broadcast(moved[3:6])
        losses, at_p, at_q = _InTransforms.apply(*call, *p, *q, moved[6])
        return (losses, at_p, at_q), (0, 1 if call.grad_p else None, 1 if call.grad_q else None)


class _Gradient(Function):
    """The gradient of the loss for one side, already computed; its own derivatives come from the reference.

    The loss is `each` times the sum of the losses of a batch, or one of them if each is 1.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(first, each, grad, known, *inputs):
        parts = ((grad.unsqueeze(-1) if grad.ndim else grad) * known).unbind()
        shape = parts[0].shape
        side = inputs[first : first + len(parts)]
        if all(x.shape == shape for x in side):
            return parts
        return tuple(part.sum_to_size(x.shape) for part, x in zip(parts, side, strict=True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.first, ctx.each, grad, _, *tensors = inputs
        ctx.save_for_backward(grad, *tensors)

    @staticmethod
    def backward(ctx, *cotangents):
        grad, *inputs = ctx.saved_tensors
        present = [i for i, x in enumerate(inputs) if x is not None]

        def loss(grad, *tensors):
            given = dict(zip(present, tensors, strict=True))
            every: Any = [given.get(i) for i in range(6)]
            return ctx.each * (grad * reference.formula(Operand(*every[:3]), Operand(*every[3:]))).sum()

        side = tuple(1 + k for k, i in enumerate(present) if ctx.first <= i < ctx.first + 3)
        second = torch.func.grad(loss, side)
        _, pull = torch.func.vjp(second, grad, *(inputs[i] for i in present))  # type: ignore[misc]
        for_grad, *rest = pull(cotangents)
        by_input = dict(zip(present, rest, strict=True))
        return (None, None, for_grad, None, *(by_input.get(i) for i in range(6)))


def _backward(
    needed: tuple[bool, ...], grad: Tensor, batch: torch.Size, each: float, tensors: Any, known: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients for all flattened tensors; `grad` is that of the losses `(*batch)`, or of their total."""
    *inputs, self_energy_q = tensors
    for_p: tuple[Tensor | None, ...] = (None, None, None)
    for_q = for_p
    if any(needed[:3]):
        for_p = gradient_of_side(0, each, grad, known[0], *inputs)
    if any(needed[3:6]):
        for_q = gradient_of_side(3, each, grad, known[1], *inputs)
        for_q = for_q if len(for_q) == 3 else (*for_q, None)
    for_energy = None
    if self_energy_q is not None and needed[6]:
        for_energy = -(each * grad).expand(batch).to(self_energy_q.dtype).sum_to_size(self_energy_q.shape)
    return (*for_p, *for_q, for_energy)


def gradient_of_side(first: int, each: float, grad: Tensor, known: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Return the gradients for the tensors of one side, the `first` and following ones of both sides' six.

    Args:
        first: 0 for p, 3 for q.
        each: the factor that the known gradient has.
        grad: of the losses `(*batch)`, or of their total.
        known: gradients of the losses times `each`, `(3 or 2, *batch, k)`.
        inputs: the six tensors.
    """
    gradient = _Gradient.apply if torch.is_grad_enabled() else _Gradient.forward
    return gradient(first, each, grad, known, *inputs)


def _batch_first(x: Tensor | None, dim: int | None, rank: int) -> Tensor | None:
    """Move the mapped axis to the front of a tensor with `rank` other axes, which may be missing on the left."""
    if x is None or dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _broadcast(side: list[Tensor | None]) -> list[Tensor | None]:
    present = iter(torch.broadcast_tensors(*(x for x in side if x is not None)))
    return [x if x is None else next(present) for x in side]
