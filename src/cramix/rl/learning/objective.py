"""The objective: loss and gradient as pure functions of the networks' numbers, to call, compile or map over agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from cramix.rl.learning.bellman import bellman
from cramix.rl.learning.flat import FlatParameters
from cramix.rl.masks import allowed, mask_of
from cramix.rl.network import ReturnNetwork
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts
from cramix.rl.risk import Measure

# What comes with a gradient, in this order.
METRICS = ("gradient_norm", "loss", "penalty", "smallest_scale", "entropy", "value")


class Objective:
    """Compares predictions with Bellman targets.

    Args:
        network: whose layers are called, with numbers that are given each time.
        layout: how its parameters lie in vectors.
        max_grad_norm: longest gradient; None for no limit.
        measure: what the best next action is judged by; None is the mean.
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
        """Return what a network of these numbers says; members are called together, which takes fewer calls."""
        network = self.network
        if network.members == 1:
            return functional_call(network, self.layout.named(vectors), (observations,))
        shared, each = self.layout.stacked(vectors, "each", network.members)
        shared = {name.removeprefix("features_extractor."): x for name, x in shared.items()}
        features = functional_call(network.features_extractor, shared, (network.numbers(observations),))

        def member(parameters: dict[str, Tensor]) -> list[Tensor]:
            return functional_call(network.each[0], parameters, (features,)).present()

        return Parts(*(x.movedim(0, -2) for x in vmap(member, randomness="different")(each))).joined()

    def target(self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions, unit: Tensor) -> Parts:
        """Return what the batch says the returns are: the best next action by one network, its returns by the other."""
        candidates = self.predict(vectors, batch.next_observations)
        values = candidates.mean() if self.measure is None else self.measure(candidates.mixture(unit))
        best = allowed(values, mask_of(batch.next_observations)).argmax(-1)
        return bellman(self.predict(targets, batch.next_observations).of(best), batch.rewards / unit, batch.discounts)

    def loss(
        self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions, unit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch, and numbers to look at.

        Args:
            vectors: numbers of the network that learns.
            targets: numbers of the network that predicts what comes next.
            batch: transitions.
            unit: returns are this many times the network's numbers.
        """
        with torch.no_grad():
            target = self.target([vector.detach() for vector in vectors], targets, batch, unit)
        prediction, members = self.predict(vectors, batch.observations).of(batch.actions), self.network.members
        each = prediction.apart(members)  # (batch, members, k): all learn what they say together is to be
        penalty = self.network.returns.penalty(each).mean()
        loss = self.network.returns.loss(each, target.apart(1)).mean()
        return members * (loss + penalty), torch.stack([loss.detach(), penalty.detach(), *_looks(prediction)])

    def gradient(self, vectors: Sequence[Tensor], *rest: Any) -> tuple[Sequence[Tensor], Tensor]:
        """Return the gradient and `METRICS`, as one graph for the compiler and for `vmap`; arguments are of `loss`."""
        gradients, (_, metrics) = grad_and_value(self.loss, has_aux=True)(vectors, *rest)
        return self._clipped(gradients, metrics)

    def eager_gradient(self, vectors: Sequence[Tensor], *rest: Any) -> tuple[Sequence[Tensor], Tensor]:
        """Return the same with the calls of torch's autograd, which take less time where nothing is compiled."""
        leaves = [vector.detach().requires_grad_() for vector in vectors]
        loss, metrics = self.loss(leaves, *rest)
        return self._clipped(torch.autograd.grad(loss, leaves), metrics)

    def _clipped(self, gradients: Sequence[Tensor], metrics: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Return gradients no longer than the limit altogether, and metrics with their length in front."""
        norm = length(gradients)
        metrics = torch.cat([norm.unsqueeze(0), metrics])
        return shortened(gradients, norm, self.max_grad_norm), metrics


def length(gradients: Sequence[Tensor]) -> Tensor:
    """Return the length of gradients altogether, `(*batch)`; they are vectors `(*batch, n)`."""
    return torch.stack([gradient.square().sum(-1) for gradient in gradients]).sum(0).sqrt()


def shortened(gradients: Sequence[Tensor], norm: Tensor, limit: float | None) -> Sequence[Tensor]:
    """Return gradients of a length that is no more than the limit."""
    if limit is None:
        return gradients
    shrink = (limit / norm.clamp_min(1e-12)).clamp_max(1.0).unsqueeze(-1)
    return [gradient * shrink for gradient in gradients]


def _looks(prediction: Parts) -> list[Tensor]:
    """Return the smallest scale, the mean entropy of the weights and the mean return of a prediction."""
    weights = prediction.weights.detach()
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    return [prediction.scales.detach().min(), entropy, prediction.mean().detach().mean()]
