"""cramix learns Gaussian mixtures by gradient descent, with Cramér distances."""

from cramix import directions, parameters
from cramix.distance.cramer import cramer_distance
from cramix.distance.likelihood import kl_divergence
from cramix.distance.lp import lp_distance
from cramix.distance.sliced import sliced_cramer_distance
from cramix.distance.spherical import spherical_cramer_squared
from cramix.distance.wasserstein import sliced_wasserstein, wasserstein
from cramix.fitting import ConvergenceWarning, FitResult, fit
from cramix.io import load, save
from cramix.loss import (
    CramerLoss,
    SlicedCramerLoss,
    cramer_loss,
    cramer_wold_loss,
    crps,
    density_l2_loss,
    negative_log_likelihood_loss,
    sliced_cramer_loss,
    sliced_wasserstein_loss,
)
from cramix.mixture import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied

__version__ = "0.1.0"

__all__ = [
    "ConvergenceWarning",
    "CramerLoss",
    "Diagonal",
    "Factor",
    "FitResult",
    "Full",
    "MultivariateNormalMixture",
    "NormalMixture",
    "SlicedCramerLoss",
    "Spherical",
    "Tied",
    "cramer_distance",
    "cramer_loss",
    "cramer_wold_loss",
    "crps",
    "density_l2_loss",
    "directions",
    "fit",
    "kl_divergence",
    "load",
    "lp_distance",
    "negative_log_likelihood_loss",
    "parameters",
    "save",
    "sliced_cramer_distance",
    "sliced_cramer_loss",
    "sliced_wasserstein",
    "sliced_wasserstein_loss",
    "spherical_cramer_squared",
    "wasserstein",
]
