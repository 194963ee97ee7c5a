"""QRDQN: quantile regression (Dabney et al., 2018)."""

from __future__ import annotations

from cramix.rl.agents.quantiles import QuantileReturns
from cramix.rl.algorithm import DistributionalDQN


class QRDQN(DistributionalDQN):
    """Deep Q-learning with quantiles of the return of every action, by quantile regression.

    The arguments are those of `GMDQN`; the options of `returns` are those of `QuantileReturns`.
    """

    returns_class = QuantileReturns
