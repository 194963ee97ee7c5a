"""Two coordinates: points, the regions that hold most of a mixture, and its components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from cramix.distance.likelihood import log_density
from cramix.mixture import MultivariateNormalMixture
from cramix.plot.figure import COMPONENTS, POINTS
from cramix.plot.view import Data, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Shares of the mass, from the outermost region inwards.
_SHARES = {0.99: "#E3EEF6", 0.9: "#BBD6E9", 0.5: "#88B8D8"}
_DRAWS = 8192
_ANGLES = np.linspace(0, 2 * np.pi, 97)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # (97, 2)


def draw_points(axes: Axes, data: Data, first: int, second: int) -> None:
    """Draw points as dots, the smaller and fainter the more there are."""
    n = len(data.shown)
    size, alpha = float(np.clip(6000 / n, 1.5, 12)), float(np.clip(400 / n**0.75, 0.12, 0.7))
    x, y, label = data.shown[:, first], data.shown[:, second], f"{len(data.x)} points"
    axes.scatter(x, y, s=size, alpha=alpha, color=POINTS, lw=0, rasterized=True, label=label)


def draw_components(axes: Axes, mixture: MultivariateNormalMixture) -> None:
    """Draw where the components of a bivariate mixture are 1 and 2 standard deviations from their means.

    Lighter components are fainter.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    means = mixture.means.numpy()
    strength = np.sqrt(mixture.weights.numpy() / mixture.weights.max().item()).clip(0.4, 1)
    colours = [to_rgba(COMPONENTS, alpha) for alpha in strength]
    values, vectors = np.linalg.eigh(mixture.covariances.numpy())
    roots = vectors * np.sqrt(values.clip(0))[:, None]  # (k, 2, 2)
    for sigmas, width in ((1, 1.6), (2, 0.9)):
        paths = means[:, None] + sigmas * _CIRCLE @ roots.swapaxes(-1, -2)  # (k, 97, 2)
        label = "components, 1 and 2 σ" if sigmas == 1 else None
        axes.add_collection(LineCollection(list(paths), colors=colours, linewidths=width, label=label), autolim=False)
    axes.scatter(means[:, 0], means[:, 1], marker="+", s=18, lw=1.0, color=colours)


def draw_regions(axes: Axes, mixture: MultivariateNormalMixture, across: View, up: View, cells: int) -> None:
    """Fill the smallest regions that hold 50, 90 and 99 % of a bivariate mixture, if it has a density."""
    drawn = mixture.sample((_DRAWS,), generator=torch.Generator().manual_seed(0))
    try:
        heights = log_density(mixture, drawn)
    except ValueError:
        return
    levels = heights.quantile(1 - torch.tensor(list(_SHARES), dtype=heights.dtype)).tolist()
    columns, rows = across.grid(cells), up.grid(cells)
    values = log_density(mixture, torch.cartesian_prod(columns, rows)).view(cells, cells).T.numpy()
    axes.contourf(columns.numpy(), rows.numpy(), values, [*levels, np.inf], colors=list(_SHARES.values()))
    for share, colour in reversed(_SHARES.items()):
        whole = " of the mixture" if share == max(_SHARES) else ""
        axes.fill([], [], color=colour, label=f"{share:.0%}{whole}")  # for the legend
