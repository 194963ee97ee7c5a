"""The scikit-learn estimator."""

from cramix.estimator.mixture import CramerMixture, MixtureWarning

__all__ = ["CramerMixture", "MixtureWarning"]
