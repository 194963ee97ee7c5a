"""Quantiles of returns: the layer that QRDQN and CRDQN share, and the quantile Huber loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from cramix.checks import check_integer
from cramix.rl.returns import ActionLinear, Parts, Returns


class QuantileReturns(Returns):
    """Atoms of equal weight for every action, at quantiles that the network predicts.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
        quantiles: number of atoms.
    """

    weights: Tensor

    def __init__(self, features: int, actions: int, dueling: bool = False, *, quantiles: int = 51):
        super().__init__(features, actions, dueling)
        check_integer("quantiles", quantiles, 1)
        self.quantiles = quantiles
        self.values = ActionLinear(features, actions, quantiles, dueling)
        self.register_buffer("weights", torch.full((1, 1, quantiles), 1 / quantiles), persistent=False)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        return Parts(self.weights, self.values(features), torch.zeros_like(self.weights))

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return quantile_huber(prediction, target)


def quantile_huber(prediction: Parts, target: Parts, width: float = 1.0) -> Tensor:
    """Return the quantile regression loss `(*batch)` with a Huber loss of this width (Dabney et al., 2018).

    Each predicted atom is the quantile at the midpoint of its interval of cumulative weight; target atoms count by
    their weights.
    """
    weights = prediction.weights.detach()
    midpoints = weights.cumsum(-1) - 0.5 * weights
    theta, y = torch.broadcast_tensors(prediction.means.unsqueeze(-1), target.means.unsqueeze(-2))
    above = (midpoints.unsqueeze(-1) - (y < theta.detach()).to(y.dtype)).abs()  # (*batch, k of prediction, k of target)
    losses = above * huber_loss(theta, y, reduction="none", delta=width) / width
    return (losses * target.weights.unsqueeze(-2)).sum((-2, -1))
