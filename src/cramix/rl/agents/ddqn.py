"""Double DQN: expected returns (van Hasselt, Guez and Silver, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import ActionLinear, Parts, Returns


class ExpectedReturns(Returns):
    """One number for every action, the expected return: a distribution with a single atom."""

    distributional = False
    ones: Tensor

    def __init__(self, features: int, actions: int, dueling: bool = False):
        super().__init__(features, actions, dueling)
        self.values = ActionLinear(features, actions, 1, dueling)
        self.register_buffer("ones", torch.ones(1, 1, 1), persistent=False)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        return Parts(self.ones, self.values(features), torch.zeros_like(self.ones))

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        ours, theirs = torch.broadcast_tensors(prediction.mean(), target.mean())
        return smooth_l1_loss(ours, theirs, reduction="none")

    def rescale(self, factor: float) -> None:  # noqa: D102
        self.values.multiply(torch.full((1,), factor))


class DoubleDQN(DistributionalDQN):
    """Deep Q-learning of expected returns; the online network selects actions, the target network evaluates them.

    The arguments are those of `GMDQN`; `returns` has no options.

    Example:
        >>> model = DoubleDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = ExpectedReturns
