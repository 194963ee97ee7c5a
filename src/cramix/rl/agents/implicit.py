"""Implicit quantiles of returns: IQN (Dabney et al., 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cramix.checks import check_integer
from cramix.rl.agents.quantiles import quantile_huber
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import ActionLinear, Parts, Returns


class ImplicitReturns(Returns):
    """Atoms of equal weight for every action, at quantiles whose fractions are drawn at each prediction.

    Values at any fraction come from its cosine embedding, multiplied by the features. In training mode, fractions are
    drawn from torch's global generator, as dropout is; in evaluation mode they are the midpoints of equal intervals, so
    that actions and plots are not random.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
        quantiles: number of atoms, of predictions and of targets.
        cosines: size of the embedding.
    """

    has_modes = True
    frequencies: Tensor
    midpoints: Tensor

    def __init__(self, features: int, actions: int, dueling: bool = False, *, quantiles: int = 32, cosines: int = 64):
        super().__init__(features, actions, dueling)
        check_integer("quantiles", quantiles, 1)
        check_integer("cosines", cosines, 1)
        self.quantiles, self.cosines = quantiles, cosines
        self.embedding = nn.Linear(cosines, features)
        self.values = ActionLinear(features, actions, 1, dueling)
        self.register_buffer("frequencies", math.pi * torch.arange(1, cosines + 1.0), persistent=False)
        self.register_buffer("midpoints", (torch.arange(quantiles) + 0.5) / quantiles, persistent=False)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        shape = len(features), self.quantiles
        if not self.training:
            return self.at(features, self.midpoints.expand(shape))
        return self.at(features, torch.rand(shape, dtype=features.dtype, device=features.device))

    def at(self, features: Tensor, fractions: Tensor) -> Parts:
        """Return the distributions `(batch, actions, n)` with atoms at fractions `(batch, n)`."""
        waves = torch.cos(fractions.unsqueeze(-1) * self.frequencies)  # (batch, n, cosines)
        mixed = features.unsqueeze(1) * self.embedding(waves).relu()
        means = self.values(mixed.flatten(0, 1)).unflatten(0, fractions.shape).squeeze(-1).mT  # (batch, actions, n)
        weights = torch.full_like(means, 1 / fractions.shape[-1])
        return Parts(weights, means, torch.zeros_like(weights), fractions.unsqueeze(1).expand_as(means))

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return quantile_huber(prediction, target, fractions=prediction.extra)

    def rescale(self, factor: float) -> None:  # noqa: D102
        self.values.multiply(torch.full((1,), factor))


class IQN(DistributionalDQN):
    """Deep Q-learning with quantiles of the return of every action at random fractions, by quantile regression.

    Dabney et al. (2018), "Implicit quantile networks". The arguments are those of `GMDQN`; the options of `returns` are
    those of `ImplicitReturns`.

    Example:
        >>> model = IQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = ImplicitReturns
