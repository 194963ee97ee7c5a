"""Distances and scores as losses: reductions, and `nn.Module` twins of the functions."""

from cramix.loss.blend import BlendedLoss, blended_loss, ramp
from cramix.loss.functional import (
    cramer_loss,
    cramer_wold_loss,
    density_l2_loss,
    energy_score_loss,
    nll_loss,
    sliced_cramer_loss,
    sliced_wasserstein_loss,
)
from cramix.loss.modules import CramerLoss, EnergyScoreLoss, MixtureNLLLoss, SlicedCramerLoss
from cramix.loss.per_observation import crps, energy_score

__all__ = [
    "BlendedLoss",
    "CramerLoss",
    "EnergyScoreLoss",
    "MixtureNLLLoss",
    "SlicedCramerLoss",
    "blended_loss",
    "cramer_loss",
    "cramer_wold_loss",
    "crps",
    "density_l2_loss",
    "energy_score",
    "energy_score_loss",
    "nll_loss",
    "ramp",
    "sliced_cramer_loss",
    "sliced_wasserstein_loss",
]
