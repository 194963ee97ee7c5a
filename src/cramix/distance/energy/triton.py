"""The energy distance and its gradients on a GPU: no array with an axis of points and one of components or nodes.

What depends on the data, such as the number of quadrature nodes, is decided on the device: the host waits for nothing,
and a call can be captured in a CUDA graph. `triton_axes` decomposes covariances, `triton_rule` chooses unit and nodes,
`triton_pairs` sums over pairs of components, `triton_points` and `triton_lanes` over components and points.
`triton_derivatives` turns these sums into derivatives, `triton_weights` into distances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from cramix.accelerator import cdiv, is_interpreted, next_power_of_2
from cramix.distance.energy import point_pairs
from cramix.distance.energy.blocked import in_given_units
from cramix.distance.energy.component_pairs import FEW_LENGTHS
from cramix.distance.energy.flat_mixtures import Components, Points
from cramix.distance.energy.mean_norm import NEAR
from cramix.distance.energy.nodes import LARGEST_REACH, lattice_step, low_end
from cramix.distance.energy.signature import Evaluation, KnownEnergy, Problem
from cramix.distance.energy.triton_axes import Own, Shapes, shapes_of
from cramix.distance.energy.triton_derivatives import derive
from cramix.distance.energy.triton_lanes import sum_in_lanes
from cramix.distance.energy.triton_pairs import sum_over_pairs
from cramix.distance.energy.triton_points import evaluate_points, sum_in_tiles
from cramix.distance.energy.triton_rule import choose_nodes, row_width, summarize_points, tabulate
from cramix.distance.energy.triton_weights import conclude, normalize
from cramix.distance.kernels import normalized

# The most coordinates of a lane, whose sums fit in registers.
_LANE = 8
# Lanes of a program, points of a lane that are visited together, nodes that are, and points of a tile.
_LANES, _TOGETHER, _UNROLLED, _TILE = 64, 2, 2, 64
# Coordinates of all programs of lanes that fit on a multiprocessor, and programs of tiles.
_RESIDENT, _PROGRAMS = 32, 6
# The most points of a program, whose sums in float32 lose nothing.
_CHUNK = 1 << 15
# Points of a summary at least, coordinates that are added at a time, and numbers in all summaries of a batch element.
_SUMMARY, _COORDINATES, _SUMMARIES = 256, 1 << 11, 1 << 12
# Components and nodes that are computed with at a time.
_COMPONENTS, _NODES = 16, 64
# Pairs of components that fill a GPU.
_PAIRS = 1 << 11
_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


class _Rule(NamedTuple):
    """Quadrature rules, see `triton_rule.choose_nodes`."""

    nodes: Tensor  # (B, 2, Q)
    numbers: Tensor  # (B, 6)

    @property
    def unit(self) -> Tensor:
        return self.numbers[:, 0]


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate distances and derivatives of components; see `signature.Problem`. Sizes of blocks are chosen here."""
    p, q = problem.p, problem.q
    assert isinstance(p, Components), "points to points have no kernel"
    with torch.cuda.device_of(p.means) if p.means.is_cuda else nullcontext():  # Triton launches on the current device
        return _to_points(p, q, problem) if isinstance(q, Points) else _between_components(p, q, problem)


def _to_points(given: Components, q: Points, problem: Problem) -> Evaluation:
    """Evaluate distances of components to points."""
    _, _, known_p, known_q, tolerance, grad_p, grad_q, _ = problem
    batch, k, _ = given.means.shape
    p, totals, origin = _normalized(given)
    working = torch.float32 if batch * k * q.means.shape[1] > FEW_LENGTHS else torch.float64
    pairs, own = shapes_of(p, known_p is None, working)
    rule = _rule(p, k, own, tolerance, origin, q)
    cross, table = _sums_over_points(p, q, own, rule, working, grad_p)
    within = None if pairs is None else _sums_over_pairs(p, k, pairs, rule, False, False, grad_p)
    distances, at_weights = rule.numbers.new_empty(batch), given.means.new_empty(batch, k) if grad_p else None
    conclude[(batch,)](
        cross, within, p.weights, totals, rule.numbers, _known(known_p), _known(known_q), distances, at_weights,
        k, cross.shape[-1], 0 if within is None else within.shape[-1], _COMPONENTS,
    )  # fmt: skip
    at_p: tuple[Tensor, ...] = ()
    if at_weights is not None:
        at_p = _as_given(given, (at_weights, *_derivatives(p, own, rule, cross, within, table.dtype)))
    at_q: tuple[Tensor, ...] = ()
    if grad_q or known_q is None:
        distances, at_q = _of_points(distances, p, q, own, rule, table, known_q is None, grad_q)
    return Evaluation(distances, at_p, at_q)


def _between_components(p: Components, q: Components, problem: Problem) -> Evaluation:
    """Evaluate distances of components to components, all in one list with weights of both signs."""
    _, _, known_p, known_q, tolerance, grad_p, grad_q, _ = problem
    rows, k = max(len(p.weights), len(q.weights)), p.means.shape[1]
    (of_p, p_total, p_mean), (of_q, q_total, _) = _normalized(p), _normalized(q)
    positive, means, covariances = (
        torch.cat([x.expand(rows, *x.shape[1:]) for x in both], 1) for both in zip(of_p, of_q, strict=True)
    )
    both = Components(positive, means, covariances)
    pairs, own = shapes_of(both, True, torch.float64)
    assert pairs is not None
    rule = _rule(both, k, own, tolerance, p_mean.expand(rows, -1).contiguous())
    signed = torch.cat([positive[:, :k], -positive[:, k:]], 1)
    both = both._replace(weights=signed)
    sums = _sums_over_pairs(both, k, pairs, rule, known_p is not None, known_q is not None, grad_p or grad_q)
    distances = -0.5 * rule.unit * (signed * sums[..., 0]).sum(-1)
    for known in (_known(known_p), _known(known_q)):
        distances = distances if known is None else distances - known
    if not (grad_p or grad_q):
        return Evaluation(distances)
    d = means.shape[-1]
    at_weights, at_others = sums[..., 0], signed.unsqueeze(-1) * sums[..., 1:]
    at_means, at_covariances = at_others[..., :d], at_others[..., d:].unflatten(-1, (d, d))
    if not p.dense:
        at_covariances = at_covariances.diagonal(dim1=-2, dim2=-1)
    at_p = [-at_weights[:, :k], -at_means[:, :k], -at_covariances[:, :k]]
    at_q = [at_weights[:, k:], -at_means[:, k:], -at_covariances[:, k:]]  # its weights are negative in the list
    return Evaluation(
        distances,
        in_given_units(of_p, _as_given(p, at_p), p_total.unsqueeze(-1), rule.unit) if grad_p else (),
        in_given_units(of_q, _as_given(q, at_q), q_total.unsqueeze(-1), rule.unit) if grad_q else (),
    )


def _normalized(given: Components) -> tuple[Components, Tensor, Tensor]:
    """Return components with weights in float64 that sum to one, the sum before, `(B,)`, and their mean, `(B, d)`."""
    means = given.means.contiguous()
    batch, k, d = means.shape
    weights, totals, origin = (means.new_empty(shape, dtype=torch.float64) for shape in ((batch, k), batch, (batch, d)))
    normalize[(batch,)](
        given.weights.contiguous(), means, weights, totals, origin, k, d, _COMPONENTS, next_power_of_2(d)
    )
    return Components(weights, means, _variances_or_matrices(given)), totals, origin


def _known(known: KnownEnergy | None) -> Tensor | None:
    """Return the self energy of a side, `(B,)`, if it is known."""
    if known is None:
        return None
    assert isinstance(known.energy, Tensor), "the nodes of other energies are chosen on the host"
    return known.energy if known.rows is None else known.energy[known.rows]


def _variances_or_matrices(side: Components) -> Tensor:
    """Return covariances `(B, k, d, d)`, or variances in float64 with one for each axis, `(B, k, d)`."""
    if side.dense:
        return side.covariances.contiguous()
    return side.covariances.double().expand(*side.covariances.shape[:2], side.means.shape[-1])


def _as_given(side: Components, gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return derivatives in the covariances as they were given: the same matrices, or fewer variances."""
    *others, at_covariances = gradients
    if side.covariances.shape[-1] < at_covariances.shape[-1]:
        at_covariances = at_covariances.sum(-1, keepdim=True)
    return *others, at_covariances


def _rule(
    side: Components, of_p: int, own: Own, tolerance: float, origin: Tensor, points: Points | None = None
) -> _Rule:
    """Choose unit and nodes for components, of both sides or of p, and points around an origin."""
    batch, k, d = side.means.shape
    settings, count = _settings(tolerance, side.means.device)
    padded, wide = next_power_of_2(count), next_power_of_2(d)
    nodes, numbers = own.variances.new_empty(batch, 2, padded), own.variances.new_empty(batch, 6)
    summaries, parts = None, 0
    if points is not None:
        n = points.means.shape[1]
        parts = min(cdiv(n, _SUMMARY), max(1, _SUMMARIES // wide))
        summaries = numbers.new_empty(batch, parts, 3 + d)
        given, strides = _strided(points)
        block = min(max(_COORDINATES // wide, 16), _SUMMARY)
        summarize_points[(batch * parts,)](
            points.means, given, origin, summaries, n, cdiv(n, parts), parts, *strides, d, wide, block
        )
    choose_nodes[(batch,)](
        side.weights, side.means, own.variances, origin, summaries, settings, nodes, numbers, k, of_p, parts, count,
        d, (len(settings) - 3) // 2, _COMPONENTS, wide, next_power_of_2(parts or 1), padded,
    )  # fmt: skip
    return _Rule(nodes, numbers)


@lru_cache(maxsize=64)
def _settings(tolerance: float, device: torch.device) -> tuple[Tensor, int]:
    """Return what `triton_rule.choose_nodes` needs to know of a tolerance, and the largest number of nodes."""
    tolerance = 0.8 * tolerance  # see `nodes.choose_nodes`
    step, end = lattice_step(tolerance), low_end(tolerance)
    settings = torch.tensor([step, tolerance, end.longest, *end.t, *end.weights], dtype=torch.float64, device=device)
    lattice = math.ceil(math.log(LARGEST_REACH / (end.longest * tolerance)) / step) + 2
    return settings, len(end.t) + max(3, lattice)


def _sums_over_pairs(
    side: Components, of_p: int, shapes: Shapes, rule: _Rule, known_p: bool, known_q: bool, grad: bool
) -> Tensor:
    """Return at each component `sum_j s_j E|X_i - X_j|`, and its derivatives in mean and covariance.

    They are `(B, k, 1 + d + d d)`, only the first of them is valid without derivatives.
    """
    batch, k, d = side.means.shape
    each = min(max(1, batch * k * k // _PAIRS), k)
    parts = cdiv(k, each)
    sums = rule.numbers.new_empty(batch, k, parts, 1 + d + d * d)
    sum_over_pairs[(batch * k * parts,)](
        side.weights, side.means, *shapes, *rule, sums, k, of_p, parts, each,
        d, known_p, known_q, grad, _NODES, rule.nodes.shape[-1], _padded(d),
    )  # fmt: skip
    return sums.squeeze(2) if parts == 1 else sums.sum(2)


def _sums_over_points(
    p: Components, q: Points, own: Own, rule: _Rule, working: torch.dtype, grad: bool
) -> tuple[Tensor, Tensor]:
    """Return sums over points, see `triton_points`, `(B, k, *)`, and a table of the components."""
    (batch, k, d), n, q_padded = p.means.shape, q.means.shape[1], rule.nodes.shape[-1]
    table = rule.numbers.new_empty(batch, k, 1 + q_padded, row_width(d), dtype=working)
    tabulate[(batch * k,)](
        own.variances, *rule, table, k, d, next_power_of_2(d), q_padded, row_width(d), num_warps=4 if d <= 8 else 8
    )
    lanes = d <= _LANE
    together = _TOGETHER if working == torch.float32 else 1
    step = _LANES * together if lanes else _TILE
    blocks = cdiv(n, step)
    programs = _RESIDENT // d if lanes else _PROGRAMS
    each = cdiv(blocks, max(1, programs * _processors(p.means.device) // (batch * k)))
    chunk = min(each * step, _CHUNK)
    parts = cdiv(n, chunk)
    sums = rule.numbers.new_zeros(batch, k, parts, 1 + (3 * d if own.axes is None else 2 * d + 2 * d * d))
    given, strides = _strided(q)
    arguments = q.means, given, p.means, own.turns, table, rule.numbers, sums, n, chunk, parts, k, *strides, d, grad
    if lanes:
        assembly = working == torch.float32 and p.means.is_cuda and not is_interpreted() and not torch.version.hip
        whole = assembly and d % 4 == 0 and _in_fours(p.means) and _in_fours(q.means)
        sum_in_lanes[(batch * k * parts,)](
            *arguments,
            together,
            _LANES,
            _UNROLLED,
            q_padded,
            row_width(d),
            _TYPES[working],
            assembly,
            whole,
            num_warps=_LANES // 32,
        )
    else:
        sum_in_tiles[(batch * k * parts,)](
            *arguments, _padded(d), _TILE, q_padded, row_width(d), _TYPES[working], num_warps=8
        )
    return sums.sum(2), table


def _derivatives(
    p: Components, own: Own, rule: _Rule, cross: Tensor, within: Tensor | None, working: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return derivatives in means and covariances, or variances, in the dtype of the means."""
    batch, k, d = p.means.shape
    at_means = torch.empty_like(p.means)
    at_covariances = torch.empty_like(own.variances if own.axes is None else own.axes, dtype=at_means.dtype)
    derive[(batch * k,)](
        cross, within, p.weights, own.variances, own.axes, rule.numbers, at_means, at_covariances, k,
        d, NEAR[working], _padded(d),
    )  # fmt: skip
    return at_means, at_covariances


def _of_points(
    distances: Tensor, p: Components, q: Points, own: Own, rule: _Rule, table: Tensor, within: bool, grad: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return distances less the self energy of points, if that is wanted, and derivatives for the points."""
    weights, total = normalized(q.weights.double())
    at_q: tuple[Tensor, ...] = ()
    if grad:
        (batch, k, d), n = p.means.shape, q.means.shape[1]
        lengths, pulls = (q.means.new_empty(batch, n, *shape, dtype=table.dtype) for shape in ((), (d,)))
        blocks = cdiv(n, _TILE)
        _, strides = _strided(q)
        evaluate_points[(batch * blocks,)](
            q.means, p.weights, p.means, own.turns, table, rule.numbers, lengths, pulls, n, blocks, k, *strides[:3],
            d, _padded(d), _TILE, rule.nodes.shape[-1], row_width(d), _TYPES[table.dtype],
        )  # fmt: skip
        at_q = lengths, weights.unsqueeze(-1) * pulls
    if within:
        of_q = point_pairs.energy(q.means, weights, grad)
        distances = distances - of_q.energies
        if grad:
            potential, pull = of_q.derivatives
            at_q = at_q[0] - potential / rule.unit.unsqueeze(-1), at_q[1] - pull
    side = Points(weights, q.means)
    return distances, in_given_units(side, at_q, total, rule.unit) if grad else ()


def _strided(points: Points) -> tuple[Tensor | None, tuple[int, ...]]:
    """Return weights, None for equal ones, and strides of points and weights, 0 along a shared batch."""
    weights, means = points.weights, points.means
    along_points = (means.stride(0) if len(means) > 1 else 0, means.stride(1), means.stride(2))
    along_weights = (weights.stride(0) if len(weights) > 1 else 0, weights.stride(1))
    return None if weights.stride(1) == 0 else weights, (*along_points, *along_weights)


def _in_fours(points: Tensor) -> bool:
    """Return whether four coordinates in float32 can be read at a time."""
    *strides, last = points.stride()
    return last == 1 and all(stride % 4 == 0 for stride in strides) and points.data_ptr() % 16 == 0


@lru_cache(maxsize=32)
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _padded(d: int) -> int:
    """Return the number of coordinates of a tile that is multiplied as a matrix."""
    return max(16, next_power_of_2(d))
