"""A kernel for mean distances between components, with their derivatives, in float64."""

from __future__ import annotations

import triton
import triton.language as tl

# Vectors shorter than this, in units of the size of the problem, have no direction; see `flat_mixtures`.
_TINY = tl.constexpr(1e-12)


@triton.jit(do_not_specialize=["k", "of_p", "parts", "each"])
def sum_over_pairs(
    weights,
    means,
    variances,
    axes,
    rule,
    numbers,
    sums,
    k,
    of_p,
    parts,
    each,
    d: tl.constexpr,
    KNOWN_P: tl.constexpr,
    KNOWN_Q: tl.constexpr,
    GRAD: tl.constexpr,
    BLOCK: tl.constexpr,
    Q: tl.constexpr,
    D: tl.constexpr,
):
    """Write sums over some components j at a component i: `s_j E|X_i - X_j|`, and its derivatives at i.

    These are in the mean, d numbers, and in the covariance, d x d numbers, all in units. A program is a component i and
    `each` components j of the same mixture, or of both mixtures of a distance in one list.

    Args:
        weights: s, `(B, k)` in float64, of either sign.
        means: `(B, k, d)`.
        variances: of pairs along their axes, `(B, k, k, d)` in float64, for i <= j.
        axes: of pairs, `(B, k, k, d, d)` in float64; None for the coordinate axes.
        rule: see `triton_rule.choose_nodes`.
        numbers: see `triton_rule.choose_nodes`.
        sums: `(B, k, parts, 1 + d + d d)` in float64.
        k: number of components.
        of_p: how many of them are of p, the first ones.
        parts: programs of a component.
        each: components j of a program.
        d: number of coordinates.
        KNOWN_P: whether to leave out pairs within p.
        KNOWN_Q: whether to leave out the others within a mixture.
        GRAD: whether to write derivatives.
        BLOCK: nodes that are computed with at a time.
        Q: nodes, padded.
        D: coordinates, padded to 16 at least.
    """
    program = tl.program_id(0).to(tl.int64)
    part, component = program % parts, program // parts
    row, i = component // k, component % k
    axis = tl.arange(0, D)
    inside = axis < d
    down, across = axis[:, None], axis[None, :]
    within = (down < d) & (across < d)
    unit = tl.load(numbers + row * 6)
    constant = tl.load(numbers + row * 6 + 1)
    nodes = tl.load(numbers + row * 6 + 2).to(tl.int32)
    mean = tl.load(means + component * d + axis, inside, 0.0).to(tl.float64)
    length_sum = tl.full((), 0.0, tl.float64)
    pull_sum = tl.zeros([D], tl.float64)
    stretch_sum = tl.zeros([D, D], tl.float64)
    for j in range(part * each, tl.minimum(part * each + each, k)):
        wanted = j < k
        if KNOWN_P:
            wanted = wanted & ((i >= of_p) | (j >= of_p))
        if KNOWN_Q:
            wanted = wanted & ((i < of_p) | (j < of_p))
        if wanted:
            weight = tl.load(weights + row * k + j)
            other = tl.load(means + (row * k + j) * d + axis, inside, 0.0).to(tl.float64)
            pair = (row * k + tl.minimum(i, j)) * k + tl.maximum(i, j)
            variance = tl.load(variances + pair * d + axis, inside, 0.0) / (unit * unit)
            turned = (mean - other) / unit
            if axes is not None:
                turn = tl.load(axes + (pair * d + down) * d + across, within, 0.0)
                turned = tl.sum(turn * turned[:, None], 0)
            squares = turned * turned
            length = constant
            slope = tl.zeros([D], tl.float64)
            curve = tl.zeros([D, D], tl.float64)
            for start in range(0, nodes, BLOCK):
                at = start + tl.arange(0, BLOCK)
                t = tl.load(rule + row * 2 * Q + at, at < nodes, 0.0)
                mass = tl.load(rule + row * 2 * Q + Q + at, at < nodes, 0.0)
                growth = 1.0 + 2.0 * t[None, :] * variance[:, None]
                rates = t[None, :] / growth
                exponent = -tl.sum(0.5 * tl.log(growth) + squares[:, None] * rates, 0)
                length += tl.sum(mass * _rise(exponent), 0)
                if GRAD:
                    weighted = rates * (2.0 * mass * tl.exp(exponent))[None, :]
                    slope += tl.sum(weighted, 1)
                    curve += tl.dot(weighted, tl.trans(rates), input_precision="ieee")
            flat = tl.sum(variance, 0) == 0
            norm = tl.sqrt(tl.sum(squares, 0))  # exact there, while the rule has an absolute error
            length_sum += weight * tl.where(flat, norm, length)
            if GRAD:
                inverse = tl.where(norm > _TINY, 1.0 / tl.maximum(norm, _TINY), 0.0)
                slope = tl.where(flat, inverse, slope)
                curve = tl.where(flat, 0.5 * inverse * inverse * inverse, curve)
                pull = turned * slope
                if axes is None:
                    stretch = tl.where(down == across, 0.5 * slope[:, None] - squares[:, None] * curve, 0.0)
                else:
                    pull = tl.sum(tl.where(within, turn * pull[None, :], 0.0), 1)
                    along = tl.where(down == across, 0.5 * slope[:, None], 0.0) - (
                        turned[:, None] * turned[None, :] * curve
                    )
                    stretch = tl.dot(turn, along, input_precision="ieee")
                    stretch = tl.dot(stretch, tl.trans(turn), input_precision="ieee")
                pull_sum += weight * pull
                stretch_sum += weight * stretch
    out = sums + program * (1 + d + d * d)
    tl.store(out, length_sum)
    if GRAD:
        tl.store(out + 1 + axis, pull_sum, inside)
        tl.store(out + 1 + d + down * d + across, stretch_sum, within)


@triton.jit
def _rise(x):
    """Return `1 - exp(x)` for x <= 0 in float64."""
    near = tl.maximum(x, -0.5)
    series = tl.full(x.shape, 1.0, tl.float64)
    for i in tl.static_range(14):
        series = 1.0 + series * near * (1.0 / (15 - i))
    return tl.where(x > -0.5, -near * series, 1.0 - tl.exp(x))
