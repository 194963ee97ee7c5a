"""Mixtures as values: distributions without weights to train."""

from cramix.mixture.covariance import Covariance, Diagonal, Factor, Full, Spherical, Tied
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
