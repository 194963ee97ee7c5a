"""What a picture shows of points and of a mixture: where its edges are, and which points it draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.mixture import MultivariateNormalMixture

_MOST_POINTS = 20_000
_DRAWS = 2048


class Data:
    """Points `(n, d)` with weights `(n,)`, and those of them to draw one by one: as many as the eye can tell apart."""

    def __init__(self, x: Tensor, weights: Tensor | None) -> None:
        self.x = x.detach().double().numpy()
        self.weights = None if weights is None else weights.detach().double().numpy()
        some = np.random.default_rng(0).choice(len(x), _MOST_POINTS, replace=False) if len(x) > _MOST_POINTS else ...
        self.shown = self.x[some]

    def outside(self, views: list[View]) -> int:
        """Count points beyond the edges."""
        beyond = [(self.x[:, i] < view.low) | (self.x[:, i] > view.high) for i, view in enumerate(views)]
        return int(np.any(beyond, 0).sum())


class View(NamedTuple):
    """The edges of a coordinate."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """From edge to edge."""
        return self.high - self.low

    def grid(self, count: int) -> Tensor:
        """Return equally spaced places, in float64."""
        return torch.linspace(self.low, self.high, count, dtype=torch.float64)


def views(mixture: MultivariateNormalMixture, data: Data | None, coordinates: int) -> list[View]:
    """Return edges around all of the mixture and the points, but for outliers that would make the rest a dot."""
    drawn = mixture.sample((_DRAWS,), generator=torch.Generator().manual_seed(0)).numpy()
    found = []
    for i in range(coordinates):
        ends = [_ends(drawn[:, i])] + ([_ends(data.x[:, i])] if data is not None else [])
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        pad = 0.04 * (high - low) or 0.5 * (abs(low) or 1.0)
        found.append(View(low - pad, high + pad))
    return found


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The least and the largest value, but for those further out than twice the width of the middle 99 %."""
    low, high = np.quantile(values, [0.005, 0.995])
    reach = 2 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    return float(inside.min()), float(inside.max())
