"""From unconstrained outputs of a network to the parameters of a univariate mixture."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import softplus

# Gradients are multiplied by this at most: those of components with less weight are mostly noise.
_MAX_GAIN = 30.0


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


def precondition(weights: Tensor, means: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same means and scales, `(*batch, k)`, with gradients that are divided by `k * weights`.

    The gradient of a loss by the mean of a component is proportional to its weight. So a component for one outcome in
    fifty is learned slowly, and a risk measure does not see the disaster that it stands for. Divided by the weight, all
    components are learned at the pace of equally weighted ones. Stationary points stay where they are. The factor is at
    most 30.

    Args:
        weights: `(*batch, k)`; they get no gradient from the factor.
        means: `(*batch, k)`.
        scales: `(*batch, k)`.

    Example:
        >>> import torch
        >>> means = torch.zeros(2, requires_grad=True)
        >>> precondition(torch.tensor([0.95, 0.05]), means, torch.ones(2))[0].sum().backward()
        >>> means.grad
        tensor([ 0.5263, 10.0000])
    """
    gain = (weights.shape[-1] * weights.detach()).clamp_min(1 / _MAX_GAIN).reciprocal()

    def scaled(x: Tensor) -> Tensor:
        return x.detach() + gain * (x - x.detach())

    return scaled(means), scaled(scales)
