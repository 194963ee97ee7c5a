"""Kernels for the quadrature rule of a distance: its unit and nodes, and tables of components at these nodes.

They do what `blocked` and `nodes` do, on the device, so that the host need not wait for the size of the problem.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cramix.accelerator import cdiv
from cramix.distance.energy.nodes import LARGEST_REACH

_LN_2 = tl.constexpr(0.6931471805599453)
_INV_SQRT_PI = tl.constexpr(0.5641895835477563)
# At nodes t below this sums run over 1 - L, since L is close to 1; further up than in `nodes`, which costs little here.
_LOW = tl.constexpr(1 / 32)
# Weights that count at least, as in `flat_mixtures.mean_square`.
_LEAST_WEIGHT = tl.constexpr(1e-32)
_LARGEST_REACH = tl.constexpr(LARGEST_REACH)


@triton.jit(do_not_specialize=["n", "chunk", "points_stride", "point_stride", "weights_stride", "parts"])
def summarize_points(
    points,
    weights,
    origin,
    summaries,
    n,
    chunk,
    parts,
    points_stride,
    point_stride,
    coordinate_stride,
    weights_stride,
    weight_stride,
    d: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write of a chunk of points x: sums of weights and of `w |x - o|^2`, the largest `|x - o|^2`, sums of `w (x - o)`.

    Args:
        points: with strides along the batch, points and coordinates.
        weights: with strides along the batch and points; None if they are equal.
        origin: o, `(B, d)`.
        summaries: `(B, parts, 3 + d)` in float64.
        n: number of points.
        chunk: points of a program.
        parts: chunks of a batch element.
        points_stride: along the batch.
        point_stride: along the points.
        coordinate_stride: along the coordinates.
        weights_stride: along the batch.
        weight_stride: along the points.
        d: number of coordinates.
        D: coordinates, padded.
        BLOCK: points of a block.
    """
    program = tl.program_id(0).to(tl.int64)
    row, part = program // parts, program % parts
    axis = tl.arange(0, D)
    centre = tl.load(origin + row * d + axis, axis < d, 0.0).to(tl.float32)
    mass = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    largest = tl.zeros([BLOCK], tl.float64)
    offsets = tl.zeros([BLOCK, D], tl.float64)
    last = tl.minimum(part * chunk + chunk, n)
    for start in range(part * chunk, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < last
        there = live[:, None] & (axis < d)[None, :]
        base = points + row * points_stride + at * point_stride
        x = tl.load(base[:, None] + axis[None, :] * coordinate_stride, there, 0.0)
        offset = tl.where(there, x - centre[None, :], 0.0).to(tl.float64)
        if weights is None:
            weight = live.to(tl.float64)
        else:
            weight = tl.load(weights + row * weights_stride + at * weight_stride, live, 0.0).to(tl.float64)
        square = tl.sum(offset * offset, 1)
        mass += weight
        squares += weight * square
        largest = tl.maximum(largest, square)
        offsets += weight[:, None] * offset
    out = summaries + program * (3 + d)
    tl.store(out, tl.sum(mass, 0))
    tl.store(out + 1, tl.sum(squares, 0))
    tl.store(out + 2, tl.max(largest, 0))
    tl.store(out + 3 + axis, tl.sum(offsets, 0), axis < d)


@triton.jit(do_not_specialize=["k", "of_p", "parts", "count"])
def choose_nodes(
    weights,
    means,
    variances,
    origin,
    summaries,
    settings,
    rule,
    numbers,
    k,
    of_p,
    parts,
    count,
    d: tl.constexpr,
    GAUSS: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    Q: tl.constexpr,
):
    """Write the nodes of one batch element, `t` and their weights, 0 after the last.

    Besides, it writes the unit, the constant of the rule, how many nodes there are and how many of them are low, the
    sum of the weights of the others, and the mass of the points. See `nodes.choose_nodes`.

    Args:
        weights: of components, `(B, k)` in float64, those of each side with sum 1.
        means: `(B, k, d)`.
        variances: along the axes, twice those of the components, `(B, k, d)` in float64.
        origin: the mean of p, `(B, d)` in float64.
        summaries: of points, see `summarize_points`; None if the other side is components.
        settings: the step of the lattice in log u, the tolerance, the longest vector that the Gauss rule at the low end
            serves if it begins at u = 1, and nodes and weights of this rule, `(3 + 2 GAUSS,)` in float64.
        rule: `(B, 2, Q)` in float64.
        numbers: `(B, 6)` in float64.
        k: number of components, of both sides together.
        of_p: how many of them are of p.
        parts: number of summaries of a batch element.
        count: nodes at most.
        d: number of coordinates.
        GAUSS: nodes of the Gauss rule.
        K: components of a block.
        D: coordinates, padded.
        PARTS: summaries, padded.
        Q: nodes, padded.
    """
    row = tl.program_id(0).to(tl.int64)
    step, tolerance, longest = tl.load(settings), tl.load(settings + 1), tl.load(settings + 2)
    axis = tl.arange(0, D)
    inside = axis < d
    centre = tl.load(origin + row * d + axis, inside, 0.0)
    mass = tl.full((), 1.0, tl.float64)
    if summaries is None:
        of_q = tl.zeros([D], tl.float64)  # the mean of q
        for start in range(of_p, k, K):
            component = start + tl.arange(0, K)
            there = component < k
            weight = tl.load(weights + row * k + component, there, 0.0)
            of_q += tl.sum(weight[:, None] * _means(means, row * k + component, axis, there, d), 0)
        centre = 0.5 * (centre + of_q)
        apart = tl.full((), 0.0, tl.float64)
        square = tl.full((), 0.0, tl.float64)
        reach = tl.full((), 0.0, tl.float64)
    else:
        part = tl.arange(0, PARTS)
        summary = summaries + (row * parts + part) * (3 + d)
        mass = tl.sum(tl.load(summary, part < parts, 0.0), 0)
        square = tl.sum(tl.load(summary + 1, part < parts, 0.0), 0) / mass
        reach = tl.max(tl.load(summary + 2, part < parts, 0.0), 0)
        place = summary[:, None] + 3 + axis[None, :]
        shift = tl.sum(tl.load(place, (part < parts)[:, None] & inside[None, :], 0.0), 0) / mass
        apart = tl.sum(shift * shift, 0)
    radius = tl.full((), 0.0, tl.float64)
    for start in range(0, k, K):
        component = start + tl.arange(0, K)
        there = component < k
        weight = tl.load(weights + row * k + component, there, 0.0)
        offset = _means(means, row * k + component, axis, there, d) - centre[None, :]
        offset = tl.where(there[:, None] & inside[None, :], offset, 0.0)
        base = variances + (row * k + component) * d
        spread = tl.load(base[:, None] + axis[None, :], there[:, None] & inside[None, :], 0.0)
        squares = tl.sum(offset * offset + 0.5 * spread, 1)
        square += tl.sum(tl.where(there, tl.maximum(weight, _LEAST_WEIGHT) * squares, 0.0), 0)
        radius = tl.maximum(radius, tl.max(squares, 0))
    # Around the middle of both means, while those of points are around that of p.
    size = tl.sqrt(square - 0.5 * apart)
    size = tl.where((size > 0) & (size < float("inf")), size, 1.0)
    exponent = tl.floor(tl.log2(size.to(tl.float32)) + 0.5)
    unit = tl.exp2(exponent).to(tl.float64)
    phase = exponent.to(tl.float64) * _LN_2
    reach = tl.sqrt(tl.maximum(4.0 * radius, 2.0 * (radius + reach))) / unit
    reach = tl.minimum(tl.maximum(reach, 1.0), _LARGEST_REACH)
    first = tl.floor((tl.log(longest) - tl.log(reach) - phase) / step) + 1
    last = tl.ceil((-tl.log(tolerance) - phase) / step)
    at = tl.arange(0, Q)
    # Node 0 of the lattice is where the Gauss rule is, and the last Gauss node stands for it here.
    index = tl.maximum(at - (GAUSS - 1), 0).to(tl.float64)
    u = tl.exp(step * (first - 1 + index) + phase)
    t = u * u * tl.load(settings + 3 + at, at < GAUSS, 1.0)
    weight = step * _INV_SQRT_PI / u * tl.load(settings + 3 + GAUSS + at, at < GAUSS, 1.0)
    log_l = tl.full([Q], float("-inf"), tl.float32)
    for start in range(0, k, K):
        component = start + tl.arange(0, K)
        there = component < k
        base = variances + (row * k + component) * d
        total = tl.zeros([K], tl.float32)
        logs = tl.zeros([K, Q], tl.float32)
        for a in range(d):
            variance = (tl.load(base + a, there, 0.0) / (unit * unit)).to(tl.float32)
            total += variance
            logs += tl.log(1.0 + variance[:, None] * t.to(tl.float32)[None, :])
        logs = tl.where((total > 0)[:, None], -0.5 * logs, float("-inf"))
        log_l = tl.maximum(log_l, tl.max(logs, 0))
    # Truncation: what remains of L, at most that in the centre of a component, is below the tolerance.
    lattice = (at >= GAUSS) & (first + index <= last + 1)
    left = tl.where(lattice, weight * tl.exp(log_l.to(tl.float64)), 0.0)
    left = tl.sum(left, 0) - tl.cumsum(left, 0)
    nodes = GAUSS + 1 + tl.sum((lattice & (left > tolerance)).to(tl.int32), 0)
    nodes = tl.minimum(nodes, count)
    live = at < nodes
    low = tl.sum((live & (t < _LOW)).to(tl.int32), 0)
    constant = tl.sum(tl.where(at == nodes - 1, weight, 0.0), 0) / (tl.exp(step) - 1.0)
    tl.store(rule + row * 2 * Q + at, tl.where(live, t, 0.0))
    tl.store(rule + row * 2 * Q + Q + at, tl.where(live, weight, 0.0))
    out = numbers + row * 6
    tl.store(out, unit)
    tl.store(out + 1, constant)
    tl.store(out + 2, nodes.to(tl.float64))
    tl.store(out + 3, low.to(tl.float64))
    tl.store(out + 4, tl.sum(tl.where(live & (at >= low), weight, 0.0), 0))
    tl.store(out + 5, mass)


@triton.jit
def _means(means, component, axis, there, d: tl.constexpr):
    inside = there[:, None] & (axis < d)[None, :]
    return tl.load(means + component[:, None] * d + axis[None, :], inside, 0.0).to(tl.float64)


def row_width(d: int) -> int:
    """Return the length of a row of the table of a component: two numbers and d rates, padded to 16 bytes."""
    return cdiv(2 + d, 4) * 4


@triton.jit(do_not_specialize=["k"])
def tabulate(
    variances,
    rule,
    numbers,
    table,
    k,
    d: tl.constexpr,
    D: tl.constexpr,
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write what the passes over points need of a component at each node.

    That is, with `log2 L = l - sum_a r_a b_a^2` for offsets b along the axes: `2 ln 2` times the weight of the node, l,
    and the d rates r, a row of the table. In front of them there are, as numbers of the component, whether it has a
    covariance, and `2 ln 2` times the constant of the rule with the weights of nodes that are not low.

    Args:
        variances: along the axes, twice those of the components, `(B, k, d)` in float64.
        rule: see `choose_nodes`.
        numbers: see `choose_nodes`.
        table: `(B, k, 1 + Q, WIDTH)` in the dtype to compute in.
        k: number of components.
        d: number of coordinates.
        D: coordinates, padded.
        Q: nodes, padded.
        WIDTH: numbers of a row, see `row_width`.
    """
    program = tl.program_id(0).to(tl.int64)
    row = program // k
    at, axis = tl.arange(0, Q), tl.arange(0, D)
    inside = axis < d
    unit = tl.load(numbers + row * 6)
    t = tl.load(rule + row * 2 * Q + at)
    weight = tl.load(rule + row * 2 * Q + Q + at)
    # Twice the variances.
    variance = tl.load(variances + program * d + axis, inside, 0.0) / (unit * unit)
    growth = 1.0 + t[:, None] * variance[None, :]
    rates = t[:, None] / growth / _LN_2
    log_l = tl.sum(tl.log(growth), 1) * (-0.5 / _LN_2)
    dtype = table.dtype.element_ty
    own = table + program * ((1 + Q) * WIDTH)
    constant = tl.load(numbers + row * 6 + 1) + tl.load(numbers + row * 6 + 4)
    tl.store(own, (tl.sum(variance, 0) > 0).to(dtype))
    tl.store(own + 1, (constant * (2.0 * _LN_2)).to(dtype))
    base = own + (1 + at) * WIDTH
    tl.store(base, (weight * (2.0 * _LN_2)).to(dtype))
    tl.store(base + 1, log_l.to(dtype))
    tl.store(base[:, None] + 2 + axis[None, :], rates.to(dtype), inside[None, :] & (at >= 0)[:, None])
