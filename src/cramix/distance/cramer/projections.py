"""The Cramér losses of slices on a GPU: the points are projected in the kernel and never stored as projections."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.accelerator import runs_triton
from cramix.distance.cramer import atoms
from cramix.distance.cramer.autograd import gradient_of_side
from cramix.distance.cramer.ladder import takes_triton
from cramix.distance.cramer.signature import Operand, operand_of
from cramix.mixture import MultivariateNormalMixture
from cramix.torch_internals import plain_eager

# Numbers of the projections that are sorted at a time, in float64, for the self energy of the points.
_SORTED = 1 << 20


def applies(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> bool:
    """Return whether p is one mixture and q one set of constant points, both on a GPU and in plain eager mode."""
    if p.is_empirical or not q.is_empirical or p.batch_shape or q.batch_shape or not runs_triton(p.means):
        return False
    constant = not (torch.is_grad_enabled() and (q.means.requires_grad or q.weights.requires_grad))
    return constant and plain_eager() and takes_triton(p.weights)


def cramer_of_slices(
    p: MultivariateNormalMixture, q: MultivariateNormalMixture, directions: Tensor, target_self_energy: bool
) -> Tensor:
    """Return the Cramér loss of each slice, `(t,)`, of a mixture p and points q; see `applies`.

    Without `target_self_energy`, the self energy of the projected points is not subtracted.
    """
    projected = operand_of(p.project(directions))
    weights, points = q.weights.detach(), q.means.detach()
    if target_self_energy:
        energy = torch.cat([atoms.self_energy(y, w) for y, w in _projections(points, weights, directions)])
    else:
        energy = points.new_zeros(len(directions), dtype=torch.float64)
    return _Slices.apply(projected.needs_grad, points, weights, directions, energy, *projected)


def _projections(points: Tensor, weights: Tensor, directions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the projected points `(some, n)` and their weights, some directions at a time."""
    for some in directions.split(max(1, _SORTED // len(points))):
        yield some @ points.T, weights.expand(len(some), -1)


class _Slices(Function):
    """Losses whose gradients in the projected mixtures are computed along with them."""

    @staticmethod
    def forward(ctx, grad_p, points, weights, directions, energy, *p):
        from cramix.distance.cramer.triton import evaluate_projections  # imports Triton, which not everybody has

        losses, ctx.known, _ = evaluate_projections(Operand(*p), points, weights, directions, energy, grad_p)
        ctx.save_for_backward(points, weights, directions, *p)
        return losses

    @staticmethod
    def backward(ctx, grad):
        points, weights, directions, *p = ctx.saved_tensors
        q = None, None
        if torch.is_grad_enabled():  # second derivatives come from the plain formula
            q = weights.expand(len(directions), -1), directions @ points.T
        return *(None,) * 5, *gradient_of_side(0, 1.0, grad, ctx.known, *p, *q, None)
