"""The energy distance of multivariate mixtures and points, with its derivatives in one pass, without autograd.

`E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` with Euclidean norms (docs/math.md, eq. 24). It consists of three kinds of
pairs: components with components, components with points, points with points. Where both sides are of one kind they
form one list with weights of both signs, so that each pair is visited once. Pairs within a side that stays the same are
not in the list: its self energy is known. Everything is computed relative to a common centre, in a unit of the size of
the problem, a power of two.
"""

from __future__ import annotations

import numpy as np
import torch

from cramix.distance.energy import point_pairs
from cramix.distance.energy.array_protocol import Array, as_array, as_like, as_tensor, in_dtype, library
from cramix.distance.energy.component_pairs import (
    PairSum,
    between_components,
    components_to_points,
    pairs,
    with_pairs,
    within_components,
)
from cramix.distance.energy.flat_mixtures import (
    Components,
    Ellipsoids,
    Flat,
    Points,
    Side,
    centred,
    ellipsoids,
    mean,
    mean_square,
    mean_squares,
    power_of_two,
    scaled,
    with_normalized_weights,
    working_form,
)
from cramix.distance.energy.nodes import Nodes, choose_nodes
from cramix.distance.energy.signature import Evaluation, KnownEnergy


def evaluate(
    p: Flat,
    q: Flat,
    known_p: KnownEnergy | None,
    known_q: KnownEnergy | None,
    tolerance: float,
    *,
    grad_p: bool,
    grad_q: bool,
    block: int | None = None,
) -> Evaluation:
    """Evaluate distances and derivatives in the library of the operands; see `signature.Implementation`."""
    (a, p_factors), (b, q_factors) = working_form(p), working_form(q)
    (a, p_total), (b, q_total) = with_normalized_weights(a), with_normalized_weights(b)
    a, b, unit, radius = _in_units(a, b)
    if isinstance(a, Points):
        assert isinstance(b, Points), "points come second"
        result = _points(a, b, grad_p or grad_q, block)
    else:
        one_block = isinstance(a.means, np.ndarray) and known_p is None and isinstance(b, Points)
        shapes, of_pairs = with_pairs(a) if one_block else (ellipsoids(a.covariances, a.dense), None)
        nodes = _nodes_for(shapes.variances, a, b, radius, tolerance, unit)
        energy_p, energy_q = (None if x is None else x.at(nodes, unit) for x in (known_p, known_q))
        if isinstance(b, Components):
            result = _components(a, b, energy_p, energy_q, nodes, grad_p or grad_q, block)
        else:
            result = _components_and_points(a, shapes, of_pairs, b, energy_p, energy_q, nodes, grad_p, grad_q, block)
    return Evaluation(
        unit * result.distances,
        _in_given_units(a, result.at_p, p_total, unit, p_factors) if grad_p else (),
        _in_given_units(b, result.at_q, q_total, unit, q_factors) if grad_q else (),
    )


def _components(
    p: Components,
    q: Components,
    energy_p: Array | None,
    energy_q: Array | None,
    nodes: Nodes,
    derivatives: bool,
    block: int | None,
) -> Evaluation:
    k, n = p.means.shape[1], q.means.shape[1]
    both = Components(
        *(library(a).concatenate((a, b), 1) for a, b in zip(p, q._replace(weights=-q.weights), strict=True))
    )
    first, second = pairs(k if energy_q is not None else k + n, k + n, p.means)
    if energy_p is not None:
        first, second = (x[second >= k] for x in (first, second))
    sums = between_components(both, first, second, nodes, derivatives, block=block)
    total = sums.total
    for energy in (energy_p, energy_q):
        total = total if energy is None else total + energy
    if not derivatives:
        return Evaluation(-total, (), ())
    at = sums.derivatives
    return Evaluation(-total, tuple(-x[:, :k] for x in at), (at[0][:, k:], -at[1][:, k:], -at[2][:, k:]))


def _components_and_points(
    p: Components,
    shapes: Ellipsoids,
    of_pairs: Ellipsoids | None,
    q: Points,
    energy_p: Array | None,
    energy_q: Array | None,
    nodes: Nodes,
    grad_p: bool,
    grad_q: bool,
    block: int | None,
) -> Evaluation:
    if q.covariances is not None:
        shapes = ellipsoids(p.covariances + q.covariances, p.dense)
    within = within_components(p, nodes, grad_p, of_pairs, block) if energy_p is None else PairSum(energy_p)
    cross, at_points = components_to_points(p, shapes, q, nodes, grad_p, grad_q, block)
    distances = cross.total - within.total
    at_p = tuple(a - b for a, b in zip(cross.derivatives, within.derivatives, strict=True)) if grad_p else ()
    if energy_q is not None:
        return Evaluation(distances - energy_q, at_p, tuple(map(as_array, at_points)))
    assert q.covariances is None, "points with a covariance come with their self energy"
    own = point_pairs.energy(as_tensor(q.means), as_tensor(q.weights), grad_q, block)
    distances = distances - as_like(own.energies, distances)
    if own.at_weights is None or own.at_points is None:
        return Evaluation(distances, at_p, ())
    at_q = at_points[0] - own.at_weights, at_points[1] - own.at_points
    return Evaluation(distances, at_p, tuple(map(as_array, at_q)))


def _points(p: Points, q: Points, derivatives: bool, block: int | None) -> Evaluation:
    p_weights, x, q_weights, y = map(as_tensor, (p.weights, p.means, q.weights, q.means))
    n, batch = x.shape[1], max(len(x), len(y))
    signed = torch.cat((p_weights.expand(batch, -1), -q_weights.expand(batch, -1)), 1)
    points = torch.cat((x.expand(batch, -1, -1), y.expand(batch, -1, -1)), 1)
    energies, at_weights, at_points = point_pairs.energy(points, signed, derivatives, block)
    if at_weights is None or at_points is None:
        return Evaluation(as_array(-energies), (), ())
    at_p, at_q = (-at_weights[:, :n], -at_points[:, :n]), (at_weights[:, n:], -at_points[:, n:])
    return Evaluation(as_array(-energies), tuple(map(as_array, at_p)), tuple(map(as_array, at_q)))


def _in_units(p: Side, q: Side) -> tuple[Side, Side, Array, Array]:
    """Return both sides relative to a common centre, in a unit of their size, `(B,)`, and their radius in it, `(B,)`.

    Where one side serves a whole batch, centre and unit are the same for all, so that this side needs no copies: its
    own centre and the smallest size, so that batch elements that are far away take no digits from the others.
    """
    shared = len(p.weights) != len(q.weights)
    centre = mean(min(p, q, key=lambda side: len(side.weights))) if shared else 0.5 * (mean(p) + mean(q))
    centre = in_dtype(as_like(centre, q.means), q.means)
    p, q = centred(p, centre), centred(q, centre)
    p_squares, q_squares = mean_squares(p), mean_squares(q)
    lib = library(p_squares)
    size = lib.sqrt(mean_square(p, p_squares) + mean_square(q, q_squares))
    if shared:
        size = lib.amin(lib.where(size > 0, size, torch.inf), 0, keepdims=True)
    unit = power_of_two(size)
    radius = lib.sqrt(lib.maximum(lib.amax(p_squares, -1), in_dtype(lib.amax(q_squares, -1), size))) / unit
    return scaled(p, unit), scaled(q, unit), unit, radius


def _nodes_for(variances: Array, p: Components, q: Side, radius: Array, tolerance: float, unit: Array) -> Nodes:
    """Choose the nodes that serve all pairs of a distance; lengths are in units of its size.

    Components that share one covariance get the same nodes as if each had a copy of it.
    """
    lib = library(variances)
    if q.covariances is not None:
        of_q = ellipsoids(q.covariances, p.dense).variances
        variances = lib.concatenate((variances, lib.zeros_like(variances[:, :1]) + of_q), 1)
    reach = 2 * lib.where(radius < 0.5, 0.5, radius)  # E|X - Y|^2 <= 2 (E|X|^2 + E|Y|^2)
    return choose_nodes(variances, p.multiplicity, reach, tolerance, unit)


def _in_given_units(
    side: Side, gradients: tuple[Array, ...], total: Array, unit: Array, factors: Array | None
) -> tuple[Array, ...]:
    """Return derivatives in the tensors as they were given: weights of another sum, and lengths in other units.

    The loss is that of the normalised weights, so their gradient has mean 0 under them.
    """
    at_weights, at_means, *at_covariances = gradients
    weights, total, unit = (as_like(x, at_weights) for x in (side.weights, total, unit))
    projected = (at_weights - (weights * at_weights).sum(-1, keepdims=True)) / total
    at_covariances = [x / unit.reshape(-1, *(1,) * (x.ndim - 1)) for x in at_covariances]
    if factors is not None:
        at_covariances = [2 * factors @ x for x in at_covariances]
    return unit[:, None] * projected, at_means, *at_covariances
