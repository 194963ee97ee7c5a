"""C51: probabilities of fixed atoms (Bellemare, Dabney and Munos, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cramix.checks import check_integer
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import ActionLinear, Parts, Returns


class CategoricalReturns(Returns):
    """Fixed, evenly spaced atoms; the network predicts their probabilities.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
        atoms: number of atoms.
        low: the lowest atom, in units of the network.
        high: the highest atom.
    """

    support: Tensor

    def __init__(
        self, features: int, actions: int, dueling: bool = False, *, atoms: int = 51, low: float = -20, high: float = 20
    ):
        super().__init__(features, actions, dueling)
        check_integer("atoms", atoms, 2)
        if not low < high:
            raise ValueError(f"low must be < high; got {low} and {high}. Set them to the range of returns.")
        self.atoms, self.low, self.high = atoms, float(low), float(high)
        self.logits = ActionLinear(features, actions, atoms, dueling)
        self.register_buffer("support", torch.linspace(low, high, atoms).view(1, 1, atoms), persistent=False)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        logits = self.logits(features)
        return Parts(logits.softmax(-1), self.support.expand_as(logits), torch.zeros_like(self.support), logits)

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        assert prediction.extra is not None
        return -(self.project(target) * prediction.extra.log_softmax(-1)).sum(-1)

    def project(self, target: Parts) -> Tensor:
        """Return the weights `(*batch, atoms)` of the target projected on the support.

        The weight of each target atom is divided between its two neighbours by linear interpolation.
        """
        step = (self.high - self.low) / (self.atoms - 1)
        moved = target.means.clamp(self.low, self.high).unsqueeze(-2)  # (*batch, 1, k)
        share = (1 - (moved - self.support.view(-1, 1)).abs() / step).clamp_min(0)  # (*batch, atoms, k)
        return (share * target.weights.unsqueeze(-2)).sum(-1)

    def fractions(self) -> list[nn.Parameter]:  # noqa: D102
        return list(self.logits.parameters())


class C51(DistributionalDQN):
    """Deep Q-learning with probabilities of 51 fixed returns for every action.

    The arguments are those of `GMDQN`; the options of `returns` are those of `CategoricalReturns`. Its range, `low` to
    `high`, is in units of `return_scale`.

    Example:
        >>> model = C51("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = CategoricalReturns
