"""How far distances between the Gauss points of bins may be from those between the data.

In each bin the data and the Gauss points have the same mass and the same three moments. So their distribution functions
F and F~ agree at the edges of bins. This bounds their difference in two ways, whatever the data are.

**Their distance.** In a bin of width one and mass one let the Gauss points be `z1 < z2` with shares `w1` and `w2`. By
the inequalities of Chebyshev, Markov and Stieltjes `F(z1) <= w1 <= F(z2-)`. Let `D = F - F~` and `a = F(z1)`:

- below `z1` the integral of `D^2` is at most `a P1`, where `P1 = E(z1 - X)+` is at most `(sqrt(v + x^2) - x) / 2` with
  the variance v and `x = E X - z1` (Scarf 1958), and at most `w1` times the distance of `z1` to the edge;
- between the points `D` grows from `a - w1 <= 0` to a number in `[0, w2]`; where it is negative, on a length l, the
  integral is at most `(w1 - a)^2 l`.

The sum of both is convex in a, so it is largest at `a = 0` or `a = w1`, and likewise convex in l; and the same holds
from above. A bin of width h and mass m contributes `m^2 h` times as much.

**The difference of two losses.** The loss between two data sets is that of the fits by polynomials of degree 2, which
moments determine, plus the integral of the square of the rest (see `comparison`). The rest of a distribution function
in a bin is an average of those of steps, and the integral of their square is at most `m^2 h / 16`, that of a step in
the middle. So the norm of the rest of both data sets together is at most some r, and so is that of their points; they
differ by at most some e, the distance between data and points. The squares differ by at most `2 r e`, and are at most
`r^2`.

**The estimates.** In common bins, `comparison` leaves out a share s of the rest, the smoothness of the bin. This adds
at most `sqrt(s h) m / 4` to the difference of distances.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.distance.sketch.bins import NARROW, central_moments, gauss_points, smoothness
from cramix.distance.sketch.comparison import fit, in_common_bins, of_points, rest_of_points
from cramix.distance.sketch.histograms import Histograms
from cramix.mixture import NormalMixture

# The error of the variance of a bin, in squared widths, after adding up many rows.
_ROUNDING = 1e-13


def bound_of_distance(histograms: Histograms) -> Tensor:
    """Return the square of how far distances may be from those to the data, `(s,)`.

    Histograms may be compared in bins twice as wide, so it is the larger one of two bounds.
    """
    bounds = []
    for grid in (histograms.grid, histograms.grid.doubled()):
        moments, width = histograms.on(grid), grid.width
        left_out = (smoothness(moments) * width.unsqueeze(-1)).sqrt() / 4 * _mass(moments)
        bounds.append((squared_errors(moments, width).sqrt() + left_out).square().sum(1))
    return torch.maximum(*bounds)


def squared_errors(moments: Tensor, width: Tensor) -> Tensor:
    """Return a bound of `integral (F - F~)^2` over each bin, `(s, bins)`, for a total mass of one."""
    return width.unsqueeze(-1) * _mass(moments).square() * _of_unit_bins(moments)


def _of_unit_bins(moments: Tensor) -> Tensor:
    mean, variance, _ = central_moments(moments)
    (w1, w2), (z1, z2) = gauss_points(moments)
    p1, p2 = (
        torch.minimum(((variance + x.square()).sqrt() - x) / 2, w * edge)
        for x, w, edge in ((mean - z1, w1, z1 + 0.5), (z2 - mean, w2, 0.5 - z2))
    )
    outer1, outer2, inner1, inner2 = w1 * p1, w2 * p2, w1.square() * (z2 - z1), w2.square() * (z2 - z1)
    bound = torch.maximum(torch.maximum(inner1, outer1) + outer2, outer1 + torch.maximum(inner2, outer2))
    # A quarter is that of two rests. Where the third moment is not used, no more than mean and variance agree.
    return torch.where(variance > NARROW, bound.clamp_max(0.25), 2 * (variance + _ROUNDING).sqrt())


def bounds_of_losses(p: Histograms, q: Histograms) -> tuple[Tensor, Tensor]:
    """Return bounds of the Cramér loss between the data of histograms from both sides, each `(s,)`."""
    a, b, near = in_common_bins(p, q)
    low, high = _in_same_bins(a, b)
    if not bool(near.all()):
        sides = p.rows(~near), q.rows(~near)
        distance = of_points(*sides).clamp_min(0).sqrt()
        error = torch.stack([squared_errors(x.moments, x.grid.width).sum(1).sqrt() for x in sides]).sum(0)
        low = low.masked_scatter(~near, torch.maximum(low[~near], (distance - error).clamp_min(0).square()))
        high = high.masked_scatter(~near, torch.minimum(high[~near], (distance + error).square()))
    return low, high


def _in_same_bins(p: Histograms, q: Histograms) -> tuple[Tensor, Tensor]:
    width = p.grid.width
    r = _largest_rest(width, _mass(p.moments) + _mass(q.moments))
    e = squared_errors(p.moments, width).sqrt() + squared_errors(q.moments, width).sqrt()
    fitted, of_gauss_points = fit(p, q), rest_of_points(p, q)
    low = (of_gauss_points - 2 * r * e).clamp_min(0)
    high = torch.minimum(r.square(), of_gauss_points + 2 * r * e)
    return fitted + low.sum(1), fitted + high.sum(1)


def bound_to_mixture(p: Histograms, q: NormalMixture) -> Tensor:
    """Return how far the Cramér loss of the Gauss points to mixtures, with batch shape `(s,)`, may be off, `(s,)`."""
    below = q.cdf(p.grid.edges(p.bins).T.to(q.means)).T.double().cpu()
    r = _largest_rest(p.grid.width, _mass(p.moments) + below.diff(dim=1).clamp_min(0))
    return torch.minimum(r.square(), 2 * r * squared_errors(p.moments, p.grid.width).sqrt()).sum(1)


def _largest_rest(width: Tensor, mass: Tensor) -> Tensor:
    return 0.25 * width.sqrt().unsqueeze(-1) * mass


def _mass(moments: Tensor) -> Tensor:
    return moments[0] / moments[0].sum(1, keepdim=True)
