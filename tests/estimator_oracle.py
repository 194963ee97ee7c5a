"""Data for `CramerMixture`, and scikit-learn's model with its parameters."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from cramix import CramerMixture

TYPES = ["full", "tied", "diag", "spherical"]
every_type = pytest.mark.parametrize("kind", TYPES)
FITTED = "weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"


def data(n: int = 240, d: int = 3, seed: int = 0) -> np.ndarray:
    """Three groups of different shapes that overlap a little."""
    rng = np.random.default_rng(seed)
    centres, roots = 6 * np.eye(3, d), rng.normal(size=(3, d, d))
    labels = np.arange(n) % 3
    return centres[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(n, d)))


def peer(model: CramerMixture) -> GaussianMixture:
    """Their model with our parameters."""
    theirs = GaussianMixture(model.n_components, covariance_type=model.covariance_type)
    for name in FITTED:
        setattr(theirs, name, getattr(model, name))
    return theirs


def nearest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The rows of b next to the rows of a, each once: components have no order."""
    order = np.linalg.norm(a[:, None] - b, axis=-1).argmin(1)
    assert sorted(order) == list(range(len(b)))
    return order
