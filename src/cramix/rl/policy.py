"""Policies in the sense of Stable-Baselines3: online and target network, and the choice of actions."""

from __future__ import annotations

import os
from dataclasses import replace
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

from cramix.rl.masks import apply_mask, mask_of
from cramix.rl.network import Architecture, Observation, ReturnNetwork
from cramix.rl.returns import Returns
from cramix.rl.risk import Measure


class ReturnPolicy(BasePolicy):
    """Acts by the return distributions of a network.

    Args:
        observation_space: of the environment.
        action_space: discrete.
        returns_class: the kind of return distributions.
        returns: its options.
        policy_kwargs: fields of `Architecture`; the defaults of `net_arch` and `features_extractor_class` depend on the
            policy.
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
        policy_kwargs: dict[str, Any],
    ):
        architecture = Architecture.from_kwargs(
            policy_kwargs, net_arch=self.default_arch, features_extractor_class=self.default_extractor
        )
        images = issubclass(architecture.features_extractor_class, NatureCNN | CombinedExtractor)
        if images and not architecture.normalize_images:  # the extractor then accepts images that are not bytes
            extractor_kwargs = {"normalized_image": True, **architecture.features_extractor_kwargs}
            architecture = replace(architecture, features_extractor_kwargs=extractor_kwargs)
        super().__init__(observation_space, action_space, normalize_images=architecture.normalize_images)
        self.architecture = architecture
        actions = int(action_space.n)
        self.q_net = ReturnNetwork(observation_space, actions, returns_class, returns, architecture)
        self.q_net_target = ReturnNetwork(observation_space, actions, returns_class, returns, architecture)
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.q_net_target.requires_grad_(False)
        # One unit of the networks in units of the rewards.
        self.register_buffer("unit", torch.ones(()))
        self.first_action = int(action_space.start)
        self.measure: Measure | None = None
        self._has_modes = any(_has_modes(module) for module in self.q_net.modules())

    def set_training_mode(self, mode: bool) -> None:
        """Set the mode of layers that have one; visiting all layers at every step would be slow."""
        if self._has_modes:
            super().set_training_mode(mode)

    def save(self, path: str | os.PathLike) -> None:
        """Raise: Stable-Baselines3 would pickle the policy."""
        raise NotImplementedError(f"a policy must be saved with its model; got {path}. {_INSTEAD}")

    @classmethod
    def load(cls, path: str | os.PathLike, device: torch.device | str = "auto") -> Self:
        """Raise: Stable-Baselines3 would unpickle the policy."""
        raise NotImplementedError(f"a policy must be loaded with its model; got {path}. {_INSTEAD}")

    def forward(self, obs: Observation, deterministic: bool = True) -> Tensor:
        """Return the best actions `(batch)`."""
        return self._predict(obs, deterministic)

    def _predict(self, observation: Observation, deterministic: bool = True) -> Tensor:
        return self.best(observation, self.measure) + self.first_action

    def best(self, observation: Observation, measure: Measure | None) -> Tensor:
        """Return the index `(batch)` of the best action by a risk measure; None is the mean."""
        parts = self.q_net(observation)
        values = parts.mean() if measure is None else measure(parts.mixture(self.unit))
        return apply_mask(values, mask_of(observation)).argmax(-1)


def _has_modes(module: nn.Module) -> bool:
    """Whether a layer may differ between training and evaluation; layers of unknown packages may."""
    known = type(module).__module__.split(".")[0] in ("torch", "cramix", "stable_baselines3")
    return not known or isinstance(module, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd)


_INSTEAD = "Use model.save(path, acting_only=True) and the load method of the algorithm; its policy is model.policy."


class MlpPolicy(ReturnPolicy):
    """For vectors."""


class CnnPolicy(ReturnPolicy):
    """For images: the convolutions of Mnih et al. (2015), then one linear layer."""

    default_extractor = NatureCNN
    default_arch = ()


class MultiInputPolicy(ReturnPolicy):
    """For dictionaries of vectors and images."""

    default_extractor = CombinedExtractor
