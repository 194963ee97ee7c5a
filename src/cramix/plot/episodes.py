"""Episodes: moments side by side, and films that show the environment next to the return distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cramix.checks import check_integer
from cramix.plot.figure import require_matplotlib
from cramix.plot.returns import ReturnRows, check_returns, returns_view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cramix.rl.evaluation import Moment

# In pixels: the minimum height of a frame, so that text fits, and the width of the distributions next to it.
_MIN_HEIGHT = 360
_SIDE_WIDTH = 400
_DPI = 100


def episode_panels(
    moments: Sequence[Moment],
    names: Sequence[str] | None = None,
    *,
    count: int = 8,
    columns: int = 4,
    level: float = 0.1,
    kind: str = "auto",
) -> Figure:
    """Draw some moments of an episode: a frame of the environment above the return distributions of all actions.

    Args:
        moments: of `cramix.rl.evaluation.play`, or objects with the fields `step`, `frame`, `returns`, `action` and
            `score`.
        names: of the actions; their numbers if None.
        count: number of moments, evenly spaced from the first to the last.
        columns: of the grid.
        level: of the CVaR.
        kind: "density", "cdf", or "auto": densities where there are no atoms.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from cramix import NormalMixture
        >>> returns = NormalMixture(torch.ones(2, 1), torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))  # two actions
        >>> frame = np.zeros((40, 60, 3), np.uint8)
        >>> moments = [SimpleNamespace(step=i, frame=frame, returns=returns, action=1, score=0.0) for i in range(3)]
        >>> figure = episode_panels(moments, ["left", "right"], count=2, columns=2)
        >>> len(figure.axes)
        4
    """
    figure_class = require_matplotlib()
    names = _check_moments(moments, names)
    check_integer("count", count, 1)
    check_integer("columns", columns, 1)
    count = min(count, len(moments))
    shown = [moments[i] for i in np.linspace(0, len(moments) - 1, count).round().astype(int)]
    columns = min(columns, count)
    rows = -(-count // columns)
    height, width = shown[0].frame.shape[:2]
    above, below = 3.2 * min(height / width, 1.5), 0.7 + 0.32 * len(names)
    figure = figure_class(figsize=(3.2 * columns + 0.4, (above + below + 0.4) * rows), layout="constrained")
    grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[above, below] * rows)
    view = returns_view([moment.returns for moment in moments])
    for i in range(rows * columns):
        row, column = divmod(i, columns)
        frame, returns = grid[2 * row, column], grid[2 * row + 1, column]
        frame.set_axis_off()
        if i >= count:
            returns.set_axis_off()
            continue
        moment = shown[i]
        frame.imshow(moment.frame)
        action = "end" if moment.action is None else names[moment.action]
        frame.set_title(f"{_caption(moment)}: {action}", fontsize=9)
        shown_names = names if column == 0 else [""] * len(names)
        rows_of = ReturnRows(returns, shown_names, view, level=level, kind=kind, bold=False, numbers=False)
        rows_of.show(moment.returns, moment.action)
        if row < rows - 1:
            returns.set_xlabel("")
    handles = grid[1, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    return figure


def film(
    moments: Sequence[Moment], names: Sequence[str] | None = None, *, level: float = 0.1, kind: str = "auto"
) -> Iterator[np.ndarray]:
    """Yield an image of every moment, `(height, width, 3)` bytes: the environment, and the returns next to it.

    Args:
        moments: see `episode_panels`.
        names: of the actions; their numbers if None.
        level: of the CVaR.
        kind: "density", "cdf", or "auto": densities where there are no atoms.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from cramix import NormalMixture
        >>> returns = NormalMixture(torch.ones(2, 1), torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))  # two actions
        >>> frame = np.zeros((40, 60, 3), np.uint8)
        >>> moments = [SimpleNamespace(step=i, frame=frame, returns=returns, action=1, score=0.0) for i in range(3)]
        >>> pictures = list(film(moments))
        >>> len(pictures), pictures[0].dtype, pictures[0].shape[-1]
        (3, dtype('uint8'), 3)
    """
    figure_class = require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = _check_moments(moments, names)
    times = -(-_MIN_HEIGHT // moments[0].frame.shape[0])
    height = moments[0].frame.shape[0] * times // 2 * 2  # videos need even sizes
    figure = figure_class(figsize=(_SIDE_WIDTH / _DPI, height / _DPI), dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.3, 52 / height, 0.67, 1 - 104 / height))
    rows = ReturnRows(axes, names, returns_view([m.returns for m in moments]), level=level, kind=kind)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8, borderaxespad=0)
    title = axes.set_title("", fontsize=10, loc="left", pad=22)
    _make_room(axes, rows)
    # The background is drawn once, which makes each image ten times as fast.
    changing = [*rows.artists, title]
    for artist in changing:
        artist.set_animated(True)
    canvas.draw()
    background = canvas.copy_from_bbox(figure.bbox)
    for moment in moments:
        rows.show(moment.returns, moment.action)
        title.set_text(_caption(moment))
        canvas.restore_region(background)
        for artist in changing:
            axes.draw_artist(artist)
        side = np.asarray(canvas.buffer_rgba())[:height, :, :3].copy()
        side[:, :2] = 200  # a line between both
        frame = moment.frame.repeat(times, 0).repeat(times, 1)[:height]
        yield np.concatenate([frame[:, : frame.shape[1] // 2 * 2], side], 1)


def _make_room(axes: Axes, rows: ReturnRows) -> None:
    """Move the left edge so that the longest name fits in bold; names take at most half of the width."""
    for name in rows.names:
        name.set_fontweight("bold")
    widest = max(name.get_window_extent().width for name in rows.names)
    low, right = axes.get_position().y0, axes.get_position().x1
    left = min((widest + 14) / _SIDE_WIDTH, 0.5)
    axes.set_position((left, low, right - left, axes.get_position().height))


def _check_moments(moments: Sequence[Moment], names: Sequence[str] | None) -> list[str]:
    if not moments:
        raise ValueError("moments must have at least one moment; got none. Play an episode first.")
    return check_returns(moments[0].returns, names)


def _caption(moment: Moment) -> str:
    return f"step {moment.step}, score {moment.score:.0f}"
