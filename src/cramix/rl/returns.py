"""What a network says about returns: one distribution an action, as parts of a mixture, and how it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cramix.mixture import NormalMixture


class Parts(NamedTuple):
    """A mixture for every action, in units of the network.

    Args:
        weights: `(batch, actions, k)`, or ones in place of axes that do not matter.
        means: `(batch, actions, k)`.
        scales: as the weights; zero for atoms.
        extra: what a kind of returns needs besides in its own loss, `(batch, actions, ...)`.
    """

    weights: Tensor
    means: Tensor
    scales: Tensor
    extra: Tensor | None = None

    def of(self, actions: Tensor) -> Parts:
        """Return the parts of one action a row, `(batch, k)`; actions are `(batch)`."""
        batch, n = self.means.shape[:2]
        chosen = torch.arange(n, device=actions.device) == actions.unsqueeze(-1)

        # Not `x[rows, actions]`, whose derivative adds at indices: compiled for several threads of a CPU it may add at
        # wrong places, even outside of the tensor (torch 2.13, github.com/pytorch/pytorch/issues/191837).
        def pick(x: Tensor) -> Tensor:
            return torch.where(chosen.view(batch, n, *(1 for _ in x.shape[2:])), x, 0).sum(1)

        extra = None if self.extra is None else pick(self.extra)
        return Parts(pick(self.weights), pick(self.means), pick(self.scales), extra)

    def present(self) -> list[Tensor]:
        """Return the parts that are there, which make the same ones anew: `Parts(*parts.present())`."""
        return [x for x in self if x is not None]

    def joined(self) -> Parts:
        """Return the mixture `(*batch, count * k)` of mixtures `(*batch, count, k)` that count alike."""
        means = self.means
        whole = self._replace(
            weights=(self.weights / means.shape[-2]).expand_as(means), scales=self.scales.expand_as(means)
        )
        return Parts(*(x.flatten(-2) for x in whole.present()))

    def apart(self, count: int) -> Parts:
        """Return what was joined, `(*batch, count, k)`."""
        parts = Parts(*(x.unflatten(-1, (count, -1)) for x in self.present()))
        return parts._replace(weights=count * parts.weights)

    def mean(self) -> Tensor:
        """Return the expected return of every action, `(batch, actions)`."""
        return (self.weights * self.means).sum(-1)

    def mixture(self, unit: Tensor | float = 1.0) -> NormalMixture:
        """Return the mixture with its batch shape, in units of the rewards."""
        means = self.means * unit
        weights, scales = self.weights.expand_as(means), (self.scales * unit).expand_as(means)
        return NormalMixture(weights, means, scales, validate_args=False)


class Outputs(nn.Module):
    """Numbers for every action from features, `(batch, features) -> (batch, actions, size)`.

    A dueling layer predicts what all actions share, and how each differs from their mean.
    """

    def __init__(self, features: int, actions: int, size: int, dueling: bool = False):
        super().__init__()
        self.shape = (actions, size)
        self.actions = nn.Linear(features, actions * size)
        self.shared = nn.Linear(features, size) if dueling else None

    def forward(self, features: Tensor) -> Tensor:  # noqa: D102
        each = self.actions(features).unflatten(-1, self.shape)
        if self.shared is None:
            return each
        return self.shared(features).unsqueeze(-2) + each - each.mean(-2, keepdim=True)


class Returns(nn.Module, ABC):
    """The last layer of a network: features to a return distribution an action, with the loss that trains it.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common part.
    """

    def __init__(self, features: int, actions: int, dueling: bool = False):
        super().__init__()

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """Return the defaults of what is particular to this kind."""
        return {p.name: p.default for p in signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}

    @abstractmethod
    def forward(self, features: Tensor) -> Parts:
        """Return the distributions of all actions; features are `(batch, features)`."""

    @abstractmethod
    def loss(self, prediction: Parts, target: Parts) -> Tensor:
        """Return losses `(*batch)` of parts `(*batch, k)`; batches broadcast, and the target is without gradient."""

    def penalty(self, prediction: Parts) -> Tensor:
        """Return what is added to losses `(*batch)` to keep the parts valid."""
        return prediction.means.new_zeros(prediction.means.shape[:-1])

    def fractions(self) -> list[nn.Parameter]:
        """Return the parameters of the weights, which may learn at a rate of their own."""
        return []


def spread(size: int, middle: float = 0.0, width: float = 1.0) -> Tensor:
    """Return evenly spaced starting points of `size` components around `middle`; one alone stands in it."""
    return torch.linspace(-width, width, size) + middle if size > 1 else torch.full((1,), middle)
