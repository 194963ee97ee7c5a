"""QRDQN: quantile regression (Dabney et al., 2018)."""

from __future__ import annotations

from cramix.rl.agents.quantiles import QuantileReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.settings import Settings


class QRDQN(DistributionalDQN):
    """Deep Q-learning with quantiles of the return for every action, by quantile regression.

    Arguments are those of `GMDQN`; `returns={"quantiles": 51}`.
    """

    returns_class = QuantileReturns
    presets = {"default": Settings()}  # noqa: RUF012
