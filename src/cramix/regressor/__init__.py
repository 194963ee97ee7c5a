"""The scikit-learn regressor."""

from cramix.regressor.regressor import MixtureRegressor

__all__ = ["MixtureRegressor"]
