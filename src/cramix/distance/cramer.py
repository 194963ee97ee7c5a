"""The Cramér distance between one-dimensional mixtures and point sets: values, and gradients written by hand.

`C2^2(P, Q) = integral (F - G)^2 = E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` (docs/math.md, eq. 4).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.checks import check_broadcast
from cramix.distance import atoms
from cramix.distance.operands import Operand, operands
from cramix.distance.pairs import INV_SQRT_PI, SMALL, all_pair_sums
from cramix.distance.plain import plain_cramer
from cramix.distance.resolve import resolve
from cramix.mixture import NormalMixture


def cramer_squared(p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> Tensor:
    """Return `integral (F - G)^2 dx` for each batch element, without reduction.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n)`.
        q: the same; batch shapes broadcast.

    Returns:
        Losses `(*batch)`, in float32 for half-precision input.

    Example:
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> cramer_squared(p, torch.tensor([-1.0, 1.0]))
        tensor(0.0582)
    """
    p, q, dtype = operands(p, q)
    if p.scales is None and q.scales is None:
        return atoms.squared_distance(p.means, p.weights, q.means, q.weights).to(dtype)
    return (_smooth(q, p) if p.scales is None else _smooth(p, q)).to(dtype)


def cramer_distance(p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> Tensor:
    """Return the metric `C2(p, q)`, the root of `cramer_squared`, `(*batch)`; its derivative at distance 0 is taken as 0.

    Example:
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.0]))
        >>> cramer_distance(p, p.affine(4.0, 1.0))
        tensor(2.)
    """
    squared = cramer_squared(p, q)
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)


def _smooth(p: Operand, q: Operand) -> Tensor:
    """The Cramér loss of a mixture and a mixture or atoms."""
    within_q = None
    if q.scales is None:
        within_q = atoms.half_mean_difference(q.means, q.weights)
    return _apply(*p, *q, within_q, p.needs_grad, q.needs_grad)[0]


class _Cramer(Function):
    """The Cramér loss and its gradients, in one pass over the pairs.

    The gradients are outputs too, non-differentiable: that is how function transforms let backward see them.
    """

    @staticmethod
    def forward(p_weights, p_means, p_scales, q_weights, q_means, q_scales, within_q, grad_p, grad_q):
        dtype = p_means.dtype
        batch = check_broadcast("", p=p_means.shape[:-1], q=q_means.shape[:-1])
        small = p_means.shape[-1] * q_means.shape[-1] * batch.numel() <= SMALL
        working = torch.float64 if small else dtype  # in float64 there is little to resolve, and here it costs nothing
        p, p_total = _pack(batch, working, p_weights, p_means, p_scales)
        q, q_total = _pack(batch, working, q_weights, q_means, q_scales)

        sides = [(p, q), (p, p)]
        if q_scales is not None:
            sides.append((q, q))
        if grad_q:
            sides.append((q, p))
        pq, pp, *rest = all_pair_sums(sides, derivatives=grad_p or grad_q)
        qq = rest.pop(0) if q_scales is not None else None

        cross = (pq[0] * p[0]).sum(0)
        scale = 0.5 * (pp[0] * p[0]).sum(0)
        if qq is None:
            within_q = within_q.expand(batch).reshape(-1)
            scale = scale + within_q.to(working)
        else:
            scale = torch.add(scale, (qq[0] * q[0]).sum(0), alpha=0.5)
        value = cross - scale
        if working == dtype:
            value = resolve(value, scale, p, q, within_q)
        value = value.clamp_min(0).to(dtype).reshape(batch)

        at_p = at_q = value.new_empty(0)
        if grad_p:
            at_p = _gradients(p, p_total, pq - pp, batch).to(dtype)
        if grad_q:
            at_q = _gradients(q, q_total, rest[0].clone() if qq is None else rest[0] - qq, batch).to(dtype)
        return value, at_p, at_q

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, at_p, at_q = output
        ctx.mark_non_differentiable(at_p, at_q)
        ctx.save_for_backward(*inputs[:7], at_p, at_q)

    @staticmethod
    def backward(ctx, grad, *_):
        *inputs, within_q, at_p, at_q = ctx.saved_tensors
        for_p = for_q = (None, None, None)
        gradient = _Gradient.apply if torch.is_grad_enabled() else _Gradient.forward
        if any(ctx.needs_input_grad[:3]):
            for_p = gradient(0, grad, at_p, *inputs)
        if any(ctx.needs_input_grad[3:6]):
            for_q = gradient(3, grad, at_q, *inputs)
            for_q = for_q if len(for_q) == 3 else (*for_q, None)
        for_within = None if within_q is None else -grad.to(within_q.dtype).sum_to_size(within_q.shape)
        return (*for_p, *for_q, for_within, None, None)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        *tensors, grad_p, grad_q = arguments
        rank = max(x.ndim - (dim is not None) for x, dim in zip(tensors[:6], in_dims, strict=False) if x is not None)
        ranks = [rank] * 6 + [rank - 1]
        moved = [_batch_first(x, dim, r) for x, dim, r in zip(tensors, in_dims, ranks, strict=False)]
        value, at_p, at_q = _Cramer.apply(*moved, grad_p, grad_q)
        return (value, at_p, at_q), (0, 1 if grad_p else None, 1 if grad_q else None)


class _Gradient(Function):
    """The gradient of the loss for one side, known already; differentiable in its turn by the plain formula."""

    generate_vmap_rule = True

    @staticmethod
    def forward(first, grad, known, *inputs):
        side = [x for x in inputs[first : first + 3] if x is not None]
        parts = (grad.unsqueeze(-1) * known).unbind()
        return tuple(part.sum_to_size(x.shape) for part, x in zip(parts, side, strict=True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.first, grad, _, *tensors = inputs
        ctx.save_for_backward(grad, *tensors)

    @staticmethod
    def backward(ctx, *cotangents):
        grad, *inputs = ctx.saved_tensors
        present = [i for i, x in enumerate(inputs) if x is not None]

        def loss(grad, *tensors):
            full = dict(zip(present, tensors, strict=True))
            return (grad * plain_cramer(*(full.get(i) for i in range(6)))).sum()

        side = tuple(1 + k for k, i in enumerate(present) if ctx.first <= i < ctx.first + 3)
        _, pull = torch.func.vjp(torch.func.grad(loss, side), grad, *(inputs[i] for i in present))
        for_grad, *rest = pull(cotangents)
        by_input = dict(zip(present, rest, strict=True))
        return (None, for_grad, None, *(by_input.get(i) for i in range(6)))


def _apply(*arguments):
    """Call `_Cramer`, in plain eager mode without the signature inspection that takes torch 20 us a call."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _Cramer.apply(*arguments)
    return super(Function, _Cramer).apply(*arguments)


def _pack(batch: torch.Size, dtype: torch.dtype, *side: Tensor | None) -> tuple[Tensor, Tensor]:
    """Lay out tensors `(*batch, k)` as one `(3 or 2, k, B)`, or `(., k, 1)` where one mixture serves the whole batch.

    The weights are divided by their sums, which are returned too, `(B,)`.
    """
    tensors = [x for x in side if x is not None]
    k = tensors[1].shape[-1]
    shape = (1, k) if tensors[1].shape[:-1].numel() == 1 else (*batch, k)
    if shape == (1, k):
        tensors = [x.reshape(shape) for x in tensors]
    stacked = torch.stack([x if x.shape == shape else x.expand(shape) for x in tensors])
    packed = stacked.reshape(len(tensors), -1, k).mT.to(dtype, memory_format=torch.contiguous_format, copy=True)
    total = packed[0].sum(0)
    packed[0].div_(total)
    return packed, total


def _gradients(side: Tensor, total: Tensor, sums: Tensor, batch: torch.Size) -> Tensor:
    """Turn the difference of pair sums, in place, into gradients for weights, means (and scales), `(3 or 2, *batch, k)`.

    The loss is that of the normalised weights, so their gradient has mean 0 under them (docs/math.md, eq. 8).
    """
    potential, slope, curve = sums.unbind()
    weights, _, *scales = side.unbind()
    potential.sub_((weights * potential).sum(0)).div_(total)
    slope.mul_(weights)
    if scales:
        curve.mul_(weights).mul_(scales[0]).mul_(2 * INV_SQRT_PI)
    return sums[: len(side)].mT.reshape(len(side), *batch, -1)


def _batch_first(x: Tensor | None, dim: int | None, rank: int) -> Tensor | None:
    """Move the mapped axis to the front of a tensor with `rank` other axes, which may be missing on the left."""
    if x is None or dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
