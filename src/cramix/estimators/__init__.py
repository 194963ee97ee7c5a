"""scikit-learn estimators."""

from cramix.estimators.mixture import CramerMixture

__all__ = ["CramerMixture"]
