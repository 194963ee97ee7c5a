"""Kernels for batches of mixtures on the line: losses and gradients in one pass, all pairs in registers.

A program takes some elements of the batch and all their pairs of components, as tiles `[elements, k, k]`. Losses that
are small against the scale of their mixtures are recomputed in float64 by the same program, see `cancellation`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cramix.distance.cramer.cancellation import THRESHOLD as _THRESHOLDS
from cramix.distance.cramer.triton_pair import INV_SQRT_PI, distance_terms, doubled_variance

THRESHOLD = tl.constexpr(_THRESHOLDS[torch.float32])


@triton.jit
def evaluate_batch(
    p_weights,
    p_means,
    p_scales,
    q_weights,
    q_means,
    q_scales,
    energy_q,
    losses,
    at_p,
    at_q,
    batch,
    each,
    p_weights_stride,
    p_means_stride,
    p_scales_stride,
    q_weights_stride,
    q_means_stride,
    q_scales_stride,
    energy_stride,
    N: tl.constexpr,
    M: tl.constexpr,
    N_PADDED: tl.constexpr,
    M_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    WORKING: tl.constexpr,
    RECOMPUTE: tl.constexpr,
):
    """Write losses `(batch,)` and `each` times their gradients `(3, batch, k)`, where these are not None.

    Strides are along the batch. Atoms q have None for scales, and `energy_q` holds their self energies in float64.
    """
    p = p_weights, p_means, p_scales, p_weights_stride, p_means_stride, p_scales_stride
    q = q_weights, q_means, q_scales, q_weights_stride, q_means_stride, q_scales_stride
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = rows < batch
    energy = None
    if energy_q is not None:
        energy = tl.load(energy_q + rows * energy_stride, live, 0.0)
    loss, scale = evaluate_rows(p, q, energy, at_p, at_q, rows, live, batch, each, N, M, N_PADDED, M_PADDED, WORKING)
    if RECOMPUTE:
        small = live & (loss < scale * (2 * THRESHOLD))
        if tl.max(small.to(tl.int32), 0) > 0:
            better, true_scale = evaluate_rows(
                p, q, energy, None, None, rows, live, batch, each, N, M, N_PADDED, M_PADDED, tl.float64
            )
            loss = tl.where(small, blended(loss.to(tl.float64), better, true_scale).to(loss.dtype), loss)
    # A comparison, since a maximum would turn NaN into 0.
    tl.store(losses + rows, tl.where(loss < 0, 0.0, loss).to(losses.dtype.element_ty), live)


@triton.jit
def blended(closed, better, scale):
    """Return the better one of two losses, or between one and two thresholds a mean of both, at least 0."""
    limit = scale * THRESHOLD
    trust = tl.where(limit > 0, tl.minimum(tl.maximum(closed / limit - 1, 0.0), 1.0), 0.0)
    loss = better + trust * (closed - better)
    return tl.where(loss < 0, 0.0, loss)


@triton.jit
def evaluate_rows(
    p,
    q,
    energy,
    at_p,
    at_q,
    rows,
    live,
    batch,
    each,
    N: tl.constexpr,
    M: tl.constexpr,
    N_PADDED: tl.constexpr,
    M_PADDED: tl.constexpr,
    WORKING: tl.constexpr,
):
    """Return losses and scales of some rows of the batch in the working dtype, and write their gradients."""
    p_weights, p_means, p_scales, p_total = _side(p, rows, live, N, N_PADDED, WORKING)
    q_weights, q_means, q_scales, q_total = _side(q, rows, live, M, M_PADDED, WORKING)
    a_pp, e_pp, h_pp = _pairs(p_means, p_scales, p_means, p_scales)
    a_pq, e_pq, h_pq = _pairs(p_means, p_scales, q_means, q_scales)
    of_p, of_q = p_weights[:, None, :], q_weights[:, None, :]
    within_at_p = tl.sum(a_pp * of_p, 2)
    potential_p = tl.sum(a_pq * of_q, 2) - within_at_p
    mean_p = tl.sum(p_weights * potential_p, 1)
    within_p = tl.sum(p_weights * within_at_p, 1)
    # Sums at q run along the other axis, for pairs within q too, so that those of equal sides are equal.
    by_p, by_q = p_weights[:, :, None], q_weights[:, :, None]
    potential_q = tl.sum(a_pq * by_p, 1)
    if q[2] is None:
        mean_q = tl.sum(q_weights * potential_q, 1)
        scale = 0.5 * within_p
        if energy is not None:
            scale += energy.to(WORKING)
        loss = mean_q - scale
    else:
        a_qq, e_qq, h_qq = _pairs(q_means, q_scales, q_means, q_scales)
        within_at_q = tl.sum(a_qq * by_q, 1)
        potential_q -= within_at_q
        mean_q = tl.sum(q_weights * potential_q, 1)
        scale = 0.5 * (within_p + tl.sum(q_weights * within_at_q, 1))
        loss = 0.5 * (mean_p + mean_q)
    if at_p is not None:
        slope = tl.sum(e_pq * of_q, 2) - tl.sum(e_pp * of_p, 2)
        curve = tl.sum(h_pq * of_q, 2) - tl.sum(h_pp * of_p, 2)
        potential = (potential_p - mean_p[:, None]) / p_total[:, None]
        _write(at_p, rows, live, batch, each, potential, p_weights, slope, p_scales, curve, N, N_PADDED, True)
    if at_q is not None:
        slope = -tl.sum(e_pq * by_p, 1)
        curve = tl.sum(h_pq * by_p, 1)
        if q[2] is not None:
            slope += tl.sum(e_qq * by_q, 1)
            curve -= tl.sum(h_qq * by_q, 1)
        potential = (potential_q - mean_q[:, None]) / q_total[:, None]
        _write(
            at_q, rows, live, batch, each, potential, q_weights, slope, q_scales, curve, M, M_PADDED, q[2] is not None
        )
    return loss, scale


@triton.jit
def _side(side, rows, live, K: tl.constexpr, K_PADDED: tl.constexpr, WORKING: tl.constexpr):
    """Load normalised weights, means and scales, `[rows, K_PADDED]`, and the sums of the weights."""
    components = tl.arange(0, K_PADDED)[None, :]
    mask = live[:, None] & (components < K)
    at = rows[:, None]
    weights = tl.load(side[0] + at * side[3] + components, mask, 0.0).to(WORKING)
    means = tl.load(side[1] + at * side[4] + components, mask, 0.0).to(WORKING)
    if side[2] is None:
        scales = tl.zeros_like(means)
    else:
        scales = tl.load(side[2] + at * side[5] + components, mask, 0.0).to(WORKING)
    total = tl.sum(weights, 1)
    return weights / total[:, None], means, scales, total


@triton.jit
def _pairs(means, scales, of_means, of_scales):
    """Return A, E and H of all pairs, `[rows, k, m]`."""
    d = means[:, :, None] - of_means[:, None, :]
    return distance_terms(d, doubled_variance(scales)[:, :, None] + doubled_variance(of_scales)[:, None, :])


@triton.jit
def _write(
    out,
    rows,
    live,
    batch,
    each,
    potential,
    weights,
    slope,
    scales,
    curve,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Write gradients for weights, means and, if there are any, scales (docs/math.md, eq. 8)."""
    components = tl.arange(0, K_PADDED)[None, :]
    mask = live[:, None] & (components < K)
    at = out + rows[:, None] * K + components
    size = tl.full((), K, tl.int64) * batch
    dtype = out.dtype.element_ty
    tl.store(at, (potential * each).to(dtype), mask)
    tl.store(at + size, (weights * slope * each).to(dtype), mask)
    if SCALES:
        tl.store(at + 2 * size, (weights * scales * curve * (2 * INV_SQRT_PI) * each).to(dtype), mask)
