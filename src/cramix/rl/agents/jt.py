"""JTDQN: Gaussian mixtures of returns, learned by the Jensen-Tsallis distance (Choi, Lee and Oh, 2019)."""

from __future__ import annotations

from torch import Tensor

from cramix.distance.density import density_l2_squared
from cramix.rl.agents.gaussian import GaussianReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Parts
from cramix.rl.settings import Settings


class JensenTsallisReturns(GaussianReturns):
    """Gaussian mixtures; the loss is the squared L2 distance of densities (docs/math.md, eq. 15).

    Densities must be finite, so the scales of targets, which are 0 at the end of an episode, are at least `min_scale`.
    """

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        wide = target._replace(scales=target.scales.clamp_min(self.min_scale))
        return density_l2_squared(prediction.mixture(), wide.mixture())


class JTDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by the L2 distance of densities.

    The arguments are those of `GMDQN`.
    """

    returns_class = JensenTsallisReturns
    presets = {"default": Settings(returns={"min_scale": 0.05})}  # noqa: RUF012
