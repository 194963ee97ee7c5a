"""The distances `l_p = (integral |F - G|^p dx)^(1/p)` of the paper's section 3.1, by quadrature."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cramix.distance.cramer.atoms import mass_below_and_above
from cramix.distance.cramer.distance import cramer_distance
from cramix.distance.cramer.signature import Operand, operand_of
from cramix.distance.derivatives import root
from cramix.distance.kernels import normalized
from cramix.distance.operands import as_operands, in_kind_of
from cramix.distance.transport import Line
from cramix.mixture import NormalMixture
from cramix.quadrature import gauss_legendre, panel_edges

# Pieces of a panel, for orders up to 30; the integrand's peak narrows with the root of the order.
_PIECES = 4
_BISECTIONS = 60


def lp_distance(p: Any, q: Any, order: float = 2.0) -> Tensor:
    """Return `l_p(p, q)` for any order >= 1, `(*batch)`: order 1 is Wasserstein's W1, order 2 the Cramér distance.

    Gauss-Legendre panels are cut at every root of F - G, where the integrand has a kink. They are computed in float64,
    to a relative error of 1e-9 plus 1e-16 over the largest difference of F and G. Gradients reach weights, means and
    scales, and samples.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(n,)`.
        q: the same; batch shapes broadcast, and samples need another side without batch.
        order: the exponent, >= 1 and finite.

    Example:
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> lp_distance(p, p.affine(3.0, 1.0), 1.0)
        tensor(3.)
    """
    if not 1 <= order < float("inf"):
        raise ValueError(f"order must be >= 1 and finite; got {order}.")
    if order == 2:
        return cramer_distance(p, q)
    a, b, _, _ = as_operands(NormalMixture, p, q)
    return in_kind_of(_distance(operand_of(a), operand_of(b), order), p, q)


def _distance(p: Operand, q: Operand, order: float) -> Tensor:
    batch = torch.broadcast_shapes(p.means.shape[:-1], q.means.shape[:-1])
    if batch.numel() == 0:
        return p.means.new_empty(batch)
    integral, unit = _integral([flat_in_float64(side, batch) for side in (p, q)], order)
    return (root(integral, order) * unit).reshape(batch).to(p.means.dtype)


def flat_in_float64(side: Operand, batch: torch.Size) -> Operand:
    """Return a side with one batch axis, `(B, k)`, in float64, with weights that sum to one."""

    def flat(x: Tensor) -> Tensor:
        return x.double().expand(*batch, -1).reshape(-1, x.shape[-1])

    weights, _ = normalized(flat(side.weights))
    return Operand(weights, flat(side.means), None if side.scales is None else flat(side.scales))


def _integral(sides: list[Operand], order: float) -> tuple[Tensor, Tensor]:
    """Integrate `|F - G|^order` in units of the largest difference, as high orders underflow; return both, `(B,)`."""
    signed = list(zip((1.0, -1.0), sides, strict=True))
    smooth = [(sign, Line(s.weights, s.means, s.scales)) for sign, s in signed if s.scales is not None]
    steps = [(sign, s) for sign, s in signed if s.scales is None]
    # Edges at atoms move with them, which is the whole gradient of the location of an atom.
    sources = [s.means for _, s in steps]
    if smooth:
        means, scales = (torch.cat([getattr(s, name).detach() for _, s in smooth], -1) for name in ("means", "scales"))
        sources.append(panel_edges(means, scales))
    edges = torch.cat(sources, -1).sort(-1).values
    level = _level(0.5 * (edges[:, 1:] + edges[:, :-1]).detach(), steps)  # (B, panels), constant on each
    pieces = _PIECES * math.ceil(math.sqrt(max(1.0, order / 30)))
    fractions = torch.linspace(0, 1, pieces + 1, dtype=edges.dtype, device=edges.device)
    cuts = edges[:, :-1, None] + edges.diff(dim=-1).unsqueeze(-1) * fractions  # (B, panels, pieces + 1)
    cuts = torch.cat((cuts, _roots(cuts.detach(), level.detach(), smooth)), -1).sort(-1).values
    x, weights = gauss_legendre(cuts.flatten(0, 1))
    shape = (*level.shape, -1)
    difference = _smooth_part(x.reshape(edges.shape[0], -1), smooth).reshape(shape) + level.unsqueeze(-1)
    size = difference.abs()
    largest = size.detach().amax((-1, -2), keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
    return (weights.reshape(shape) * (size / largest).pow(order)).sum((-1, -2)), largest[:, 0, 0]


def _smooth_part(x: Tensor, smooth: list[tuple[float, Line]]) -> Tensor:
    """Return the part of F - G from components with scales, `(B, n)`."""
    return sum((sign * side.cdf(x) for sign, side in smooth), torch.zeros_like(x))


def _level(x: Tensor, steps: list[tuple[float, Operand]]) -> Tensor:
    """Return the part of F - G from samples, `(B, n)`."""
    below = (sign * mass_below_and_above(x, s.means.detach(), s.weights)[0] for sign, s in steps)
    return sum(below, torch.zeros_like(x))


@torch.no_grad()
def _roots(cuts: Tensor, level: Tensor, smooth: list[tuple[float, Line]]) -> Tensor:
    """Return where F - G changes sign between cuts, `(B, panels, pieces)`; the left cut where it does not."""
    low, high = cuts[..., :-1].clone(), cuts[..., 1:].clone()
    if not smooth:
        return low
    level = level.unsqueeze(-1)

    def difference(x: Tensor) -> Tensor:
        return _smooth_part(x.flatten(1), smooth).reshape(x.shape) + level

    at_cuts = difference(cuts)
    rising = at_cuts[..., 1:] > 0
    crosses = at_cuts[..., :-1] * at_cuts[..., 1:] < 0
    if not crosses.any():
        return low
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        beyond = (difference(middle) > 0) == rising
        high = torch.where(beyond, middle, high)
        low = torch.where(beyond, low, middle)
    return torch.where(crosses, low, cuts[..., :-1])
