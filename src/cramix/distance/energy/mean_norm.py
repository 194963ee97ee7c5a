"""The mean length `E|Z|` of normal vectors in any dimension, an integral in one (docs/math.md, eq. 25 to 30).

For `Z ~ N(delta, A)`, with `L(t) = E exp(-t |Z|^2)`, which is a product over the axes of A,

    E|Z| = 1 / sqrt(pi) * integral_0^inf (1 - L(u^2)) / u^2 du.

In `log u` the trapezoid rule converges geometrically, whatever A and delta are, so that one set of nodes serves all
vectors of a distance. A Gauss rule replaces the nodes below the truncation, a constant those above it.
Here many vectors share a covariance; for one covariance each see `pair_norm`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.energy.flat_mixtures import TINY, Ellipsoids
from cramix.distance.energy.nodes import Nodes, decay
from cramix.distance.energy.numpy_or_torch import Array, add_to_diagonal, as_like, as_tensor, library
from cramix.distance.kernels import LARGEST_EXPONENT, Scratch

# |difference of variances| * t below which derivatives replace divided differences. For a single t it would be about
# cbrt(eps / 2); the mean t of near and far points includes some that are 10 times as large. Sums in float32 round more,
# so there the limit is higher.
NEAR = {torch.float32: 1e-3, torch.float64: 5e-7}
_LOG2_E = math.log2(math.e)


class Rows:
    """Normal vectors around E = B k centres, each with its own covariance: all that does not depend on the points.

    Points are columns here, so that matrix products are wide rather than tall, which is up to four times as fast on a
    CPU.

    Args:
        nodes: one rule for each of B.
        shapes: of the covariances, `(B, k)` of them.
        multiplicity: how many axes share one of the g variances.
        dtype: to compute in.
        derivatives: whether they will be requested.
    """

    def __init__(
        self, nodes: Nodes, shapes: Ellipsoids, multiplicity: int, dtype: torch.dtype, derivatives: bool
    ) -> None:
        lib, variances, low = library(shapes.variances), shapes.variances, nodes.low
        rates, log_l = decay(nodes.t, variances, multiplicity)
        log_l, weights = log_l[:, :, None], nodes.weights[:, None, None]  # (B, k or 1, 1, Q)
        arrays = [log_l, rates, lib.zeros_like(log_l) - weights]
        if derivatives:
            slope = 2 * weights * rates
            arrays += [slope, slope * rates]
        packed, g = lib.concatenate(tuple(arrays), -2), variances.shape[-1]
        # Where the weights are large L is close to 1, and sums over L would lose the digits of 1 - L: there they run
        # over L - 1. Elsewhere they run over L, which the derivatives need, as a power of two for speed.
        packed[:, :, : 1 + g, low:] *= _LOG2_E
        constants = packed[:, :, 1 + g :, :low].sum(-1)[..., None]  # (B, k, 1 or 1 + 2g, 1)
        constants[:, :, 0] = (nodes.constant + nodes.weights[:, low:].sum(-1))[:, None, None]
        self.shapes, self.multiplicity, self.low, self.dtype = shapes, multiplicity, low, dtype
        table, self.constants = (as_tensor(x).flatten(0, 1).to(dtype) for x in (packed, constants))
        self.log_l, self.rates, self.table = table[:, :1].mT, table[:, 1 : 1 + g].mT, table[:, 1 + g :]
        self.turn = None if shapes.axes is None else as_tensor(shapes.axes).flatten(0, 1).mT.to(dtype)
        flat = variances.sum(-1) == 0
        self.flat = as_tensor(flat).view(-1, 1) if flat.any() else None

    def at(self, offsets: Tensor, scratch: Scratch | None = None) -> Lengths:
        """Evaluate for vectors with means `offsets`, centre minus point, `(E, d, n)`; valid as long as the scratch."""
        scratch = Scratch(offsets) if scratch is None else scratch
        turned, squares = self._along_axes(offsets, scratch)
        transforms = self._transforms(squares, scratch)
        out = scratch.empty(*self.table.shape[:2], offsets.shape[-1])
        sums = torch.baddbmm(self.constants, self.table, transforms, out=out)
        lengths = Lengths(sums, turned, squares)
        return lengths if self.flat is None else self._with_norms(lengths)

    def rises(self, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return `sum_n w_n (1 - L(t))` at each node, `(E, Q)`, over offsets `(E, d, n)` with weights `(E, n)`."""
        scratch = Scratch(offsets)
        transforms = self._transforms(self._along_axes(offsets, scratch)[1], scratch)
        sums = (transforms @ weights.unsqueeze(-1)).squeeze(-1)
        sums[:, self.low :] -= weights.sum(-1, keepdim=True)
        return -sums

    def _along_axes(self, offsets: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
        """Return the offsets along the axes, and their squares, summed where there is one variance."""
        turned = offsets if self.turn is None else torch.bmm(self.turn, offsets, out=scratch.empty(*offsets.shape))
        squares = torch.mul(turned, turned, out=scratch.empty(*offsets.shape))
        return turned, squares.sum(1, keepdim=True) if self.rates.shape[-1] == 1 else squares

    def _transforms(self, squares: Tensor, scratch: Scratch) -> Tensor:
        """Return `L(t) - 1` at the low nodes and `L(t)` at the others, `(E, Q, n)`."""
        out = scratch.empty(*self.rates.shape[:2], squares.shape[-1])
        transforms = torch.baddbmm(self.log_l, self.rates, squares, alpha=-1, out=out)
        transforms[:, : self.low].expm1_()
        transforms[:, self.low :].clamp_min_(-_LOG2_E * LARGEST_EXPONENT[self.dtype]).exp2_()
        return transforms

    def _with_norms(self, lengths: Lengths) -> Lengths:
        """Replace lengths of vectors without covariance by the norm, since the rule has an absolute error."""
        assert self.flat is not None, "some covariances are 0"
        norm = lengths.squares.sum(1, keepdim=True).sqrt()
        inverse = torch.where(norm > TINY, 1 / norm.clamp_min(TINY), 0)
        slope, curve = inverse.expand_as(lengths.slope), (0.5 * inverse**3).expand_as(lengths.curve)
        plain = torch.cat((norm, slope, curve), 1)
        return lengths._replace(sums=torch.where(self.flat.unsqueeze(-1), plain, lengths.sums))


class Lengths(NamedTuple):
    """Mean lengths `(E, n)` and, along the axes, offsets `(E, d, n)` with their squares, slopes, curves `(E, g, n)`.

    With `b` the offsets along the axes the derivative of the length in `b_a` is `b_a slope_a`.
    """

    sums: Tensor  # (E, 1 or 1 + 2 g, n): lengths, then slopes and curves, where derivatives are wanted
    turned: Tensor
    squares: Tensor

    @property
    def mean(self) -> Tensor:
        """Return the mean lengths."""
        return self.sums[:, 0]

    @property
    def slope(self) -> Tensor:
        """Return the slopes."""
        return self.sums[:, 1 : 1 + self.sums.shape[1] // 2]

    @property
    def curve(self) -> Tensor:
        """Return the curves."""
        return self.sums[:, 1 + self.sums.shape[1] // 2 :]


class Moments(NamedTuple):
    """Weighted sums over the offsets of each centre, which determine the derivatives in centres and covariances."""

    totals: Tensor  # (E, 1 + g), of lengths and slopes
    pull: Tensor  # (E, d), of b slope
    outer: Tensor  # (E, d, 2 d), of b_a b_b slope_b and b_a b_b curve_b, or (E, g), of squares * curve

    def __add__(self, other: Moments) -> Moments:  # type: ignore[override]
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))


def moments(rows: Rows, lengths: Lengths, weights: Tensor) -> Moments:
    """Sum over the offsets with weights `(E or 1, n)` and return float64; the lengths are overwritten."""
    (sums, turned, squares), slope, curve = lengths, lengths.slope, lengths.curve
    each = weights.unsqueeze(1)
    totals = torch.bmm(sums[:, : 1 + slope.shape[1]], each.mT.expand(len(sums), -1, 1)).squeeze(-1)
    if rows.turn is None:
        outer = curve.mul_(each).mul_(squares).sum(-1)
        pull = slope.mul(turned.mul_(each)).sum(-1)
    else:
        weighted = torch.mul(turned, each, out=squares)
        sums[:, 1:].unflatten(1, (2, -1)).mul_(weighted.unsqueeze(1))
        outer = torch.bmm(turned, sums[:, 1:].mT)
        pull = slope.sum(-1)
    return Moments(totals.double(), pull.double(), outer.double())


def with_derivatives(rows: Rows, sums: Moments) -> tuple[Array, Array, Array]:
    """Return weighted mean lengths, `(B, k)`, their derivatives in the centres, `(B, k, d)`, and in their covariances.

    The last are matrices `(B, k, d, d)`, or along the coordinate axes `(B, k, g)`.
    """
    variances, axes = rows.shapes
    totals, pull, outer = (as_like(x.view(*variances.shape[:2], *x.shape[1:]), variances) for x in sums)
    length, slope = totals[..., 0], totals[..., 1:]
    if axes is None:
        return length, pull, 0.5 * rows.multiplicity * slope - outer
    transposed = axes.swapaxes(-2, -1)
    along = add_to_diagonal(-_divided_differences(variances, outer, NEAR[rows.dtype]), 0.5 * slope)
    return length, (pull[..., None, :] @ transposed)[..., 0, :], axes @ along @ transposed


def _divided_differences(variances: Array, outer: Array, limit: float) -> Array:
    """Return `sum_n w_n b_a b_b (slope_a - slope_b) / (2 (variance_b - variance_a))`, `(B, k, d, d)`.

    Its limit for equal variances is `sum_n w_n b_a b_b curve`; the mean of both curves has an error of the order of the
    squared difference, which decides where it is used.
    """
    lib, gap = library(variances), variances[..., None] - variances[..., None, :]
    dim = variances.shape[-1]
    slopes, curves = outer[..., :dim], outer[..., dim:]
    slope, curve = (x.diagonal(0, -2, -1)[..., None] for x in (slopes, curves))
    near = abs(gap) * curve <= limit * slope  # |gap| * mean t
    near = (gap == 0) | (near & near.swapaxes(-2, -1))
    apart = (slopes - slopes.swapaxes(-2, -1)) / lib.where(near, 1.0, gap)
    return 0.5 * lib.where(near, curves + curves.swapaxes(-2, -1), apart)
