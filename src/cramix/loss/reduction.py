"""How the losses of a batch become one."""

from __future__ import annotations

import math

from torch import Tensor

from cramix.distance.univariate.reduction import Share, total

_SHARES: dict[str, Share | None] = {"none": None, "mean": lambda n: 1 / n if n else math.nan, "sum": lambda n: 1.0}


def reduce(losses: Tensor, reduction: str) -> Tensor:
    """Reduce losses `(*batch)` by "none", "mean" or "sum"."""
    return total(losses, share_of(reduction))


def share_of(reduction: str) -> Share | None:
    """Return what each loss counts for; a ValueError for a reduction that is none."""
    if reduction not in _SHARES:
        raise ValueError(
            f'reduction must be "none", "mean" or "sum"; got {reduction!r}. Use "none" for one loss an element.'
        )
    return _SHARES[reduction]
