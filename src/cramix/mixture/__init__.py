"""Mixtures as values: distributions without parameters to train."""

from cramix.mixture.covariance import Covariance, Diagonal, Factor, Full, Spherical, Tied
from cramix.mixture.multivariate import MultivariateNormalMixture
from cramix.mixture.univariate import NormalMixture

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
