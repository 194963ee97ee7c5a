"""Gaussian mixtures of returns: the layer that GMDQN and its relatives share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from cramix.checks import check_choice, check_integer, check_number
from cramix.rl.returns import Outputs, Parts, Returns, spread


class GaussianReturns(Returns):
    """A mixture of `components` normal distributions an action; what they learn by is for subclasses to say.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common part.
        components: of the mixture.
        scales: "softplus", positive by construction, or "penalty", free numbers with `penalty_factor ReLU(-scale)`
            added to the loss, as in the paper; a negative scale then counts as its absolute value.
        floor: least scale, in units of the network.
        penalty_factor: of the penalty.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        dueling: bool = False,
        *,
        components: int = 3,
        scales: str = "softplus",
        floor: float = 0.0,
        penalty_factor: float = 10.0,
    ):
        super().__init__(features, actions, dueling)
        check_integer("components", components, 1)
        check_choice("scales", scales, ("softplus", "penalty"))
        check_number("floor", floor)
        check_number("penalty_factor", penalty_factor)
        self.components, self.scales, self.floor, self.penalty_factor = components, scales, floor, penalty_factor
        self.logits = Outputs(features, actions, components, dueling)
        self.values = Outputs(features, actions, 2 * components, dueling)
        # Components that start alike stay alike: their gradients are equal.
        bias = torch.cat([spread(components), torch.full((components,), 0.5413)])  # softplus(0.5413) = 1
        shared = self.values.shared or self.values.actions
        with torch.no_grad():
            shared.bias.view(-1, 2 * components).add_(bias)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        means, free = self.values(features).chunk(2, -1)
        scales = softplus(free) if self.scales == "softplus" else free.abs()
        return Parts(self.logits(features).softmax(-1), means, scales + self.floor, free)

    def penalty(self, prediction: Parts) -> Tensor:  # noqa: D102
        if self.scales == "softplus" or prediction.extra is None:
            return super().penalty(prediction)
        return self.penalty_factor * (-prediction.extra).relu().sum(-1)

    def fractions(self) -> list[nn.Parameter]:  # noqa: D102
        return list(self.logits.parameters())
