"""The network: observations to features to return distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from cramix.rl.masks import without_mask
from cramix.rl.returns import Parts, Returns

Observation = Tensor | dict[str, Tensor]


class ReturnNetwork(nn.Module):
    """Observations to the return distribution of every action.

    Args:
        observation_space: of the environment; a key "action_mask" is not looked at.
        actions: number of actions.
        returns_class: the last layer.
        returns: its settings.
        net_arch: widths of hidden layers.
        activation_fn: between them.
        layer_norm: whether each hidden layer is normalised before its activation.
        dueling: whether actions share a common part.
        features_extractor_class: what comes before, of Stable-Baselines3's kind.
        features_extractor_kwargs: arguments for it.
        normalize_images: whether bytes are divided by 255.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        actions: int,
        returns_class: type[Returns],
        returns: dict[str, Any],
        *,
        net_arch: Sequence[int],
        activation_fn: type[nn.Module],
        layer_norm: bool,
        dueling: bool,
        features_extractor_class: type[BaseFeaturesExtractor],
        features_extractor_kwargs: dict[str, Any],
        normalize_images: bool,
    ):
        super().__init__()
        self.observation_space = without_mask(observation_space)
        self.normalize_images = normalize_images
        kinds = (
            self.observation_space.spaces
            if isinstance(self.observation_space, spaces.Dict)
            else {"": observation_space}
        )
        self._choices = {
            key: (int(kind.start), int(kind.start + kind.n))
            for key, kind in kinds.items()
            if isinstance(kind, spaces.Discrete)
        }
        self.features_extractor = features_extractor_class(self.observation_space, **features_extractor_kwargs)
        layers: list[nn.Module] = []
        width = self.features_extractor.features_dim
        for size in net_arch:
            layers.append(nn.Linear(width, size))
            if layer_norm:
                layers.append(nn.LayerNorm(size))
            layers.append(activation_fn())
            width = size
        self.trunk = nn.Sequential(*layers)
        self.returns = returns_class(width, actions, dueling, **returns)

    def forward(self, observation: Observation) -> Parts:
        """Return the distributions `(batch, actions, k)` of observations `(batch, ...)`."""
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            seen = {key: self._numbers(key, part, observation[key]) for key, part in space.spaces.items()}  # type: ignore
        else:
            seen = self._numbers("", space, observation)
        return self.returns(self.trunk(self.features_extractor(seen)))

    def _numbers(self, key: str, space: spaces.Space, observation: Any) -> Any:
        """Return one kind of observations as Stable-Baselines3 has it; one of many as ones and zeros, compilably."""
        if key not in self._choices:
            return preprocess_obs(observation, space, normalize_images=self.normalize_images)
        choices = torch.arange(*self._choices[key], device=observation.device)
        return (observation.long().unsqueeze(-1) == choices).float()


def to_tensor(observation: Any, device: torch.device) -> Observation:
    """Return arrays as tensors on a device."""
    if isinstance(observation, dict):
        return {key: torch.as_tensor(x, device=device) for key, x in observation.items()}
    return torch.as_tensor(observation, device=device)
