"""Weights of components: of samples, from logits, drawing by them, dropping the small ones."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_finite
from cramix.torch_internals import readable


def of_samples(
    name: str, shape: torch.Size, weights: Tensor | None, like: Tensor, validate_args: bool = True
) -> Tensor:
    """Return weights of samples that sum to one, `(*batch, n)`: equal ones, or those given divided by their sum."""
    if weights is None:
        return like.new_full((), 1 / shape[-1]).expand(shape)
    shape = check_broadcast("Give one weight for each sample.", **{name: shape}, sample_weight=weights.shape)
    looked_at = validate_args and readable(weights)
    if looked_at:
        check_finite(sample_weight=weights)
    weights = weights.expand(shape)
    total = weights.sum(-1, keepdim=True)
    if looked_at and weights.numel() and not min(torch.stack((weights.amin() >= 0, total.amin() > 0)).tolist()):
        raise ValueError(
            f"sample_weight must be >= 0 with a positive sum; got min {weights.amin().item():.3g} and "
            f"sum {total.amin().item():.3g}."
        )
    return weights / total


def of_logits(logits: Tensor) -> Tensor:
    """Return the softmax of unnormalised log weights `(*batch, k)`."""
    weights = logits.softmax(-1)
    if readable(logits) and (bad := weights.isnan()).any():
        worst = logits.amax(-1)[bad.any(-1)].flatten()[0].item()
        raise ValueError(f"logits must be < inf, and not all -inf; got max {worst}. Use -inf for weight 0.")
    return weights


def draw(weights: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Draw components by their weights `(*batch, k)`; return their numbers in `shape`, `(*sample, *batch)`.

    Inverting the distribution function has no limit on the number of components, as multinomial has.
    """
    k = weights.shape[-1]
    mass = weights.double().cumsum(-1).reshape(-1, k)
    draws = torch.rand(shape, generator=generator, device=mass.device, dtype=mass.dtype)
    draws = draws.reshape(-1, mass.shape[0]).T * mass[:, -1:]
    index = torch.searchsorted(mass, draws.contiguous(), right=True).clamp_max(k - 1)
    return index.T.reshape(shape)


def pruned(weights: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return which components, a mask `(k,)`, have a weight > threshold somewhere, and their weights scaled up to one.

    In a batch, a component that stays in some elements has weight 0 in those where it goes.
    """
    keep = weights > threshold
    if not bool(keep.any(-1).all()):
        largest = weights.amax(-1).min().item()
        raise ValueError(
            f"threshold must leave a component; got {threshold:g}, largest weight {largest:.3g}. Lower the threshold."
        )
    left = torch.where(keep, weights, 0)
    components = keep.reshape(-1, weights.shape[-1]).any(0)
    return components, (left / left.sum(-1, keepdim=True))[..., components]
