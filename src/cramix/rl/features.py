"""Features extractors: the first layers of a network, by class or by name."""

from __future__ import annotations

import torch
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

    It needs a seventh of the arithmetic of `NatureCNN`. The patches of each convolution do not overlap, so it is
    computed as one matrix product, which is faster on a CPU.

    Args:
        observation_space: of images `(channels, height, width)`, of at least 25 x 25 pixels.
        features_dim: number of features.

    Example:
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
        self.first = nn.Linear(channels * _KERNEL**2, 32)
        self.second = nn.Linear(32 * _KERNEL**2, 64)
        self.last = nn.Linear(64 * rows * columns, features_dim)

    def forward(self, observations: Tensor) -> Tensor:
        """Return features `(batch, features_dim)` of images `(batch, channels, height, width)`."""
        maps = torch.relu(self.first(_patches_of_images(observations)))
        maps = torch.relu(self.second(_patches(maps)))
        return torch.relu(self.last(maps.flatten(1)))


def _patches_of_images(images: Tensor) -> Tensor:
    """Return the patches `(batch, rows, columns, 5 * channels * 5)` of images `(batch, channels, height, width)`."""
    batch, channels, height, width = images.shape
    rows, columns = height // _KERNEL, width // _KERNEL
    strips = images[:, :, : rows * _KERNEL, : columns * _KERNEL].unflatten(2, (rows, _KERNEL)).transpose(1, 2)
    strips = strips.reshape(batch, rows, channels * _KERNEL, columns * _KERNEL)
    # To transpose is a copy of single numbers; a product with the identity matrix does it in a third of the time.
    identity = torch.eye(channels * _KERNEL, dtype=images.dtype, device=images.device)
    return (strips.transpose(2, 3) @ identity).reshape(batch, rows, columns, -1)


def _patches(maps: Tensor) -> Tensor:
    """Return the patches `(batch, rows, columns, 5 * 5 * channels)` of maps `(batch, height, width, channels)`."""
    rows, columns = maps.shape[1] // _KERNEL, maps.shape[2] // _KERNEL
    cut = maps[:, : rows * _KERNEL, : columns * _KERNEL].unflatten(1, (rows, _KERNEL)).unflatten(3, (columns, _KERNEL))
    return cut.transpose(2, 3).flatten(3)


_NAMED = {kind.__name__: kind for kind in (NatureCNN, SmallCNN, FlattenExtractor, CombinedExtractor)}


def find_features_extractor(kind: type[BaseFeaturesExtractor] | str) -> type[BaseFeaturesExtractor]:
    """Return a class of features extractors by its name, or the class itself."""
    if not isinstance(kind, str):
        return kind
    if kind not in _NAMED:
        raise ValueError(f"features_extractor_class must be a class, or one of {', '.join(_NAMED)}; got {kind!r}.")
    return _NAMED[kind]
