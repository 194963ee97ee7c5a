"""The mean length `E|Z|` of normal vectors that each have their own covariance (docs/math.md, eq. 25 to 30).

Pairs of components are of this kind. For many vectors with one covariance see `mean_norm`.
"""

from __future__ import annotations

from typing import NamedTuple

from cramix.distance.energy.flat_mixtures import TINY, Ellipsoids
from cramix.distance.energy.nodes import Nodes, decay
from cramix.distance.energy.numpy_or_torch import Array, add_to_diagonal, exp, library


class PairNorm(NamedTuple):
    """Mean lengths `(B, E)`, and derivatives in offsets `(B, E, d)` and in covariances or variances."""

    lengths: Array
    at_offsets: Array | None = None
    at_covariances: Array | None = None


class _Transforms(NamedTuple):
    turned: Array  # (B, E, d), the offsets along the axes
    squares: Array  # (B, E, g), their squares, summed where there is one variance
    rates: Array  # (B, E, g, Q)
    log: Array  # (B, E, Q), of L(t)


def pair_norm(nodes: Nodes, shapes: Ellipsoids, multiplicity: int, offsets: Array, derivatives: bool) -> PairNorm:
    """Evaluate for vectors with means `offsets`, `(B, E, d)`, and `(B, E)` covariances, in float64."""
    lib = library(offsets)
    turned, squares, rates, log_l = _transforms(nodes.t, shapes, multiplicity, offsets)
    lengths = nodes.constant[:, None] - (lib.expm1(log_l) @ nodes.weights[..., None])[..., 0]
    flat = shapes.variances.sum(-1) == 0
    norm = lib.sqrt(squares.sum(-1)) if flat.any() else None  # exact there, while the rule has an absolute error
    if norm is not None:
        lengths = lib.where(flat, norm, lengths)
    if not derivatives:
        return PairNorm(lengths)
    mass = (2 * nodes.weights)[:, None] * exp(log_l)
    slope = (rates @ mass[..., None])[..., 0]
    weighted = rates * mass[..., None, :]
    curve = (weighted * rates).sum(-1) if shapes.axes is None else weighted @ rates.swapaxes(-2, -1)
    if norm is not None:
        inverse = lib.where(norm > TINY, 1 / lib.where(norm > TINY, norm, 1.0), 0.0)[..., None]
        slope = lib.where(flat[..., None], inverse, slope)
        shape = (*flat.shape, *(1,) * (curve.ndim - 2))
        curve = lib.where(flat.reshape(*shape), 0.5 * inverse.reshape(*shape) ** 3, curve)
    pull = turned * slope
    if shapes.axes is None:
        return PairNorm(lengths, pull, 0.5 * multiplicity * slope - squares * curve)
    curve *= turned[..., None]
    curve *= -turned[..., None, :]
    along = add_to_diagonal(curve, 0.5 * slope)
    transposed = shapes.axes.swapaxes(-2, -1)
    return PairNorm(lengths, (pull[..., None, :] @ transposed)[..., 0, :], shapes.axes @ along @ transposed)


def pair_rises(t: Array, shapes: Ellipsoids, multiplicity: int, offsets: Array) -> Array:
    """Return `1 - L(t)` at nodes `(B, Q)`, `(B, E, Q)`."""
    return -library(offsets).expm1(_transforms(t, shapes, multiplicity, offsets).log)


def _transforms(t: Array, shapes: Ellipsoids, multiplicity: int, offsets: Array) -> _Transforms:
    turned = offsets if shapes.axes is None else (offsets[..., None, :] @ shapes.axes)[..., 0, :]
    squares = turned * turned
    if shapes.variances.shape[-1] == 1:
        squares = squares.sum(-1)[..., None]
    rates, log_l = decay(t, shapes.variances, multiplicity)
    log_l = log_l - (squares[..., None, :] @ rates)[..., 0, :]
    return _Transforms(turned, squares, rates, log_l)
