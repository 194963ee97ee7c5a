"""The mean length `E|Z|` of normal vectors in any dimension, an integral in one (docs/math.md, eq. 25 to 29).

For `Z ~ N(delta, A)`, with `L(t) = E exp(-t |Z|^2)`, which is a product over the axes of A,

    E|Z| = 1 / sqrt(pi) * integral_0^inf (1 - L(u^2)) / u^2 du.

In `log u` the trapezoid rule converges geometrically, whatever A and delta are, so that one set of nodes serves all
vectors of a distance. What the nodes leave out below is a multiple of `E|Z|^2`, what they leave out above a constant.
"""

from __future__ import annotations

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


class Rows:
    """Normal vectors around E centres, each with its own covariance: what does not depend on the places.

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
        t = nodes.t.unsqueeze(-2)  # (E, 1, Q)
        growth = 2 * t * variances.unsqueeze(-1)  # (E, g, Q)
        log_l = -0.5 * multiplicity * growth.log1p().sum(-2, keepdim=True)
        rates = t / growth.add_(1)
        columns = [nodes.weights.unsqueeze(-2)]
        if derivatives:
            slope = 2 * rates * columns[0]
            columns += [slope, slope * rates]
        table = torch.cat(columns, -2).mT  # (E, Q, 1 or 1 + 2g)
        # Where the weights are large L is close to 1, and L as such would lose the digits of 1 - L: there the sums are
        # over 1 - L. Elsewhere they are over L, for the sake of the derivatives.
        low = int((nodes.t.amax(0) < _LOW).sum())
        self.parts = [
            (
                log_l[..., q].to(dtype),
                rates[..., q].to(dtype),
                table[:, q].to(dtype, memory_format=torch.contiguous_format),
            )
            for q in (slice(low), slice(low, None))
        ]
        self.dtype = dtype
        self.axes = None if axes is None else axes.to(dtype)
        self.variances, self.multiplicity, self.derivatives = variances, multiplicity, derivatives
        flat = (variances.amax(-1) == 0).unsqueeze(-1)
        self.flat = flat if flat.any() else None
        self.linear = nodes.linear.to(dtype)[:, None]
        trace = multiplicity * variances.sum(-1)
        self.constant = (nodes.constant + nodes.weights[:, low:].sum(-1) + nodes.linear * trace).to(dtype)[:, None]
        self.at_low = table[:, :low, 1:].sum(-2, keepdim=True).to(dtype)  # (E, 1, 2g)

    def at(self, offsets: Tensor) -> Lengths:
        """Evaluate for vectors with means `offsets`, centre less place, `(E, n, d)`; valid until the next call."""
        scratch, (rows, n, _) = Scratch(offsets), offsets.shape
        turned, squares, length = self._along_axes(offsets, scratch)
        small, large = self._transforms(squares, scratch)
        (*_, below), (*_, above) = self.parts
        sums = torch.bmm(large, above, out=scratch.empty(rows, n, above.shape[-1])).baddbmm_(small, below)
        value = torch.addcmul(self.constant, self.linear, length) - sums[..., 0]
        slope, curve = sums[..., 1:].add_(self.at_low).chunk(2, -1) if self.derivatives else (None, None)
        lengths = Lengths(value, turned, squares, slope, curve)
        return lengths if self.flat is None else self._with_norms(lengths, length.sqrt())

    def rises(self, offsets: Tensor, weights: Tensor) -> Tensor:
        """Return `sum_n w_n (1 - L(t))` at each node, `(E, Q)`, over offsets `(E, n, d)` with weights `(E, n)`."""
        scratch = Scratch(offsets)
        small, large = self._transforms(self._along_axes(offsets, scratch)[1], scratch)
        shares = weights.unsqueeze(1)
        return torch.cat((-(shares @ small), shares.sum(-1, keepdim=True) - shares @ large), -1).squeeze(1)

    def _along_axes(self, offsets: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the offsets along the axes, their squares, for one variance added up, and the square of the length."""
        turned = offsets if self.axes is None else torch.bmm(offsets, self.axes, out=scratch.empty(*offsets.shape))
        squares = torch.mul(turned, turned, out=scratch.empty(*offsets.shape))
        length = squares.sum(-1)
        return turned, length.unsqueeze(-1) if self.variances.shape[-1] == 1 else squares, length

    def _transforms(self, squares: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
        """Return `L(t) - 1` at the nodes of the first part and `L(t)` at the others, `(E, n, Q)` together."""
        small, large = (
            torch.baddbmm(c, squares, rates, alpha=-1, out=scratch.empty(*squares.shape[:2], rates.shape[-1]))
            for c, rates, _ in self.parts
        )
        return small.expm1_(), large.clamp_min_(-LARGEST_EXPONENT[large.dtype]).exp_()

    def _with_norms(self, lengths: Lengths, norm: Tensor) -> Lengths:
        """Put in the plain length of vectors without spread, where the rule has an absolute error."""
        assert self.flat is not None, "there are some"
        value = torch.where(self.flat, norm, lengths.value)
        if lengths.slope is None or lengths.curve is None:
            return lengths._replace(value=value)
        flat = self.flat.unsqueeze(-1)
        inverse = torch.where(norm > _TINY, 1 / norm.clamp_min(_TINY), 0).unsqueeze(-1)
        slope = torch.where(flat, inverse - 2 * self.linear.unsqueeze(-1), lengths.slope)
        curve = torch.where(flat, 0.5 * inverse**3, lengths.curve)
        return lengths._replace(value=value, slope=slope, curve=curve)


class Lengths(NamedTuple):
    """Mean lengths `(E, n)` and, along the axes, offsets `(E, n, d)` with their squares, slopes, curves `(E, n, g)`.

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
    weighted = lengths.turned * weights.unsqueeze(-1)
    assert lengths.slope is not None and lengths.curve is not None, "rows were made with derivatives"  # noqa: PT018
    pulls = weighted * lengths.slope
    if rows.axes is None:
        outer_slope = weighted.new_zeros(len(weighted), 0)
        outer_curve = (weights.unsqueeze(-1) * lengths.squares * lengths.curve).sum(-2)
    else:
        outer_slope = pulls.double().mT @ lengths.turned.double()  # of which differences will be taken
        outer_curve = (weighted * lengths.curve).mT @ lengths.turned
    sums = (
        weights.sum(-1).expand(len(weighted)),
        (lengths.value * weights).sum(-1),
        weighted.sum(-2),
        pulls.sum(-2),
        (weights.unsqueeze(-1) * lengths.slope).sum(-2),
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
