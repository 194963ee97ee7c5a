"""CRDQN: quantiles learned by the Cramér distance (Lhéritier and Bondoux, 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.rl.agents.quantiles import QuantileReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Parts


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

    The arguments are those of `GMDQN`; the options of `returns` are those of `QuantileReturns`.
    """

    returns_class = CramerQuantileReturns
