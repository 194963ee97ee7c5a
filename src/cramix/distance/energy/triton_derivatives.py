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
    at_means,
    at_covariances,
    k,
    d: tl.constexpr,
    NEAR: tl.constexpr,
    D: tl.constexpr,
):
    """Write derivatives of `cross - within` at a component; see `mean_norm.with_derivatives`.

    Args:
        cross: sums over points, see `triton_points`, `(B, k, 1 + 2 d + 2 d d)`, or `(B, k, 1 + 3 d)`, in float64.
        within: sums over pairs, see `triton_pairs`, `(B, k, 1 + d + d d)` in float64; None to leave them out.
        weights: `(B, k)` in float64.
        variances: along the axes, twice those of the components, `(B, k, d)` in float64.
        axes: of components as columns, `(B, k, d, d)` in float64; None for the coordinate axes.
        numbers: see `triton_rule.choose_nodes`.
        at_means: `(B, k, d)`.
        at_covariances: `(B, k, d, d)` or, along the coordinate axes, `(B, k, d)`.
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
    dtype = at_means.dtype.element_ty
    slope = tl.load(own + 1 + axis, inside, 0.0) / mass
    pull = tl.load(own + 1 + d + axis, inside, 0.0) / mass
    if axes is None:
        stretch = 0.5 * slope - tl.load(own + 1 + 2 * d + axis, inside, 0.0) / mass
        if within is not None:
            stretch -= tl.load(within + component * (1 + d + d * d) + 1 + d + axis * (d + 1), inside, 0.0)
        tl.store(at_covariances + component * d + axis, (weight * stretch / unit).to(dtype), inside)
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
        place = at_covariances + (component * d + down) * d + across
        tl.store(place, (weight * stretch / unit).to(dtype), both)
    if within is not None:
        pull -= tl.load(within + component * (1 + d + d * d) + 1 + axis, inside, 0.0)
    tl.store(at_means + component * d + axis, (weight * pull).to(dtype), inside)
