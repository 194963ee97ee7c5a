"""Estimators and scorers for scikit-learn."""

from cramix.estimators.boosting import MixtureBoostingRegressor
from cramix.estimators.conformal import ConformalRegressor
from cramix.estimators.mixture import CramerMixture
from cramix.estimators.regressor import MixtureRegressor
from cramix.estimators.scorers import crps_scorer, log_likelihood_scorer
from cramix.estimators.stacking import MixtureStackingRegressor

__all__ = [
    "ConformalRegressor",
    "CramerMixture",
    "MixtureBoostingRegressor",
    "MixtureRegressor",
    "MixtureStackingRegressor",
    "crps_scorer",
    "log_likelihood_scorer",
]
