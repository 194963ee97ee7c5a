"""The energy distance of multivariate mixtures and points, with its gradients in one pass, without autograd.

`E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` with Euclidean norms (docs/math.md, eq. 24). Three kinds of pairs make it up:
components with components, components with points, points with points. What is of one kind on both sides becomes one
list with weights of both signs, so that each pair is met once. All is computed around a common centre, in a unit of the
size of the problem, a power of two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate import euclidean
from cramix.distance.multivariate.component_pairs import (
    Components,
    Points,
    components_to_points,
    ellipsoids,
    nodes_for,
    within_components,
)


class Evaluation(NamedTuple):
    """The distance `(B,)` in float64, and its derivatives in the tensors of each side, none where not asked for."""

    value: Tensor
    at_p: tuple[Tensor, ...]
    at_q: tuple[Tensor, ...]


def evaluate(
    p: Components | Points,
    q: Components | Points,
    own_energy: Tensor | None,
    tolerance: float,
    *,
    at_p: bool,
    at_q: bool,
) -> Evaluation:
    """Evaluate the distance of components to components or points, or of points to points.

    Args:
        p: one side, flat, with weights of any positive sum.
        q: the other; points are second if only one side is.
        own_energy: `1/2 E|Y - Y'|` of points q against components p if it is known (`(B or 1,)`), to be subtracted.
        tolerance: error of a mean distance, as a part of the size of the problem.
        at_p: whether derivatives for p are wanted.
        at_q: the same for q.
    """
    p_total, q_total = (side.weights.double().sum(-1, keepdim=True) for side in (p, q))
    p, q = p._replace(weights=p.weights / p_total), q._replace(weights=q.weights / q_total)
    centre, unit = _centre_and_unit(p, q)
    p, q = _moved(p, centre, unit), _moved(q, centre, unit)
    if isinstance(p, Components) and isinstance(q, Components):
        result = _components(p, q, tolerance, at_p or at_q)
    elif isinstance(p, Components) and isinstance(q, Points):
        known = None if own_energy is None else own_energy / unit
        result = _components_and_points(p, q, known, tolerance, at_p, at_q)
    else:
        assert isinstance(p, Points) and isinstance(q, Points), "points come second"  # noqa: PT018
        result = _points(p, q, at_p or at_q)
    return Evaluation(
        unit * result.value,
        _moved_back(p, result.at_p, p_total, unit) if at_p else (),
        _moved_back(q, result.at_q, q_total, unit) if at_q else (),
    )


def points_energy(points: Points) -> Tensor:
    """Return `1/2 E|Y - Y'|`, `(B,)`, in float64."""
    weights = points.weights / points.weights.double().sum(-1, keepdim=True)
    return euclidean.energy(points.places, weights).value


def _components(p: Components, q: Components, tolerance: float, derivatives: bool) -> Evaluation:
    k = p.means.shape[1]
    signed = torch.cat((p.weights, -q.weights), 1)
    both = Components(signed, torch.cat((p.means, q.means), 1), torch.cat((p.spread, q.spread), 1))
    nodes = nodes_for(both, ellipsoids(both.spread, both.dense).variances, None, tolerance)
    value, *at = within_components(both, nodes, derivatives)
    return Evaluation(-value, tuple(-x[:, :k] for x in at), (at[0][:, k:], -at[1][:, k:], -at[2][:, k:]))


def _components_and_points(
    p: Components, q: Points, own_energy: Tensor | None, tolerance: float, at_p: bool, at_q: bool
) -> Evaluation:
    shapes = ellipsoids(p.spread, p.dense)
    nodes = nodes_for(p, shapes.variances, q, tolerance)
    cross, at_points = components_to_points(p, shapes, q, nodes, at_p, at_q)
    within = within_components(p, nodes, at_p)
    for_p = tuple(a - b for a, b in zip(cross[1:], within[1:], strict=True)) if at_p else ()
    value = cross.value - within.value
    if own_energy is not None:
        return Evaluation(value - own_energy, for_p, at_points)
    own = euclidean.energy(q.places, q.weights, at_q)
    if own.at_weights is None or own.at_points is None:
        return Evaluation(value - own.value, for_p, ())
    return Evaluation(value - own.value, for_p, (at_points[0] - own.at_weights, at_points[1] - own.at_points))


def _points(p: Points, q: Points, derivatives: bool) -> Evaluation:
    n, batch = p.places.shape[1], max(len(p.places), len(q.places))
    signed = torch.cat((p.weights.expand(batch, -1), -q.weights.expand(batch, -1)), 1)
    places = torch.cat((p.places.expand(batch, -1, -1), q.places.expand(batch, -1, -1)), 1)
    value, at_weights, at_places = euclidean.energy(places, signed, derivatives)
    if at_weights is None or at_places is None:
        return Evaluation(-value, (), ())
    return Evaluation(-value, (-at_weights[:, :n], -at_places[:, :n]), (at_weights[:, n:], -at_places[:, n:]))


def _centre_and_unit(p: Components | Points, q: Components | Points) -> tuple[Tensor, Tensor]:
    """Return a place in the middle, `(B, 1, d)` in the dtype of the places, and the size as a power of two, `(B,)`.

    Where one side serves a whole batch there is one of each, so that side needs no copies: its own centre and the
    smallest size, so that elements of the batch that are far away take no digits from the others.
    """
    shared = len(p.weights) != len(q.weights)
    centre = _mean(min(p, q, key=lambda side: len(side.weights))) if shared else 0.5 * (_mean(p) + _mean(q))
    centre = centre.to(q[1].dtype)
    size = (_mean_square(p, centre) + _mean_square(q, centre)).sqrt()
    size = torch.where(size > 0, size, torch.inf)
    if shared:
        size = size.amin(0, keepdim=True)
    return centre, torch.where(size < torch.inf, size, 1).log2().round().exp2()


def _mean(side: Components | Points) -> Tensor:
    return (side.weights.to(side[1].dtype).unsqueeze(-2) @ side[1]).double()  # (B, 1, d)


def _mean_square(side: Components | Points, centre: Tensor) -> Tensor:
    """Return `E|X - centre|^2`, `(B,)`."""
    squares = (side[1] - centre).square().sum(-1)
    if isinstance(side, Components):
        spread = side.spread.diagonal(dim1=-2, dim2=-1) if side.dense else side.spread
        squares = squares + side.multiplicity * spread.sum(-1)
    # Hardly any weight counts as a little, so that what has it is not beyond all numbers in units of the size.
    return (side.weights.clamp_min(1e-32) * squares).sum(-1).double()


def _moved(side: Components | Points, centre: Tensor, unit: Tensor) -> Components | Points:
    """Count places from the centre, in units."""
    if isinstance(side, Points):
        return Points(side.weights, (side.places - centre) / unit.to(centre.dtype)[:, None, None])
    scale = unit.square().view(-1, *(1,) * (side.spread.ndim - 1))
    means = (side.means.double() - centre.double()) / unit[:, None, None]
    return Components(side.weights.double(), means, side.spread.double() / scale)


def _moved_back(
    side: Components | Points, gradients: tuple[Tensor, ...], total: Tensor, unit: Tensor
) -> tuple[Tensor, ...]:
    """Return derivatives in the tensors as they came: weights of another sum, and lengths in other units.

    The loss is that of the normalised weights, so their gradient has mean 0 under them.
    """
    at_weights, at_places, *at_spread = gradients
    projected = (at_weights - (side.weights * at_weights).sum(-1, keepdim=True)) / total
    return (unit[:, None] * projected, at_places, *(x / unit.view(-1, *(1,) * (x.ndim - 1)) for x in at_spread))
