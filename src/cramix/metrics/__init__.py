"""Metrics of predicted distributions, for torchmetrics (`pip install 'cramix[metrics]'`)."""

from cramix.metrics.calibration import Calibration
from cramix.metrics.scores import CRPS, EnergyScore

__all__ = ["CRPS", "Calibration", "EnergyScore"]
