"""Layers whose outputs are mixtures: the last layer of a network."""

from cramix.nn.export import MixtureTensors
from cramix.nn.head import MixtureHead

__all__ = ["MixtureHead", "MixtureTensors"]
