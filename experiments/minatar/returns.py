"""Return distributions of all runs of an algorithm at once: what the last layers predict, and their losses.

They are those of `cramix.rl.agents` with axes for runs and members, `(runs, members, batch, actions, k)`, and without
Stable-Baselines3, which a machine with a GPU may lack; tests compare the two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, smooth_l1_loss

from cramix.distance.cramer.distance import cramer_squared
from cramix.distance.likelihood import negative_log_likelihood
from cramix.loss.cross_entropy import nodes_of
from cramix.mixture import NormalMixture
from cramix.nn.parametrization import mixture_parameters

# The weight `(runs, members, inputs, outputs)` and the bias `(runs, members, 1, outputs)` of each layer, by name.
Layers = dict[str, tuple[Tensor, Tensor]]


class Distribution(NamedTuple):
    """Parameters of mixtures, `(*batch, k)`; axes over which they are constant may have size 1.

    Args:
        weights: of the components.
        means: of the components.
        scales: of the components; 0 for atoms.
        extra: what a loss needs besides.
    """

    weights: Tensor
    means: Tensor
    scales: Tensor
    extra: Tensor | None = None

    def select(self, actions: Tensor) -> Distribution:
        """Return the distributions `(runs, members, batch, k)` of actions `(runs, batch)`."""
        index = actions[:, None, :, None, None]

        def pick(x: Tensor) -> Tensor:
            if x.shape[-2] > 1:
                x = x.gather(-2, index.expand(*x.shape[:-2], 1, x.shape[-1]))
            return x.squeeze(-2)

        return Distribution(*(None if x is None else pick(x) for x in self))  # type: ignore[arg-type]

    def joined(self) -> Distribution:
        """Return the mixture `(runs, 1, batch, members * k)` of all members `(runs, members, batch, k)`."""
        weights, means, scales = torch.broadcast_tensors(*self[:3])
        parts = (weights / weights.shape[1], means, scales)
        return Distribution(*(x.transpose(1, 2).flatten(2).unsqueeze(1) for x in parts))

    def affine(self, loc: Tensor, scale: Tensor) -> Distribution:
        """Return the distribution of `loc + scale * X`; both are `(runs, batch)`."""
        loc, scale = (x[:, None, :, None] for x in (loc, scale))
        return Distribution(self.weights, loc + scale * self.means, scale * self.scales)

    def mean(self) -> Tensor:
        """Return the means, `(*batch)`."""
        return (self.weights * self.means).sum(-1)

    def mixture(self) -> NormalMixture:
        """Return the mixtures as a value."""
        weights, means, scales = torch.broadcast_tensors(*self[:3])
        return NormalMixture(weights, means, scales, validate_args=False)


class Returns(ABC):
    """The last layers of the networks of one algorithm.

    Args:
        features: width of the features.
        actions: number of actions.
    """

    # Uniform numbers per row that `distribution` needs while it learns.
    draws = 0

    def __init__(self, features: int, actions: int):
        self.features, self.actions = features, actions

    @abstractmethod
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of inputs and outputs of each layer."""

    def bias(self) -> dict[str, Tensor]:
        """Return what is added to the initial biases of layers."""
        return {}

    @abstractmethod
    def distribution(self, layers: Layers, features: Tensor, uniform: Tensor | None = None) -> Distribution:
        """Return the distributions of all actions, `(runs, members, batch, actions, k)`.

        Args:
            layers: the parameters.
            features: `(runs, members, batch, features)`.
            uniform: `(runs, members, batch, draws)`; None for predictions without randomness.
        """

    @abstractmethod
    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:
        """Return losses `(runs, members, batch)`; the target has no gradient."""

    def _linear(self, layers: Layers, name: str, features: Tensor) -> Tensor:
        weight, bias = layers[name]
        return (features @ weight + bias).unflatten(-1, (self.actions, -1))


class ExpectedReturns(Returns):
    """Double DQN: one atom."""

    def sizes(self) -> dict[str, tuple[int, int]]:  # noqa: D102
        return {"values": (self.features, self.actions)}

    def distribution(self, layers: Layers, features: Tensor, uniform: Tensor | None = None) -> Distribution:  # noqa: D102
        means = self._linear(layers, "values", features)
        one = means.new_ones(1, 1, 1, 1, 1)
        return Distribution(one, means, torch.zeros_like(one))

    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:  # noqa: D102
        ours, theirs = torch.broadcast_tensors(prediction.mean(), target.mean())
        return smooth_l1_loss(ours, theirs, reduction="none")


class QuantileReturns(Returns):
    """QR-DQN: atoms of equal weight."""

    quantiles = 51

    def sizes(self) -> dict[str, tuple[int, int]]:  # noqa: D102
        return {"values": (self.features, self.actions * self.quantiles)}

    def distribution(self, layers: Layers, features: Tensor, uniform: Tensor | None = None) -> Distribution:  # noqa: D102
        means = self._linear(layers, "values", features)
        weights = means.new_full((1, 1, 1, 1, self.quantiles), 1 / self.quantiles)
        return Distribution(weights, means, torch.zeros_like(weights))

    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:  # noqa: D102
        return quantile_huber(prediction, midpoints(self.quantiles, prediction.means), target)


class ImplicitReturns(Returns):
    """IQN: atoms at fractions that are drawn; without uniform numbers, at the midpoints of equal intervals."""

    draws = 8
    quantiles = 32
    cosines = 64

    def sizes(self) -> dict[str, tuple[int, int]]:  # noqa: D102
        return {"embedding": (self.cosines, self.features), "values": (self.features, self.actions)}

    def distribution(self, layers: Layers, features: Tensor, uniform: Tensor | None = None) -> Distribution:  # noqa: D102
        fractions = uniform
        if fractions is None:
            fractions = midpoints(self.quantiles, features).expand(*features.shape[:-1], -1)
        frequencies = math.pi * torch.arange(1, self.cosines + 1, device=features.device)
        waves = torch.cos(fractions.unsqueeze(-1) * frequencies)  # (runs, members, batch, quantiles, cosines)
        weight, bias = layers["embedding"]
        embedded = (waves.flatten(2, 3) @ weight + bias).relu()
        each = embedded.unflatten(2, fractions.shape[2:]) * features.unsqueeze(-2)
        means = self._linear(layers, "values", each.flatten(2, 3))  # (runs, members, batch * quantiles, actions, 1)
        means = means.unflatten(2, fractions.shape[2:])[..., 0].mT
        count = fractions.shape[-1]
        weights = means.new_full((1, 1, 1, 1, count), 1 / count)
        return Distribution(weights, means, torch.zeros_like(weights), fractions.unsqueeze(-2))

    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:  # noqa: D102
        assert prediction.extra is not None
        return quantile_huber(prediction, prediction.extra, target)


class CategoricalReturns(Returns):
    """C51: probabilities of fixed atoms, over the range that the discounted returns of these games can have."""

    atoms = 51
    low, high = 0.0, 20.0

    def sizes(self) -> dict[str, tuple[int, int]]:  # noqa: D102
        return {"logits": (self.features, self.actions * self.atoms)}

    def distribution(self, layers: Layers, features: Tensor, uniform: Tensor | None = None) -> Distribution:  # noqa: D102
        logits = self._linear(layers, "logits", features)
        step = (self.high - self.low) / (self.atoms - 1)
        support = self.low + step * torch.arange(self.atoms, device=logits.device)
        support = support.view(1, 1, 1, 1, -1)
        return Distribution(logits.softmax(-1), support, torch.zeros_like(support), logits)

    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:  # noqa: D102
        assert prediction.extra is not None
        step = (self.high - self.low) / (self.atoms - 1)
        support = self.low + step * torch.arange(self.atoms, device=target.means.device)
        moved = target.means.clamp(self.low, self.high).unsqueeze(-2)
        share = (1 - (moved - support.unsqueeze(-1)).abs() / step).clamp_min(0)  # (runs, 1, batch, atoms, k)
        projected = (share * target.weights.unsqueeze(-2)).sum(-1)
        return -(projected * prediction.extra.log_softmax(-1)).sum(-1)


class GaussianReturns(Returns):
    """Mixtures of three normal distributions; subclasses define the loss."""

    n_components = 3
    min_scale = 0.0

    def sizes(self) -> dict[str, tuple[int, int]]:  # noqa: D102
        outputs = self.actions * self.n_components
        return {"logits": (self.features, outputs), "values": (self.features, 2 * outputs)}

    def bias(self) -> dict[str, Tensor]:  # noqa: D102
        one = torch.cat([torch.linspace(-1, 1, self.n_components), torch.full((self.n_components,), 0.5413)])
        return {"values": one.repeat(self.actions)}  # softplus(0.5413) = 1

    def distribution(self, layers: Layers, features: Tensor, uniform: Tensor | None = None) -> Distribution:  # noqa: D102
        means, raw_scales = self._linear(layers, "values", features).chunk(2, -1)
        logits = self._linear(layers, "logits", features)
        return Distribution(*mixture_parameters(logits, means, raw_scales, min_scale=self.min_scale))


class CramerReturns(GaussianReturns):
    """GMDQN: the loss is the squared Cramér distance to the target."""

    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:  # noqa: D102
        return cramer_squared(prediction.mixture(), target.mixture())


class LikelihoodReturns(GaussianReturns):
    """Maximum likelihood: the loss is the cross entropy to the target."""

    min_scale = 0.05

    def loss(self, prediction: Distribution, target: Distribution) -> Tensor:  # noqa: D102
        return negative_log_likelihood(prediction.mixture(), *nodes_of(target.mixture()))


RETURNS: dict[str, type[Returns]] = {
    "gmdqn": CramerReturns,
    "nll": LikelihoodReturns,
    "qrdqn": QuantileReturns,
    "c51": CategoricalReturns,
    "iqn": ImplicitReturns,
    "ddqn": ExpectedReturns,
}


def midpoints(count: int, like: Tensor) -> Tensor:
    """Return the midpoints of equal intervals of [0, 1]."""
    return (torch.arange(count, device=like.device) + 0.5) / count


def quantile_huber(prediction: Distribution, fractions: Tensor, target: Distribution) -> Tensor:
    """Return the quantile regression loss `(*batch)` of atoms at fractions, with a Huber loss of width 1."""
    theta, y = torch.broadcast_tensors(prediction.means.unsqueeze(-1), target.means.unsqueeze(-2))
    above = (fractions.unsqueeze(-1) - (y < theta.detach()).to(y.dtype)).abs()
    losses = above * huber_loss(theta, y, reduction="none")
    return (losses * target.weights.unsqueeze(-2)).sum((-2, -1))
