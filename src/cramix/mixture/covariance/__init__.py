"""Kinds of covariances, one a file. `KINDS` is the only list of them."""

from __future__ import annotations

from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.diagonal import Diagonal
from cramix.mixture.covariance.factor import Factor
from cramix.mixture.covariance.full import Full
from cramix.mixture.covariance.spherical import Points, Spherical
from cramix.mixture.covariance.tied import Tied

# By the names of `covariance_type`, in the order in which they are offered.
KINDS: dict[str, type[Covariance]] = {kind.name: kind for kind in (Full, Tied, Diagonal, Spherical, Factor, Points)}

__all__ = ["KINDS", "Covariance", "Diagonal", "Factor", "Full", "Points", "Spherical", "Tied"]
