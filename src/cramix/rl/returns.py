"""Return distributions: what a network predicts for every action, and the loss that trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import signature
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from cramix.mixture import NormalMixture


class Parts(NamedTuple):
    """The parameters of a mixture for every action, in units of the network.

    Args:
        weights: `(batch, actions, k)`; axes over which they are constant may have size 1.
        means: `(batch, actions, k)`.
        scales: shaped like the weights; 0 for atoms.
        extra: further outputs that the loss of this kind of returns needs, `(batch, actions, ...)`.
    """

    weights: Tensor
    means: Tensor
    scales: Tensor
    extra: Tensor | None = None

    def select(self, actions: Tensor) -> Parts:
        """Return the parts `(batch, k)` of one action per row; actions are `(batch)`."""
        batch, n = self.means.shape[:2]
        chosen = torch.arange(n, device=actions.device) == actions.unsqueeze(-1)

        # Not `x[rows, actions]`: its derivative is an indexed addition, which the compiler of torch 2.13 may write out
        # of bounds on a multithreaded CPU (github.com/pytorch/pytorch/issues/191837).
        def pick(x: Tensor) -> Tensor:
            return torch.where(chosen.view(batch, n, *(1 for _ in x.shape[2:])), x, 0).sum(1)

        extra = None if self.extra is None else pick(self.extra)
        return Parts(pick(self.weights), pick(self.means), pick(self.scales), extra)

    def tensors(self) -> list[Tensor]:
        """Return the parts that are not None; `Parts(*parts.tensors())` is a copy."""
        return [x for x in self if x is not None]

    def join_members(self) -> Parts:
        """Return the mixture `(*batch, members * k)` of equally weighted members `(*batch, members, k)`."""
        means = self.means
        whole = self._replace(
            weights=(self.weights / means.shape[-2]).expand_as(means), scales=self.scales.expand_as(means)
        )
        return Parts(*(x.flatten(-2) for x in whole.tensors()))

    def split_members(self, count: int) -> Parts:
        """Return the members' mixtures `(*batch, count, k)`: the inverse of `join_members`."""
        parts = Parts(*(x.unflatten(-1, (count, -1)) for x in self.tensors()))
        return parts._replace(weights=count * parts.weights)

    def mean(self) -> Tensor:
        """Return the expected return of every action, `(batch, actions)`."""
        return (self.weights * self.means).sum(-1)

    def mixture(self, unit: Tensor | float = 1.0) -> NormalMixture:
        """Return the mixture in units of the rewards."""
        means = self.means * unit
        weights, scales = self.weights.expand_as(means), (self.scales * unit).expand_as(means)
        return NormalMixture(weights, means, scales, validate_args=False)


class ActionLinear(nn.Module):
    """A linear layer with `size` outputs per action, `(batch, features) -> (batch, actions, size)`.

    With `dueling`, it predicts a value shared by all actions, and the difference of each action from their mean.
    """

    def __init__(self, features: int, actions: int, size: int, dueling: bool = False):
        super().__init__()
        self.shape = (actions, size)
        self.actions = nn.Linear(features, actions * size)
        self.shared = nn.Linear(features, size) if dueling else None

    def forward(self, features: Tensor) -> Tensor:  # noqa: D102
        layer = self.actions
        if torch.compiler.is_compiling():  # the batch is the last axis in memory, so that loops along it are vectorised
            each = torch.addmm(layer.bias.unsqueeze(-1), layer.weight, features.T)
            each = each.unflatten(0, self.shape).movedim(-1, 0)
        else:
            each = layer(features).unflatten(-1, self.shape)
        if self.shared is None:
            return each
        return self.shared(features).unsqueeze(-2) + each - each.mean(-2, keepdim=True)

    def shift(self, values: Tensor) -> None:
        """Add values `(size)` to the outputs."""
        layer = self.shared or self.actions
        with torch.no_grad():
            layer.bias.view(-1, len(values)).add_(values.to(layer.bias))

    def multiply(self, factors: Tensor) -> None:
        """Multiply the outputs by factors `(size)`."""
        with torch.no_grad():
            for layer in (self.actions, self.shared):
                if layer is not None:
                    rows = factors.to(layer.bias).repeat(layer.out_features // len(factors))
                    layer.weight.mul_(rows.unsqueeze(-1))
                    layer.bias.mul_(rows)


class Returns(nn.Module, ABC):
    """The last layer of a network: a return distribution for every action, and the loss that trains it.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
    """

    # Learning rate of the layers that predict weights, relative to the others.
    fraction_factor: ClassVar[float] = 1.0
    # Whether it predicts more than means.
    distributional: ClassVar[bool] = True

    def __init__(self, features: int, actions: int, dueling: bool = False):
        super().__init__()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the options of this kind of returns, with their defaults."""
        return {p.name: p.default for p in signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return next(self.parameters()).dtype

    @abstractmethod
    def forward(self, features: Tensor) -> Parts:
        """Return the distributions of all actions; features are `(batch, features)`."""

    def outputs(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors `(batch, actions, ...)` of which `parts` makes the distributions."""
        return tuple(self(features).tensors())

    def parts(self, *outputs: Tensor) -> Parts:
        """Return the distributions `(*batch, k)` of outputs; it has no parameters, so that members can share it."""
        return Parts(*outputs)

    @abstractmethod
    def loss(self, prediction: Parts, target: Parts) -> Tensor:
        """Return losses `(*batch)` of parts `(*batch, k)`; batch shapes broadcast, and the target has no gradient."""

    def penalty(self, prediction: Parts) -> Tensor:
        """Return the penalties `(*batch)` for parts outside the valid range."""
        return prediction.means.new_zeros(prediction.means.shape[:-1])

    def rescale(self, factor: float) -> None:
        """Multiply the predicted returns by a factor, as far as the parameters allow it."""

    def fractions(self) -> list[nn.Parameter]:
        """Return the parameters that predict weights, which may have their own learning rate."""
        return []


def evenly_spaced(size: int, middle: float = 0.0, width: float = 1.0) -> Tensor:
    """Return `size` evenly spaced initial means in `middle` ± `width`; a single one is in the middle."""
    return torch.linspace(-width, width, size) + middle if size > 1 else torch.full((1,), middle)
