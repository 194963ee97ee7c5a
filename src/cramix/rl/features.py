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

_KERNEL = 5


class SmallCNN(BaseFeaturesExtractor):
    """Two convolutions of large strides for images, after van Hasselt, Hessel and Aslanides (2019).

    It needs a seventh of the arithmetic of `NatureCNN`, because the patches of each convolution do not overlap.

    Args:
        observation_space: of images `(channels, height, width)`, of at least 25 x 25 pixels.
        features_dim: number of features.

    Example:
        >>> import torch
        >>> from gymnasium.spaces import Box
        >>> SmallCNN(Box(0, 1, (4, 84, 84)))(torch.zeros(2, 4, 84, 84)).shape
        torch.Size([2, 256])
    """

    def __init__(self, observation_space: spaces.Box, features_dim: int = 256):
        check_integer("features_dim", features_dim, 1)
        shape = observation_space.shape
        if len(shape) != 3 or min(shape[1:]) < _KERNEL**2:
            raise ValueError(
                f"observation_space must have images (channels, height, width) of at least {_KERNEL**2} x {_KERNEL**2} "
                f"pixels for SmallCNN; got {shape}. Use MlpPolicy, or a features_extractor_class of your own."
            )
        super().__init__(observation_space, features_dim)
        channels, (rows, columns) = shape[0], (side // _KERNEL**2 for side in shape[1:])
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, _KERNEL, _KERNEL),
            nn.ReLU(),
            nn.Conv2d(32, 64, _KERNEL, _KERNEL),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * rows * columns, features_dim),
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
