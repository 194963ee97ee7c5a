"""The mean length `E|Z|` of normal vectors in any dimension, an integral in one (docs/math.md, eq. 25 to 29).

For `Z ~ N(delta, A)`, with `L(t) = E exp(-t |Z|^2)`, which is a product over the axes of A,

    E|Z| = 1 / sqrt(pi) * integral_0^inf (1 - L(u^2)) / u^2 du.

In `log u` the trapezoid rule converges geometrically, whatever A and delta are, so that one set of nodes serves all
vectors of a distance. What the nodes leave out below is a multiple of `E|Z|^2`, what they leave out above a constant.
Here many vectors share a covariance; for one each see `pair_norm`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from cramix.distance.multivariate.nodes import Nodes
from cramix.distance.multivariate.sides import TINY, Ellipsoids
from cramix.distance.scratch import Scratch
from cramix.distance.underflow import LARGEST_EXPONENT

# |difference of variances| * t below which divided differences give way to derivatives. For one t it would be about
# cbrt(eps / 2); the mean t of points near and far stands for some that are 10 times as large.
_NEAR = {torch.float32: 4e-4, torch.float64: 5e-7}
_LOG2_E = math.log2(math.e)


class Rows:
    """Normal vectors around E = B k centres, each with its own covariance: what does not depend on the places.

    Places are columns here, so that the products of matrices are wide rather than tall, which is up to four times as
    fast on a CPU.

    Args:
        nodes: one rule for each of B.
        shapes: of the covariances, `(B, k)` of them.
        multiplicity: how many axes share one of the g variances.
        dtype: to compute in.
        derivatives: whether those will be asked for.
    """

    def __init__(
        self, nodes: Nodes, shapes: Ellipsoids, multiplicity: int, dtype: torch.dtype, derivatives: bool
    ) -> None:
        variances, low = shapes.variances, nodes.low
        # A last node t = 0, where L = 1, is there for constants.
        t, weights = (pad(x, (0, 1))[:, None, :, None] for x in (nodes.t, nodes.weights))  # (B, 1, Q, 1)
        growth = t * (2 * variances).unsqueeze(2)  # (B, k, Q, g)
        rates = t / (growth + 1)
        log_l = growth.log1p_().sum(-1, keepdim=True).mul_(-0.5 * multiplicity)
        columns = [-weights.expand_as(log_l)]
        if derivatives:
            slope = rates * (2 * weights)
            columns += [slope, slope * rates]
        table = torch.cat(columns, -1)  # (B, k, Q, 1 or 1 + 2g)
        # Where the weights are large L is close to 1, and L as such would lose the digits of 1 - L: there the sums are
        # over L - 1. Elsewhere they are over L, for the sake of the derivatives, as a power of two, for speed.
        constants, linear = table[:, :, -1], nodes.linear[:, None, None]
        torch.sum(table[:, :, :low], 2, out=constants)
        constants[..., :1] = nodes.constant[:, None, None] + weights[:, :, low:].sum(2)
        constants[..., :1] += linear * multiplicity * variances.sum(-1, keepdim=True)
        constants[..., 1 : 1 + variances.shape[-1]] += 2 * linear
        log_l[:, :, low:] *= _LOG2_E
        rates[:, :, low:] *= _LOG2_E
        self.low, self.dtype, self.multiplicity, self.derivatives = low, dtype, multiplicity, derivatives
        self.log_l, self.rates = (x.flatten(0, 1).to(dtype) for x in (log_l, rates))
        self.table = table.flatten(0, 1).mT.to(dtype, memory_format=torch.contiguous_format)
        self.variances = variances.flatten(0, 1)
        self.axes = None if shapes.axes is None else shapes.axes.flatten(0, 1).to(dtype)
        self.linear = linear.expand(*variances.shape[:2], 1).flatten(0, 1).to(dtype)
        flat = self.variances.amax(-1, keepdim=True) == 0
        self.flat = flat if flat.any() else None

    def at(self, offsets: Tensor) -> Lengths:
        """Evaluate for vectors with means `offsets`, centre less place, `(E, d, n)`; valid until the next call."""
        scratch = Scratch(offsets)
        turned, squares, length = self._along_axes(offsets, scratch)
        transforms = self._transforms(squares, scratch)
        sums = torch.bmm(self.table, transforms, out=scratch.empty(*self.table.shape[:2], offsets.shape[-1]))
        value = sums[:, 0].addcmul_(self.linear, length)
        slope, curve = sums[:, 1:].chunk(2, 1) if self.derivatives else (None, None)
        lengths = Lengths(value, turned, squares, slope, curve)
        return lengths if self.flat is None else self._with_norms(lengths, length.sqrt())

    def rises(self, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return `sum_n w_n (1 - L(t))` at each node, `(E, Q)`, over offsets `(E, d, n)` with weights `(E, n)`."""
        scratch = Scratch(offsets)
        transforms = self._transforms(self._along_axes(offsets, scratch)[1], scratch)
        sums = (transforms @ weights.unsqueeze(-1)).squeeze(-1)
        sums[:, self.low :] -= sums[:, -1:].clone()
        return -sums[:, :-1]

    def _along_axes(self, offsets: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the offsets along the axes, their squares, for one variance added up, and the square of the length."""
        turned = offsets if self.axes is None else torch.bmm(self.axes.mT, offsets, out=scratch.empty(*offsets.shape))
        squares = torch.mul(turned, turned, out=scratch.empty(*offsets.shape))
        length = squares.sum(1)
        return turned, length.unsqueeze(1) if self.variances.shape[-1] == 1 else squares, length

    def _transforms(self, squares: Tensor, scratch: Scratch) -> Tensor:
        """Return `L(t) - 1` at the low nodes and `L(t)` at the others, of which the last is t = 0, `(E, Q, n)`."""
        out = scratch.empty(*self.rates.shape[:2], squares.shape[-1])
        transforms = torch.baddbmm(self.log_l, self.rates, squares, alpha=-1, out=out)
        transforms[:, : self.low].expm1_()
        transforms[:, self.low :].clamp_min_(-_LOG2_E * LARGEST_EXPONENT[self.dtype]).exp2_()
        return transforms

    def _with_norms(self, lengths: Lengths, norm: Tensor) -> Lengths:
        """Put in the plain length of vectors without spread, where the rule has an absolute error."""
        assert self.flat is not None, "there are some"
        value = torch.where(self.flat, norm, lengths.value)
        if lengths.slope is None or lengths.curve is None:
            return lengths._replace(value=value)
        flat = self.flat.unsqueeze(-1)
        inverse = torch.where(norm > TINY, 1 / norm.clamp_min(TINY), 0).unsqueeze(1)
        slope = torch.where(flat, inverse, lengths.slope)
        curve = torch.where(flat, 0.5 * inverse**3, lengths.curve)
        return lengths._replace(value=value, slope=slope, curve=curve)


class Lengths(NamedTuple):
    """Mean lengths `(E, n)` and, along the axes, offsets `(E, d, n)` with their squares, slopes, curves `(E, g, n)`.

    With `b` the offsets along the axes the derivative of the length in `b_a` is `b_a slope_a`.
    """

    value: Tensor
    turned: Tensor
    squares: Tensor
    slope: Tensor | None
    curve: Tensor | None


class Moments(NamedTuple):
    """Weighted sums over the offsets of each centre, from which the derivatives in centres and covariances follow."""

    value: Tensor  # (E,)
    pull: Tensor  # (E, d), of b slope
    slope: Tensor  # (E, g)
    outer_slope: Tensor  # (E, d, d), of b_a slope_a b_b, or (E, 0)
    outer_curve: Tensor  # (E, d, d), of b_a curve_a b_b, or (E, g), of squares * curve

    def __add__(self, other: Moments) -> Moments:  # type: ignore[override]
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))


def moments(rows: Rows, lengths: Lengths, weights: Tensor) -> Moments:
    """Sum over the offsets with weights `(E or 1, n)`; the results are in float64."""
    each = weights.unsqueeze(1)
    weighted = lengths.turned * each
    assert lengths.slope is not None and lengths.curve is not None, "rows were made with derivatives"  # noqa: PT018
    pulls = weighted * lengths.slope
    if rows.axes is None:
        outer_slope = weighted.new_zeros(len(weighted), 0)
        outer_curve = (each * lengths.squares * lengths.curve).sum(-1)
    else:
        outer_slope = pulls.double() @ lengths.turned.double().mT  # of which differences will be taken
        outer_curve = weighted.mul_(lengths.curve) @ lengths.turned.mT
    sums = (
        (lengths.value * weights).sum(-1),
        pulls.sum(-1),
        (each * lengths.slope).sum(-1),
        outer_slope,
        outer_curve,
    )
    return Moments(*(x.double() for x in sums))


def gradients(rows: Rows, sums: Moments) -> tuple[Tensor, Tensor]:
    """Return derivatives of the weighted mean length in the centres, `(E, d)`, and in their covariances.

    Those are matrices `(E, d, d)`, or along the coordinate axes `(E, g)`.
    """
    if rows.axes is None:
        return sums.pull, 0.5 * rows.multiplicity * sums.slope - sums.outer_curve
    axes = rows.axes.double()
    spread = torch.diag_embed(0.5 * sums.slope) - _divided_differences(rows, sums)
    return (axes @ sums.pull.unsqueeze(-1)).squeeze(-1), axes @ spread @ axes.mT


def _divided_differences(rows: Rows, sums: Moments) -> Tensor:
    """Return `sum_n w_n b_a b_b (slope_a - slope_b) / (2 (variance_b - variance_a))`, `(E, d, d)`.

    Its limit for equal variances is `sum_n w_n b_a b_b curve`; the mean of both curves is off by the square of the
    difference, which decides where to take it.
    """
    gap = rows.variances.unsqueeze(-2) - rows.variances.unsqueeze(-1)
    slope, curve = (x.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) for x in (sums.outer_slope, sums.outer_curve))
    near = gap.abs() * curve <= _NEAR[rows.dtype] * slope  # |gap| * t, for the mean t, which is curve / slope
    near = (gap == 0) | (near & near.mT)
    apart = (sums.outer_slope - sums.outer_slope.mT) / torch.where(near, 1, gap)
    return 0.5 * torch.where(near, sums.outer_curve + sums.outer_curve.mT, apart)
