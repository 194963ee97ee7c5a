"""A mixture over the points it was fitted to, in one, two or more dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cramix.arrays import as_tensor, column_names
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.plot.figure import POINTS, require_matplotlib
from cramix.plot.line import draw_line
from cramix.plot.plane import draw_components, draw_points, draw_regions
from cramix.plot.view import Data, View, most_separating, views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COORDINATES = 6
_MOST_UNEQUAL = 3  # largest ratio of width and height at which both axes have the same scale


class _Scene(NamedTuple):
    """What there is to draw: the mixture, the points, limits of the coordinates shown, and names of all."""

    mixture: MultivariateNormalMixture
    data: Data | None
    views: dict[int, View]
    names: list[str]


def mixture_and_points(
    mixture: NormalMixture | MultivariateNormalMixture,
    x: Any = None,
    *,
    weights: Any = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Draw an unbatched mixture over the points it was fitted to, with a colour for each component.

    In one dimension: a histogram, a rug of the points, the density and its components. In two: points, the smallest
    regions that contain 50, 90 and 99 % of the mixture, and ellipses 1 and 2 standard deviations from the means. In
    more: all pairs of up to six coordinates, with points below the diagonal, regions above it, marginals on it. Of more
    coordinates than six, those are drawn that separate the components most.

    Args:
        mixture: in d dimensions; a component without density, such as one of scale 0, is shown by its mean.
        x: points `(n, d)`, or `(n,)` for d = 1: a tensor, an array or a table.
        weights: of the points, `(n,)`, for histograms.
        names: of the d coordinates, for the axes; if None those of the columns of a table, or x1, x2, ...

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        >>> figure = mixture_and_points(p, p.sample((100,)))
        >>> figure.savefig("fit.png")  # doctest: +SKIP
    """
    figure_class = require_matplotlib()
    if mixture.batch_shape:
        raise ValueError(f"mixture must have no batch; got {tuple(mixture.batch_shape)}. Index it first.")
    mixture = in_coordinates(mixture, torch.float64)
    dim = mixture.dim
    if names is None:
        names = column_names(x) or [f"x{i}" for i in range(1, dim + 1)]
    x, weights = (None if t is None else as_tensor(name, t) for name, t in (("x", x), ("weights", weights)))
    if x is not None and (x.shape[1:] or (1,)) != (dim,):
        raise ValueError(f"x must be points (n, {dim}); got {tuple(x.shape)}.")
    data = None if x is None else Data(x.reshape(-1, dim), weights)
    if data is not None:
        data.label_by(mixture)
    shown = list(range(dim)) if dim <= _MOST_COORDINATES else most_separating(mixture, _MOST_COORDINATES)
    limits = views(mixture, data, shown)
    figure = figure_class(figsize=(7.5, 4.5), layout="constrained")
    {1: _line, 2: _plane}.get(dim, _pairs)(figure, _Scene(mixture, data, limits, list(names)))
    _note_omissions(figure, data, limits, dim)
    return figure


def _line(figure: Figure, scene: _Scene) -> None:
    axes = figure.subplots()
    draw_line(axes, scene.mixture.marginal(0), scene.data, 0, scene.views[0])
    axes.set(xlabel=scene.names[0], ylabel="density")
    _legend(figure, axes)


def _plane(figure: Figure, scene: _Scene) -> None:
    axes = figure.subplots()
    across, up = scene.views.values()
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
    count = len(scene.views)
    figure.set_size_inches(2.3 * count, 2.3 * count + 0.4)
    grid = figure.subplots(count, count)
    for (row, (i, up)), (column, (j, across)) in product(enumerate(scene.views.items()), repeat=2):
        axes = grid[row, column]
        axes.locator_params(nbins=3)
        if row == column:
            draw_line(axes, scene.mixture.marginal(i), scene.data, i, across, bars=40, rug=False)
            axes.set_yticks([])
        else:
            pair = scene.mixture.marginal([j, i])
            if row < column:
                draw_regions(axes, pair, across, up, cells=100)
            elif scene.data is not None:
                draw_points(axes, scene.data, j, i)
            draw_components(axes, pair)
            axes.set(xlim=across, ylim=up)
        axes.tick_params(labelsize=8, labelbottom=row == count - 1, labelleft=column == 0 and row > 0)
        _label(axes.set_xlabel, scene.names[j] if row == count - 1 else "")
        _label(axes.set_ylabel, scene.names[i] if column == 0 else "")
    figure.align_ylabels(grid[:, 0])
    _legend(figure, grid[1, 0], grid[0, 1])


def _label(put: Callable[..., object], name: str) -> None:
    """Name an axis in letters small enough for its length."""
    put(name, fontsize=float(np.clip(200 / max(1, len(name)), 6, 10)))


def _legend(figure: Figure, *parts: Axes) -> None:
    """One line below all axes: points, components, regions."""
    from matplotlib.collections import PathCollection

    handles = {text: handle for axes in parts for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    texts = sorted(handles, key=lambda text: ("points" not in text, "components" not in text))
    chosen = [handles[text] for text in texts]
    legend = figure.legend(chosen, texts, loc="outside lower center", ncols=len(texts), frameon=False, fontsize=9)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):  # one dot of many may be too small and faint to see
            handle.set(sizes=[12], alpha=0.7, facecolor=POINTS)


def _note_omissions(figure: Figure, data: Data | None, limits: dict[int, View], dim: int) -> None:
    notes = []
    if len(limits) < dim:
        notes.append(f"{len(limits)} of {dim} columns, those that separate the components most")
    if data is not None and (outside := data.outside(limits)):
        notes.append(f"{outside} of {len(data.x)} points lie outside")
    if notes:
        figure.suptitle("; ".join(notes), fontsize=9, color="0.4")
