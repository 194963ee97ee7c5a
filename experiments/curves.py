"""Learning curves: returns over environment steps, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cramix.plot.figure import COLOURS, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """A line with an interval around it.

    Args:
        steps: of the environment, `(n)`.
        middle: a mean or an interquartile mean over seeds, `(n)`.
        low: lower limits of the intervals, `(n)`; None for a line without intervals.
        high: upper limits, `(n)`.
    """

    steps: ArrayLike
    middle: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None


def learning_curves(
    curves: Mapping[str, Curve],
    *,
    ylabel: str = "return",
    title: str | None = None,
    goal: float | None = None,
    bottom: float | None = None,
) -> Figure:
    """Draw a line with its interval for every algorithm; the first one is thicker, and above the others.

    Args:
        curves: by name; the legend also shows the last value of each.
        ylabel: label of the vertical axis.
        title: of the figure.
        goal: height of a dotted line.
        bottom: lower limit of the vertical axis; chosen from the data if None.

    Example:
        >>> steps = np.arange(0, 50_001, 10_000)
        >>> curves = {"gmdqn": Curve(steps, steps / 200, steps / 250, steps / 180), "ddqn": Curve(steps, steps / 300)}
        >>> [text.get_text() for text in learning_curves(curves).legends[0].get_texts()]
        ['gmdqn  250', 'ddqn  167']
    """
    figure = require_matplotlib()(figsize=(7.5, 4.2), layout="constrained")
    if not curves:
        raise ValueError("curves must have at least one curve; got none. Pass one per algorithm.")
    axes = figure.subplots()
    for i, ((name, curve), colour) in enumerate(zip(curves.items(), cycle(COLOURS), strict=False)):
        given = [np.asarray(part, float) for part in curve if part is not None]
        if given[0].ndim != 1 or any(part.shape != given[0].shape for part in given):
            shapes = ", ".join(str(part.shape) for part in given)
            raise ValueError(
                f"curves[{name!r}] must have arrays of one length; got {shapes}. Average over seeds first."
            )
        steps, middle, *band = given
        if len(band) == 2:
            axes.fill_between(
                steps, band[0], band[1], color=colour, alpha=0.25 if i == 0 else 0.12, lw=0, zorder=3 - (i > 0)
            )
        style = "-" if i < len(COLOURS) else "--"
        label = f"{name}  {middle[-1]:.0f}" if middle.size else name
        axes.plot(steps, middle, style, marker=".", color=colour, lw=1.4 + (i == 0), zorder=5 - (i > 0), label=label)
    if goal is not None:
        axes.axhline(goal, color="0.4", lw=1, ls=":", zorder=1)
    axes.set(xlabel="environment steps", ylabel=ylabel, title=title)
    axes.set_xlim(left=0)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure
