"""Several fits to the same points in the plane, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from cramix.mixture import MultivariateNormalMixture
from cramix.plot.figure import require_matplotlib
from cramix.plot.plane import draw_components, draw_points
from cramix.plot.view import Data, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure


def panels(x: Tensor, fits: Sequence[tuple[str, MultivariateNormalMixture]], columns: int = 3) -> Figure:
    """Draw points `(n, 2)` in a grid of panels, with the components of a mixture and a title in each.

    The limits are those of the points; components beyond them are cut off.
    """
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
    across, up = (View(low, high) for low, high in zip(data.x.min(0), data.x.max(0), strict=True))
    across, up = (View(view.low - 0.08 * view.width, view.high + 0.08 * view.width) for view in (across, up))
    grid = figure.subplots(-(-len(fits) // columns), columns, squeeze=False).ravel()
    for axes, (title, mixture) in zip(grid, fits, strict=False):
        draw_points(axes, data, 0, 1)
        draw_components(axes, mixture)
        axes.set(xlim=across, ylim=up, aspect="equal", xticks=[], yticks=[])
        axes.set_title(title, fontsize=9)
    for axes in grid[len(fits) :]:
        axes.set_axis_off()
