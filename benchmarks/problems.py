"""Problems to fit, each with samples to fit and held-out samples: real data of scikit-learn, and simulated data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler


class Problem(NamedTuple):
    """A problem; `draw` maps a seed to samples `(n, d)` to fit and to held-out samples."""

    name: str
    n_components: int
    covariance_type: str
    reg_covar: float
    draw: Callable[[int], tuple[np.ndarray, np.ndarray]]


def problems() -> list[Problem]:
    """Return all problems, from easy to hard."""
    digits = datasets.load_digits().data / 16
    wine, cancer = (
        StandardScaler().fit_transform(load().data) for load in (datasets.load_wine, datasets.load_breast_cancer)
    )
    return [
        Problem("faithful-like, d 2", 2, "full", 1e-6, _drawn(_faithful, 272)),
        Problem("1-D, five scales", 5, "full", 1e-6, _drawn(_line, 800)),
        Problem("two moons, d 2", 8, "full", 1e-6, _drawn(_moons, 1000)),
        Problem("seven of many sizes, d 2", 7, "full", 1e-6, _drawn(_random_mixture(2, 7, 2.5, 1), 1500)),
        Problem("much overlap, d 3", 4, "full", 1e-6, _drawn(_random_mixture(3, 4, 1.0, 2), 2000)),
        Problem("outliers, d 3", 5, "full", 1e-6, _drawn(_with_outliers(_random_mixture(3, 4, 3.0, 3)), 1200)),
        Problem("six, d 6", 6, "full", 1e-6, _drawn(_random_mixture(6, 6, 1.5, 4), 1500)),
        Problem("eight tied, d 10", 8, "tied", 1e-6, _drawn(_tied(10, 8), 1500)),
        Problem("twelve spherical, d 4", 12, "spherical", 1e-6, _drawn(_spherical(4, 12), 2000)),
        Problem("iris, d 4", 3, "full", 1e-6, _split(datasets.load_iris().data)),
        Problem("wine, d 13", 3, "diag", 1e-6, _split(wine)),
        Problem("breast cancer, d 30", 2, "full", 1e-2, _split(cancer)),
        Problem("digits, d 5", 10, "full", 1e-4, _split(PCA(5).fit_transform(digits))),
        Problem("digits, d 10", 10, "full", 1e-4, _split(PCA(10).fit_transform(digits))),
        Problem("digits, d 20", 10, "full", 1e-4, _split(PCA(20).fit_transform(digits))),
    ]


def _split(x: np.ndarray) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    return lambda seed: tuple(train_test_split(x, test_size=0.3, random_state=seed))


def _drawn(sample: Callable[[int, np.random.Generator], np.ndarray], n: int) -> Callable:
    def draw(seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        return sample(n, rng), sample(10_000, rng)

    return draw


def _mixture(n: int, rng: np.random.Generator, weights: np.ndarray, means: np.ndarray, roots: np.ndarray) -> np.ndarray:
    label = rng.choice(len(weights), n, p=weights)
    return means[label] + np.einsum("nij,nj->ni", roots[label], rng.standard_normal((n, means.shape[1])))


def _faithful(n: int, rng: np.random.Generator) -> np.ndarray:
    means = np.array([[2.0, 54.5], [4.3, 80.0]])
    covariances = np.array([[[0.07, 0.44], [0.44, 33.7]], [[0.17, 0.94], [0.94, 36.0]]])
    return _mixture(n, rng, np.array([0.36, 0.64]), means, np.linalg.cholesky(covariances))


def _line(n: int, rng: np.random.Generator) -> np.ndarray:
    scales = np.array([0.1, 0.2, 0.5, 1.0, 3.0])
    return _mixture(n, rng, np.full(5, 0.2), np.array([[-3.0], [-2.0], [0.0], [3.0], [8.0]]), scales[:, None, None])


def _moons(n: int, rng: np.random.Generator) -> np.ndarray:
    return datasets.make_moons(n, noise=0.08, random_state=int(rng.integers(2**31)))[0]


def _random_mixture(d: int, k: int, apart: float, seed: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Fixed components of unequal weights, whose covariances have condition numbers of some hundreds."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(k, 3.0))
    means = apart * rng.standard_normal((k, d))
    axes = np.linalg.qr(rng.standard_normal((k, d, d)))[0]
    roots = axes * np.exp(rng.uniform(np.log(0.1), 0, (k, 1, d)))
    return lambda n, rng: _mixture(n, rng, weights, means, roots)


def _with_outliers(sample: Callable) -> Callable[[int, np.random.Generator], np.ndarray]:
    """One sample in twenty is uniform in a box ten times as wide as the rest."""

    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        x = sample(n, rng)
        far = rng.random(n) < 0.05
        x[far] = rng.uniform(-30, 30, (int(far.sum()), x.shape[1]))
        return x

    return draw


def _tied(d: int, k: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    rng = np.random.default_rng(5)
    means, root = 1.2 * rng.standard_normal((k, d)), 0.4 * rng.standard_normal((d, d))
    return lambda n, rng: _mixture(n, rng, np.full(k, 1 / k), means, np.broadcast_to(root, (k, d, d)))


def _spherical(d: int, k: int) -> Callable[[int, np.random.Generator], np.ndarray]:
    rng = np.random.default_rng(6)
    means, scales = 2 * rng.standard_normal((k, d)), np.exp(rng.uniform(np.log(0.2), 0, k))
    return lambda n, rng: _mixture(n, rng, np.full(k, 1 / k), means, scales[:, None, None] * np.eye(d))
