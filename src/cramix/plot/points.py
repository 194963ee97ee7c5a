"""A mixture and the points it stands for, in one, two or more dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.plot.figure import require_matplotlib
from cramix.plot.line import draw_line
from cramix.plot.plane import draw_components, draw_points, draw_regions
from cramix.plot.view import Data, View, views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COORDINATES = 5
_MOST_UNEQUAL = 3  # times as wide as high, up to which a unit is as long in both directions


class _Scene(NamedTuple):
    """What there is to draw: the mixture, the points, the edges of the coordinates shown and the names of all."""

    mixture: MultivariateNormalMixture
    data: Data | None
    edges: list[View]
    names: list[str]


def mixture_and_points(
    mixture: NormalMixture | MultivariateNormalMixture,
    x: Tensor | None = None,
    *,
    weights: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Draw an unbatched mixture over the points it was fitted to.

    On the line: a histogram, the density and the components. In the plane: points, the smallest regions that hold 50,
    90 and 99 % of the mixture, and where components are 1 and 2 standard deviations from their means. In more
    dimensions each two of the first five coordinates, points below the diagonal, regions above it, marginals on it.

    Args:
        mixture: in d dimensions; a component without density, such as one of scale 0, is shown by its place.
        x: points `(n, d)`, or `(n,)` for d = 1.
        weights: of the points, `(n,)`, for histograms.
        names: of the d coordinates, for the axes; x1, x2, ... if None.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> figure = mixture_and_points(p, p.sample((100,)))
        >>> figure.savefig("fit.png")  # doctest: +SKIP
    """
    figure_class = require_matplotlib()
    if mixture.batch_shape:
        raise ValueError(f"mixture must have no batch; got {tuple(mixture.batch_shape)}. Take one of them.")
    mixture = in_coordinates(mixture, torch.float64)
    dim = mixture.dim
    if x is not None and (x.shape[1:] or (1,)) != (dim,):
        raise ValueError(f"x must be points (n, {dim}); got {tuple(x.shape)}. Choose as many coordinates.")
    names = [f"x{i}" for i in range(1, dim + 1)] if names is None else list(names)
    data = None if x is None else Data(x.reshape(-1, dim), weights)
    edges = views(mixture, data, min(dim, _MOST_COORDINATES))
    figure = figure_class(figsize=(7.5, 4.5), layout="constrained")
    {1: _line, 2: _plane}.get(dim, _pairs)(figure, _Scene(mixture, data, edges, names))
    _say_what_is_left_out(figure, data, edges, dim)
    return figure


def _line(figure: Figure, scene: _Scene) -> None:
    axes = figure.subplots()
    draw_line(axes, scene.mixture.marginal(0), scene.data, 0, scene.edges[0])
    axes.set(xlabel=scene.names[0], ylabel="density")
    _legend(figure, axes)


def _plane(figure: Figure, scene: _Scene) -> None:
    axes = figure.subplots()
    across, up = scene.edges
    draw_regions(axes, scene.mixture, across, up, cells=240)
    if scene.data is not None:
        draw_points(axes, scene.data, 0, 1)
    draw_components(axes, scene.mixture)
    axes.set(xlabel=scene.names[0], ylabel=scene.names[1], xlim=across, ylim=up)
    shape = up.width / across.width
    alike = 1 / _MOST_UNEQUAL < shape < _MOST_UNEQUAL
    if alike:
        axes.set_aspect("equal")
    figure.set_size_inches(7.5, 0.9 + min(6.6 * shape, 8.0) if alike else 6.5)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, axes)


def _pairs(figure: Figure, scene: _Scene) -> None:
    count = len(scene.edges)
    figure.set_size_inches(2.3 * count, 2.3 * count + 0.4)
    grid = figure.subplots(count, count)
    for row, column in product(range(count), repeat=2):
        axes, across, up = grid[row, column], scene.edges[column], scene.edges[row]
        axes.locator_params(nbins=3)
        if row == column:
            draw_line(axes, scene.mixture.marginal(row), scene.data, row, across)
            axes.set_yticks([])
        else:
            pair = scene.mixture.marginal([column, row])
            if row < column:
                draw_regions(axes, pair, across, up, cells=100)
            elif scene.data is not None:
                draw_points(axes, scene.data, column, row)
            draw_components(axes, pair)
            axes.set(xlim=across, ylim=up)
        axes.tick_params(labelsize=8, labelbottom=row == count - 1, labelleft=column == 0)
        axes.set_xlabel(scene.names[column] if row == count - 1 else "")
        axes.set_ylabel(scene.names[row] if column == 0 else "")
    figure.align_ylabels(grid[:, 0])
    _legend(figure, grid[1, 0], grid[0, 1])


def _legend(figure: Figure, *parts: Axes) -> None:
    """One line below all axes: points, components, regions."""
    from matplotlib.collections import PathCollection

    handles = {text: handle for axes in parts for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    texts = sorted(handles, key=lambda text: ("points" not in text, "components" not in text))
    chosen = [handles[text] for text in texts]
    legend = figure.legend(chosen, texts, loc="outside lower center", ncols=len(texts), frameon=False, fontsize=9)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):  # a dot of many may be too small and faint to be seen alone
            handle.set(sizes=[12], alpha=0.7)


def _say_what_is_left_out(figure: Figure, data: Data | None, edges: list[View], dim: int) -> None:
    notes = []
    if len(edges) < dim:
        notes.append(f"the first {len(edges)} of {dim} coordinates")
    if data is not None and (outside := data.outside(edges)):
        notes.append(f"{outside} of {len(data.x)} points lie outside")
    if notes:
        figure.suptitle("; ".join(notes), fontsize=9, color="0.4")
