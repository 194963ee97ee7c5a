"""Two coordinates: points, the regions that contain most of a mixture, its components, and panels of several fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.distance.likelihood import log_density
from cramix.mixture import MultivariateNormalMixture
from cramix.plot.figure import POINTS, component_styles, require_matplotlib
from cramix.plot.view import Data, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Probabilities of the regions, from the outermost inwards, and their greys.
_REGIONS = {0.99: "#F1F1F1", 0.9: "#E2E2E2", 0.5: "#CDCDCD"}
_DRAWS = 8192
_ANGLES = np.linspace(0, 2 * np.pi, 97)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)  # (97, 2)


def draw_points(axes: Axes, data: Data, first: int, second: int) -> None:
    """Draw points as dots, smaller and fainter the more there are, in the colours of their components."""
    n = len(data.shown)
    size, alpha = float(np.clip(6000 / n, 1.5, 12)), float(np.clip(400 / n**0.75, 0.12, 0.7))
    x, y, label = data.shown[:, first], data.shown[:, second], f"{len(data.x)} points"
    colour: str | list[str] = POINTS
    if data.labels is not None:
        styles = component_styles(int(data.labels.max()) + 1)
        colour = [styles[i][0] for i in data.labels]
    axes.scatter(x, y, s=size, alpha=alpha, color=colour, lw=0, rasterized=True, label=label)


def draw_components(axes: Axes, mixture: MultivariateNormalMixture) -> None:
    """Draw ellipses 1 and 2 standard deviations from the means of a bivariate mixture's components.

    Each component has a colour; light ones are faint.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    means = mixture.means.numpy()
    strength = np.sqrt(mixture.weights.numpy() / mixture.weights.max().item()).clip(0.4, 1)
    styles = component_styles(mixture.n_components)
    colours = [to_rgba(colour, alpha) for (colour, _), alpha in zip(styles, strength, strict=True)]
    values, vectors = np.linalg.eigh(mixture.covariances.numpy())
    roots = vectors * np.sqrt(values.clip(0))[:, None]  # (k, 2, 2)
    for sigmas, width in ((1, 1.8), (2, 1.0)):
        paths = means[:, None] + sigmas * _CIRCLE @ roots.swapaxes(-1, -2)  # (k, 97, 2)
        label = "components, 1 and 2 σ" if sigmas == 1 else None
        dashes = [dashes for _, dashes in styles]
        ellipses = LineCollection(list(paths), colors=colours, linewidths=width, linestyles=dashes, label=label)
        axes.add_collection(ellipses, autolim=False)
    axes.scatter(means[:, 0], means[:, 1], marker="+", s=22, lw=1.2, color=colours)


def draw_regions(axes: Axes, mixture: MultivariateNormalMixture, across: View, up: View, cells: int) -> None:
    """Fill the smallest regions that contain 50, 90 and 99 % of a bivariate mixture, if it has a density."""
    drawn = mixture.sample((_DRAWS,), generator=torch.Generator().manual_seed(0))
    try:
        heights = log_density(mixture, drawn)
    except ValueError:
        return
    levels = heights.quantile(1 - torch.tensor(list(_REGIONS), dtype=heights.dtype)).tolist()
    columns, rows = across.grid(cells), up.grid(cells)
    values = log_density(mixture, torch.cartesian_prod(columns, rows)).view(cells, cells).T.numpy()
    axes.contourf(columns.numpy(), rows.numpy(), values, [*levels, np.inf], colors=list(_REGIONS.values()))
    for probability, colour in reversed(_REGIONS.items()):
        whole = " of the mixture" if probability == max(_REGIONS) else ""
        axes.fill([], [], color=colour, label=f"{probability:.0%}{whole}")  # for the legend


def frame_points(axes: Axes, data: Data) -> None:
    """Set the limits around points `(n, 2)`, without ticks."""
    low, high = data.x.min(0), data.x.max(0)
    (left, bottom), (right, top) = low - 0.08 * (high - low), high + 0.08 * (high - low)
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])


def panels(x: Any, fits: Sequence[tuple[str, MultivariateNormalMixture]], columns: int = 3) -> Figure:
    """Draw points `(n, 2)` in a grid of panels, with the components of a mixture and a title in each.

    The limits are those of the points; components beyond them are cut off.

    Args:
        x: points `(n, 2)`.
        fits: titles and mixtures of two dimensions.
        columns: of the grid.

    Example:
        >>> from cramix import fit
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(100, 2, generator=g)
        >>> figure = panels(x, [(f"k = {k}", fit(x, k, generator=g).mixture) for k in (1, 2)], columns=2)
        >>> [axes.get_title() for axes in figure.axes]
        ['k = 1', 'k = 2']
    """
    x = as_tensor("x", x)
    low, high = x.min(0).values.tolist(), x.max(0).values.tolist()
    height = min(3.2 * (high[1] - low[1]) / (high[0] - low[0]), 4.0)
    rows = -(-len(fits) // columns)
    figure = require_matplotlib()(figsize=(3.2 * columns, (height + 0.35) * rows), layout="constrained")
    draw_panels(figure, x, fits, columns)
    return figure


def draw_panels(
    figure: Figure | SubFigure, x: Tensor, fits: Sequence[tuple[str, MultivariateNormalMixture]], columns: int = 3
) -> None:
    """Draw panels into a figure or a part of one."""
    data = Data(x)
    grid = figure.subplots(-(-len(fits) // columns), columns, squeeze=False).ravel()
    for axes, (title, mixture) in zip(grid, fits, strict=False):
        draw_points(axes, data, 0, 1)
        draw_components(axes, mixture)
        frame_points(axes, data)
        axes.set_aspect("equal")
        axes.set_title(title, fontsize=9)
    for axes in grid[len(fits) :]:
        axes.set_axis_off()
