"""The network: observations to features to return distributions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from cramix.checks import check_integer
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
        members: networks that learn side by side from other starts; what they say counts alike.
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
        members: int,
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
        check_integer("members", members, 1)
        widths = [self.features_extractor.features_dim, *net_arch]

        def trunk() -> nn.Sequential:
            layers: list[nn.Module] = []
            for width, size in pairwise(widths):
                layers += [nn.Linear(width, size), *([nn.LayerNorm(size)] if layer_norm else []), activation_fn()]
            return nn.Sequential(*layers)

        def head() -> Returns:
            return returns_class(widths[-1], actions, dueling, **returns)

        self.each = nn.ModuleList(nn.Sequential(trunk(), head()) for _ in range(members))

    def forward(self, observation: Observation) -> Parts:
        """Return the distributions `(batch, actions, k)` of observations `(batch, ...)`."""
        features = self.features_extractor(self.numbers(observation))
        parts = [member(features) for member in self.each]
        if len(parts) == 1:
            return parts[0]
        return Parts(*(torch.stack(x, -2) for x in zip(*(one.present() for one in parts), strict=True))).joined()

    def numbers(self, observation: Observation) -> Any:
        """Return what the first layers are given."""
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            return {key: self._numbers(key, part, observation[key]) for key, part in space.spaces.items()}  # type: ignore
        return self._numbers("", space, observation)

    @property
    def members(self) -> int:
        """How many networks learn side by side."""
        return len(self.each)

    @property
    def returns(self) -> Returns:
        """The last layer of the first member."""
        return self.each[0][1]  # type: ignore[index]

    def fractions(self) -> list[nn.Parameter]:
        """Return the parameters of the weights of mixtures, of all members."""
        heads = [member[1] for member in self.each]  # type: ignore[index]
        return [parameter for head in heads for parameter in head.fractions()]

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
