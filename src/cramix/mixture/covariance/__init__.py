"""Kinds of covariances, one a file: values, sums of features for fits, outputs of networks. `KINDS` lists them."""

from __future__ import annotations

from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.diagonal import Diagonal
from cramix.mixture.covariance.factor import Factor
from cramix.mixture.covariance.family import Family, Prior, runnalls_cost
from cramix.mixture.covariance.full import DenseFamily, Full
from cramix.mixture.covariance.head import HeadCovariance
from cramix.mixture.covariance.spherical import Points, Spherical
from cramix.mixture.covariance.tied import Tied

# By their names, in the order in which they are offered; fits and heads offer those of `covariance_type` they have.
KINDS: dict[str, type[Covariance]] = {kind.name: kind for kind in (Full, Tied, Diagonal, Spherical, Factor, Points)}
FAMILIES: dict[str, type[Family]] = {kind.name: kind.family for kind in KINDS.values() if kind.family}
HEADS: dict[str, type[HeadCovariance]] = {kind.head.name: kind.head for kind in KINDS.values() if kind.head}

__all__ = [
    "FAMILIES",
    "HEADS",
    "KINDS",
    "Covariance",
    "DenseFamily",
    "Diagonal",
    "Factor",
    "Family",
    "Full",
    "HeadCovariance",
    "Points",
    "Prior",
    "Spherical",
    "Tied",
    "runnalls_cost",
]
