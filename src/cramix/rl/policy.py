"""Policies of Stable-Baselines3's kind: two networks, and the choice of an action."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from torch import Tensor, nn

from cramix.checks import check_integer
from cramix.rl.masks import allowed, mask_of
from cramix.rl.network import Observation, ReturnNetwork
from cramix.rl.returns import Returns
from cramix.rl.risk import Measure


class ReturnPolicy(BasePolicy):
    """Acts by the return distributions of a network.

    Args:
        observation_space: of the environment.
        action_space: discrete.
        returns_class: the kind of return distributions.
        returns: its settings.
        net_arch: widths of hidden layers.
        activation_fn: between them.
        layer_norm: whether hidden layers are normalised.
        dueling: whether actions share a common part.
        members: networks that learn side by side from other starts; what they say counts alike.
        features_extractor_class: what comes before; the default depends on the policy.
        features_extractor_kwargs: arguments for it.
        normalize_images: whether bytes are divided by 255.
    """

    default_extractor: type[BaseFeaturesExtractor] = FlattenExtractor
    default_arch: tuple[int, ...] = (128, 128)
    unit: Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        returns_class: type[Returns],
        returns: dict[str, Any],
        *,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        layer_norm: bool = False,
        dueling: bool = False,
        members: int = 4,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
    ):
        super().__init__(observation_space, action_space, normalize_images=normalize_images)
        self.layers: dict[str, Any] = {
            "net_arch": _widths(self.default_arch if net_arch is None else net_arch),
            "activation_fn": activation_fn,
            "layer_norm": layer_norm,
            "dueling": dueling,
            "members": members,
        }
        if not callable(activation_fn):
            raise ValueError(f"activation_fn must be a class of layers; got {activation_fn!r}. Try torch.nn.ReLU.")
        extractor, of_it = features_extractor_class or self.default_extractor, dict(features_extractor_kwargs or {})
        if not normalize_images and issubclass(extractor, NatureCNN | CombinedExtractor):
            of_it.setdefault("normalized_image", True)  # then images need not be bytes
        arguments: dict[str, Any] = {
            **self.layers,
            "features_extractor_class": extractor,
            "features_extractor_kwargs": of_it,
            "normalize_images": normalize_images,
        }
        actions = int(action_space.n)
        self.q_net = ReturnNetwork(observation_space, actions, returns_class, returns, **arguments)
        self.q_net_target = ReturnNetwork(observation_space, actions, returns_class, returns, **arguments)
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.q_net_target.requires_grad_(False)
        # How many units of reward one unit of the networks is.
        self.register_buffer("unit", torch.ones(()))
        self.first_action = int(action_space.start)
        self.measure: Measure | None = None
        self._has_modes = any(_has_modes(module) for module in self.q_net.modules())

    def set_training_mode(self, mode: bool) -> None:
        """Switch layers that behave otherwise while they learn; to go through all of them each step takes long."""
        if self._has_modes:
            super().set_training_mode(mode)

    def save(self, path: str | os.PathLike) -> None:
        """Refuse: what Stable-Baselines3 writes here holds code."""
        raise NotImplementedError(f"a policy must be saved with its model; got {path}. {_INSTEAD}")

    @classmethod
    def load(cls, path: str | os.PathLike, device: torch.device | str = "auto") -> Self:
        """Refuse: what Stable-Baselines3 reads here holds code."""
        raise NotImplementedError(f"a policy must be loaded with its model; got {path}. {_INSTEAD}")

    def forward(self, obs: Observation, deterministic: bool = True) -> Tensor:
        """Return the best actions `(batch)`."""
        return self._predict(obs, deterministic)

    def _predict(self, observation: Observation, deterministic: bool = True) -> Tensor:
        return self.best(observation, self.measure) + self.first_action

    def best(self, observation: Observation, measure: Measure | None) -> Tensor:
        """Return the place `(batch)` of the best action by a measure, None for the mean."""
        parts = self.q_net(observation)
        values = parts.mean() if measure is None else measure(parts.mixture(self.unit))
        return allowed(values, mask_of(observation)).argmax(-1)


def _widths(net_arch: Sequence[int]) -> list[int]:
    if not isinstance(net_arch, Sequence) or isinstance(net_arch, str):
        raise ValueError(f"net_arch must be a list of widths; got {net_arch!r}. Try [128, 128].")
    for width in net_arch:
        check_integer("net_arch", width, 1)
    return list(net_arch)


def _has_modes(module: nn.Module) -> bool:
    """Whether a layer may behave otherwise while it learns: of the known ones few do, of others we cannot know."""
    known = type(module).__module__.split(".")[0] in ("torch", "cramix", "stable_baselines3")
    return not known or isinstance(module, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd)


_INSTEAD = "Use model.save(path, acting_only=True) and the algorithm's load, whose policy it is then."


class MlpPolicy(ReturnPolicy):
    """For vectors."""


class CnnPolicy(ReturnPolicy):
    """For images: the convolutions of Mnih et al. (2015), then one linear layer."""

    default_extractor = NatureCNN
    default_arch = ()


class MultiInputPolicy(ReturnPolicy):
    """For dictionaries of vectors and images."""

    default_extractor = CombinedExtractor
