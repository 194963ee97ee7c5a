"""Quantiles of returns: QRDQN, CRDQN and FQF."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from cramix.checks import check_integer
from cramix.rl.algorithm import DistributionalDQN
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

    def rescale(self, factor: float) -> None:  # noqa: D102
        self.values.multiply(torch.full((self.quantiles,), factor))


def quantile_huber(prediction: Parts, target: Parts, width: float = 1.0, fractions: Tensor | None = None) -> Tensor:
    """Return the quantile regression loss `(*batch)` with a Huber loss of this width (Dabney et al., 2018).

    Each predicted atom is the quantile at its fraction `(*batch, k)`; by default, at the midpoint of its interval of
    cumulative weight. Target atoms count by their weights.
    """
    if fractions is None:
        weights = prediction.weights.detach()
        fractions = weights.cumsum(-1) - 0.5 * weights
    theta, y = torch.broadcast_tensors(prediction.means.unsqueeze(-1), target.means.unsqueeze(-2))
    above = (fractions.unsqueeze(-1) - (y < theta.detach()).to(y.dtype)).abs()  # (*batch, k of prediction, k of target)
    losses = above * huber_loss(theta, y, reduction="none", delta=width) / width
    return (losses * target.weights.unsqueeze(-2)).sum((-2, -1))


class QRDQN(DistributionalDQN):
    """Deep Q-learning with quantiles of the return of every action, by quantile regression.

    Dabney et al. (2018). The arguments are those of `GMDQN`; the options of `returns` are those of `QuantileReturns`.

    Example:
        >>> model = QRDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = QuantileReturns


class CramerQuantileReturns(QuantileReturns):
    """Quantiles; the loss is `C2^2` between two sets of atoms, whose CDFs are step functions."""

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        batch = torch.broadcast_shapes(prediction.means.shape[:-1], target.means.shape[:-1])

        def joined(of_prediction: Tensor, of_target: Tensor) -> Tensor:
            return torch.cat([of_prediction.expand(*batch, -1), of_target.expand(*batch, -1)], -1)

        atoms, order = joined(prediction.means, target.means).sort(-1)
        jumps = joined(prediction.weights.expand_as(prediction.means), -target.weights.expand_as(target.means))
        difference = jumps.gather(-1, order).cumsum(-1)[..., :-1]  # F - G between neighbouring atoms
        return (difference.square() * atoms.diff(dim=-1)).sum(-1)


class CRDQN(DistributionalDQN):
    """Deep Q-learning with quantiles of the return of every action, by the Cramér distance.

    Lhéritier and Bondoux (2022). The arguments are those of `GMDQN`; the options of `returns` are those of
    `QuantileReturns`.

    Example:
        >>> model = CRDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = CramerQuantileReturns


class FractionReturns(Returns):
    """Atoms for every action, with weights that the network proposes, shared by all actions of a state.

    Values at any fraction come from its cosine embedding, multiplied by the features. The proposal is trained by the
    derivative of the 1-Wasserstein distance with respect to the fractions; it does not train the features.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
        quantiles: number of atoms.
        cosines: size of the embedding.
    """

    fraction_factor = 0.005
    frequencies: Tensor

    def __init__(self, features: int, actions: int, dueling: bool = False, *, quantiles: int = 32, cosines: int = 64):
        super().__init__(features, actions, dueling)
        check_integer("quantiles", quantiles, 2)
        check_integer("cosines", cosines, 1)
        self.quantiles, self.cosines = quantiles, cosines
        self.proposal = nn.Linear(features, quantiles)
        nn.init.xavier_uniform_(self.proposal.weight, gain=0.01)  # nearly equal weights at the start
        nn.init.zeros_(self.proposal.bias)
        self.embedding = nn.Linear(cosines, features)
        self.values = ActionLinear(features, actions, 1, dueling)
        self.register_buffer("frequencies", math.pi * torch.arange(1, cosines + 1.0), persistent=False)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        proposed = self.proposal(features.detach()).softmax(-1)
        fractions = proposed.cumsum(-1)
        midpoints = (fractions - 0.5 * proposed).detach()
        inner = fractions[:, :-1]
        means = self._values(features, midpoints)  # (batch, actions, quantiles)
        weights = proposed.detach().unsqueeze(1)
        with torch.no_grad():
            slope = 2 * self._values(features, inner) - means[..., :-1] - means[..., 1:]  # dW1 / dfraction
        surrogate = slope * (inner - inner.detach()).unsqueeze(1)  # its value is 0, its gradient that of W1
        return Parts(weights, means, torch.zeros_like(weights), surrogate)

    def _values(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return values `(batch, actions, n)` at fractions `(batch, n)`."""
        waves = torch.cos(fractions.unsqueeze(-1) * self.frequencies)  # (batch, n, cosines)
        mixed = features.unsqueeze(1) * self.embedding(waves).relu()
        return self.values(mixed.flatten(0, 1)).unflatten(0, fractions.shape).squeeze(-1).mT

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        assert prediction.extra is not None
        return quantile_huber(prediction, target) + prediction.extra.sum(-1)

    def rescale(self, factor: float) -> None:  # noqa: D102
        self.values.multiply(torch.full((1,), factor))

    def fractions(self) -> list[nn.Parameter]:  # noqa: D102
        return list(self.proposal.parameters())


class FQF(DistributionalDQN):
    """Deep Q-learning with quantiles of the return of every action, at fractions that are learned too.

    Yang et al. (2019). The arguments are those of `GMDQN`; the options of `returns` are those of `FractionReturns`.

    Example:
        >>> model = FQF("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = FractionReturns
