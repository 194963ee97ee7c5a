"""From unconstrained outputs of a network to the parameters of a univariate mixture."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import softplus


def mixture_parameters(
    logits: Tensor,
    means: Tensor,
    raw_scales: Tensor,
    *,
    min_scale: Tensor | float = 0.0,
    positive: Callable[[Tensor], Tensor] = softplus,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and scales, each `(*batch, k)`.

    Softplus has a slope of at most 1, so the gradients of scales stay bounded.

    Args:
        logits: unconstrained weights, `(*batch, k)`.
        means: `(*batch, k)`, returned as they are.
        raw_scales: unconstrained scales, `(*batch, k)`.
        min_scale: added to every scale.
        positive: maps unconstrained scales to numbers >= 0.

    Example:
        >>> import torch
        >>> raw_scales = torch.tensor([-40.0, 0.5413])
        >>> weights, _, scales = mixture_parameters(torch.zeros(2), torch.zeros(2), raw_scales, min_scale=0.1)
        >>> weights, scales
        (tensor([0.5000, 0.5000]), tensor([0.1000, 1.1000]))
    """
    return logits.softmax(-1), means, min_scale + positive(raw_scales)
