"""What all pictures share: figures, and colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cramix.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can distinguish.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
# For things that have one colour in a picture.
COMPONENTS, DENSITY, POINTS = COLOURS[0], COLOURS[1], "0.3"
_CYCLE, _DASHES = COLOURS[:7], ("-", "--", ":")


def component_styles(count: int) -> list[tuple[str, str]]:
    """Return a colour and a line style for each component; colours repeat after seven, with other dashes."""
    return [(_CYCLE[i % len(_CYCLE)], _DASHES[i // len(_CYCLE) % len(_DASHES)]) for i in range(count)]


def require_matplotlib() -> type[Figure]:
    """Return the class of figures, which need no screen; an ImportError says how to install matplotlib.

    Example:
        >>> require_matplotlib()(figsize=(4, 3)).axes
        []
    """
    require("matplotlib.figure", "cramix.plot needs matplotlib. Install it with: pip install 'cramix[plot]'")
    from cramix.plot.notebook_figure import Figure

    return Figure


def figure_and_axes(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure of this size in inches and its axes, an array of several, without lines at the top and right."""
    figure = require_matplotlib()(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes
