"""Return distributions: a row for every action, with its mean and its CVaR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_choice
from cramix.mixture import NormalMixture
from cramix.plot.figure import COMPONENTS, DENSITY, require_matplotlib
from cramix.plot.view import View

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = "auto", "density", "cdf"
_BINS = 360
_INK = "0.15"
# Height of the highest density, relative to the distance between rows.
_HEIGHT = 0.86
# Peaks are cut at this multiple of the median peak, so that they do not flatten the other rows.
_MAX_PEAK = 2.5


def return_distributions(
    mixture: NormalMixture,
    names: Sequence[str] | None = None,
    *,
    chosen: int | None = None,
    level: float = 0.1,
    kind: str = "auto",
) -> Figure:
    """Draw the return distributions of all actions below each other, with their mean and CVaR.

    Args:
        mixture: of batch shape `(actions)`, such as `model.return_distribution(observation)`.
        names: of the actions; their numbers if None.
        chosen: index of the action to highlight.
        level: of the CVaR, the mean of this fraction of outcomes, the worst ones.
        kind: "density", "cdf", or "auto": densities, unless there are atoms.

    Example:
        >>> import torch
        >>> means, scales = torch.tensor([[0.0, 1.0], [0.0, 4.0]]), torch.tensor([[1.0, 1.0], [2.0, 0.5]])
        >>> figure = return_distributions(NormalMixture(torch.tensor([0.5, 0.5]), means, scales), ["left", "right"])
        >>> figure.savefig("returns.png")  # doctest: +SKIP
    """
    figure_class = require_matplotlib()
    names = check_returns(mixture, names)
    check_choice("kind", kind, KINDS)
    if chosen is not None and not 0 <= chosen < len(names):
        raise ValueError(f"chosen must be the index of an action, 0 to {len(names) - 1}; got {chosen}. Count from 0.")
    figure = figure_class(figsize=(6.4, 1.1 + 0.75 * len(names)), layout="constrained")
    axes = figure.subplots()
    ReturnRows(axes, names, returns_view([mixture]), level=level, kind=kind).show(mixture, chosen)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    return figure


def check_returns(mixture: NormalMixture, names: Sequence[str] | None) -> list[str]:
    """Require a mixture for every action and as many names; return the names, or numbers in their place."""
    if len(mixture.batch_shape) != 1:
        shape = tuple(mixture.batch_shape)
        raise ValueError(f"mixture must have the batch shape (actions); got {shape}. Select one state.")
    count = mixture.batch_shape[0]
    if names is not None and len(names) != count:
        raise ValueError(
            f"names must have one entry for each of {count} actions; got {len(names)}. None numbers the actions."
        )
    return [f"action {i}" for i in range(count)] if names is None else list(names)


def returns_view(mixtures: Sequence[NormalMixture]) -> View:
    """Return limits that contain nearly all of nearly all mixtures, each of batch shape `(actions)`."""
    together = NormalMixture.stack([mixture.detach().to("cpu", torch.float64) for mixture in mixtures])
    lows, highs = (
        together.icdf(torch.full(together.batch_shape, level, dtype=torch.float64)) for level in (0.01, 0.99)
    )
    low, high = np.quantile(lows.amin(-1).numpy(), 0.02), np.quantile(highs.amax(-1).numpy(), 0.98)
    pad = 0.04 * (high - low) or 0.5 * (abs(low) or 1.0)
    return View(float(low - pad), float(high + pad))


class ReturnRows:
    """A row for every action, the first at the top; films show many mixtures in the same rows.

    Args:
        axes: to draw on.
        names: of the actions.
        view: limits of the returns.
        level: of the CVaR.
        kind: see `return_distributions`.
        bold: whether the name of the chosen action is bold.
        numbers: whether means are also written as numbers.
    """

    def __init__(
        self,
        axes: Axes,
        names: Sequence[str],
        view: View,
        *,
        level: float = 0.1,
        kind: str = "auto",
        bold: bool = True,
        numbers: bool = True,
    ):
        self.level, self.kind, self.bold = level, kind, bold
        self._edges = view.grid(_BINS + 1)
        centres = ((self._edges[1:] + self._edges[:-1]) / 2).numpy()
        self._x = np.concatenate([centres[:1], centres, centres[-1:]])
        beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "bottom"}
        self.names, self._means, self._risks, self._numbers = (list[Any]() for _ in range(4))
        self._fills, self._curves = list[Any](), list[Any]()
        for i, name in enumerate(names):
            label, other = (None, None) if i else ("mean", f"CVaR {level:g}")
            self._fills += axes.fill(self._x, np.full(len(self._x), -i), lw=0)
            self._curves += axes.plot(centres, np.full(len(centres), -i), lw=1.4)
            self._means += axes.plot([0, 0], [-i, -i + _HEIGHT], color=_INK, lw=1.3, label=label)
            dots: dict[str, Any] = {"ls": (0, (1.5, 1.2)), "label": other}
            self._risks += axes.plot([0, 0], [-i, -i + _HEIGHT / 2], color=_INK, lw=1.1, **dots)
            self.names.append(axes.text(-0.015, -i, name, ha="right", fontsize=9, **beside))
            if numbers:
                self._numbers.append(axes.text(0.995, -i + 0.06, "", ha="right", fontsize=8, **beside))
        axes.set(xlim=view, ylim=(0.85 - len(names), 0.95), yticks=[])
        axes.set_xlabel("discounted return from here", fontsize=9)
        axes.tick_params("x", labelsize=8)
        axes.spines[["top", "left", "right"]].set_visible(False)

    @property
    def artists(self) -> list[Artist]:
        """The artists that change from one mixture to the next."""
        return [*self._fills, *self._curves, *self._means, *self._risks, *self.names, *self._numbers]

    def show(self, mixture: NormalMixture, chosen: int | None = None) -> None:
        """Show a mixture of batch shape `(actions)`; if an action is chosen, the other rows are fainter."""
        mixture = mixture.detach().to("cpu", torch.float64)
        heights = _heights(mixture, self._edges, self.kind).numpy()
        values, risks = mixture.mean.tolist(), mixture.cvar(self.level).tolist()
        for i, name in enumerate(self.names):
            strong, colour = chosen is None or i == chosen, COMPONENTS if i == chosen else DENSITY
            curve = _HEIGHT * heights[:, i] - i
            self._fills[i].set(xy=np.column_stack([self._x, [-i, *curve, -i]]), alpha=0.45 if strong else 0.22)
            self._fills[i].set(facecolor=colour)
            self._curves[i].set(ydata=curve, color=colour, alpha=1 if strong else 0.7)
            self._means[i].set_xdata([values[i]] * 2)
            self._risks[i].set_xdata([risks[i]] * 2)
            stands_out = self.bold and i == chosen
            name.set(color=colour if stands_out else _INK, fontweight="bold" if stands_out else "normal")
        for i, number in enumerate(self._numbers):
            number.set(text=f"{values[i]:.1f}", color=_INK if chosen in (None, i) else "0.45")


def _heights(mixture: NormalMixture, edges: Tensor, kind: str) -> Tensor:
    """Return the heights between edges, `(bins, actions)`, relative to the highest."""
    below = mixture.cdf(edges.unsqueeze(-1))  # (bins + 1, actions)
    if kind == "cdf" or (kind == "auto" and bool((mixture.scales == 0).any())):
        return (below[1:] + below[:-1]) / 2
    # The probability of each bin: a narrow peak cannot hide between grid points.
    density = below.diff(dim=0)
    peaks = density.amax(0)
    return (density / min(peaks.max(), _MAX_PEAK * peaks.median()).clamp_min(1e-300)).clamp_max(1)
