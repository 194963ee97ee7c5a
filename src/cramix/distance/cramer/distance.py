"""The Cramér distance between one-dimensional mixtures and sets of samples, without reduction.

`C2^2(P, Q) = integral (F - G)^2 = E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|` (docs/math.md, eq. 4).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cramix.distance.cramer.autograd import cramer_of_mixtures
from cramix.distance.cramer.ladder import check_backend
from cramix.distance.derivatives import root
from cramix.distance.operands import as_operands, in_kind_of
from cramix.mixture import NormalMixture


def cramer_squared(p: Any, q: Any, *, backend: str = "auto", block: int | None = None) -> Tensor:
    """Return `integral (F - G)^2 dx` for each batch element, without reduction.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(n,)`.
        q: the same; batch shapes broadcast.
        backend: the implementation, see `ladder`.
        block: numbers in the temporary arrays of one block; None for the best size.

    Returns:
        Losses `(*batch)`, in float32 for half-precision input.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> cramer_squared(p, torch.tensor([-1.0, 1.0]))
        tensor(0.0582)
    """
    check_backend(backend)
    a, b, _, prepared = as_operands(NormalMixture, p, q)
    energy = prepared.self_energy_on_line() if prepared is not None and b.is_empirical else None
    return cramer_of_mixtures(a, b, energy, backend=backend, block=block)


def cramer_distance(p: Any, q: Any) -> Tensor:
    """Return the metric `C2(p, q)`, the root of `integral (F - G)^2 dx`; the derivative at 0 is defined as 0.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(n,)`.
        q: the same; batch shapes broadcast, and samples need another side without batch.

    Returns:
        Distances `(*batch)`.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.0]))
        >>> cramer_distance(p, p.affine(4.0, 1.0))
        tensor(2.)
    """
    return in_kind_of(root(cramer_squared(p, q), 2), p, q)
