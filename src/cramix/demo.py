"""The demonstration: groups that EM does not find, and a ring, a line and a square fitted by every method."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cramix.data import parallel_groups, ring_line_square
from cramix.distance.sliced import sliced_cramer_distance
from cramix.fitting import METHODS, FitResult, fit
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.plot.figure import require_matplotlib
from cramix.plot.plane import draw_components, draw_panels, draw_points, frame_points
from cramix.plot.view import Data

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

SEEDS = range(5)
COMPONENTS = 10  # for the ring, the line and the square
_GROUPS = 4
_COLUMNS = 3  # of the picture


class Recovery(NamedTuple):
    """How well fits with different seeds recover known groups.

    Attributes:
        name: of the method.
        rand_indices: adjusted Rand index for each seed.
        log_likelihood: mean over the rows and the seeds.
        seconds: for one fit.
        mixture: the fit with the first seed.
    """

    name: str
    rand_indices: list[float]
    log_likelihood: float
    seconds: float
    mixture: MultivariateNormalMixture

    @property
    def range(self) -> str:
        """The lowest and the highest index, or the one number where they agree."""
        low, high = (f"{index:.2f}" for index in (min(self.rand_indices), max(self.rand_indices)))
        return low if low == high else f"{low} to {high}"

    def row(self) -> tuple[str, str, str, str]:
        """Return a row of a table."""
        return self.name, self.range, f"{self.log_likelihood:.3f}", f"{self.seconds:.2f}"


class Contest(NamedTuple):
    """The ring, the line and the square, `(n, 2)`, and the fit of each method."""

    x: Tensor
    results: dict[str, FitResult]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a table: method, mean log likelihood, sliced Cramér distance, seconds."""
        return [
            (
                name,
                f"{result.log_likelihood:.4f}",
                f"{sliced_cramer_distance(in_coordinates(result.mixture), self.x).item():.4f}",
                f"{result.seconds:.2f}",
            )
            for name, result in self.results.items()
        ]


def recover_groups(progress: Callable[[str], None] = lambda text: None) -> list[Recovery]:
    """Fit four components to `parallel_groups` with several seeds: cramix, its EM, and scikit-learn if installed."""
    x, group = parallel_groups()

    def by_cramix(seed: int, method: str) -> MultivariateNormalMixture:
        generator = torch.Generator().manual_seed(seed)
        return in_coordinates(fit(x, _GROUPS, method=method, generator=generator).mixture)

    def by_sklearn(seed: int) -> MultivariateNormalMixture:
        from sklearn.mixture import GaussianMixture

        model = GaussianMixture(_GROUPS, n_init=10, random_state=seed).fit(x.numpy())
        return MultivariateNormalMixture.from_sklearn(model)

    fits: dict[str, Callable[[int], MultivariateNormalMixture]] = {"cramix": lambda seed: by_cramix(seed, "merge")}
    if find_spec("sklearn"):
        fits["scikit-learn, n_init=10"] = by_sklearn
    else:
        fits["EM"] = lambda seed: by_cramix(seed, "em")
    found = []
    for name, one in fits.items():
        progress(name)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that EM has not converged is part of the demonstration
            mixtures = [one(seed) for seed in SEEDS]
        seconds = (time.perf_counter() - began) / len(SEEDS)
        indices = [adjusted_rand_index(group, p.responsibilities(x).argmax(-1)) for p in mixtures]
        likelihood = float(np.mean([p.log_prob(x).mean().item() for p in mixtures]))
        found.append(Recovery(name, indices, likelihood, seconds, mixtures[0]))
    return found


def compare_methods(progress: Callable[[str], None] = lambda text: None) -> Contest:
    """Fit ten components to `ring_line_square` by every method, each from its default start."""
    x = ring_line_square()
    results = {}
    for name in METHODS:
        progress(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results[name] = fit(x, COMPONENTS, method=name, generator=torch.Generator().manual_seed(0))
    return Contest(x, results)


def adjusted_rand_index(a: Tensor, b: Tensor) -> float:
    """Return the agreement of two labellings `(n,)`: 1 for the same groups, about 0 for random ones.

    Hubert and Arabie, "Comparing partitions", 1985.

    Example:
        >>> adjusted_rand_index(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 2, 2]))
        1.0
    """

    def pairs(counts: Tensor) -> float:
        return (counts * (counts - 1)).sum().item() / 2

    table = one_hot(a).T @ one_hot(b)
    together, in_a, in_b = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected = in_a * in_b / (len(a) * (len(a) - 1) / 2)
    return (together - expected) / (0.5 * (in_a + in_b) - expected)


def picture(recoveries: list[Recovery], contest: Contest) -> Figure:
    """Draw the groups as they are and as each method finds them; below, the fit of every method to the shapes."""
    rows = -(-len(contest.results) // _COLUMNS)
    heights = 4.3, 0.4 + 1.75 * rows
    figure = require_matplotlib()(figsize=(11, sum(heights)), layout="constrained")
    halves = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)
    _draw_groups(halves[0, 0], recoveries)
    _draw_shapes(halves[1, 0], contest)
    return figure


def _draw_groups(figure: SubFigure, recoveries: list[Recovery]) -> None:
    x, group = parallel_groups()
    plane = _discriminant_plane(x, group)
    shown = x @ plane.T
    figure.suptitle("Four groups in five dimensions, in the plane that separates them best", fontsize=12)
    for axes, fitted in zip(figure.subplots(1, 1 + len(recoveries)), [None, *recoveries], strict=True):
        data = Data(shown)
        if fitted is None:
            data.labels = group.numpy()
            axes.set_title("true groups", fontsize=10)
        else:
            p = fitted.mixture
            labels = p.responsibilities(x).argmax(-1)
            order = _matching(group, labels)  # so that a group keeps its colour
            data.labels = np.argsort(order)[labels.numpy()]
            axes.set_title(f"{fitted.name}: adjusted Rand index {fitted.range}", fontsize=10)
            means, covariances = p.means @ plane.T, plane @ p.covariances @ plane.T
            parts = (p.weights[order], means[order], covariances[order])
            draw_components(axes, MultivariateNormalMixture(*parts, validate_args=False))
        draw_points(axes, data, 0, 1)
        frame_points(axes, data)


def _draw_shapes(figure: SubFigure, contest: Contest) -> None:
    figure.suptitle("Ten components for a ring, a line and a square: mean log likelihood by method", fontsize=12)
    fits = [(f"{name}: {r.log_likelihood:.2f}", in_coordinates(r.mixture)) for name, r in contest.results.items()]
    draw_panels(figure, contest.x, fits, _COLUMNS)


def _discriminant_plane(x: Tensor, group: Tensor) -> Tensor:
    """The two directions `(2, d)` that separate known groups best (Fisher's linear discriminants)."""
    means = torch.stack([x[group == g].mean(0) for g in range(_GROUPS)])
    within = torch.cov((x - means[group]).T)
    between = torch.cov(means.T)
    root = torch.linalg.cholesky(within).inverse()
    _, vectors = torch.linalg.eigh(root @ between @ root.T)
    return (root.T @ vectors[:, -2:]).T


def _matching(group: Tensor, labels: Tensor) -> np.ndarray:
    """The component that stands for each group, by the most points in common."""
    table = one_hot(group, _GROUPS).T @ one_hot(labels, _GROUPS)
    return np.array(max(permutations(range(_GROUPS)), key=lambda order: table[range(_GROUPS), order].sum()))
