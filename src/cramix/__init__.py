"""cramix learns Gaussian mixtures by gradient descent, with Cramér distances."""

from cramix import directions
from cramix.distance.cramer import cramer_distance
from cramix.distance.lp import lp_distance
from cramix.distance.sliced import sliced_cramer_distance
from cramix.io import load, save
from cramix.loss import CramerLoss, SlicedCramerLoss, cramer_loss, crps, density_l2_loss, sliced_cramer_loss
from cramix.mixture import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied

__version__ = "0.1.0"

__all__ = [
    "CramerLoss",
    "Diagonal",
    "Factor",
    "Full",
    "MultivariateNormalMixture",
    "NormalMixture",
    "SlicedCramerLoss",
    "Spherical",
    "Tied",
    "cramer_distance",
    "cramer_loss",
    "crps",
    "density_l2_loss",
    "directions",
    "load",
    "lp_distance",
    "save",
    "sliced_cramer_distance",
    "sliced_cramer_loss",
]
