"""The last step from a loss to a metric."""

from __future__ import annotations

import torch
from torch import Tensor


def root(power: Tensor, order: float) -> Tensor:
    """Return `power ** (1 / order)` of numbers >= 0; the derivative at 0 is taken as 0, and NaN stays NaN."""
    zero = power == 0
    return torch.where(zero, 0, torch.where(zero, 1, power) ** (1 / order))
