"""What a picture shows of points and of a mixture: its limits, and the points that are drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.mixture import MultivariateNormalMixture

_MOST_POINTS = 20_000
_DRAWS = 2048


class Data:
    """Points `(n, d)` with weights `(n,)`, and a random subset of them to draw one by one if there are very many.

    Attributes:
        x: the points.
        weights: of the points, for histograms.
        shown: the points to draw.
        labels: of the points to draw, which decide their colours; None for points of one colour.
    """

    def __init__(self, x: Tensor, weights: Tensor | None = None) -> None:
        self.x = x.detach().double().cpu().numpy()
        self.weights = None if weights is None else weights.detach().double().cpu().numpy()
        some = np.random.default_rng(0).choice(len(x), _MOST_POINTS, replace=False) if len(x) > _MOST_POINTS else ...
        self.shown = self.x[some]
        self.labels: np.ndarray | None = None

    def label_by(self, mixture: MultivariateNormalMixture) -> None:
        """Label the points by their most probable component, if the mixture has a density."""
        try:
            self.labels = mixture.responsibilities(torch.from_numpy(self.shown)).argmax(-1).numpy()
        except ValueError:  # a singular covariance
            self.labels = None

    def outside(self, views: dict[int, View]) -> int:
        """Count points beyond the limits."""
        beyond = [(self.x[:, i] < view.low) | (self.x[:, i] > view.high) for i, view in views.items()]
        return int(np.any(beyond, 0).sum())


class View(NamedTuple):
    """The limits of a coordinate."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """The distance between the limits."""
        return self.high - self.low

    def grid(self, count: int) -> Tensor:
        """Return equally spaced values, in float64."""
        return torch.linspace(self.low, self.high, count, dtype=torch.float64)


def views(mixture: MultivariateNormalMixture, data: Data | None, coordinates: list[int]) -> dict[int, View]:
    """Return limits around the mixture and the points, except for outliers that would squeeze the rest to a dot."""
    drawn = mixture.sample((_DRAWS,), generator=torch.Generator().manual_seed(0)).numpy()
    found = {}
    for i in coordinates:
        ends = [_ends(drawn[:, i])] + ([_ends(data.x[:, i])] if data is not None else [])
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        pad = 0.04 * (high - low) or 0.5 * (abs(low) or 1.0)
        found[i] = View(low - pad, high + pad)
    return found


def most_separating(mixture: MultivariateNormalMixture, count: int) -> list[int]:
    """Choose coordinates in which the components lie apart most, in their order.

    One after another, the coordinate is added that raises most the log ratio of the determinants of the total and the
    within-component covariance (Wilks' lambda) of those chosen.
    """
    total = mixture.covariance
    within = (mixture.weights[:, None, None] * mixture.covariances).sum(0)
    scales = total.diagonal().sqrt()
    scales = scales.where(scales > 0, 1.0)
    total, within = (matrix / scales / scales[:, None] for matrix in (total, within))
    ridge = 1e-9 * torch.eye(mixture.dim, dtype=total.dtype)  # constant coordinates separate nothing
    chosen: list[int] = []
    while len(chosen) < count:

        def separation(i: int) -> float:
            some = [*chosen, i]
            ratio = [(matrix + ridge)[some][:, some].logdet() for matrix in (total, within)]
            return (ratio[0] - ratio[1]).item()

        rest = [i for i in range(mixture.dim) if i not in chosen]
        values = [separation(i) for i in rest]
        # Ties, as with one component, go to the first.
        chosen.append(rest[next(i for i, value in enumerate(values) if value >= max(values) - 1e-9)])
    return sorted(chosen)


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest value, except for those further out than twice the width of the middle 99 %."""
    low, high = np.quantile(values, [0.005, 0.995])
    reach = 2 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    return float(inside.min()), float(inside.max())
