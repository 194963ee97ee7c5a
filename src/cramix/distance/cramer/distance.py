"""The Cramér distance between one-dimensional mixtures and point sets.

`C2^2(P, Q) = integral (F - G)^2 = E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` (docs/math.md, eq. 4).
"""

from __future__ import annotations

from torch import Tensor

from cramix.distance.operands import operands
from cramix.distance.root import root
from cramix.distance.univariate import atoms
from cramix.distance.univariate.autograd import differentiable_cramer
from cramix.distance.univariate.reduction import Share, total
from cramix.mixture import NormalMixture


def cramer_squared(p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> Tensor:
    """Return `integral (F - G)^2 dx` for each batch element, without reduction.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n)`.
        q: the same; batch shapes broadcast.

    Returns:
        Losses `(*batch)`, in float32 for half-precision input.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> cramer_squared(p, torch.tensor([-1.0, 1.0]))
        tensor(0.0582)
    """
    return total_cramer(p, q, None)


def total_cramer(p: NormalMixture | Tensor, q: NormalMixture | Tensor, share: Share | None) -> Tensor:
    """Return the losses added up as in `reduction.total`, in one step for autograd."""
    a, b, dtype = operands(p, q)
    if a.scales is None and b.scales is None:
        return total(atoms.squared_distance(a.means, a.weights, b.means, b.weights).to(dtype), share)
    return differentiable_cramer(*((b, a) if a.scales is None else (a, b)), share)


def cramer_distance(p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> Tensor:
    """Return the metric `C2(p, q)`, the root of `cramer_squared`, `(*batch)`; the derivative at 0 is taken as 0.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.0]))
        >>> cramer_distance(p, p.affine(4.0, 1.0))
        tensor(2.)
    """
    squared = cramer_squared(p, q)
    return root(squared, 2)
