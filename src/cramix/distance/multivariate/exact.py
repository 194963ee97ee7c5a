"""The energy distance of multivariate mixtures and points, with its gradients in one pass, without autograd.

`E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` with Euclidean norms (docs/math.md, eq. 24). Three kinds of pairs make it up:
components with components, components with points, points with points. What is of one kind on both sides becomes one
list with weights of both signs, so that each pair is met once. A side that stays the same is not in the list with
itself: its own term is known. All is computed around a common centre, in a unit of the size of the problem, a power of
two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate import euclidean
from cramix.distance.multivariate.component_pairs import (
    between_components,
    components_to_points,
    nodes_for,
    within_components,
)
from cramix.distance.multivariate.nodes import Nodes
from cramix.distance.multivariate.own_term import OwnTerm
from cramix.distance.multivariate.sides import (
    Components,
    Ellipsoids,
    Points,
    Side,
    ellipsoids,
    mean,
    mean_square,
    moved,
    normalized,
    power_of_two,
)


class Known(NamedTuple):
    """The own term of a side that stays the same, `1/2 E|Y - Y'|`: numbers, or what gives them for any nodes."""

    term: Tensor | OwnTerm
    rows: Tensor  # (B,), which mixture of the side an element of the batch has

    def at(self, nodes: Nodes, unit: Tensor) -> Tensor:
        """Return it in units, `(B,)`."""
        if isinstance(self.term, Tensor):
            return self.term[self.rows] / unit
        return self.term.at(nodes, unit, self.rows)


class Evaluation(NamedTuple):
    """The distance `(B,)` in float64, and its derivatives in the tensors of each side, none where not asked for."""

    value: Tensor
    at_p: tuple[Tensor, ...]
    at_q: tuple[Tensor, ...]


def evaluate(
    p: Side,
    q: Side,
    known_p: Known | None,
    known_q: Known | None,
    tolerance: float,
    *,
    at_p: bool,
    at_q: bool,
) -> Evaluation:
    """Evaluate the distance of components to components or points, or of points to points.

    Args:
        p: one side, flat, with weights of any positive sum.
        q: the other; points are second if only one side is.
        known_p: the own term of components p, if it need not be computed.
        known_q: the same for q, if p is components; always there for points with a spread.
        tolerance: error of a mean distance, as a part of the size of the problem.
        at_p: whether derivatives for p are wanted.
        at_q: the same for q.
    """
    (p, p_total), (q, q_total) = normalized(p), normalized(q)
    centre, unit = _centre_and_unit(p, q)
    p, q = moved(p, centre, unit), moved(q, centre, unit)
    if isinstance(p, Points):
        assert isinstance(q, Points), "points come second"
        result = _points(p, q, at_p or at_q)
    else:
        shapes = ellipsoids(p.spread, p.dense)
        nodes = nodes_for(p, shapes.variances, q, tolerance, unit)
        own_p, own_q = (None if x is None else x.at(nodes, unit) for x in (known_p, known_q))
        if isinstance(q, Components):
            result = _components(p, q, own_p, own_q, nodes, at_p or at_q)
        else:
            result = _components_and_points(p, shapes, q, own_p, own_q, nodes, at_p, at_q)
    return Evaluation(
        unit * result.value,
        _moved_back(p, result.at_p, p_total, unit) if at_p else (),
        _moved_back(q, result.at_q, q_total, unit) if at_q else (),
    )


def points_energy(points: Points) -> Tensor:
    """Return `1/2 E|Y - Y'|`, `(B,)`, in float64."""
    weights = points.weights / points.weights.double().sum(-1, keepdim=True)
    return euclidean.energy(points.places, weights).value


def _components(
    p: Components, q: Components, own_p: Tensor | None, own_q: Tensor | None, nodes: Nodes, derivatives: bool
) -> Evaluation:
    k, n = p.means.shape[1], q.means.shape[1]
    signed = torch.cat((p.weights, -q.weights), 1)
    both = Components(signed, torch.cat((p.means, q.means), 1), torch.cat((p.spread, q.spread), 1))
    first, second = torch.triu_indices(k if own_q is not None else k + n, k + n, device=signed.device)
    if own_p is not None:
        first, second = (x[second >= k] for x in (first, second))
    value, *at = between_components(both, first, second, nodes, derivatives)
    for own in (own_p, own_q):
        value = value if own is None else value + own
    return Evaluation(-value, tuple(-x[:, :k] for x in at), (at[0][:, k:], -at[1][:, k:], -at[2][:, k:]))


def _components_and_points(
    p: Components,
    shapes: Ellipsoids,
    q: Points,
    own_p: Tensor | None,
    own_q: Tensor | None,
    nodes: Nodes,
    at_p: bool,
    at_q: bool,
) -> Evaluation:
    if q.spread is not None:
        shapes = ellipsoids(p.spread + q.spread, p.dense)
    cross, at_points = components_to_points(p, shapes, q, nodes, at_p, at_q)
    for_p: tuple[Tensor, ...] = ()
    if own_p is None:
        own_p, *within = within_components(p, nodes, at_p)
        for_p = tuple(a - b for a, b in zip(cross[1:], within, strict=True)) if at_p else ()
    value = cross.value - own_p
    if own_q is not None:
        return Evaluation(value - own_q, for_p, at_points)
    assert q.spread is None, "the own term is known else"
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


def _centre_and_unit(p: Side, q: Side) -> tuple[Tensor, Tensor]:
    """Return a place in the middle, `(B, 1, d)` in the dtype of the places, and the size as a power of two, `(B,)`.

    Where one side serves a whole batch there is one of each, so that side needs no copies: its own centre and the
    smallest size, so that elements of the batch that are far away take no digits from the others.
    """
    shared = len(p.weights) != len(q.weights)
    centre = mean(min(p, q, key=lambda side: len(side.weights))) if shared else 0.5 * (mean(p) + mean(q))
    centre = centre.to(q[1].dtype)
    size = (mean_square(p, centre) + mean_square(q, centre)).sqrt()
    size = torch.where(size > 0, size, torch.inf)
    return centre, power_of_two(size.amin(0, keepdim=True) if shared else size)


def _moved_back(side: Side, gradients: tuple[Tensor, ...], total: Tensor, unit: Tensor) -> tuple[Tensor, ...]:
    """Return derivatives in the tensors as they came: weights of another sum, and lengths in other units.

    The loss is that of the normalised weights, so their gradient has mean 0 under them.
    """
    at_weights, at_places, *at_spread = gradients
    projected = (at_weights - (side.weights * at_weights).sum(-1, keepdim=True)) / total
    return (unit[:, None] * projected, at_places, *(x / unit.view(-1, *(1,) * (x.ndim - 1)) for x in at_spread))
