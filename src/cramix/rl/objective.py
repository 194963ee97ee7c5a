"""The objective: loss and gradient as pure functions of the parameters, to call, compile or vectorise over agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from cramix.rl.layout import FlatParameters
from cramix.rl.masks import apply_mask, mask_of
from cramix.rl.network import ReturnNetwork
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts
from cramix.rl.risk import Measure

# Returned with a gradient, in this order.
METRICS = ("gradient_norm", "loss", "penalty", "smallest_scale", "entropy", "value")


def bellman(parts: Parts, rewards: Tensor, discounts: Tensor) -> Parts:
    """Return the distribution of `reward + discount * X`; a discount of 0 gives an atom at the reward.

    Args:
        parts: of X, `(batch, k)`.
        rewards: `(batch)`, in units of the parts.
        discounts: `(batch)`.
    """
    reward, discount = rewards.unsqueeze(-1), discounts.unsqueeze(-1)
    return Parts(parts.weights, reward + discount * parts.means, discount * parts.scales)


class Objective:
    """Compares predictions with Bellman targets.

    Args:
        network: the network, called with parameters that are given each time.
        layout: of its parameters in vectors.
        max_grad_norm: gradients are clipped to this norm; None does not clip them.
        measure: the risk measure that selects the best next action; None is the mean.
    """

    def __init__(
        self,
        network: ReturnNetwork,
        layout: FlatParameters,
        max_grad_norm: float | None = None,
        measure: Measure | None = None,
    ):
        self.network, self.layout, self.max_grad_norm, self.measure = network, layout, max_grad_norm, measure

    def predict(self, vectors: Sequence[Tensor], observations: Any) -> Parts:
        """Return the prediction of the network with these parameters; members are vectorised."""
        network = self.network
        if network.members == 1:
            return functional_call(network, self.layout.named(vectors), (observations,))
        shared, each = self.layout.stacked(vectors, "each", network.members)
        shared = {name.removeprefix("features_extractor."): x for name, x in shared.items()}
        features = functional_call(network.features_extractor, shared, (network.preprocess(observations),))

        def member(parameters: dict[str, Tensor]) -> list[Tensor]:
            return functional_call(network.each[0], parameters, (features,)).tensors()

        return Parts(*(x.movedim(0, -2) for x in vmap(member, randomness="different")(each))).join_members()

    def target(self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions, unit: Tensor) -> Parts:
        """Return the Bellman target: the online network selects the next action, the target network evaluates it."""
        candidates = self.predict(vectors, batch.next_observations)
        values = candidates.mean() if self.measure is None else self.measure(candidates.mixture(unit))
        best = apply_mask(values, mask_of(batch.next_observations)).argmax(-1)
        next_parts = self.predict(targets, batch.next_observations).select(best)
        return bellman(next_parts, batch.rewards / unit, batch.discounts)

    def loss(
        self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions, unit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch, and all metrics but the first.

        Args:
            vectors: parameters of the online network.
            targets: parameters of the target network.
            batch: transitions.
            unit: one unit of the network in units of the rewards.
        """
        with torch.no_grad():
            target = self.target([vector.detach() for vector in vectors], targets, batch, unit)
        prediction, members = self.predict(vectors, batch.observations).select(batch.actions), self.network.members
        each = prediction.split_members(members)  # (batch, members, k): all members have the same target
        penalty = self.network.returns.penalty(each).mean()
        loss = self.network.returns.loss(each, target.split_members(1)).mean()
        return members * (loss + penalty), torch.stack([loss.detach(), penalty.detach(), *_metrics(prediction)])

    def gradient(self, vectors: Sequence[Tensor], *rest: Any) -> tuple[Sequence[Tensor], Tensor]:
        """Return the gradient and `METRICS`; one graph, for the compiler and `vmap`. Arguments are those of `loss`."""
        gradients, (_, metrics) = grad_and_value(self.loss, has_aux=True)(vectors, *rest)
        return self._clipped(gradients, metrics)

    def eager_gradient(self, vectors: Sequence[Tensor], *rest: Any) -> tuple[Sequence[Tensor], Tensor]:
        """Return the same by plain autograd, which is faster without the compiler."""
        leaves = [vector.detach().requires_grad_() for vector in vectors]
        loss, metrics = self.loss(leaves, *rest)
        return self._clipped(torch.autograd.grad(loss, leaves), metrics)

    def _clipped(self, gradients: Sequence[Tensor], metrics: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Return the clipped gradients, and the metrics with the norm before clipping in front."""
        norm = global_norm(gradients)
        metrics = torch.cat([norm.unsqueeze(0), metrics])
        return clip(gradients, norm, self.max_grad_norm), metrics


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the joint norm `(*batch)` of gradients `(*batch, n)`."""
    return torch.stack([gradient.square().sum(-1) for gradient in gradients]).sum(0).sqrt()


def clip(gradients: Sequence[Tensor], norm: Tensor, limit: float | None) -> Sequence[Tensor]:
    """Return gradients scaled down to a norm of at most the limit."""
    if limit is None:
        return gradients
    shrink = (limit / norm.clamp_min(1e-12)).clamp_max(1.0).unsqueeze(-1)
    return [gradient * shrink for gradient in gradients]


def _metrics(prediction: Parts) -> list[Tensor]:
    """Return the smallest scale, the mean entropy of the weights and the mean return of a prediction."""
    weights = prediction.weights.detach()
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    return [prediction.scales.detach().min(), entropy, prediction.mean().detach().mean()]
