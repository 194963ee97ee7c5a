"""How the losses of a batch become one number."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_choice
from cramix.distance.operands import Target


def reduce(losses: Tensor, target: Target, reduction: str) -> Tensor:
    """Reduce losses l `(*batch)` with weights w: "none" is w l, "sum" their sum, "mean" sum(w l) / sum(w).

    A missing target counts in neither sum, and its loss is 0.
    """
    weight = target.weight
    if target.present is not None:
        losses = torch.where(target.present, losses, 0)
    if weight is not None:
        losses = weight * losses
    if reduction == "none" or (losses.ndim == 0 and weight is None):
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if weight is None else losses.sum() / weight.sum()


def check_reduction(reduction: str) -> None:
    """Require "none", "mean" or "sum"."""
    check_choice("reduction", reduction, ("none", "mean", "sum"))
