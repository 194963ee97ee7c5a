"""Kernels for mixtures on the line at each of many points: scores of the points, and derivatives in them."""

from __future__ import annotations

import triton
import triton.language as tl

from cramix.distance.cramer.triton_batch import THRESHOLD, blended
from cramix.distance.cramer.triton_pair import INV_SQRT_PI, TINY_32, pair_terms
from cramix.distance.cramer.triton_points import pairs_within


@triton.jit
def prepare(
    p_weights,
    p_means,
    p_scales,
    within,
    exact,
    table,
    p_weights_stride,
    p_means_stride,
    p_scales_stride,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
):
    """Write half the mean distance within each mixture, and what `evaluate_points` needs of its components.

    That is weights, means, rates `1 / (s sqrt 2)` and factors of `exp(-z^2)`, `(batch, 4, K)`, once in float64.
    """
    row = tl.program_id(0).to(tl.int64)
    components = tl.arange(0, K_PADDED)
    present = components < K
    weights = tl.load(p_weights + row * p_weights_stride + components, present, 0.0).to(tl.float64)
    means = tl.load(p_means + row * p_means_stride + components, present, 0.0).to(tl.float64)
    scales = tl.load(p_scales + row * p_scales_stride + components, present, 0.0).to(tl.float64)
    weights = weights / tl.sum(weights, 0)
    a, e, h = pairs_within(means, scales)
    tl.store(within + row, 0.5 * tl.sum(weights * tl.sum(a * weights[None, :], 1), 0))
    # With the smallest number of float32, so that rates are numbers there too.
    v = 2.0 * scales * scales + TINY_32
    at = row * 4 * K + components
    _store(exact + at, weights, means, v, present, K)
    _store(table + at, weights, means, v, present, K)


@triton.jit
def _store(out, weights, means, v, present, K: tl.constexpr):
    dtype = out.dtype.element_ty
    tl.store(out, weights.to(dtype), present)
    tl.store(out + K, means.to(dtype), present)
    tl.store(out + 2 * K, tl.rsqrt(v).to(dtype), present)
    tl.store(out + 3 * K, (weights * tl.sqrt(v) * INV_SQRT_PI).to(dtype), present)


@triton.jit
def evaluate_points(
    within,
    exact,
    table,
    points,
    weights,
    totals,
    losses,
    at_points,
    n,
    each,
    points_stride,
    point_stride,
    weights_stride,
    weight_stride,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    WORKING: tl.constexpr,
    RECOMPUTE: tl.constexpr,
):
    """Write the loss of a mixture against each point alone, its CRPS, or the derivatives of their mean.

    With losses these are written, `(batch, n)`, and `each` times their derivatives in the points. Otherwise `totals`
    hold the mean distance to all points and the sum of their weights, `(2, batch)`, and `each` times the derivatives in
    weights and points are written, `(2, batch, n)`.
    """
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    y = tl.load(points + row * points_stride + at * point_stride, live, 0.0).to(WORKING)
    length = tl.zeros([BLOCK], WORKING)
    slope = tl.zeros([BLOCK], WORKING)
    for i in tl.static_range(K):
        of_component = _at_points(table + row * 4 * K + i, y, K)
        length += of_component[0]
        slope += of_component[1]
    batch = tl.num_programs(1)
    if losses is not None:
        energy = tl.load(within + row)
        loss = length - energy.to(WORKING)
        if RECOMPUTE:
            small = live & (loss < (energy * (2 * THRESHOLD)).to(WORKING))
            if tl.max(small.to(tl.int32), 0) > 0:
                better = tl.zeros([BLOCK], tl.float64) - energy
                for component in range(K):
                    better += _at_points(exact + row * 4 * K + component, y.to(tl.float64), K)[0]
                loss = tl.where(small, blended(loss.to(tl.float64), better, energy).to(WORKING), loss)
        tl.store(losses + row * n + at, tl.where(loss < 0, 0.0, loss).to(losses.dtype.element_ty), live)
        mass = each
        potential = tl.zeros([BLOCK], WORKING)
    else:
        total = tl.load(totals + batch + row)
        mass = (each / total).to(WORKING)
        potential = (length - tl.load(totals + row).to(WORKING)) * mass
        if weights is None:
            mass = each * (1.0 / (tl.full((), 0, WORKING) + n))
        else:
            mass = tl.load(weights + row * weights_stride + at * weight_stride, live, 0.0).to(WORKING) * mass
    if at_points is not None:
        dtype = at_points.dtype.element_ty
        out = at_points + row * n + at
        tl.store(out, potential.to(dtype), live)
        tl.store(out + tl.full((), 1, tl.int64) * batch * n, (-slope * mass).to(dtype), live)


@triton.jit
def _at_points(component, y, K: tl.constexpr):
    """Return the weighted mean distance of a component to points, and its derivative in the component's mean."""
    weight = tl.load(component).to(y.dtype)
    d = tl.load(component + K).to(y.dtype) - y
    e, h = pair_terms(d, tl.load(component + 2 * K).to(y.dtype))
    slope = weight * e
    return d * slope + tl.load(component + 3 * K).to(y.dtype) * h, slope
