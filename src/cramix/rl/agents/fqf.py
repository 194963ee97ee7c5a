"""FQF: quantiles at fractions that the network proposes (Yang et al., 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cramix.checks import check_integer
from cramix.rl.agents.quantiles import quantile_huber
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Outputs, Parts, Returns
from cramix.rl.settings import Settings


class FractionReturns(Returns):
    """Atoms an action whose shares of the probability the network proposes, one set for all actions of a state.

    Values at any fraction come from a cosine embedding of it, times the features. The proposal learns by the derivative
    of the 1-Wasserstein distance in the borders between shares; it sees the features without changing them.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common part.
        quantiles: number of atoms.
        cosines: size of the embedding.
    """

    frequencies: Tensor

    def __init__(self, features: int, actions: int, dueling: bool = False, *, quantiles: int = 32, cosines: int = 64):
        super().__init__(features, actions, dueling)
        check_integer("quantiles", quantiles, 2)
        check_integer("cosines", cosines, 1)
        self.quantiles, self.cosines = quantiles, cosines
        self.proposal = nn.Linear(features, quantiles)
        nn.init.xavier_uniform_(self.proposal.weight, gain=0.01)  # shares start nearly equal
        nn.init.zeros_(self.proposal.bias)
        self.embedding = nn.Linear(cosines, features)
        self.values = Outputs(features, actions, 1, dueling)
        self.register_buffer("frequencies", math.pi * torch.arange(1, cosines + 1.0), persistent=False)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        shares = self.proposal(features.detach()).softmax(-1)
        borders = shares.cumsum(-1)
        middles = (borders - 0.5 * shares).detach()
        inner = borders[:, :-1]
        means = self._values(features, middles)  # (batch, actions, quantiles)
        weights = shares.detach().unsqueeze(1)
        with torch.no_grad():
            slope = 2 * self._values(features, inner) - means[..., :-1] - means[..., 1:]  # of W1 in each border
        proposed = slope * (inner - inner.detach()).unsqueeze(1)  # zero, with the derivative of W1 in the proposal
        return Parts(weights, means, torch.zeros_like(weights), proposed)

    def _values(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return values `(batch, actions, n)` at fractions `(batch, n)`."""
        waves = torch.cos(fractions.unsqueeze(-1) * self.frequencies)  # (batch, n, cosines)
        mixed = features.unsqueeze(1) * self.embedding(waves).relu()
        return self.values(mixed.flatten(0, 1)).unflatten(0, fractions.shape).squeeze(-1).mT

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        assert prediction.extra is not None
        return quantile_huber(prediction, target) + prediction.extra.sum(-1)

    def fractions(self) -> list[nn.Parameter]:  # noqa: D102
        return list(self.proposal.parameters())


class FQF(DistributionalDQN):
    """Deep Q-learning with quantiles of the return for every action, at fractions that are learned too.

    Arguments are those of `GMDQN`; `returns={"quantiles": 32, "cosines": 64}`.
    """

    returns_class = FractionReturns
    presets = {"default": Settings(fraction_learning_rate=2.5e-6)}  # noqa: RUF012
