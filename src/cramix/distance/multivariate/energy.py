"""The energy distance of multivariate mixtures and points for autograd."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.weak import WeakIdKeyDictionary

from cramix.distance.multivariate.component_pairs import Components, Points
from cramix.distance.multivariate.exact import evaluate, points_energy
from cramix.distance.once import last_gradient
from cramix.mixture import MultivariateNormalMixture

# The own energy of point sets met before, by the tensor of their places.
_known: WeakIdKeyDictionary = WeakIdKeyDictionary()


def energy_distance(
    p: MultivariateNormalMixture, q: MultivariateNormalMixture, tolerance: float, target_term: bool = True
) -> Tensor:
    """Return `E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|`, `(*batch)`.

    Without `target_term` the own energy of points q, the last term, is left out.
    """
    batch = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    if not batch.numel():
        held = (x for side in (p, q) for x in (side.weights, side.means, side.covariance_kind.values))
        return torch.stack([x.sum() for x in held]).sum().expand(batch)  # nothing, but with gradients
    if p.only_points and not q.only_points:
        p, q = q, p
    own = None
    if q.only_points and not p.only_points:
        moving = torch.is_grad_enabled() and (q.weights.requires_grad or q.means.requires_grad)
        if not target_term:
            own = torch.zeros(1, dtype=torch.float64, device=q.means.device)
        elif not moving:
            own = _own_energy(q).expand(batch).reshape(-1)
    p_tensors, q_tensors = _tensors(p, q, batch), _tensors(q, p, batch)
    least = 0.0 if target_term else -math.inf
    return _Energy.apply(tolerance, own, least, len(p_tensors), *p_tensors, *q_tensors).reshape(batch)


class _Energy(Function):
    """The distance of two sides, given as flat tensors; the gradients are known when the value is.

    What rounding takes below `least` is put there, and keeps its gradient.
    """

    @staticmethod
    def forward(ctx, tolerance, own_energy, least, n_p, *tensors):
        need = ctx.needs_input_grad[4:]
        p, q = _side(tensors[:n_p]), _side(tensors[n_p:])
        with torch.inference_mode():  # calls are a quarter cheaper
            value, at_p, at_q = evaluate(p, q, own_energy, tolerance, at_p=any(need[:n_p]), at_q=any(need[n_p:]))
        known = *(at_p or (None,) * n_p), *(at_q or (None,) * (len(tensors) - n_p))
        ctx.save_for_backward(*tensors, *(None if x is None else x.clone() for x in known))
        return value.clamp_min(least).to(tensors[0].dtype, copy=True)

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        tensors, known = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        gradients = [
            None if at is None else last_gradient(_pulled_back(grad, at, x.shape), *tensors)
            for x, at in zip(tensors, known, strict=True)
        ]
        return None, None, None, None, *gradients


def _pulled_back(grad: Tensor, known: Tensor, shape: torch.Size) -> Tensor:
    return (grad.view(-1, *(1,) * (known.ndim - 1)) * known).sum_to_size(shape).to(grad.dtype)


def _side(tensors: tuple[Tensor, ...]) -> Components | Points:
    return Components(*tensors) if len(tensors) == 3 else Points(*tensors)


def _tensors(side: MultivariateNormalMixture, other: MultivariateNormalMixture, batch: torch.Size) -> tuple:
    """Return weights, means and for components the spread, as both sides have it, each with one flat batch axis."""
    flat = batch.numel()
    if side.only_points:
        own = 1 if side.batch_shape.numel() == 1 else flat
        lead = side.batch_shape if own == 1 else batch
        weights, places = side.weights.expand(*lead, -1), side.means.expand(*lead, -1, -1)
        return weights.reshape(own, -1), places.reshape(own, *places.shape[-2:])
    dense = not side.covariance_kind.axis_aligned or not (other.only_points or other.covariance_kind.axis_aligned)
    spread = side.covariance_kind.matrices(side.dim) if dense else side.covariance_kind.spread()
    if not dense and not other.only_points and other.covariance_kind.spread().shape[-1] > 1:
        spread = spread.expand(*spread.shape[:-1], side.dim)
    k, own_axes = side.n_components, spread.shape[-2:] if dense else spread.shape[-1:]
    return (
        side.weights.expand(*batch, -1).reshape(flat, k),
        side.means.expand(*batch, -1, -1).reshape(flat, k, -1),
        spread.expand(*batch, k, *own_axes).reshape(flat, k, *own_axes),
    )


def _own_energy(points: MultivariateNormalMixture) -> Tensor:
    """Return `1/2 E|Y - Y'|` of points that need no gradient, `(*batch)`, from memory if they were met before.

    It is a sum over all pairs of points, and the same in every step of a fit. The points are compared with a copy:
    not all ways to change a tensor leave a trace in its version.
    """
    weights, places = points.weights.detach(), points.means.detach()
    known = _known.get(points.means)
    if known is not None and known[0].device == places.device and all(map(torch.equal, known, (places, weights))):
        return known[2]
    flat = Points(weights.reshape(-1, weights.shape[-1]), places.reshape(-1, *places.shape[-2:]))
    value = points_energy(flat).view(points.batch_shape)
    _known[points.means] = places.clone(), weights.clone(), value
    return value
