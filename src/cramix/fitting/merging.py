"""Merging components of many fits at once, by adding up their sums of features."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.fitting.families import Family


def merge_cheapest(family: Family, sums: Tensor) -> Tensor:
    """Merge the two components of each fit, `(B, k, F)`, that cost least; return `(B, k - 1, F)`."""
    batch, k, _ = sums.shape
    costs = family.merge_costs(sums)
    costs.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    cheapest = costs.flatten(1).argmin(-1)
    first, second = cheapest // k, cheapest % k
    rows = torch.arange(batch, device=sums.device)
    merged = sums.clone()
    merged[rows, first] += sums[rows, second]
    keep = torch.ones(batch, k, dtype=torch.bool, device=sums.device)
    keep[rows, second] = False
    return merged[keep].view(batch, k - 1, -1)
