"""A kernel that turns sums over points and pairs into derivatives in means and covariances."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["k"])
def derive(
    cross,
    within,
    weights,
    variances,
    axes,
    numbers,
    lengths,
    at_means,
    at_covariances,
    k,
    d: tl.constexpr,
    NEAR: tl.constexpr,
    D: tl.constexpr,
):
    """Write mean lengths and derivatives of `cross - within` at a component; see `mean_norm.with_derivatives`.

    Args:
        cross: sums over points, see `triton_points`, `(B, k, 1 + 2 d + 2 d d)`, or `(B, k, 1 + 3 d)`, in float64.
        within: sums over pairs, see `triton_pairs`, `(B, k, 1 + d + d d)` in float64; None to leave them out.
        weights: `(B, k)` in float64.
        variances: along the axes, twice those of the components, `(B, k, d)` in float64.
        axes: of components as columns, `(B, k, d, d)` in float64; None for the coordinate axes.
        numbers: see `triton_rule.choose_nodes`.
        lengths: to points and between components, `(2, B, k)` in float64, in units.
        at_means: `(B, k, d)` in float64.
        at_covariances: `(B, k, d, d)` or, along the coordinate axes, `(B, k, d)`, in float64.
        k: number of components.
        d: number of coordinates.
        NEAR: see `mean_norm.NEAR`.
        D: coordinates, padded to 16 at least.
    """
    component = tl.program_id(0).to(tl.int64)
    row = component // k
    unit, mass = tl.load(numbers + row * 6), tl.load(numbers + row * 6 + 5)
    weight = tl.load(weights + component)
    axis = tl.arange(0, D)
    inside = axis < d
    down, across = axis[:, None], axis[None, :]
    both = (down < d) & (across < d)
    if axes is None:
        SIZE: tl.constexpr = 1 + 3 * d
    else:
        SIZE: tl.constexpr = 1 + 2 * d + 2 * d * d
    own = cross + component * SIZE
    tl.store(lengths + component, tl.load(own) / mass)
    slope = tl.load(own + 1 + axis, inside, 0.0) / mass
    pull = tl.load(own + 1 + d + axis, inside, 0.0) / mass
    if axes is None:
        stretch = 0.5 * slope - tl.load(own + 1 + 2 * d + axis, inside, 0.0) / mass
        if within is not None:
            stretch -= tl.load(within + component * (1 + d + d * d) + 1 + d + axis * (d + 1), inside, 0.0)
        tl.store(at_covariances + component * d + axis, weight * stretch / unit, inside)
    else:
        outer = own + 1 + 2 * d
        slopes = tl.load(outer + down * (2 * d) + across, both, 0.0) / mass
        curves = tl.load(outer + down * (2 * d) + d + across, both, 0.0) / mass
        slopes_across = tl.load(outer + across * (2 * d) + down, both, 0.0) / mass
        curves_across = tl.load(outer + across * (2 * d) + d + down, both, 0.0) / mass
        spread = variances + component * d
        gap = tl.load(spread + down, down < d, 0.0) - tl.load(spread + across, across < d, 0.0)
        gap = 0.5 * gap / (unit * unit)
        diagonal = down == across
        of_slopes, of_curves = tl.where(diagonal, slopes, 0.0), tl.where(diagonal, curves, 0.0)
        near = tl.abs(gap) * tl.sum(of_curves, 1)[:, None] <= tl.sum(of_slopes, 1)[:, None] * NEAR
        near = near & (tl.abs(gap) * tl.sum(of_curves, 0)[None, :] <= tl.sum(of_slopes, 0)[None, :] * NEAR)
        near = near | (gap == 0)
        apart = (slopes - slopes_across) / tl.where(near, 1.0, gap)
        along = -0.5 * tl.where(near, curves + curves_across, apart)
        along += tl.where(diagonal, 0.5 * slope[:, None], 0.0)
        turn = tl.load(axes + (component * d + down) * d + across, both, 0.0)
        stretch = tl.dot(turn, along, input_precision="ieee")
        stretch = tl.dot(stretch, tl.trans(turn), input_precision="ieee")
        pull = tl.sum(turn * pull[None, :], 1)
        if within is not None:
            stretch -= tl.load(within + component * (1 + d + d * d) + 1 + d + down * d + across, both, 0.0)
        tl.store(at_covariances + (component * d + down) * d + across, weight * stretch / unit, both)
    if within is not None:
        pull -= tl.load(within + component * (1 + d + d * d) + 1 + axis, inside, 0.0)
        size = tl.num_programs(0).to(tl.int64)
        tl.store(lengths + size + component, tl.load(within + component * (1 + d + d * d)))
    tl.store(at_means + component * d + axis, weight * pull, inside)
