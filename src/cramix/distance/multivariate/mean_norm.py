"""The mean length `E|Z|` of normal vectors in any dimension, an integral in one (docs/math.md, eq. 25 to 29).

For `Z ~ N(delta, A)`, with `L(t) = E exp(-t |Z|^2)`, which is a product over the axes of A,

    E|Z| = 1 / sqrt(pi) * integral_0^inf (1 - L(u^2)) / u^2 du.

In `log u` the trapezoid rule converges geometrically, whatever A and delta are, so that one set of nodes serves all
vectors of a distance. What the nodes leave out below is a multiple of `E|Z|^2`, what they leave out above a constant.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate.nodes import Nodes
from cramix.distance.scratch import Scratch
from cramix.distance.underflow import LARGEST_EXPONENT

# |difference of variances| * t below which divided differences give way to derivatives. For one t it would be about
# cbrt(eps / 2); the mean t of points near and far stands for some that are 10 times as large.
_NEAR = {torch.float32: 4e-4, torch.float64: 5e-7}
# Nodes t below this are those where L is close to 1, for vectors of the size of the problem.
_LOW = 1 / 16
# Vectors shorter than this, in units of the size of the problem, have no direction.
_TINY = 1e-12
_LOG2_E = math.log2(math.e)


class Rows:
    """Normal vectors around E centres, each with its own covariance: what does not depend on the places.

    Places are columns here, so that the products of matrices are wide rather than tall, which is up to four times as
    fast on a CPU.

    Args:
        nodes: with one row a centre.
        variances: along the axes, `(E, g)`, each for `multiplicity` of them, in float64.
        axes: columns of `(E, d, d)`, or None for the coordinate axes.
        multiplicity: d / g.
        dtype: to compute in.
        derivatives: whether those will be asked for.
    """

    def __init__(
        self,
        nodes: Nodes,
        variances: Tensor,
        axes: Tensor | None,
        multiplicity: int,
        dtype: torch.dtype,
        derivatives: bool,
    ) -> None:
        t, weights = nodes.t.unsqueeze(-1), nodes.weights  # (E, Q, 1)
        growth = 2 * t * variances.unsqueeze(-2)  # (E, Q, g)
        log_l = -0.5 * multiplicity * growth.log1p().sum(-1, keepdim=True)
        rates = t / growth.add_(1)
        # Where the weights are large L is close to 1, and L as such would lose the digits of 1 - L: there the sums are
        # over 1 - L. Elsewhere they are over L, for the sake of the derivatives, as a power of two, for speed.
        self.low = low = int((nodes.t.amax(0) < _LOW).sum())
        base = torch.ones_like(t[0])
        base[low:] = _LOG2_E
        self.log_l, self.rates = (log_l * base).to(dtype), (rates * base).to(dtype)
        columns = [weights.unsqueeze(-1)]
        if derivatives:
            slope = 2 * rates * columns[0]
            columns += [slope, slope * rates]
        table = torch.cat(columns, -1).mT  # (E, 1 or 1 + 2g, Q)
        self.table = table.to(dtype, memory_format=torch.contiguous_format)
        self.at_low = table[:, 1:, :low].sum(-1, keepdim=True).to(dtype)  # (E, 2g, 1)
        self.dtype = dtype
        self.axes = None if axes is None else axes.to(dtype)
        self.variances, self.multiplicity, self.derivatives = variances, multiplicity, derivatives
        flat = (variances.amax(-1) == 0).unsqueeze(-1)
        self.flat = flat if flat.any() else None
        self.linear = nodes.linear.to(dtype)[:, None]
        trace = multiplicity * variances.sum(-1)
        self.constant = (nodes.constant + weights[:, low:].sum(-1) + nodes.linear * trace).to(dtype)[:, None]

    def at(self, offsets: Tensor) -> Lengths:
        """Evaluate for vectors with means `offsets`, centre less place, `(E, d, n)`; valid until the next call."""
        scratch = Scratch(offsets)
        turned, squares, length = self._along_axes(offsets, scratch)
        transforms = self._transforms(squares, scratch)
        sums = torch.bmm(self.table, transforms, out=scratch.empty(*self.table.shape[:2], offsets.shape[-1]))
        value = torch.addcmul(self.constant, self.linear, length) - sums[:, 0]
        slope, curve = sums[:, 1:].add_(self.at_low).chunk(2, 1) if self.derivatives else (None, None)
        lengths = Lengths(value, turned, squares, slope, curve)
        return lengths if self.flat is None else self._with_norms(lengths, length.sqrt())

    def rises(self, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return `sum_n w_n (1 - L(t))` at each node, `(E, Q)`, over offsets `(E, d, n)` with weights `(E, n)`."""
        scratch = Scratch(offsets)
        transforms = self._transforms(self._along_axes(offsets, scratch)[1], scratch)
        rises = -(transforms @ weights.unsqueeze(-1)).squeeze(-1)
        rises[:, self.low :] += weights.sum(-1, keepdim=True)
        return rises

    def _along_axes(self, offsets: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the offsets along the axes, their squares, for one variance added up, and the square of the length."""
        turned = offsets if self.axes is None else torch.bmm(self.axes.mT, offsets, out=scratch.empty(*offsets.shape))
        squares = torch.mul(turned, turned, out=scratch.empty(*offsets.shape))
        length = squares.sum(1)
        return turned, length.unsqueeze(1) if self.variances.shape[-1] == 1 else squares, length

    def _transforms(self, squares: Tensor, scratch: Scratch) -> Tensor:
        """Return `L(t) - 1` at the low nodes and `L(t)` at the others, `(E, Q, n)`."""
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
        inverse = torch.where(norm > _TINY, 1 / norm.clamp_min(_TINY), 0).unsqueeze(1)
        slope = torch.where(flat, inverse - 2 * self.linear.unsqueeze(-1), lengths.slope)
        curve = torch.where(flat, 0.5 * inverse**3, lengths.curve)
        return lengths._replace(value=value, slope=slope, curve=curve)


class Lengths(NamedTuple):
    """Mean lengths `(E, n)` and, along the axes, offsets `(E, d, n)` with their squares, slopes, curves `(E, g, n)`.

    With `b` the offsets along the axes the derivative of the length in `b_a` is `b_a (slope_a + 2 linear)`.
    """

    value: Tensor
    turned: Tensor
    squares: Tensor
    slope: Tensor | None
    curve: Tensor | None


class Moments(NamedTuple):
    """Weighted sums over the offsets of each centre, from which the derivatives in centres and covariances follow."""

    weight: Tensor  # (E,)
    value: Tensor  # (E,)
    first: Tensor  # (E, d), of b
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
        outer_curve = (weighted * lengths.curve) @ lengths.turned.mT
    sums = (
        weights.sum(-1).expand(len(weighted)),
        (lengths.value * weights).sum(-1),
        weighted.sum(-1),
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
    linear = rows.linear.double()
    centre = sums.pull + 2 * linear * sums.first
    half_slope = 0.5 * sums.slope + linear * sums.weight.unsqueeze(-1)
    if rows.axes is None:
        return centre, rows.multiplicity * half_slope - sums.outer_curve
    axes = rows.axes.double()
    spread = torch.diag_embed(half_slope) - _divided_differences(rows, sums)
    return (axes @ centre.unsqueeze(-1)).squeeze(-1), axes @ spread @ axes.mT


def _divided_differences(rows: Rows, sums: Moments) -> Tensor:
    """Return `sum_n w_n b_a b_b (slope_a - slope_b) / (2 (variance_b - variance_a))`, `(E, d, d)`.

    Its limit for equal variances is `sum_n w_n b_a b_b curve`; the mean of both curves is off by the square of the
    difference, which decides where to take it.
    """
    gap = rows.variances.unsqueeze(-2) - rows.variances.unsqueeze(-1)
    slope, curve = (x.diagonal(dim1=-2, dim2=-1) for x in (sums.outer_slope, sums.outer_curve))
    t = torch.where(slope > 0, curve / torch.where(slope > 0, slope, 1), torch.inf)
    t = torch.maximum(t.unsqueeze(-1), t.unsqueeze(-2))
    near = (gap == 0) | (gap.abs() * t <= _NEAR[rows.dtype])
    apart = 0.5 * (sums.outer_slope - sums.outer_slope.mT) / torch.where(near, 1, gap)
    return torch.where(near, 0.5 * (sums.outer_curve + sums.outer_curve.mT), apart)
