"""The energy distance of multivariate mixtures and points, with its gradients in one pass, without autograd.

`E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` with Euclidean norms (docs/math.md, eq. 24). Three kinds of pairs make it up:
components with components, components with points, points with points. What is of one kind on both sides becomes one
list with weights of both signs, so that each pair is met once. A side that stays the same is not in the list with
itself: its own term is known. All is computed around a common centre, in a unit of the size of the problem, a power of
two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.distance.multivariate import euclidean
from cramix.distance.multivariate.arrays import Array, as_like, in_dtype, library
from cramix.distance.multivariate.component_pairs import (
    Result,
    between_components,
    components_to_points,
    pairs,
    with_pairs,
    within_components,
)
from cramix.distance.multivariate.nodes import Nodes, choose_nodes
from cramix.distance.multivariate.own_term import OwnTerm
from cramix.distance.multivariate.sides import (
    Components,
    Ellipsoids,
    Given,
    Points,
    Side,
    are_small,
    centred,
    ellipsoids,
    mean,
    mean_square,
    normalized,
    power_of_two,
    prepared,
    scaled,
    squares,
)


class Known(NamedTuple):
    """The own term of a side that stays the same, `1/2 E|Y - Y'|`: numbers, or what gives them for any nodes."""

    term: Tensor | OwnTerm
    rows: Tensor | None  # (B,), which mixture of the side an element of the batch has; each its own if None

    def at(self, nodes: Nodes, unit: Array) -> Array:
        """Return it in units, `(B,)`."""
        if isinstance(self.term, Tensor):
            return as_like(self.term if self.rows is None else self.term[self.rows], unit) / unit
        return as_like(self.term.at(nodes, unit, self.rows), unit)


class Evaluation(NamedTuple):
    """The distance `(B,)` in float64, and its derivatives in the tensors of each side, none where not asked for."""

    value: Array
    at_p: tuple[Array, ...]
    at_q: tuple[Array, ...]


@np.errstate(all="ignore")  # as torch does
def evaluate(
    given_p: Given,
    given_q: Given,
    known_p: Known | None,
    known_q: Known | None,
    tolerance: float,
    *,
    at_p: bool,
    at_q: bool,
) -> Evaluation:
    """Evaluate the distance of components to components or points, or of points to points.

    Args:
        given_p: one side, flat, with weights of any positive sum.
        given_q: the other; points are second if only one side is.
        known_p: the own term of components p, if it need not be computed.
        known_q: the same for q, if p is components; always there for points with a spread.
        tolerance: error of a mean distance, as a part of the size of the problem.
        at_p: whether derivatives for p are wanted.
        at_q: the same for q.
    """
    small = are_small(given_p, given_q)
    (p, p_factors), (q, q_factors) = prepared(given_p, small), prepared(given_q, small)
    (p, p_total), (q, q_total) = normalized(p), normalized(q)
    p, q, unit, radius = _placed(p, q)
    if isinstance(p, Points):
        assert isinstance(q, Points), "points come second"
        result = _points(p, q, at_p or at_q)
    else:
        all_at_once = small and known_p is None and isinstance(q, Points)
        shapes, of_pairs = with_pairs(p) if all_at_once else (ellipsoids(p.spread, p.dense), None)
        nodes = _nodes_for(shapes.variances, p, q, radius, tolerance, unit)
        own_p, own_q = (None if x is None else x.at(nodes, unit) for x in (known_p, known_q))
        if isinstance(q, Components):
            result = _components(p, q, own_p, own_q, nodes, at_p or at_q)
        else:
            result = _components_and_points(p, shapes, of_pairs, q, own_p, own_q, nodes, at_p, at_q)
    return Evaluation(
        unit * result.value,
        _moved_back(p, result.at_p, p_total, unit, p_factors) if at_p else (),
        _moved_back(q, result.at_q, q_total, unit, q_factors) if at_q else (),
    )


def points_energy(points: Points) -> Tensor:
    """Return `1/2 E|Y - Y'|`, `(B,)`, in float64."""
    weights = points.weights / points.weights.double().sum(-1, keepdim=True)
    return euclidean.energy(points.places, weights).value


def _components(
    p: Components, q: Components, own_p: Array | None, own_q: Array | None, nodes: Nodes, derivatives: bool
) -> Evaluation:
    k, n = p.means.shape[1], q.means.shape[1]
    both = Components(
        *(library(a).concatenate((a, b), 1) for a, b in zip(p, q._replace(weights=-q.weights), strict=True))
    )
    first, second = pairs(k if own_q is not None else k + n, k + n, p.means)
    if own_p is not None:
        first, second = (x[second >= k] for x in (first, second))
    value, *at = between_components(both, first, second, nodes, derivatives)
    for own in (own_p, own_q):
        value = value if own is None else value + own
    if not derivatives:
        return Evaluation(-value, (), ())
    return Evaluation(-value, tuple(-x[:, :k] for x in at), (at[0][:, k:], -at[1][:, k:], -at[2][:, k:]))


def _components_and_points(
    p: Components,
    shapes: Ellipsoids,
    of_pairs: Ellipsoids | None,
    q: Points,
    own_p: Array | None,
    own_q: Array | None,
    nodes: Nodes,
    at_p: bool,
    at_q: bool,
) -> Evaluation:
    if q.spread is not None:
        shapes = ellipsoids(p.spread + q.spread, p.dense)
    within = within_components(p, nodes, at_p, of_pairs) if own_p is None else Result(own_p, None, None, None)
    cross, at_points = components_to_points(p, shapes, q, nodes, at_p, at_q)
    value = cross.value - within.value
    for_p = tuple(a - b for a, b in zip(cross[1:], within[1:], strict=True)) if at_p else ()
    if own_q is not None:
        return Evaluation(value - own_q, for_p, at_points)
    assert q.spread is None, "the own term is known else"
    own = euclidean.energy(torch.as_tensor(q.places), torch.as_tensor(q.weights), at_q)
    value = value - as_like(own.value, value)
    if own.at_weights is None or own.at_points is None:
        return Evaluation(value, for_p, ())
    return Evaluation(value, for_p, (at_points[0] - own.at_weights, at_points[1] - own.at_points))


def _points(p: Points, q: Points, derivatives: bool) -> Evaluation:
    n, batch = p.places.shape[1], max(len(p.places), len(q.places))
    signed = torch.cat((p.weights.expand(batch, -1), -q.weights.expand(batch, -1)), 1)
    places = torch.cat((p.places.expand(batch, -1, -1), q.places.expand(batch, -1, -1)), 1)
    value, at_weights, at_places = euclidean.energy(places, signed, derivatives)
    if at_weights is None or at_places is None:
        return Evaluation(-value, (), ())
    return Evaluation(-value, (-at_weights[:, :n], -at_places[:, :n]), (at_weights[:, n:], -at_places[:, n:]))


def _placed(p: Side, q: Side) -> tuple[Side, Side, Array, Array]:
    """Return both sides around a common centre, in a unit of their size, `(B,)`, and how far they reach in it, `(B,)`.

    Where one side serves a whole batch there is one of each, so that side needs no copies: its own centre and the
    smallest size, so that elements of the batch that are far away take no digits from the others.
    """
    shared = len(p.weights) != len(q.weights)
    centre = mean(min(p, q, key=lambda side: len(side.weights))) if shared else 0.5 * (mean(p) + mean(q))
    centre = in_dtype(as_like(centre, q[1]), q[1])
    p, q = centred(p, centre), centred(q, centre)
    p_squares, q_squares = squares(p), squares(q)
    lib = library(p_squares)
    size = lib.sqrt(mean_square(p, p_squares) + mean_square(q, q_squares))
    if shared:
        size = lib.amin(lib.where(size > 0, size, torch.inf), 0, keepdims=True)
    unit = power_of_two(size)
    reach = lib.sqrt(lib.maximum(lib.amax(p_squares, -1), in_dtype(lib.amax(q_squares, -1), size))) / unit
    return scaled(p, unit), scaled(q, unit), unit, reach


def _nodes_for(variances: Array, p: Components, q: Side, reach: Array, tolerance: float, unit: Array) -> Nodes:
    """Choose the nodes that serve all pairs of a distance; lengths are in units of its size.

    A side that shares one covariance gets those it would get with a copy of it for each component.
    """
    lib = library(variances)
    if q.spread is not None:
        own = ellipsoids(q.spread, p.dense).variances
        variances = lib.concatenate((variances, lib.zeros_like(variances[:, :1]) + own), 1)
    radius = 2 * lib.where(reach < 0.5, 0.5, reach)  # E|X - Y|^2 <= 2 (E|X|^2 + E|Y|^2)
    return choose_nodes(variances, p.multiplicity, radius, tolerance, unit)


def _moved_back(
    side: Side, gradients: tuple[Array, ...], total: Array, unit: Array, factors: Array | None
) -> tuple[Array, ...]:
    """Return derivatives in the tensors as they came: weights of another sum, and lengths in other units.

    The loss is that of the normalised weights, so their gradient has mean 0 under them.
    """
    at_weights, at_places, *at_spread = gradients
    weights, total, unit = (as_like(x, at_weights) for x in (side.weights, total, unit))
    projected = (at_weights - (weights * at_weights).sum(-1, keepdims=True)) / total
    at_spread = [x / unit.reshape(-1, *(1,) * (x.ndim - 1)) for x in at_spread]
    if factors is not None:
        at_spread = [2 * factors @ x for x in at_spread]
    return unit[:, None] * projected, at_places, *at_spread
