"""Kernels for mean distances of components to points in any dimension: sums over points, and derivatives in them.

Nothing that has an axis of nodes, or of points and of components, is written. For sums in few dimensions
`triton_lanes` is faster.

With b an offset along the axes of a component, in units, and w the weight of the point, the sums are those of
`mean_norm.Moments`: of w times the length, `(1,)`, w slope, `(d,)`, w b slope, `(d,)`, and of `w b_a b_b slope_b` and
`w b_a b_b curve_b`, `(d, 2 d)`, or for variances along the coordinate axes of `w b_a^2 curve_a`, `(d,)`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LN_2 = tl.constexpr(0.6931471805599453)
# Vectors shorter than this, in units of the size of the problem, have no direction; see `flat_mixtures`.
_TINY = tl.constexpr(1e-12)


@triton.jit(do_not_specialize=["n", "chunk", "parts", "k", "points_stride", "point_stride", "weights_stride"])
def sum_in_tiles(
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
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
    WORKING: tl.constexpr,
):
    """Write the sums of a component over a chunk of points.

    The arguments are those of `triton_lanes.sum_in_lanes`; D is d, padded to 16 at least, and BLOCK points are a tile.
    """
    program = tl.program_id(0).to(tl.int64)
    component, part = program // parts, program % parts
    row = component // k
    axis = tl.arange(0, D)
    inside = axis < d
    turn = None
    if axes is not None:
        turn = load_axes(axes + component * (d * d), d, D)
    length_sum = tl.zeros([BLOCK], tl.float64)
    slope_sum = tl.zeros([D], tl.float64)
    pull_sum = tl.zeros([D], tl.float64)
    curve_sum = tl.zeros([D], tl.float64)
    slope_outer = tl.zeros([D, D], tl.float64)
    curve_outer = tl.zeros([D, D], tl.float64)
    last = tl.minimum(part * chunk + chunk, n)
    for start in range(part * chunk, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        place = points + row * points_stride + at[:, None] * point_stride + axis[None, :] * coordinate_stride
        x = tl.load(place, (at < last)[:, None] & inside[None, :], 0.0).to(WORKING)
        along, length, slope, curve = lengths_in_tile(
            x, means, turn, table, numbers, component, row, d, GRAD, D, Q, WIDTH
        )
        if weights is None:
            weight = (at < last).to(WORKING)
        else:
            weight = tl.load(weights + row * weights_stride + at * weight_stride, at < last, 0.0).to(WORKING)
        length_sum += (weight * length).to(tl.float64)
        if GRAD:
            pull = weight[:, None] * along * slope
            slope_sum += tl.sum(weight[:, None] * slope, 0).to(tl.float64)
            pull_sum += tl.sum(pull, 0).to(tl.float64)
            curved = weight[:, None] * along * curve
            if axes is None:
                curve_sum += tl.sum(along * curved, 0).to(tl.float64)
            else:
                across = tl.trans(along)
                slope_outer += tl.dot(across, pull, input_precision="ieee").to(tl.float64)
                curve_outer += tl.dot(across, curved, input_precision="ieee").to(tl.float64)
    if axes is None:
        SIZE: tl.constexpr = 1 + 3 * d
    else:
        SIZE: tl.constexpr = 1 + 2 * d + 2 * d * d
    out = sums + program * SIZE
    tl.store(out, tl.sum(length_sum, 0))
    if GRAD:
        tl.store(out + 1 + axis, slope_sum, inside)
        tl.store(out + 1 + d + axis, pull_sum, inside)
        if axes is None:
            tl.store(out + 1 + 2 * d + axis, curve_sum, inside)
        else:
            place = out + 1 + 2 * d + axis[:, None] * (2 * d) + axis[None, :]
            tl.store(place, slope_outer, inside[:, None] & inside[None, :])
            tl.store(place + d, curve_outer, inside[:, None] & inside[None, :])


@triton.jit
def load_axes(axes, d: tl.constexpr, D: tl.constexpr):
    """Load the axes of a component as columns, `(D, D)`."""
    index = tl.arange(0, D)
    inside = (index < d)[:, None] & (index < d)[None, :]
    return tl.load(axes + index[:, None] * d + index[None, :], inside, 0.0)


@triton.jit
def lengths_in_tile(
    x,
    means,
    turn,
    table,
    numbers,
    component,
    row,
    d: tl.constexpr,
    GRAD: tl.constexpr,
    D: tl.constexpr,
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return offsets of points `(BLOCK, D)` along the axes of a component, and mean lengths, slopes and curves."""
    axis = tl.arange(0, D)
    inside = axis < d
    scale = (1.0 / tl.load(numbers + row * 6)).to(x.dtype)
    nodes, low = tl.load(numbers + row * 6 + 2).to(tl.int32), tl.load(numbers + row * 6 + 3).to(tl.int32)
    own = table + component * ((1 + Q) * WIDTH)
    mean = tl.load(means + component * d + axis, inside, 0.0).to(x.dtype)
    along = (mean[None, :] - x) * scale
    if turn is not None:
        along = tl.dot(along, turn, input_precision="ieee")
    squares = along * along
    slope = tl.zeros(x.shape, x.dtype)
    curve = tl.zeros(x.shape, x.dtype)
    square = tl.sum(squares, 1)
    if tl.load(own) > 0:
        rise = tl.zeros_like(square) + tl.load(own + 1)
        for q in range(nodes):
            node = own + (1 + q) * WIDTH
            factor = tl.load(node)
            rates = tl.load(node + 2 + axis, inside, 0.0)
            exponent = tl.load(node + 1) - tl.sum(squares * rates[None, :], 1)
            transform = power_of_2(exponent)
            if q < low:
                rise += factor * one_minus_power(exponent, transform)
            else:
                rise -= factor * transform
            if GRAD:
                weighted = (factor * transform)[:, None] * rates[None, :]
                slope += weighted
                curve += weighted * rates[None, :]
        length = rise * (0.5 / _LN_2)
        curve = curve * _LN_2
    else:
        length, inverse = norm_and_inverse(square)
        slope += inverse[:, None]
        curve += (0.5 * inverse * inverse * inverse)[:, None]
    return along, length, slope, curve


@triton.jit(do_not_specialize=["n", "blocks", "k", "points_stride", "point_stride"])
def evaluate_points(
    points,
    weights,
    means,
    axes,
    table,
    numbers,
    lengths,
    pulls,
    n,
    blocks,
    k,
    points_stride,
    point_stride,
    coordinate_stride,
    d: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    Q: tl.constexpr,
    WIDTH: tl.constexpr,
    WORKING: tl.constexpr,
):
    """Write the mean distance of a mixture to each point, `(B, n)`, and its derivative in the point, `(B, n, d)`.

    Args:
        points: with strides along the batch, points and coordinates.
        weights: of components, `(B, k)` in float64.
        means: `(B, k, d)` in float32.
        axes: of components as columns, `(B, k, d, d)` in the dtype to compute in; None for the coordinate axes.
        table: see `triton_rule.tabulate`.
        numbers: see `triton_rule.choose_nodes`.
        lengths: `(B, n)`, in units.
        pulls: `(B, n, d)`.
        n: number of points.
        blocks: of points.
        k: number of components.
        points_stride: along the batch.
        point_stride: along the points.
        coordinate_stride: along the coordinates.
        d: number of coordinates.
        D: coordinates, padded to 16 at least.
        BLOCK: points of a program.
        Q: nodes, padded.
        WIDTH: numbers of a row of the table.
        WORKING: dtype to compute in.
    """
    program = tl.program_id(0).to(tl.int64)
    row, block = program // blocks, program % blocks
    axis = tl.arange(0, D)
    at = block * BLOCK + tl.arange(0, BLOCK)
    there = (at < n)[:, None] & (axis < d)[None, :]
    place = points + row * points_stride + at[:, None] * point_stride + axis[None, :] * coordinate_stride
    x = tl.load(place, there, 0.0).to(WORKING)
    length_sum = tl.zeros([BLOCK], WORKING)
    pull_sum = tl.zeros([BLOCK, D], WORKING)
    for i in range(k):
        component = row * k + i
        weight = tl.load(weights + component).to(WORKING)
        turn = None
        if axes is not None:
            turn = load_axes(axes + component * (d * d), d, D)
        along, length, slope, curve = lengths_in_tile(
            x, means, turn, table, numbers, component, row, d, True, D, Q, WIDTH
        )
        pull = along * slope
        if axes is not None:
            pull = tl.dot(pull, tl.trans(turn), input_precision="ieee")
        length_sum += weight * length
        pull_sum -= weight * pull
    tl.store(lengths + row * n + at, length_sum.to(lengths.dtype.element_ty), at < n)
    out = pulls + (row * n + at)[:, None] * d + axis[None, :]
    tl.store(out, pull_sum.to(pulls.dtype.element_ty), there)


@triton.jit
def power_of_2(x):
    """Return `2 ^ x`."""
    if x.dtype == tl.float64:
        return tl.exp(x * _LN_2)
    else:
        return tl.exp2(x)


@triton.jit
def one_minus_power(x, power):
    """Return `1 - 2 ^ x` for x <= 0 without losing digits, given `2 ^ x`."""
    near = tl.maximum(x, -0.7)
    if x.dtype == tl.float64:
        series = tl.full(x.shape, 1.0, tl.float64)
        for i in tl.static_range(14):
            series = 1.0 + series * near * (_LN_2 / (15 - i))
        series = series * _LN_2
    else:
        series = 0.00015403530393381606 + near * 1.5252733804059838e-05
        series = 0.0013333558146428441 + series * near
        series = 0.009618129107628477 + series * near
        series = 0.055504108664821576 + series * near
        series = 0.2402265069591007 + series * near
        series = 0.6931471805599453 + series * near
    return tl.where(x > -0.7, -near * series, 1.0 - power)


@triton.jit
def norm_and_inverse(square):
    """Return the root of a number, and its inverse, 0 for vectors without direction."""
    norm = tl.sqrt(square)
    return norm, tl.where(norm > _TINY, 1.0 / tl.maximum(norm, _TINY), 0.0)
