"""A kernel for large batches of mixtures on the line with few components: one lane an element, pairs in registers.

Pairs within a side are visited once, so that there is half the work of `triton_batch`, whose tiles need fewer elements
to fill a GPU. Small losses are recomputed by its code, those of a program together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cramix.distance.cramer.triton_batch import THRESHOLD, blended, evaluate_rows
from cramix.distance.cramer.triton_pair import INV_SQRT_PI, distance_terms, doubled_variance


@triton.jit
def evaluate_lanes(
    p_weights,
    p_means,
    p_scales,
    q_weights,
    q_means,
    q_scales,
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
    N: tl.constexpr,
    M: tl.constexpr,
    N_PADDED: tl.constexpr,
    M_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write losses `(batch,)` and `each` times their gradients `(3, batch, k)`, where these are not None.

    Strides are along the batch. An atom q has None for scales. ROWS small losses are recomputed at a time.
    """
    p = p_weights, p_means, p_scales, p_weights_stride, p_means_stride, p_scales_stride
    q = q_weights, q_means, q_scales, q_weights_stride, q_means_stride, q_scales_stride
    start = tl.program_id(0).to(tl.int64) * BLOCK
    rows = start + tl.arange(0, BLOCK)
    live = rows < batch
    wp, mp, sp, vp, p_total = _side(p, rows, live, N)
    wq, mq, sq, vq, q_total = _side(q, rows, live, M)
    pp = _within(mp, vp, N)
    pq = ()
    cross = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(N):
        for j in tl.static_range(M):
            terms = distance_terms(mp[i] - mq[j], vp[i] + vq[j])
            cross += wp[i] * wq[j] * terms[0]
            pq = pq + terms
    scale = _energy(pp, wp, N)
    qq = ()
    if q_scales is not None:
        qq = _within(mq, vq, M)
        scale += _energy(qq, wq, M)
    loss = cross - scale
    small = (live & (loss < scale * (2 * THRESHOLD))).to(tl.int32)
    tl.store(losses + rows, tl.where(loss < 0, 0.0, loss), live & (small == 0))
    if at_p is not None:
        sums = ()
        for i in tl.static_range(N):
            a, e, h = _sums_within(pp, wp, i, N)
            for j in tl.static_range(M):
                a += wq[j] * pq[3 * (i * M + j)]
                e += wq[j] * pq[3 * (i * M + j) + 1]
                h += wq[j] * pq[3 * (i * M + j) + 2]
            sums = sums + (a, e, h)
        _write(at_p, rows, live, batch, each, sums, wp, sp, p_total, N, True)
    if at_q is not None:
        sums = ()
        for j in tl.static_range(M):
            a, e, h = _sums_within(qq, wq, j, M)
            for i in tl.static_range(N):
                a += wp[i] * pq[3 * (i * M + j)]
                e -= wp[i] * pq[3 * (i * M + j) + 1]
                h += wp[i] * pq[3 * (i * M + j) + 2]
            sums = sums + (a, e, h)
        _write(at_q, rows, live, batch, each, sums, wq, sq, q_total, M, q_scales is not None)
    count = tl.sum(small, 0)
    if count > 0:
        rank = tl.cumsum(small, 0) - small
        for first in range(0, count, ROWS):
            slots = first + tl.arange(0, ROWS)
            there = slots < count
            found = (rank[None, :] == slots[:, None]) & (small[None, :] > 0)
            some = start + tl.sum(tl.where(found, tl.arange(0, BLOCK)[None, :], 0), 1)
            closed = tl.sum(tl.where(found, loss[None, :], 0.0), 1)
            better, true_scale = evaluate_rows(
                p, q, None, None, None, some, there, batch, each, N, M, N_PADDED, M_PADDED, tl.float64
            )
            tl.store(losses + some, blended(closed.to(tl.float64), better, true_scale).to(tl.float32), there)


@triton.jit
def _side(side, rows, live, K: tl.constexpr):
    """Load normalised weights, means, scales and doubled variances, K vectors each, and the sum of the weights."""
    weights, means, scales, variances, normalized = (), (), (), (), ()
    total = tl.zeros(rows.shape, tl.float32)
    for i in tl.static_range(K):
        weights = weights + (tl.load(side[0] + rows * side[3] + i, live, 0.0),)
        means = means + (tl.load(side[1] + rows * side[4] + i, live, 0.0),)
        if side[2] is None:
            scales = scales + (tl.zeros(rows.shape, tl.float32),)
        else:
            scales = scales + (tl.load(side[2] + rows * side[5] + i, live, 0.0),)
        variances = variances + (doubled_variance(scales[i]),)
        total += weights[i]
    inverse = 1.0 / total
    for i in tl.static_range(K):
        normalized = normalized + (weights[i] * inverse,)
    return normalized, means, scales, variances, total


@triton.jit
def _within(means, variances, K: tl.constexpr):
    """Return A, E and H of the pairs i <= j of one side, in this order."""
    terms = ()
    for i in tl.static_range(K):
        for j in tl.static_range(i, K):
            terms = terms + distance_terms(means[i] - means[j], variances[i] + variances[j])
    return terms


@triton.jit
def _energy(terms, weights, K: tl.constexpr):
    """Return half the mean distance within a side."""
    energy = tl.zeros_like(weights[0])
    for i in tl.static_range(K):
        energy += 0.5 * weights[i] * weights[i] * _of_pair(terms, i, i, K)[0]
        for j in tl.static_range(i + 1, K):
            energy += weights[i] * weights[j] * _of_pair(terms, i, j, K)[0]
    return energy


@triton.jit
def _of_pair(terms, I: tl.constexpr, J: tl.constexpr, K: tl.constexpr):
    """Return A, E and H of the pair I <= J of one side."""
    START: tl.constexpr = 3 * (I * K - I * (I - 1) // 2 + J - I)
    return terms[START], terms[START + 1], terms[START + 2]


@triton.jit
def _sums_within(terms, weights, I: tl.constexpr, K: tl.constexpr):
    """Return minus the sums of A, E and H at a component over the components of its side; 0 without terms."""
    a = tl.zeros_like(weights[0])
    e = tl.zeros_like(weights[0])
    h = tl.zeros_like(weights[0])
    if len(terms) > 0:
        for j in tl.static_range(K):
            if j < I:
                of_pair = _of_pair(terms, j, I, K)
                e += weights[j] * of_pair[1]
            else:
                of_pair = _of_pair(terms, I, j, K)
                e -= weights[j] * of_pair[1]
            a -= weights[j] * of_pair[0]
            h -= weights[j] * of_pair[2]
    return a, e, h


@triton.jit
def _write(
    out,
    rows,
    live,
    batch,
    each,
    sums,
    weights,
    scales,
    total,
    K: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Write gradients for weights, means and, if there are any, scales (docs/math.md, eq. 8)."""
    mean = tl.zeros_like(total)
    for i in tl.static_range(K):
        mean += weights[i] * sums[3 * i]
    size = tl.full((), K, tl.int64) * batch
    for i in tl.static_range(K):
        at = out + rows * K + i
        tl.store(at, (sums[3 * i] - mean) * (each / total), live)
        tl.store(at + size, weights[i] * sums[3 * i + 1] * each, live)
        if SCALES:
            tl.store(at + 2 * size, weights[i] * scales[i] * sums[3 * i + 2] * (2 * INV_SQRT_PI) * each, live)
