"""The energy distance of multivariate mixtures and points, with its derivatives in one pass, without autograd.

`E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` with Euclidean norms (docs/math.md, eq. 24). It consists of three kinds of
pairs: components with components, components with points, points with points. Where both sides are of one kind they
form one list with weights of both signs, so that each pair is visited once. Pairs within a side that stays the same are
not in the list: its self energy is known. Everything is computed relative to a common centre, in a unit of the size of
the problem, a power of two.
"""

from __future__ import annotations

import torch

from cramix.distance.energy import component_pairs, flat_mixtures, point_pairs
from cramix.distance.energy.flat_mixtures import Components, Points, Side, ellipsoids, mean
from cramix.distance.energy.nodes import Nodes, choose_nodes
from cramix.distance.energy.numpy_or_torch import Array, as_like, as_tensor, in_dtype, is_numpy, library
from cramix.distance.energy.signature import Evaluation, Problem


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate distances and derivatives in the library of the operands; see `signature.Problem`."""
    (p, p_total), (q, q_total) = flat_mixtures.working_form(problem.p), flat_mixtures.working_form(problem.q)
    p, q, unit, radius = _in_units(p, q)
    if isinstance(p, Points):
        result = _points(p, q, problem)
    elif isinstance(q, Points):
        result = _components_and_points(p, q, unit, radius, problem)
    else:
        result = _components(p, q, unit, radius, problem)
    return Evaluation(
        unit * result.distances,
        in_given_units(p, result.at_p, p_total, unit) if problem.grad_p else (),
        in_given_units(q, result.at_q, q_total, unit) if problem.grad_q else (),
    )


def _components(p: Components, q: Components, unit: Array, radius: Array, problem: Problem) -> Evaluation:
    k, n = p.means.shape[1], q.means.shape[1]
    nodes = _nodes_for(ellipsoids(p.covariances, p.dense).variances, p, q, radius, problem.tolerance, unit)
    both = Components(
        *(library(a).concatenate((a, b), 1) for a, b in zip(p, q._replace(weights=-q.weights), strict=True))
    )
    first, second = component_pairs.pairs(k if problem.known_q is not None else k + n, k + n, p.means)
    if problem.known_p is not None:
        first, second = (x[second >= k] for x in (first, second))
    grad = problem.grad_p or problem.grad_q
    sums = component_pairs.between_components(both, (first, second), nodes, grad, None, problem.block)
    total = sum((x.at(nodes, unit) for x in (problem.known_p, problem.known_q) if x is not None), sums.total)
    return _of_signed_list(total, sums.derivatives, k)


def _components_and_points(p: Components, q: Points, unit: Array, radius: Array, problem: Problem) -> Evaluation:
    _, _, known_p, known_q, tolerance, grad_p, grad_q, block = problem
    one_block = is_numpy(p.means) and known_p is None
    shapes, of_pairs = component_pairs.with_pairs(p) if one_block else (ellipsoids(p.covariances, p.dense), None)
    nodes = _nodes_for(shapes.variances, p, q, radius, tolerance, unit)
    if q.covariances is not None:
        shapes = ellipsoids(p.covariances + q.covariances, p.dense)
    if known_p is None:
        k = p.means.shape[1]
        index = component_pairs.pairs(k, k, p.means)
        within = component_pairs.between_components(p, index, nodes, grad_p, of_pairs, block)
    else:
        within = component_pairs.PairSum(known_p.at(nodes, unit))
    cross, at_q = component_pairs.components_to_points(p, shapes, q, nodes, grad_p, grad_q, block)
    distances = cross.total - within.total
    at_p = tuple(a - b for a, b in zip(cross.derivatives, within.derivatives, strict=True))
    if known_q is not None:
        return Evaluation(distances - known_q.at(nodes, unit), at_p, at_q)
    assert q.covariances is None, "points with a covariance come with their self energy"
    within_q = point_pairs.energy(as_tensor(q.means), as_tensor(q.weights), grad_q, block)
    at_q = tuple(a - b for a, b in zip(at_q, within_q.derivatives, strict=True))
    return Evaluation(distances - as_like(within_q.energies, distances), at_p, at_q)


def _points(p: Points, q: Side, problem: Problem) -> Evaluation:
    rows = max(len(p.means), len(q.means))
    points, signed = (
        torch.cat([as_tensor(x).expand(rows, *x.shape[1:]) for x in both], 1)
        for both in ((p.means, q.means), (p.weights, -q.weights))
    )
    energies, derivatives = point_pairs.energy(points, signed, problem.grad_p or problem.grad_q, problem.block)
    return _of_signed_list(energies, derivatives, p.means.shape[1])


def _of_signed_list(total: Array, derivatives: tuple[Array, ...], k: int) -> Evaluation:
    """Return `-total` as a distance, of sides in one list, the first k of p, then those of q with negative weights."""
    at_q = (x[:, k:] if x.ndim == 2 else -x[:, k:] for x in derivatives)  # the weights have two axes
    return Evaluation(-total, tuple(-x[:, :k] for x in derivatives), tuple(at_q))


def _in_units(p: Side, q: Side) -> tuple[Side, Side, Array, Array]:
    """Return both sides relative to a common centre, in a unit of their size, `(B,)`, and their radius in it, `(B,)`.

    Where one side serves a whole batch, centre and unit are the same for all, so that this side needs no copies: its
    own centre and the smallest size, so that batch elements that are far away take no digits from the others.
    """
    shared = len(p.weights) != len(q.weights)
    centre = mean(min(p, q, key=lambda side: len(side.weights))) if shared else 0.5 * (mean(p) + mean(q))
    centre = in_dtype(as_like(centre, q.means), q.means)
    p, q = flat_mixtures.centred(p, centre), flat_mixtures.centred(q, centre)
    p_squares, q_squares = flat_mixtures.mean_squares(p), flat_mixtures.mean_squares(q)
    lib = library(p_squares)
    size = lib.sqrt(flat_mixtures.mean_square(p, p_squares) + flat_mixtures.mean_square(q, q_squares))
    if shared:
        size = lib.amin(lib.where(size > 0, size, torch.inf), 0)[None]
    unit = flat_mixtures.power_of_two(size)
    radius = lib.sqrt(lib.maximum(lib.amax(p_squares, -1), in_dtype(lib.amax(q_squares, -1), size))) / unit
    return flat_mixtures.scaled(p, unit), flat_mixtures.scaled(q, unit), unit, radius


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


def in_given_units(side: Side, gradients: tuple[Array, ...], total: Array, unit: Array) -> tuple[Array, ...]:
    """Return derivatives in the tensors as they were given: weights of another sum, and lengths in other units.

    The loss is that of the normalised weights, so their gradient has mean 0 under them.
    """
    at_weights, at_means, *at_covariances = gradients
    weights, total, unit = (as_like(x, at_weights) for x in (side.weights, total, unit))
    projected = (at_weights - (weights * at_weights).sum(-1)[..., None]) / total
    at_covariances = [x / unit.reshape(-1, *(1,) * (x.ndim - 1)) for x in at_covariances]
    return unit[:, None] * projected, at_means, *at_covariances
