"""The mean length `E|Z|` of one normal vector for each covariance, as pairs of components have (math.md, eq. 25 to 29).

Where many vectors share a covariance, see `mean_norm`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate.nodes import Nodes
from cramix.distance.multivariate.sides import TINY, Ellipsoids
from cramix.distance.underflow import LARGEST_EXPONENT


class PairNorm(NamedTuple):
    """Mean lengths `(B, E)`, with derivatives in offsets `(B, E, d)` and in covariances or variances."""

    value: Tensor
    at_offsets: Tensor | None
    at_spread: Tensor | None


def pair_norm(nodes: Nodes, shapes: Ellipsoids, multiplicity: int, offsets: Tensor, derivatives: bool) -> PairNorm:
    """Evaluate for vectors with means `offsets`, `(B, E, d)`, and variances `(B, E, g)` along axes `(B, E, d, d)`."""
    turned, squares, rates, log_l = _transforms(nodes.t, shapes, multiplicity, offsets)
    square = squares.sum(-1)
    flat = shapes.variances.amax(-1) == 0
    some_flat = bool(flat.any())
    weights, linear, constant = nodes.weights.unsqueeze(1), nodes.linear.unsqueeze(-1), nodes.constant.unsqueeze(-1)
    second = square + multiplicity * shapes.variances.sum(-1)
    value = torch.addcmul(constant, linear, second) - (log_l.expm1() * weights).sum(-1)
    if some_flat:
        norm = square.sqrt()
        value = torch.where(flat, norm, value)
    if not derivatives:
        return PairNorm(value, None, None)
    mass = log_l.clamp_min_(-LARGEST_EXPONENT[log_l.dtype]).exp_() * weights
    weighted = rates * mass.mul_(2).unsqueeze(-2)  # (B, E, g, Q)
    slope = weighted.sum(-1) + 2 * linear.unsqueeze(-1)
    curve = (weighted * rates).sum(-1) if shapes.axes is None else weighted @ rates.mT
    if some_flat:  # the plain length, as the rule has an absolute error
        inverse = torch.where(norm > TINY, 1 / norm.clamp_min(TINY), 0).unsqueeze(-1)
        slope = torch.where(flat.unsqueeze(-1), inverse, slope)
        bend = 0.5 * inverse**3 if shapes.axes is None else 0.5 * inverse.unsqueeze(-1) ** 3
        curve = torch.where(flat.view(*flat.shape, *(1,) * (curve.ndim - 2)), bend, curve)
    pull = turned * slope
    if shapes.axes is None:
        return PairNorm(value, pull, 0.5 * multiplicity * slope - squares * curve)
    along = torch.diag_embed(0.5 * slope) - turned.unsqueeze(-1) * turned.unsqueeze(-2) * curve
    at_offsets = (shapes.axes @ pull.unsqueeze(-1)).squeeze(-1)
    return PairNorm(value, at_offsets, shapes.axes @ along @ shapes.axes.mT)


def pair_rises(t: Tensor, shapes: Ellipsoids, multiplicity: int, offsets: Tensor) -> Tensor:
    """Return `1 - L(t)` at nodes `(B, Q)`, `(B, E, Q)`."""
    return -_transforms(t, shapes, multiplicity, offsets)[-1].expm1_()


def _transforms(
    t: Tensor, shapes: Ellipsoids, multiplicity: int, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return offsets along the axes, their squares `(B, E, g)`, rates `(B, E, g, Q)` and `log L(t)`, `(B, E, Q)`."""
    turned = offsets if shapes.axes is None else (shapes.axes.mT @ offsets.unsqueeze(-1)).squeeze(-1)
    squares = turned.square()
    if shapes.variances.shape[-1] == 1:
        squares = squares.sum(-1, keepdim=True)
    t = t[:, None, None]
    growth = 2 * t * shapes.variances.unsqueeze(-1)
    log_l = growth.log1p().sum(-2).mul_(-0.5 * multiplicity)
    rates = t / growth.add_(1)
    log_l -= (rates * squares.unsqueeze(-1)).sum(-2)
    return turned, squares, rates, log_l
