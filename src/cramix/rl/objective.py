"""The objective: Bellman targets, and the loss of predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cramix.rl.masks import apply_mask, mask_of
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts, Returns
from cramix.rl.risk import Measure

# Of an update, in this order; the first is the norm of the gradient before clipping.
METRICS = ("gradient_norm", "loss", "penalty", "smallest_scale", "entropy", "value")

# Observations `(batch, ...)` to return distributions `(batch, actions, k)`.
Predict = Callable[[Any], Parts]


def bellman(parts: Parts, rewards: Tensor, discounts: Tensor) -> Parts:
    """Return the distribution of `reward + discount * X`; a discount of 0 gives an atom at the reward.

    Args:
        parts: of X, `(batch, k)`.
        rewards: `(batch)`, in units of the parts.
        discounts: `(batch)`.
    """
    reward, discount = rewards.unsqueeze(-1), discounts.unsqueeze(-1)
    return Parts(parts.weights, reward + discount * parts.means, discount * parts.scales)


@dataclass(frozen=True)
class Objective:
    """Compares predictions with Bellman targets.

    Args:
        returns: the last layer, for its loss and its penalty.
        members: number of networks in a prediction.
        measure: the risk measure that selects the best next action; None is the mean.
    """

    returns: Returns
    members: int = 1
    measure: Measure | None = None

    def target(self, online: Predict, target: Predict, batch: Transitions, unit: Tensor) -> Parts:
        """Return the Bellman target: the online network selects the next action, the target network evaluates it."""
        candidates = online(batch.next_observations)
        values = candidates.mean() if self.measure is None else self.measure(candidates.mixture(unit))
        best = apply_mask(values, mask_of(batch.next_observations)).argmax(-1)
        return bellman(target(batch.next_observations).select(best), batch.rewards / unit, batch.discounts)

    def loss(self, prediction: Parts, target: Parts, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and all metrics but the first.

        Args:
            prediction: of all actions, `(batch, actions, k)`.
            target: `(batch, k)`; it is that of all members.
            actions: `(batch)`.
        """
        chosen = prediction.select(actions)
        each = chosen.split_members(self.members)  # (batch, members, k)
        loss, penalty = self.returns.loss(each, target.split_members(1)).mean(), self.returns.penalty(each).mean()
        return self.members * (loss + penalty), torch.stack([loss.detach(), penalty.detach(), *_metrics(chosen)])


def _metrics(prediction: Parts) -> list[Tensor]:
    """Return the smallest scale, the mean entropy of the weights and the mean return of a prediction."""
    weights = prediction.weights.detach()
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    return [prediction.scales.detach().min(), entropy, prediction.mean().detach().mean()]
