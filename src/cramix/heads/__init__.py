"""From features to mixtures: the last layer of a network."""

from cramix.heads.head import MixtureHead
from cramix.heads.tensors import MixtureTensors

__all__ = ["MixtureHead", "MixtureTensors"]
