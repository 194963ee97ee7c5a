"""Merging components of many fits at once, by adding up their sums of features."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.fitting.families import Family, Prior


def merge_cheapest(family: Family, sums: Tensor, prior: Prior | None = None) -> Tensor:
    """Merge the two components of each fit, `(B, k, F)`, that cost least; return `(B, k - 1, F)`."""
    batch, k, _ = sums.shape
    cheapest = family.merge_costs(sums, prior).argmin(-1)
    first, second = family.pairs(k).to(sums.device)[:, cheapest]
    rows = torch.arange(batch, device=sums.device)
    merged = sums.clone()
    merged[rows, first] += sums[rows, second]
    keep = torch.ones(batch, k, dtype=torch.bool, device=sums.device)
    keep[rows, second] = False
    return merged[keep].view(batch, k - 1, -1)
