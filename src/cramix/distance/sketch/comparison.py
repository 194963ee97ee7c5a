"""The Cramér losses between histograms.

In bins of their own, histograms are compared as the Gauss points of their bins. In common bins one can do better. The
difference of two distribution functions then has two parts in each bin: its best fit by a polynomial of degree 2, which
the moments determine, and the rest. Where densities are smooth there is next to no rest. Where the mass of a bin is
concentrated the rest is that of the Gauss points. In between it is weighted by how smooth both sides look in the bin.
Both are estimates; `error` has bounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.distance.cramer import atoms
from cramix.distance.sketch.bins import gauss_points, polynomial_fit, rest, smoothness
from cramix.distance.sketch.histograms import Histograms


def losses(p: Histograms, q: Histograms) -> Tensor:
    """Return the Cramér loss of each slice, `(s,)`."""
    a, b, near = in_common_bins(p, q)
    found = _in_same_bins(a, b)
    return found if bool(near.all()) else found.masked_scatter(~near, of_points(p.rows(~near), q.rows(~near)))


def in_common_bins(p: Histograms, q: Histograms) -> tuple[Histograms, Histograms, Tensor]:
    """Return both in the same bins, and in which slices these are at most twice as wide as before, `(s,)`."""
    a, b = p.widened(q), q.widened(p)
    finer = torch.minimum(p.grid.exponent, q.grid.exponent)
    return a, b, a.grid.exponent <= finer + 1


def of_points(p: Histograms, q: Histograms) -> Tensor:
    """Return the losses between the Gauss points, `(s,)`, in whatever bins."""
    (v, x), (w, y) = p.atoms(), q.atoms()
    return atoms.squared_distance(x, v, y, w)


def _in_same_bins(p: Histograms, q: Histograms) -> Tensor:
    a, b = p.normalized[0], q.normalized[0]
    smooth = (a * smoothness(p.moments) + b * smoothness(q.moments)) / torch.where(a + b > 0, a + b, 1)
    return fit(p, q) + ((1 - smooth) * rest_of_points(p, q)).sum(1)


def fit(p: Histograms, q: Histograms) -> Tensor:
    """Return the integrals of the squares of the fitted parts, `(s,)`, in the same bins."""
    return polynomial_fit(p.normalized - q.normalized, p.grid.width).square().sum(1)


def rest_of_points(p: Histograms, q: Histograms) -> Tensor:
    """Return the integrals of the squares of the rest in each bin, with Gauss points for the data, `(s, bins)`."""
    (p_shares, p_places), (q_shares, q_places) = (gauss_points(side.moments) for side in (p, q))
    shares = torch.cat((p_shares * p.normalized[0], -q_shares * q.normalized[0]))
    return p.grid.width.unsqueeze(-1) * rest(shares, torch.cat((p_places, q_places)))


def excess(p: Histograms) -> Tensor:
    """Return by how much losses of the Gauss points to smooth distributions exceed those of the data, `(s,)`.

    The steps of the points are about as far from the data as from the fit, where the bin looks smooth.
    """
    mass = p.normalized[0].square()
    unfitted = p.grid.width.unsqueeze(-1) * mass * rest(*gauss_points(p.moments))
    return (smoothness(p.moments) * unfitted).sum(1)
