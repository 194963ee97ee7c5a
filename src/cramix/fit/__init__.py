"""Fitting mixtures: functions from data to a `FitResult`."""

from cramix.fit.likelihood import fit_likelihood
from cramix.fit.result import FitResult, Step

__all__ = ["FitResult", "Step", "fit_likelihood"]
