"""A kernel for sums of mean distances of components to points in few dimensions: everything is in registers.

Each lane has its own points. The sums are those of `triton_points`, which takes any number of dimensions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cramix.distance.energy.triton_assembly import read_four, read_row, unrelated
from cramix.distance.energy.triton_points import norm_and_inverse, one_minus_power, power_of_2

_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["n", "chunk", "parts", "k", "points_stride", "point_stride", "weights_stride"])
def sum_in_lanes(
    points,
    weights,
    means,
    axes,
    table,
    numbers,
    sums,
    n,
    chunk,
    parts,
    k,
    points_stride,
    point_stride,
    coordinate_stride,
    weights_stride,
    weight_stride,
    d: tl.constexpr,
    GRAD: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
    WORKING: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Write the sums of a component over a chunk of points.

    Of pairs of axes a < b only, there are the sums of `w b_a b_b (slope_b - slope_a)` and `w b_a b_b (curve_a +
    curve_b)`: those at (b, a) are left as they are.

    Args:
        points: with strides along the batch, points and coordinates.
        weights: with strides along the batch and points; None if they are equal.
        means: `(B, k, d)` in float32.
        axes: of components as columns, `(B, k, d, d)` in the dtype to compute in; None for the coordinate axes.
        table: see `triton_rule.tabulate`.
        numbers: see `triton_rule.choose_nodes`.
        sums: `(B, k, parts, 1 + 2 d + 2 d d)` in float64, or for the coordinate axes `(B, k, parts, 1 + 3 d)`.
        n: number of points.
        chunk: points of a program, so few that sums of a lane in float32 lose nothing.
        parts: programs of a component.
        k: number of components.
        points_stride: along the batch.
        point_stride: along the points.
        coordinate_stride: along the coordinates.
        weights_stride: along the batch.
        weight_stride: along the points.
        d: number of coordinates.
        GRAD: whether to write more than the sum of lengths.
        GROUP: points of a lane that are visited together, which share what is read of the table.
        BLOCK: lanes.
        UNROLL: nodes that are computed with at a time, so that fewer instructions wait for each other.
        Q: nodes, padded.
        WIDTH: numbers of a row of the table.
        WORKING: dtype to compute in.
        ASSEMBLY: whether to use PTX, in float32 on a GPU of NVIDIA.
        WHOLE: whether to read four coordinates at a time in PTX: they lie side by side, in groups of 16 bytes.
    """
    program = tl.program_id(0).to(tl.int64)
    component, part = program // parts, program % parts
    row = component // k
    scale = (1.0 / tl.load(numbers + row * 6)).to(WORKING)
    nodes, low = tl.load(numbers + row * 6 + 2).to(tl.int32), tl.load(numbers + row * 6 + 3).to(tl.int32)
    own = table + component * ((1 + Q) * WIDTH)
    curved, constant = tl.load(own) > 0, tl.load(own + 1)
    zero = tl.zeros([BLOCK], WORKING)
    length_sum = zero
    state = ()  # slopes, pulls, squares * slopes, squares * curves, and the two sums of each pair of axes
    if GRAD:
        for _ in tl.static_range(4 * d):
            state = state + (zero,)
        if axes is not None:
            for _ in tl.static_range(d * (d - 1)):
                state = state + (zero,)
    last = tl.minimum(part * chunk + chunk, n)
    for start in range(part * chunk, last, GROUP * BLOCK):
        base = points + row * points_stride
        if WHOLE:
            along = _turned(base, start, last, point_stride, means, axes, component, scale, d, GROUP, BLOCK)
        else:
            along = ()
            for _ in tl.static_range(GROUP * d):
                along = along + (zero,)
            for c in range(d):  # an inner loop: from the outer one, axes would be moved in front of it, into registers
                along = _rotated(
                    along, base + c * coordinate_stride, start, last, point_stride, means, axes,
                    component, scale, c, d, GROUP, BLOCK,
                )  # fmt: skip
        along = unrelated(along, GROUP * d, ASSEMBLY)
        squares, rise, slopes, curves = (), (), (), ()
        for g in tl.static_range(GROUP):
            rise = rise + (zero + constant,)
            for a in tl.static_range(d):
                squares = squares + (along[g * d + a] * along[g * d + a],)
                slopes, curves = slopes + (zero,), curves + (zero,)
        if curved:
            for q in range(low):
                node = read_row(own + (1 + q) * WIDTH, squares[0], WIDTH, ASSEMBLY)
                rise, slopes, curves = _at_node(node, squares, rise, slopes, curves, d, GROUP, GRAD, True)
            for q in tl.range(low, nodes, loop_unroll_factor=UNROLL):
                node = read_row(own + (1 + q) * WIDTH, squares[0], WIDTH, ASSEMBLY)
                rise, slopes, curves = _at_node(node, squares, rise, slopes, curves, d, GROUP, GRAD, False)
        else:
            rise, slopes, curves = _plain_norms(squares, d, GROUP)
        slopes, curves = unrelated(slopes, GROUP * d, ASSEMBLY), unrelated(curves, GROUP * d, ASSEMBLY)
        for g in tl.static_range(GROUP):
            at = start + g * BLOCK + tl.arange(0, BLOCK)
            if weights is None:
                weight = (at < last).to(WORKING)
            else:
                weight = tl.load(weights + row * weights_stride + at * weight_stride, at < last, 0.0).to(WORKING)
            length_sum += weight * rise[g]
            if GRAD:
                state = _added(state, weight, along, slopes, curves, g, axes is not None, d)
    # In the table weights of nodes are 2 ln 2 times as large, and rates times ln 2 are those of the formula.
    if axes is None:
        SIZE: tl.constexpr = 1 + 3 * d
    else:
        SIZE: tl.constexpr = 1 + 2 * d + 2 * d * d
    out = sums + program * SIZE
    tl.store(out, tl.sum(length_sum.to(tl.float64), 0) * (0.5 / _LN_2))
    if GRAD:
        for a in tl.static_range(d):
            tl.store(out + 1 + a, tl.sum(state[a].to(tl.float64), 0))
            tl.store(out + 1 + d + a, tl.sum(state[d + a].to(tl.float64), 0))
            curve = tl.sum(state[3 * d + a].to(tl.float64), 0) * _LN_2
            if axes is None:
                tl.store(out + 1 + 2 * d + a, curve)
            else:
                tl.store(out + 1 + 2 * d + a * 2 * d + a, tl.sum(state[2 * d + a].to(tl.float64), 0))
                tl.store(out + 1 + 2 * d + a * 2 * d + d + a, curve)
        if axes is not None:
            for a in tl.static_range(d):
                for b in tl.static_range(a + 1, d):
                    of_slopes, of_curves = _of_pair(state, a, b, d)
                    slope = tl.sum(of_slopes.to(tl.float64), 0)
                    curve = tl.sum(of_curves.to(tl.float64), 0) * _LN_2
                    tl.store(out + 1 + 2 * d + a * 2 * d + b, slope)
                    tl.store(out + 1 + 2 * d + a * 2 * d + d + b, curve)


@triton.jit
def _rotated(
    along,
    points,
    start,
    last,
    point_stride,
    means,
    axes,
    component,
    scale,
    c,
    d: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return offsets of groups of points along the axes with the part of one more coordinate c."""
    mean = tl.load(means + component * d + c).to(scale.dtype)
    found, weights = (), ()
    for a in tl.static_range(d):
        if axes is None:
            weights = weights + (tl.where(c == a, 1.0, 0.0).to(scale.dtype),)
        else:
            weights = weights + (tl.load(axes + component * (d * d) + c * d + a),)
    for g in tl.static_range(GROUP):
        at = start + g * BLOCK + tl.arange(0, BLOCK)
        offset = (mean - tl.load(points + at * point_stride, at < last, 0.0).to(scale.dtype)) * scale
        for a in tl.static_range(d):
            found = found + (along[g * d + a] + weights[a] * offset,)
    return found


@triton.jit
def _turned(
    points,
    start,
    last,
    point_stride,
    means,
    axes,
    component,
    scale,
    d: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return offsets of groups of points along the axes; a point after the last is the last one."""
    same = tl.zeros([BLOCK], tl.int64)
    mean = read_four((means + component * d).to(tl.int64) + same, d, False)
    offsets, along = (), ()
    for g in tl.static_range(GROUP):
        at = tl.minimum(start + g * BLOCK + tl.arange(0, BLOCK), last - 1)
        x = read_four((points + at * point_stride).to(tl.int64), d, True)
        for c in tl.static_range(d):
            offsets = offsets + ((mean[c] - x[c]) * scale,)
    if axes is None:
        return offsets
    else:
        for c in tl.static_range(d):
            axis = read_four((axes + (component * d + c) * d).to(tl.int64) + same, d, False)
            found = ()
            for g in tl.static_range(GROUP):
                for a in tl.static_range(d):
                    if c == 0:
                        found = found + (axis[a] * offsets[g * d],)
                    else:
                        found = found + (along[g * d + a] + axis[a] * offsets[g * d + c],)
            along = found
        return along


@triton.jit
def _at_node(
    node, squares, rise, slopes, curves, d: tl.constexpr, GROUP: tl.constexpr, GRAD: tl.constexpr, LOW: tl.constexpr
):
    """Return sums over nodes with those of one more node, for each of a group of points."""
    factor, log_l = node[0], node[1]
    rates = ()
    for a in tl.static_range(d):
        rates = rates + (node[2 + a],)
    new_rise, new_slopes, new_curves = (), (), ()
    for g in tl.static_range(GROUP):
        # Two sums, so that fewer instructions wait for each other.
        exponent, second = log_l - rates[0] * squares[g * d], tl.zeros_like(squares[0])
        for a in tl.static_range(2, d, 2):
            exponent -= rates[a] * squares[g * d + a]
        for a in tl.static_range(1, d, 2):
            second += rates[a] * squares[g * d + a]
        exponent -= second
        transform = power_of_2(exponent)
        mass = factor * transform
        if LOW:
            new_rise = new_rise + (rise[g] + factor * one_minus_power(exponent, transform),)
        else:
            new_rise = new_rise + (rise[g] - mass,)
        for a in tl.static_range(d):
            if GRAD:
                new_slopes = new_slopes + (slopes[g * d + a] + mass * rates[a],)
                new_curves = new_curves + (curves[g * d + a] + mass * (rates[a] * rates[a]),)
            else:
                new_slopes = new_slopes + (slopes[g * d + a],)
                new_curves = new_curves + (curves[g * d + a],)
    return new_rise, new_slopes, new_curves


@triton.jit
def _plain_norms(squares, d: tl.constexpr, GROUP: tl.constexpr):
    """Return lengths, slopes and curves of vectors without covariance, in the units of the sums over nodes."""
    lengths, slopes, curves = (), (), ()
    for g in tl.static_range(GROUP):
        square = squares[g * d]
        for a in tl.static_range(1, d):
            square += squares[g * d + a]
        norm, inverse = norm_and_inverse(square)
        lengths = lengths + (norm * (2.0 * _LN_2),)
        for _ in tl.static_range(d):
            slopes = slopes + (inverse,)
            curves = curves + (inverse * inverse * inverse * (0.5 / _LN_2),)
    return lengths, slopes, curves


@triton.jit
def _added(state, weight, along, slopes, curves, g: tl.constexpr, DENSE: tl.constexpr, d: tl.constexpr):
    """Return sums over points with those of one more point of each lane."""
    weighted, pulls, bends = (), (), ()
    for a in tl.static_range(d):
        weighted = weighted + (weight * along[g * d + a],)
        pulls = pulls + (along[g * d + a] * slopes[g * d + a],)
        bends = bends + (along[g * d + a] * curves[g * d + a],)
    at_slopes, at_pulls, at_slope_squares, at_curve_squares, at_slope_pairs, at_curve_pairs = (), (), (), (), (), ()
    for a in tl.static_range(d):
        at_slopes = at_slopes + (state[a] + weight * slopes[g * d + a],)
        at_pulls = at_pulls + (state[d + a] + weight * pulls[a],)
        at_slope_squares = at_slope_squares + (state[2 * d + a] + weighted[a] * pulls[a],)
        at_curve_squares = at_curve_squares + (state[3 * d + a] + weighted[a] * bends[a],)
        if DENSE:
            for b in tl.static_range(a + 1, d):
                of_slopes, of_curves = _of_pair(state, a, b, d)
                of_slopes += weighted[a] * pulls[b]
                of_slopes -= weighted[b] * pulls[a]
                of_curves += weighted[a] * bends[b]
                of_curves += weighted[b] * bends[a]
                at_slope_pairs = at_slope_pairs + (of_slopes,)
                at_curve_pairs = at_curve_pairs + (of_curves,)
    return at_slopes + at_pulls + at_slope_squares + at_curve_squares + at_slope_pairs + at_curve_pairs


@triton.jit
def _of_pair(state, A: tl.constexpr, B: tl.constexpr, d: tl.constexpr):
    """Return the two sums of a pair A < B of axes."""
    INDEX: tl.constexpr = 4 * d + A * d - A * (A + 1) // 2 + B - A - 1
    return state[INDEX], state[INDEX + d * (d - 1) // 2]
