"""Distances and scores as losses: reductions, targets, and `nn.Module` twins of the functions."""

from cramix.loss.blend import BlendedLoss, blended_loss, ramp
from cramix.loss.cramer import cramer_loss, crps, energy_score, sliced_cramer_loss
from cramix.loss.likelihood import negative_log_likelihood_loss
from cramix.loss.modules import CramerLoss, EnergyScore, NLLLoss, SlicedCramerLoss
from cramix.loss.others import cramer_wold_loss, density_l2_loss, sliced_wasserstein_loss
from cramix.loss.reduction import reduce

__all__ = [
    "BlendedLoss",
    "CramerLoss",
    "EnergyScore",
    "NLLLoss",
    "SlicedCramerLoss",
    "blended_loss",
    "cramer_loss",
    "cramer_wold_loss",
    "crps",
    "density_l2_loss",
    "energy_score",
    "negative_log_likelihood_loss",
    "ramp",
    "reduce",
    "sliced_cramer_loss",
    "sliced_wasserstein_loss",
]
