"""Mixtures as values: distributions without weights to train."""

from cramix.mixture.axes import Diagonal, Spherical
from cramix.mixture.covariance import Covariance
from cramix.mixture.dense import Factor, Full, Tied
from cramix.mixture.multivariate import MultivariateNormalMixture
from cramix.mixture.normal import NormalMixture

__all__ = [
    "Covariance",
    "Diagonal",
    "Factor",
    "Full",
    "MultivariateNormalMixture",
    "NormalMixture",
    "Spherical",
    "Tied",
]
