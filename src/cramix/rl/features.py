"""Features extractors: the first layers of a network, by class or by name."""

from __future__ import annotations

from gymnasium import spaces
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from torch import Tensor, nn

from cramix.checks import check_integer

_SMALLEST = 20


class SmallCNN(BaseFeaturesExtractor):
    """The network of Mnih et al. (2013) for images: two convolutions and a linear layer.

    It needs a third of the arithmetic of `NatureCNN`.

    Args:
        observation_space: of images `(channels, height, width)`, of at least 20 x 20 pixels.
        features_dim: number of features.

    Example:
        >>> import torch
        >>> from gymnasium.spaces import Box
        >>> SmallCNN(Box(0, 1, (4, 84, 84)))(torch.zeros(2, 4, 84, 84)).shape
        torch.Size([2, 256])
    """

    def __init__(self, observation_space: spaces.Box, features_dim: int = 256):
        check_integer("features_dim", features_dim, 1)
        shape = observation_space.shape or ()
        # Fewer channels than pixels: others are images with the channels as the last axis.
        if len(shape) != 3 or not max(shape[0], _SMALLEST - 1) < min(shape[1:]):
            raise ValueError(
                f"observation_space must have images (channels, height, width) of at least {_SMALLEST} x {_SMALLEST} "
                f"pixels for SmallCNN; got {observation_space}. Use another policy, or a features_extractor_class of "
                "your own."
            )
        super().__init__(observation_space, features_dim)
        rows, columns = (((side - 8) // 4 + 1 - 4) // 2 + 1 for side in shape[1:])
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * rows * columns, features_dim),
            nn.ReLU(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Return features `(batch, features_dim)` of images `(batch, channels, height, width)`."""
        return self.layers(observations)


_NAMED = {kind.__name__: kind for kind in (NatureCNN, SmallCNN, FlattenExtractor, CombinedExtractor)}


def find_features_extractor(kind: type[BaseFeaturesExtractor] | str) -> type[BaseFeaturesExtractor]:
    """Return a class of features extractors by its name, or the class itself."""
    if not isinstance(kind, str):
        return kind
    if kind not in _NAMED:
        raise ValueError(f"features_extractor_class must be a class, or one of {', '.join(_NAMED)}; got {kind!r}.")
    return _NAMED[kind]
