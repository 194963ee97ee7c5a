"""Problems to fit: samples to fit and held-out samples, with their classes where they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from real_tables import REPORTED, TUNING, Table, available, read
from sklearn import datasets

HELD_OUT = 0.3
FEW_DIMENSIONS, MANY_DIMENSIONS, SIMULATED = "Real tables, d < 10", "Real tables, d >= 10", "Simulated data"

Labelled = tuple[np.ndarray, np.ndarray]
Sampler = Callable[[int, np.random.Generator], Labelled]


class Draw(NamedTuple):
    """Samples `(n, d)` to fit and held-out samples; the classes of both, the former first, or None."""

    x: np.ndarray
    held_out: np.ndarray
    classes: np.ndarray | None


class Problem(NamedTuple):
    """A problem; `draw` maps a seed to its samples. `group` is the heading it is reported under."""

    name: str
    n_components: int
    covariance_type: str
    draw: Callable[[int], Draw]
    group: str = SIMULATED

    def __str__(self) -> str:
        return f"{self.name}, k {self.n_components}, {self.covariance_type}"


def problems() -> list[Problem]:
    """Return the problems of the page."""
    also = {
        "tied": ("iris", "olive", "wine", "body", "schools", "breast cancer", "cells"),
        "diag": ("quakes", "wine", "body", "breast cancer", "digits 20"),
    }
    return [
        *_of_tables(REPORTED, also),
        _simulated("faithful-like", 2, "full", 272, _faithful),
        _simulated("1-D, five scales", 5, "full", 800, _line),
        _simulated("two moons", 8, "full", 1000, _moons),
        _simulated("seven of many sizes", 7, "full", 1500, random_mixture(2, 7, 2.5, 1)),
        _simulated("much overlap", 4, "full", 2000, random_mixture(3, 4, 1.0, 2)),
        _simulated("outliers", 5, "full", 1200, _with_outliers(random_mixture(3, 4, 3.0, 3))),
        _simulated("six", 6, "full", 1500, random_mixture(6, 6, 1.5, 4)),
        _simulated("eight tied", 8, "tied", 1500, _tied(10, 8)),
        _simulated("twelve spherical", 12, "spherical", 2000, _spherical(4, 12)),
        _simulated("five shapes", 5, "full", 1500, random_mixture(20, 5, 0.5, 7)),
        _simulated("three in 30-D", 3, "full", 350, _shifted(30, 3, 1.0)),
        _simulated("three in 30-D", 3, "tied", 350, _shifted(30, 3, 1.0)),
        _simulated("six diagonal", 6, "diag", 500, _diagonal(40, 6)),
        _simulated("two in 100-D", 2, "full", 1400, _shifted(100, 2, 0.4)),
        _simulated("two in 100-D", 2, "tied", 1400, _shifted(100, 2, 0.4)),
        _simulated("two in 100-D", 2, "diag", 1400, _shifted(100, 2, 0.4)),
    ]


def tuning_problems() -> list[Problem]:
    """Return other problems, to choose settings on."""
    also = {"tied": ("possums", "stroke", "leaves"), "diag": ("cirrhosis", "leaves")}
    return [
        *_of_tables(TUNING, also),
        _simulated("nine", 9, "full", 1200, random_mixture(2, 9, 2.0, 11)),
        _simulated("four", 4, "full", 300, random_mixture(8, 4, 1.0, 12)),
        _simulated("four shapes", 4, "full", 800, random_mixture(15, 4, 0.6, 13)),
        _simulated("four in 20-D", 4, "full", 300, _shifted(20, 4, 1.2)),
        _simulated("three in 60-D", 3, "full", 900, _shifted(60, 3, 0.6)),
        _simulated("four diagonal", 4, "diag", 300, _diagonal(25, 4)),
    ]


def _of_tables(tables: tuple[Table, ...], also: dict[str, tuple[str, ...]]) -> list[Problem]:
    """Return a problem with full covariances for every table, and those with other covariances."""
    found = []
    for table in available(tables):
        d = read(table)[0].shape[1]
        group = FEW_DIMENSIONS if d < 10 else MANY_DIMENSIONS
        kinds = "full", *(kind for kind, names in also.items() if table.name in names)
        found += [Problem(_name(table.name, d), table.n_components, kind, _split(table), group) for kind in kinds]
    return found


def _simulated(name: str, k: int, covariance_type: str, n: int, sample: Sampler) -> Problem:
    def draw(seed: int) -> Draw:
        rng = np.random.default_rng(seed)
        (x, classes), (held_out, others) = sample(n, rng), sample(10_000, rng)
        return Draw(x, held_out, np.concatenate([classes, others]))

    return Problem(_name(name, sample(1, np.random.default_rng(0))[0].shape[1]), k, covariance_type, draw)


def _name(name: str, d: int) -> str:
    return name if "-D" in name else f"{name}, d {d}"


def _split(table: Table) -> Callable[[int], Draw]:
    """Split the rows of a table, or the number of them that it asks for, at random."""
    x, classes = read(table)

    def draw(seed: int) -> Draw:
        rows = np.random.default_rng(seed).permutation(len(x))[: table.rows or None]
        n = round((1 - HELD_OUT) * len(rows))
        return Draw(x[rows[:n]], x[rows[n:]], None if classes is None else classes[rows])

    return draw


def _mixture(n: int, rng: np.random.Generator, weights: np.ndarray, means: np.ndarray, roots: np.ndarray) -> Labelled:
    label = rng.choice(len(weights), n, p=weights)
    return means[label] + np.einsum("nij,nj->ni", roots[label], rng.standard_normal((n, means.shape[1]))), label


def _faithful(n: int, rng: np.random.Generator) -> Labelled:
    means = np.array([[2.0, 54.5], [4.3, 80.0]])
    covariances = np.array([[[0.07, 0.44], [0.44, 33.7]], [[0.17, 0.94], [0.94, 36.0]]])
    return _mixture(n, rng, np.array([0.36, 0.64]), means, np.linalg.cholesky(covariances))


def _line(n: int, rng: np.random.Generator) -> Labelled:
    scales = np.array([0.1, 0.2, 0.5, 1.0, 3.0])
    return _mixture(n, rng, np.full(5, 0.2), np.array([[-3.0], [-2.0], [0.0], [3.0], [8.0]]), scales[:, None, None])


def _moons(n: int, rng: np.random.Generator) -> Labelled:
    return datasets.make_moons(n, noise=0.08, random_state=int(rng.integers(2**31)))


def random_mixture(d: int, k: int, apart: float, seed: int) -> Sampler:
    """Fixed components of unequal weights, whose covariances have condition numbers of some hundreds."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(k, 3.0))
    means = apart * rng.standard_normal((k, d))
    axes = np.linalg.qr(rng.standard_normal((k, d, d)))[0]
    roots = axes * np.exp(rng.uniform(np.log(0.1), 0, (k, 1, d)))
    return lambda n, rng: _mixture(n, rng, weights, means, roots)


def _with_outliers(sample: Sampler) -> Sampler:
    """One sample in twenty is uniform in a box ten times as wide as the rest."""

    def draw(n: int, rng: np.random.Generator) -> Labelled:
        x, label = sample(n, rng)
        far = rng.random(n) < 0.05
        x[far] = rng.uniform(-30, 30, (int(far.sum()), x.shape[1]))
        return x, np.where(far, label.max() + 1, label)

    return draw


def _tied(d: int, k: int) -> Sampler:
    rng = np.random.default_rng(5)
    means, root = 1.2 * rng.standard_normal((k, d)), 0.4 * rng.standard_normal((d, d))
    return lambda n, rng: _mixture(n, rng, np.full(k, 1 / k), means, np.broadcast_to(root, (k, d, d)))


def _spherical(d: int, k: int) -> Sampler:
    rng = np.random.default_rng(6)
    means, scales = 2 * rng.standard_normal((k, d)), np.exp(rng.uniform(np.log(0.2), 0, k))
    return lambda n, rng: _mixture(n, rng, np.full(k, 1 / k), means, scales[:, None, None] * np.eye(d))


def _diagonal(d: int, k: int) -> Sampler:
    rng = np.random.default_rng(8)
    means, scales = 0.5 * rng.standard_normal((k, d)), np.exp(rng.uniform(np.log(0.3), 0, (k, d)))
    return lambda n, rng: _mixture(n, rng, np.full(k, 1 / k), means, scales[:, :, None] * np.eye(d))


def _shifted(d: int, k: int, shift: float) -> Sampler:
    """Unit normals, each shifted from the one before by the same amount in every coordinate."""
    means = shift * np.arange(k)[:, None] * np.ones(d)

    def draw(n: int, rng: np.random.Generator) -> Labelled:
        label = rng.integers(k, size=n)
        return means[label] + rng.standard_normal((n, d)), label

    return draw
