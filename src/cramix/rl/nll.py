"""NLLDQN: Gaussian mixtures of returns that learn by likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.gaussian import GaussianReturns
from cramix.rl.returns import Parts
from cramix.rl.settings import Settings

_NODES = 8


class LikelihoodReturns(GaussianReturns):
    """Gaussian mixtures; the loss is the cross entropy, `-E log f(Y)` for Y from the target, by Gauss-Hermite nodes.

    With it every component of the target is seen, and nothing is drawn at random.
    """

    nodes: Tensor
    shares: Tensor

    def __init__(self, features: int, actions: int, dueling: bool = False, **settings: Any):
        super().__init__(features, actions, dueling, **settings)
        nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
        self.register_buffer("nodes", torch.tensor(nodes, dtype=torch.float32), persistent=False)
        self.register_buffer("shares", torch.tensor(shares / shares.sum(), dtype=torch.float32), persistent=False)

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        places = target.means.unsqueeze(-1) + target.scales.unsqueeze(-1) * self.nodes  # (batch, k, nodes)
        densities = prediction.mixture().log_prob(places.permute(1, 2, 0)).permute(2, 0, 1)
        return -(target.weights * (densities * self.shares).sum(-1)).sum(-1)


class NLLDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by likelihood.

    Arguments are those of `GMDQN`.
    """

    returns_class = LikelihoodReturns
    presets = {"default": Settings(returns={"floor": 0.05})}  # noqa: RUF012
