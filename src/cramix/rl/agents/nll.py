"""NLLDQN: Gaussian mixtures of returns that learn by likelihood."""

from __future__ import annotations

from torch import Tensor

from cramix.loss import nll_loss
from cramix.rl.agents.gaussian import GaussianReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Parts
from cramix.rl.settings import Settings


class LikelihoodReturns(GaussianReturns):
    """Gaussian mixtures; the loss is the cross entropy, `-E log f(Y)` for Y from the target, by Gauss-Hermite nodes.

    With it every component of the target is seen, and nothing is drawn at random.
    """

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return nll_loss(prediction.mixture(), target.mixture(), reduction="none")


class NLLDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by likelihood.

    Arguments are those of `GMDQN`.
    """

    returns_class = LikelihoodReturns
    presets = {"default": Settings(returns={"floor": 0.05})}  # noqa: RUF012
