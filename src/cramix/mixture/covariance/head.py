"""What heads need of a covariance kind: the map from outputs of a network to covariances.

A scale is a minimum plus the softplus of an output. Softplus has a slope of at most 1, so gradients stay bounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from cramix.mixture.covariance.base import Covariance


class HeadCovariance(ABC):
    """Covariances in d dimensions from unconstrained outputs; abstract.

    Args:
        dim: d.
        rank: of the kind "low_rank".
    """

    name: ClassVar[str]

    def __init__(self, dim: int, rank: int) -> None:
        self.dim, self.rank = dim, rank

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """The number of outputs for each component."""

    def units(self, scales: Tensor) -> Tensor:
        """Return the unit of each coordinate, `(d,)`, for targets with these standard deviations, `(d,)`."""
        return scales

    @abstractmethod
    def outputs(self, scales: Tensor) -> Tensor:
        """Return the outputs `(n_outputs,)` of a component with scales `(d,)` above the minimum, in units."""

    @abstractmethod
    def covariances(self, outputs: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        """Return the covariances.

        Args:
            outputs: `(*batch, k, n_outputs)`.
            least: the smallest scale of each coordinate, `(d,)`, in units.
            unit: of each coordinate, `(d,)`.
        """
