"""Gaussian mixtures of returns: the layer that GMDQN, JTDQN and NLLDQN share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from cramix.checks import check_choice, check_integer, check_number
from cramix.nn.parametrization import mixture_parameters
from cramix.rl.returns import ActionLinear, Parts, Returns, evenly_spaced


class GaussianReturns(Returns):
    """A mixture of normal distributions for every action; subclasses define the loss.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
        n_components: number of components.
        scales: "softplus", positive by construction, or "penalty": unconstrained, with `penalty_factor * ReLU(-scale)`
            added to the loss, as in the paper; the loss uses the absolute value of a negative scale.
        min_scale: smallest scale, in units of the network.
        penalty_factor: weight of the penalty.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        dueling: bool = False,
        *,
        n_components: int = 3,
        scales: str = "softplus",
        min_scale: float = 0.0,
        penalty_factor: float = 10.0,
    ):
        super().__init__(features, actions, dueling)
        check_integer("n_components", n_components, 1)
        check_choice("scales", scales, ("softplus", "penalty"))
        check_number("min_scale", min_scale)
        check_number("penalty_factor", penalty_factor)
        self.n_components, self.scales, self.min_scale = n_components, scales, min_scale
        self.penalty_factor = penalty_factor
        self.logits = ActionLinear(features, actions, n_components, dueling)
        self.values = ActionLinear(features, actions, 2 * n_components, dueling)
        # Components that start equal have equal gradients and stay equal.
        bias = torch.cat([evenly_spaced(n_components), torch.full((n_components,), 0.5413)])  # softplus(0.5413) = 1
        shared = self.values.shared or self.values.actions
        with torch.no_grad():
            shared.bias.view(-1, 2 * n_components).add_(bias)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        means, raw_scales = self.values(features).chunk(2, -1)
        positive = softplus if self.scales == "softplus" else torch.abs
        parameters = mixture_parameters(
            self.logits(features), means, raw_scales, min_scale=self.min_scale, positive=positive
        )
        return Parts(*parameters, raw_scales)

    def penalty(self, prediction: Parts) -> Tensor:  # noqa: D102
        if self.scales == "softplus" or prediction.extra is None:
            return super().penalty(prediction)
        return self.penalty_factor * (-prediction.extra).relu().sum(-1)

    def fractions(self) -> list[nn.Parameter]:  # noqa: D102
        return list(self.logits.parameters())
