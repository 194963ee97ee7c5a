"""Kernels for mixtures on the line against many points each, which may be projections of points in d dimensions.

`sum_over_points` adds up what the loss and its gradients need at some components over a chunk of points, and `finish`
turns these sums into losses and gradients. Nothing of the size of points times components reaches memory, nor do
projected points.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cramix.distance.cramer.triton_batch import THRESHOLD, blended
from cramix.distance.cramer.triton_pair import INV_SQRT_PI, distance_terms, doubled_variance, pair_terms


@triton.jit
def sum_over_points(
    p_means,
    p_scales,
    points,
    weights,
    directions,
    flags,
    sums,
    masses,
    n,
    chunk,
    p_means_stride,
    p_scales_stride,
    points_stride,
    point_stride,
    weights_stride,
    weight_stride,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WORKING: tl.constexpr,
):
    """Write sums over one chunk of points at a group of components.

    The sums of A, E and H are `(batch, chunks, 3, K)`, those of the weights `(batch, chunks)`, in float64. A chunk is
    so short that sums in float32 lose nothing. With flags, batch elements whose flag is 0 are skipped.
    """
    part, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first_component = tl.program_id(2) * GROUP
    wanted = True
    if flags is not None:
        wanted = tl.load(flags + row) > 0
    if wanted:
        zero = tl.zeros([BLOCK], WORKING)
        means, variances, rates, state = (), (), (), ()
        for i in tl.static_range(GROUP):
            component = tl.minimum(first_component + i, K - 1)
            v = doubled_variance(tl.load(p_scales + row * p_scales_stride + component).to(WORKING))
            means = means + (tl.load(p_means + row * p_means_stride + component).to(WORKING),)
            variances, rates = variances + (v,), rates + (tl.rsqrt(v),)
            state = state + (zero, zero, zero)
        total = zero
        first = part * chunk
        last = tl.minimum(first + chunk, n)
        # Without weights whole blocks are added without products with a mask.
        masked = first
        if weights is None:
            masked = first + (last - first) // BLOCK * BLOCK
            for start in range(first, masked, BLOCK):
                at = start + tl.arange(0, BLOCK)
                y = _located(points, directions, row, at, at < last, points_stride, point_stride, DIM, WORKING)
                state = _added(state, means, rates, y, None, GROUP)
        for start in range(masked, last, BLOCK):
            at = start + tl.arange(0, BLOCK)
            live = at < last
            y = _located(points, directions, row, at, live, points_stride, point_stride, DIM, WORKING)
            if weights is None:
                mass = live.to(WORKING)
            else:
                mass = tl.load(weights + row * weights_stride + at * weight_stride, live, 0.0).to(WORKING)
                total += mass
            state = _added(state, means, rates, y, mass, GROUP)
        at_chunk = row * tl.num_programs(0) + part
        for i in tl.static_range(GROUP):
            present = first_component + i < K
            out = sums + at_chunk * 3 * K + first_component + i
            v, r = variances[i].to(tl.float64), rates[i].to(tl.float64)
            curve = r * tl.sum(state[3 * i + 2], 0)
            tl.store(out, tl.sum(state[3 * i], 0) + v * curve * INV_SQRT_PI, present)
            tl.store(out + K, tl.sum(state[3 * i + 1], 0).to(tl.float64), present)
            tl.store(out + 2 * K, curve, present)
        if weights is None:
            tl.store(masses + at_chunk, (last - first).to(tl.float64))
        else:
            tl.store(masses + at_chunk, tl.sum(total.to(tl.float64), 0))


@triton.jit
def _added(state, means, rates, y, mass, GROUP: tl.constexpr):
    """Return sums of the lengths, slopes and curves of each component with those of some more points."""
    found = ()
    for i in tl.static_range(GROUP):
        d = means[i] - y
        e, h = pair_terms(d, rates[i])
        if mass is None:
            found = found + (state[3 * i] + d * e, state[3 * i + 1] + e, state[3 * i + 2] + h)
        else:
            found = found + (state[3 * i] + (mass * d) * e, state[3 * i + 1] + mass * e, state[3 * i + 2] + mass * h)
    return found


@triton.jit
def _located(points, directions, row, at, live, points_stride, point_stride, DIM: tl.constexpr, WORKING: tl.constexpr):
    """Load points, projected onto the direction of a row if there is one; in float32 as torch projects them."""
    if directions is None:
        return tl.load(points + row * points_stride + at * point_stride, live, 0.0).to(WORKING)
    else:
        y = tl.zeros(at.shape, tl.float32)
        for axis in tl.static_range(DIM):
            x = tl.load(points + at * point_stride + axis, live, 0.0)
            y += x * tl.load(directions + row * DIM + axis)
        return y.to(WORKING)


@triton.jit
def finish(
    p_weights,
    p_means,
    p_scales,
    energy_q,
    sums,
    masses,
    losses,
    flags,
    within,
    cross,
    at_p,
    batch,
    chunks,
    each,
    p_weights_stride,
    p_means_stride,
    p_scales_stride,
    energy_stride,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Turn partial sums into losses and gradients, in float64, one program for each batch element.

    The first time it marks losses that are small against the scale, whose sums are computed again in float64; the
    second time it blends them, see `cancellation`.
    """
    row = tl.program_id(0).to(tl.int64)
    wanted = True
    if SECOND:
        wanted = tl.load(flags + row) > 0
    if wanted:
        components = tl.arange(0, K_PADDED)
        present = components < K
        weights = tl.load(p_weights + row * p_weights_stride + components, present, 0.0).to(tl.float64)
        total = tl.sum(weights, 0)
        weights = weights / total
        length = tl.zeros([K_PADDED], tl.float64)
        slope = tl.zeros([K_PADDED], tl.float64)
        curve = tl.zeros([K_PADDED], tl.float64)
        mass = tl.zeros([1], tl.float64)
        for chunk in range(chunks):
            at_chunk = row * chunks + chunk
            at = sums + at_chunk * 3 * K + components
            length += tl.load(at, present, 0.0)
            slope += tl.load(at + K, present, 0.0)
            curve += tl.load(at + 2 * K, present, 0.0)
            mass += tl.load(masses + at_chunk)
        length = length / mass
        energy = tl.load(energy_q + row * energy_stride)
        mean_length = tl.sum(weights * length, 0)
        if SECOND:
            closed = tl.load(losses + row).to(tl.float64)
            scale = 0.5 * tl.load(within + row) + energy
            better = mean_length - scale
            tl.store(losses + row, blended(closed, better, scale).to(losses.dtype.element_ty))
        else:
            means = tl.load(p_means + row * p_means_stride + components, present, 0.0).to(tl.float64)
            scales = tl.load(p_scales + row * p_scales_stride + components, present, 0.0).to(tl.float64)
            a, e, h = pairs_within(means, scales)
            of = weights[None, :]
            at_components = tl.sum(a * of, 1)
            within_p = tl.sum(weights * at_components, 0)
            scale = 0.5 * within_p + energy
            loss = mean_length - scale
            if flags is not None:
                tl.store(flags + row, (loss < scale * (2 * THRESHOLD)).to(tl.int32))
                tl.store(within + row, within_p)
                loss_to_keep = loss
            else:
                loss_to_keep = tl.where(loss < 0, 0.0, loss)
            tl.store(losses + row, loss_to_keep.to(losses.dtype.element_ty))
            if cross is not None:
                tl.store(cross + row, mean_length)
                tl.store(cross + batch + row, tl.sum(mass, 0))
            if at_p is not None:
                potential = length - at_components
                mean = tl.sum(weights * potential, 0)
                out = at_p + row * K + components
                size = tl.full((), K, tl.int64) * batch
                dtype = at_p.dtype.element_ty
                tl.store(out, ((potential - mean) / total * each).to(dtype), present)
                slope = weights * (slope / mass - tl.sum(e * of, 1)) * each
                tl.store(out + size, slope.to(dtype), present)
                curve = weights * scales * (curve / mass - tl.sum(h * of, 1)) * (2 * INV_SQRT_PI) * each
                tl.store(out + 2 * size, curve.to(dtype), present)


@triton.jit
def pairs_within(means, scales):
    """Return A, E and H of all pairs of components, `[k, k]`."""
    d = means[:, None] - means[None, :]
    return distance_terms(d, doubled_variance(scales)[:, None] + doubled_variance(scales)[None, :])
