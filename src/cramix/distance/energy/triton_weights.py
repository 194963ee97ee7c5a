"""Kernels for what depends on all components of a mixture: its weights at the start, its distance at the end."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["k"])
def normalize(given, means, weights, totals, origin, k, d: tl.constexpr, K: tl.constexpr, D: tl.constexpr):
    """Write weights that sum to one, their sum before, and the mean of a mixture.

    Args:
        given: weights, `(B, k)`.
        means: `(B, k, d)`.
        weights: `(B, k)` in float64.
        totals: `(B,)` in float64.
        origin: `(B, d)` in float64.
        k: number of components.
        d: number of coordinates.
        K: components of a block.
        D: coordinates, padded.
    """
    row = tl.program_id(0).to(tl.int64)
    axis = tl.arange(0, D)
    total = tl.full((), 0.0, tl.float64)
    mean = tl.zeros([D], tl.float64)
    for start in range(0, k, K):
        component = start + tl.arange(0, K)
        weight = tl.load(given + row * k + component, component < k, 0.0).to(tl.float64)
        place = means + (row * k + component)[:, None] * d + axis[None, :]
        there = (component < k)[:, None] & (axis < d)[None, :]
        total += tl.sum(weight, 0)
        mean += tl.sum(weight[:, None] * tl.load(place, there, 0.0).to(tl.float64), 0)
    for start in range(0, k, K):
        component = start + tl.arange(0, K)
        weight = tl.load(given + row * k + component, component < k, 0.0).to(tl.float64)
        tl.store(weights + row * k + component, weight / total, component < k)
    tl.store(totals + row, total)
    tl.store(origin + row * d + axis, mean / total, axis < d)


@triton.jit(do_not_specialize=["k", "cross_size", "within_size"])
def conclude(
    cross,
    within,
    weights,
    totals,
    numbers,
    energy_p,
    energy_q,
    distances,
    at_weights,
    k,
    cross_size,
    within_size,
    K: tl.constexpr,
):
    """Write the distance of a mixture to points, and its derivatives in the weights as they were given.

    The distance is that of normalised weights, so its derivatives have mean 0 under them.

    Args:
        cross: sums over points, see `triton_points`, `(B, k, cross_size)` in float64, the sum of lengths first.
        within: sums over pairs, see `triton_pairs`, `(B, k, within_size)` in float64; None to leave them out.
        weights: `(B, k)` in float64, which sum to one.
        totals: their sums as they were given, `(B,)`.
        numbers: see `triton_rule.choose_nodes`.
        energy_p: the self energy of the mixture if it is known, `(B,)` in float64, else None.
        energy_q: that of the points, or None.
        distances: `(B,)` in float64.
        at_weights: `(B, k)`; None to leave them out.
        k: number of components.
        cross_size: numbers of a component.
        within_size: the same.
        K: components of a block.
    """
    row = tl.program_id(0).to(tl.int64)
    unit, mass = tl.load(numbers + row * 6), tl.load(numbers + row * 6 + 5)
    to_points = tl.full((), 0.0, tl.float64)
    between = tl.full((), 0.0, tl.float64)
    for start in range(0, k, K):
        component = row * k + start + tl.arange(0, K)
        there = start + tl.arange(0, K) < k
        weight = tl.load(weights + component, there, 0.0)
        to_points += tl.sum(weight * tl.load(cross + component * cross_size, there, 0.0), 0) / mass
        if within is not None:
            between += tl.sum(weight * tl.load(within + component * within_size, there, 0.0), 0)
    distance = unit * (to_points - 0.5 * between)
    if energy_p is not None:
        distance -= tl.load(energy_p + row)
    if energy_q is not None:
        distance -= tl.load(energy_q + row)
    tl.store(distances + row, distance)
    if at_weights is not None:
        factor = unit / tl.load(totals + row)
        for start in range(0, k, K):
            component = row * k + start + tl.arange(0, K)
            there = start + tl.arange(0, K) < k
            potential = tl.load(cross + component * cross_size, there, 0.0) / mass
            if within is not None:
                potential -= tl.load(within + component * within_size, there, 0.0)
            centred = factor * (potential - (to_points - between))
            tl.store(at_weights + component, centred.to(at_weights.dtype.element_ty), there)
