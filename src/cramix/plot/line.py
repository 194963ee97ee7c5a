"""One coordinate: a histogram, the density and its components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cramix.mixture import NormalMixture
from cramix.mixture.components import log_density
from cramix.plot.figure import COMPONENTS, DENSITY
from cramix.plot.view import Data, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 120
_COARSE_BARS = 40


def draw_line(axes: Axes, mixture: NormalMixture, data: Data | None, coordinate: int, view: View) -> None:
    """Draw a univariate mixture over a coordinate of the points; atoms as dotted lines."""
    highest = 0.0 if data is None else _draw_histogram(axes, data, coordinate, view)
    atoms = mixture.scales == 0
    for place in mixture.means[atoms].tolist():
        axes.axvline(place, color=COMPONENTS, lw=1, ls=":")
    weights, means, scales = (t[~atoms] for t in (mixture.weights, mixture.means, mixture.scales))
    if len(weights):
        grid = _grid(means, scales, view)
        curves = weights * log_density(grid.unsqueeze(-1), means, scales).exp()  # (places, k)
        for i, curve in enumerate(curves.T.numpy()):
            axes.plot(grid.numpy(), curve, color=COMPONENTS, lw=1.1, zorder=3, label=None if i else "components")
        density = curves.sum(-1).numpy()
        # Below the components, which would be hidden where one of them is all of it.
        axes.plot(grid.numpy(), density, color=DENSITY, lw=2.4, zorder=2, label="density")
        # A peak too narrow to be seen as one may leave the picture, rather than flatten the rest.
        highest = max(highest, min(density.max(), 1.5 * max(highest, _highest_bar(mixture, view))))
    # Where the components are, even those too light for their curves to leave the axis.
    at_the_axis = axes.get_xaxis_transform()
    axes.plot(mixture.means.numpy(), np.zeros(len(mixture.means)), "|", color=COMPONENTS, ms=9, transform=at_the_axis)
    axes.set(xlim=view, ylim=(0, 1.06 * highest or 1))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_histogram(axes: Axes, data: Data, coordinate: int, view: View) -> float:
    """Draw bars whose area is the share of the points in the picture, and return the highest."""
    x = data.x[:, coordinate]
    inside = (x >= view.low) & (x <= view.high)
    weights = np.ones_like(x) if data.weights is None else data.weights
    bins = int(np.clip(1.5 * len(x) ** 0.5, 15, _MOST_BARS))
    counts, edges = np.histogram(x[inside], bins, (view.low, view.high), weights=weights[inside])
    heights = counts / weights.sum() / (edges[1] - edges[0])
    axes.stairs(heights, edges, fill=True, color="0.88", label=f"{len(x)} points")
    return float(heights.max())


def _highest_bar(mixture: NormalMixture, view: View) -> float:
    """What a coarse histogram of the mixture would reach."""
    edges = view.grid(_COARSE_BARS + 1)
    return float(mixture.cdf(edges).diff().max() / (edges[1] - edges[0]))


def _grid(means: Tensor, scales: Tensor, view: View) -> Tensor:
    """Places all over the picture, and closer ones at components too narrow for them."""
    near = means + scales * torch.linspace(-4, 4, 65, dtype=means.dtype).unsqueeze(-1)
    grid = torch.cat((view.grid(600), near.flatten())).unique()
    return grid[(grid >= view.low) & (grid <= view.high)]
