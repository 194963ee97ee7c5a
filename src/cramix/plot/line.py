"""One coordinate: a histogram, the density and its components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cramix.mixture import NormalMixture
from cramix.mixture.components import log_density
from cramix.plot.figure import component_styles
from cramix.plot.view import Data, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TOTAL = "0.25"
_COARSE_BARS = 40
_RUG_HEIGHT = 0.035  # as a fraction of the picture's


def draw_line(
    axes: Axes,
    mixture: NormalMixture,
    data: Data | None,
    coordinate: int,
    view: View,
    *,
    bars: int = 150,
    rug: bool = True,
) -> None:
    """Draw a univariate mixture over one coordinate of the points; atoms as dotted lines.

    Args:
        axes: to draw on.
        mixture: whose components have a colour each.
        data: for the histogram and the rug, a tick for each point.
        coordinate: of the points.
        view: the limits.
        bars: the largest number of bars.
        rug: whether to draw one.
    """
    highest = 0.0 if data is None else _draw_histogram(axes, data, coordinate, view, bars)
    if rug and data is not None:
        _draw_rug(axes, data.shown[:, coordinate])
    styles = component_styles(mixture.n_components)
    for mean, scale, (colour, _) in zip(mixture.means.tolist(), mixture.scales.tolist(), styles, strict=True):
        if scale == 0:
            axes.axvline(mean, color=colour, lw=1.2, ls=":")
    smooth = (mixture.scales > 0).nonzero().squeeze(-1).tolist()
    if smooth:
        weights, means, scales = (t[smooth] for t in (mixture.weights, mixture.means, mixture.scales))
        grid = _grid(means, scales, view)
        curves = weights * log_density(grid.unsqueeze(-1), means, scales).exp()  # (n, k)
        density = curves.sum(-1).numpy()
        # Below the components, which it would hide wherever one of them makes up all of it.
        axes.plot(grid.numpy(), density, color=_TOTAL, lw=2.6, zorder=2, label="density")
        for i, curve in zip(smooth, curves.T.numpy(), strict=True):
            colour, dashes = styles[i]
            label = "components" if i == smooth[0] else None
            axes.plot(grid.numpy(), curve, color=colour, ls=dashes, lw=1.5, zorder=3, label=label)
        # A peak too narrow to be seen as one may leave the picture, rather than flatten the rest.
        highest = max(highest, min(density.max(), 1.5 * max(highest, _highest_bar(mixture, view))))
    # The means, even of components too light for their curves to leave the axis.
    colours = [colour for colour, _ in styles]
    at_the_axis = axes.get_xaxis_transform()
    axes.scatter(
        mixture.means.numpy(), np.zeros(mixture.n_components), marker="^", s=36, lw=0.6, ec="white", color=colours,
        transform=at_the_axis, clip_on=False, zorder=4,
    )  # fmt: skip
    axes.set(xlim=view, ylim=(0, 1.06 * highest or 1))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_histogram(axes: Axes, data: Data, coordinate: int, view: View, most: int) -> float:
    """Draw bars whose area is the fraction of the points in the picture, and return the highest."""
    x = data.x[:, coordinate]
    inside = (x >= view.low) & (x <= view.high)
    weights = np.ones_like(x) if data.weights is None else data.weights
    bins = int(np.clip(3 * len(x) ** 0.5, min(30, most), most))
    counts, edges = np.histogram(x[inside], bins, (view.low, view.high), weights=weights[inside])
    heights = counts / weights.sum() / (edges[1] - edges[0])
    axes.stairs(heights, edges, fill=True, color="0.87", label=f"{len(x)} points")
    return float(heights.max())


def _draw_rug(axes: Axes, x: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    ends = np.stack([np.stack([x, np.zeros_like(x)], -1), np.stack([x, np.full_like(x, _RUG_HEIGHT)], -1)], 1)
    alpha = float(np.clip(60 / len(x) ** 0.75, 0.03, 0.6))
    transform = axes.get_xaxis_transform()
    axes.add_collection(
        LineCollection(list(ends), colors="black", alpha=alpha, linewidths=0.7, transform=transform, rasterized=True),
        autolim=False,
    )


def _highest_bar(mixture: NormalMixture, view: View) -> float:
    """The highest bar of a coarse histogram of the mixture."""
    edges = view.grid(_COARSE_BARS + 1)
    return float(mixture.cdf(edges).diff().max() / (edges[1] - edges[0]))


def _grid(means: Tensor, scales: Tensor, view: View) -> Tensor:
    """Equally spaced values over the picture, and closer ones at components too narrow for them."""
    near = means + scales * torch.linspace(-4, 4, 65, dtype=means.dtype).unsqueeze(-1)
    grid = torch.cat((view.grid(600), near.flatten())).unique()
    return grid[(grid >= view.low) & (grid <= view.high)]
