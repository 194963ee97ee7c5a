"""How the losses of a batch are added up."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

# What each of n losses counts for in their sum.
Share = Callable[[int], float]


def total(losses: Tensor, share: Share | None) -> Tensor:
    """Add up losses `(*batch)`, each times its share; without a share, or if there is one, they stay as they are."""
    return losses if share is None or losses.ndim == 0 else losses.sum() * share(losses.numel())
