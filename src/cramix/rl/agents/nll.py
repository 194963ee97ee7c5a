"""NLLDQN: Gaussian mixtures of returns, learned by maximum likelihood."""

from __future__ import annotations

from torch import Tensor

from cramix.distance.likelihood import negative_log_likelihood
from cramix.loss.cross_entropy import nodes_of
from cramix.rl.agents.gaussian import GaussianReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Parts
from cramix.rl.settings import Settings


class LikelihoodReturns(GaussianReturns):
    """Gaussian mixtures; the loss is the cross entropy, `-E log f(Y)` for Y from the target.

    The expectation is a Gauss-Hermite quadrature over every component of the target, so nothing is sampled.
    """

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return negative_log_likelihood(prediction.mixture(), *nodes_of(target.mixture()))


class NLLDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by maximum likelihood.

    The arguments are those of `GMDQN`.
    """

    returns_class = LikelihoodReturns
    presets = {"default": Settings(returns={"min_scale": 0.05})}  # noqa: RUF012
