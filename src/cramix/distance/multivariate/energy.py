"""The energy distance of multivariate mixtures and points for autograd."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.weak import WeakIdKeyDictionary

from cramix.distance.multivariate.exact import Known, evaluate, points_energy
from cramix.distance.multivariate.own_term import OwnTerm
from cramix.distance.multivariate.sides import Components, Factors, Given, Points
from cramix.distance.multivariate.transformable import held, pulled_back, transformable_energy
from cramix.distance.once import last_gradient
from cramix.mixture import Factor, MultivariateNormalMixture
from cramix.torch_internals import in_transform, plain_eager

# The own energies of point sets and the own terms of mixtures met before, by the tensor of their places.
_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
_known_terms: WeakIdKeyDictionary = WeakIdKeyDictionary()
# The pairs of so few components are not worth remembering.
_FEW = 16


def energy_distance(
    p: MultivariateNormalMixture, q: MultivariateNormalMixture, tolerance: float, target_term: bool = True
) -> Tensor:
    """Return `E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|`, `(*batch)`.

    Without `target_term` the own energy of q, the last term, is left out: p is a mixture then, q points or a mixture
    that does not move.
    """
    same = p.batch_shape == q.batch_shape
    batch = p.batch_shape if same else torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    if not batch.numel():
        parts = (x for side in (p, q) for x in (side.weights, side.means, side.covariance_kind.values))
        return torch.stack([x.sum() for x in parts]).sum().expand(batch)  # nothing, but with gradients
    if target_term and _belongs_second(p, q):
        p, q = q, p
    if not plain_eager():
        sides = (p, q, Points if p.only_points else Components), (q, p, Points if q.only_points else Components)
        flat_p, flat_q = (_flat(_tensors(*side), batch, side[2]) for side in sides)
        return transformable_energy(flat_p, flat_q, _may_move(p), _may_move(q), tolerance, target_term).reshape(batch)
    known_p = known_q = None
    if not p.only_points:
        known_p, known_q = _own(p, batch, tolerance), _own(q, batch, tolerance) if target_term else _nothing(q, batch)
    p_kind, q_kind = _kind(p, False), _kind(q, known_q is not None)
    p_tensors, q_tensors = _tensors(p, q, p_kind), _tensors(q, p, q_kind)
    least = 0.0 if target_term else -math.inf
    call = _Call(p_kind, q_kind, len(p_tensors), known_p, known_q, tolerance, least, batch, torch.is_grad_enabled())
    return _Energy.apply(call, *p_tensors, *q_tensors)


def moves(side: MultivariateNormalMixture) -> bool:
    """Whether gradients may be asked for."""
    tensors = side.weights, side.means, side.covariance_kind.values
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _may_move(side: MultivariateNormalMixture) -> bool:
    """Whether gradients may be asked for; inside a function transform that cannot be known, so yes."""
    return moves(side) or any(map(in_transform, (side.weights, side.means, side.covariance_kind.values)))


def _belongs_second(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> bool:
    """Whether the distance, which is the same from both sides, is less work from q to p."""
    if p.only_points or q.only_points:
        return p.only_points and not q.only_points
    return not moves(p) and (moves(q) or p.n_components > q.n_components)


def _kind(side: MultivariateNormalMixture, constant: bool) -> type[Given]:
    """Return what a side is given as; one that stays the same is points if its components share a covariance."""
    kind = side.covariance_kind
    if side.only_points or (constant and kind.shared):
        return Points
    return Factors if isinstance(kind, Factor) else Components


class _Call(NamedTuple):
    """What there is to know of a distance besides the tensors of both sides, of which p has n_p."""

    p_kind: type[Given]
    q_kind: type[Given]
    n_p: int
    known_p: Known | None
    known_q: Known | None
    tolerance: float
    least: float
    batch: torch.Size
    derivatives: bool  # without gradients a tensor may still say that it requires one


class _Energy(Function):
    """The distance of two sides, given as tensors; the gradients are known when the value is.

    What rounding takes below `least` is put there, and keeps its gradient.
    """

    @staticmethod
    def forward(ctx, call, *tensors):
        need, n_p = [call.derivatives and x for x in ctx.needs_input_grad[1:]], call.n_p
        with torch.inference_mode():  # calls are a quarter cheaper
            p = call.p_kind(*_flat(tensors[:n_p], call.batch, call.p_kind))
            q = call.q_kind(*_flat(tensors[n_p:], call.batch, call.q_kind))
            value, at_p, at_q = evaluate(
                p, q, call.known_p, call.known_q, call.tolerance, at_p=any(need[:n_p]), at_q=any(need[n_p:])
            )
        known = *(at_p or (None,) * n_p), *(at_q or (None,) * (len(tensors) - n_p))
        ctx.save_for_backward(*tensors, *(None if x is None else held(x) for x in known))
        return held(value).clamp_min_(call.least).to(tensors[0].dtype).view(call.batch)

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        tensors, known = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        gradients = [
            None if at is None else last_gradient(pulled_back(grad, at, x.shape), *tensors)
            for x, at in zip(tensors, known, strict=True)
        ]
        return None, *gradients


def _tensors(
    side: MultivariateNormalMixture, other: MultivariateNormalMixture, kind: type[Given]
) -> tuple[Tensor, ...]:
    """Return weights, means and the spread, if there is one, as both sides have it."""
    weights, means, covariances = side.weights, side.means, side.covariance_kind
    if side.only_points:
        return weights, means
    if kind is Factors:
        spread, axes = covariances.values, 2
    else:
        dense = not covariances.axis_aligned or not (other.only_points or other.covariance_kind.axis_aligned)
        spread, axes = (covariances.matrices(side.dim), 2) if dense else (covariances.spread(), 1)
        if not dense and not other.only_points and other.covariance_kind.spread().shape[-1] > 1:
            spread = spread.expand(*spread.shape[:-1], side.dim)
    k = side.n_components
    if kind is Points:
        spread, k = spread.narrow(-1 - axes, 0, 1), 1
    whole = (*side.batch_shape, k, *spread.shape[-axes:])
    return weights, means, spread if spread.shape == whole else spread.expand(whole)


def _flat(tensors: tuple[Tensor, ...], batch: torch.Size, kind: type[Given]) -> tuple[Tensor, ...]:
    """Return tensors with one flat batch axis, of length 1 for points that all of the batch share."""
    own = tensors[0].shape[:-1]
    if own != batch:
        if kind is Points and own.numel() == 1:
            batch = own
        tensors = tuple(x.expand(*batch, *x.shape[len(own) :]) for x in tensors)
    rows = batch.numel()
    return tuple(x.reshape(rows, *x.shape[len(batch) :]) for x in tensors)


def _nothing(side: MultivariateNormalMixture, batch: torch.Size) -> Known:
    """Return the own term of a side for which it is left out."""
    zero = torch.zeros(1, dtype=torch.float64, device=side.means.device)
    return Known(zero, zero.new_zeros(batch.numel(), dtype=torch.long))


def _own(side: MultivariateNormalMixture, batch: torch.Size, tolerance: float) -> Known | None:
    """Return the own term of a side that does not move; None where it is as well computed with the rest.

    It is a sum over all pairs, and the same in every step of a fit, so it is remembered.
    """
    if moves(side) or not (side.only_points or side.n_components > _FEW):
        return None
    shape, rows = side.batch_shape, None
    if shape != batch:
        rows = torch.arange(shape.numel(), device=side.means.device).view(shape).expand(batch).reshape(-1)
    return Known(_own_energy(side).view(-1) if side.only_points else _own_term(side, tolerance), rows)


def _own_energy(points: MultivariateNormalMixture) -> Tensor:
    """Return `1/2 E|Y - Y'|` of points that need no gradient, `(*batch)`, from memory if they were met before.

    The points are compared with a copy: not all ways to change a tensor leave a trace in its version.
    """
    weights, places = points.weights.detach(), points.means.detach()
    known = _known.get(points.means)
    if known is not None and _same(known[:2], (places, weights)):
        return known[2]
    flat = Points(weights.reshape(-1, weights.shape[-1]), places.reshape(-1, *places.shape[-2:]))
    value = points_energy(flat).view(points.batch_shape)
    _known[points.means] = places.clone(), weights.clone(), value
    return value


def _own_term(mixture: MultivariateNormalMixture, tolerance: float) -> OwnTerm:
    """Return the own term of a mixture that needs no gradient, from memory as that of points."""
    kind = mixture.covariance_kind
    tensors = mixture.means.detach(), mixture.weights.detach(), kind.values.detach()
    known = _known_terms.get(mixture.means)
    if known is not None and known[3:5] == (type(kind), tolerance) and _same(known[:3], tensors):
        return known[5]
    side = _kind(mixture, constant=True)
    with torch.no_grad():
        term = OwnTerm(side(*_flat(_tensors(mixture, mixture, side), mixture.batch_shape, side)), tolerance)
    _known_terms[mixture.means] = *(x.clone() for x in tensors), type(kind), tolerance, term
    return term


def _same(known: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> bool:
    return known[0].device == tensors[0].device and all(map(torch.equal, known, tensors))
