"""Gaussian mixtures as objectives of boosted trees, for training scripts of your own.

`cramix.MixtureBoostingRegressor` needs none of this.
"""

from cramix.boosting.objectives import MixtureObjective, objective

__all__ = ["MixtureObjective", "objective"]
