"""Predictions over an input: a fan of quantiles, or the density with its components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.mixture import NormalMixture
from cramix.plot.figure import COMPONENTS, DENSITY, POINTS, figure_and_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELLS = 240
# Components of less weight are not drawn.
_LEAST_WEIGHT = 0.02


def fan_chart(
    x: Any,
    p: NormalMixture,
    data: tuple[Any, Any] | None = None,
    *,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
    names: tuple[str, str] = ("x", "y"),
) -> Figure:
    """Draw central intervals and the median of predictions over an input.

    Args:
        x: inputs `(n,)`, such as a grid or times: a tensor or an array.
        p: predictions for them, batch shape `(n,)`.
        data: inputs and targets to draw as dots, `(m,)` each.
        levels: the probabilities of the intervals, each in (0, 1).
        names: of input and target.

    Example:
        >>> x = torch.linspace(0, 1, 50)
        >>> p = NormalMixture(torch.ones(50, 1), x.unsqueeze(-1), 0.1 + x.unsqueeze(-1))
        >>> fan_chart(x, p).savefig("fan.png")  # doctest: +SKIP
    """
    x, p = _in_order(x, p)
    for level in levels:
        if not 0 < level < 1:
            raise ValueError(f"levels must be in (0, 1); got {level}.")
    figure, axes = figure_and_axes(7.5, 4.5)
    with torch.no_grad():
        for i, level in enumerate(sorted(levels, reverse=True)):
            ends = p.icdf(torch.tensor([[0.5 - level / 2], [0.5 + level / 2]], dtype=x.dtype)).numpy()
            shade = 0.18 + 0.42 * i / max(1, len(levels) - 1)
            axes.fill_between(x.numpy(), *ends, color=DENSITY, alpha=shade, lw=0, label=f"{level:.0%}")
        median = p.icdf(torch.full((1, 1), 0.5, dtype=x.dtype)).squeeze(0).numpy()
    axes.plot(x.numpy(), median, color=COMPONENTS, lw=1.6, label="median")
    axes.set(xlabel=names[0], ylabel=names[1])
    _dots(axes, data)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def mixture_over_input(
    x: Any,
    p: NormalMixture,
    data: tuple[Any, Any] | None = None,
    *,
    names: tuple[str, str] = ("x", "y"),
) -> Figure:
    """Draw the density of predictions over an input, darker where it is higher, and the means of the components.

    The density is scaled to the same maximum at each input, so that wide predictions are as visible as narrow ones.
    Light components are faint.

    Args:
        x: inputs `(n,)`, such as a grid: a tensor or an array.
        p: predictions for them, batch shape `(n,)`, without atoms.
        data: inputs and targets to draw as dots, `(m,)` each.
        names: of input and target.

    Example:
        >>> x = torch.linspace(-1, 1, 50).unsqueeze(-1)
        >>> p = NormalMixture(torch.full((50, 2), 0.5), torch.cat([x, -x], -1), torch.full((50, 2), 0.1))
        >>> mixture_over_input(x.squeeze(-1), p).savefig("branches.png")  # doctest: +SKIP
    """
    x, p = _in_order(x, p)
    figure, axes = figure_and_axes(7.5, 4.5)
    with torch.no_grad():
        ends = p.icdf(torch.tensor([[0.001], [0.999]], dtype=x.dtype))
        low, high = ends.min().item(), ends.max().item()
        if data is not None:
            targets = as_tensor("data", data[1])
            low, high = min(low, targets.min().item()), max(high, targets.max().item())
        y = torch.linspace(low, high, _CELLS, dtype=x.dtype)
        density = p.log_prob(y.unsqueeze(-1)).exp()  # (cells, n)
    shades = (density / density.amax(0)).sqrt().numpy()
    axes.pcolormesh(x.numpy(), y.numpy(), shades, cmap="Blues", vmin=0, vmax=1.4, shading="nearest", rasterized=True)
    _dots(axes, data)
    for i in range(p.n_components):
        weight = p.weights[:, i].detach().numpy()
        shown = np.where(weight >= _LEAST_WEIGHT, p.means[:, i].detach().numpy(), np.nan)
        _faint_line(axes, x.numpy(), shown, weight / p.weights.amax(-1).detach().numpy())
    axes.plot([], [], color=COMPONENTS, lw=1.6, label="means of components")
    axes.fill([], [], color="#6BAED6", label="density")
    axes.set(xlabel=names[0], ylabel=names[1], ylim=(low, high))
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _faint_line(axes: Axes, x: np.ndarray, y: np.ndarray, strength: np.ndarray) -> None:
    """Draw a line whose opacity varies along it with `strength`."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    ends = np.stack([x, y], -1)
    parts = np.stack([ends[:-1], ends[1:]], 1)  # (n - 1, 2, 2)
    alpha = np.sqrt(0.5 * (strength[:-1] + strength[1:])).clip(0, 1)
    whole = np.isfinite(parts).all((1, 2))
    colours = [to_rgba(COMPONENTS, a) for a in alpha[whole]]
    axes.add_collection(LineCollection(list(parts[whole]), colors=colours, linewidths=1.6, capstyle="round"))


def _in_order(x: Any, p: NormalMixture) -> tuple[Tensor, NormalMixture]:
    """Return inputs and predictions in increasing order of the inputs, in float64 on the CPU."""
    if not isinstance(p, NormalMixture):
        raise ValueError(f"p must be a NormalMixture; got {type(p).__name__}. Use a marginal distribution.")
    x = as_tensor("x", x)
    if x.ndim != 1 or p.batch_shape != x.shape:
        raise ValueError(f"x must be (n,), the batch shape of p; got {tuple(x.shape)} and {tuple(p.batch_shape)}.")
    x = x.detach().to("cpu", torch.float64)
    order = x.argsort()
    return x[order], p.detach().to("cpu", torch.float64)[order]


def _dots(axes: Axes, data: tuple[Any, Any] | None) -> None:
    if data is None:
        return
    x, y = (as_tensor("data", t).detach().double().cpu().numpy() for t in data)
    size, alpha = float(np.clip(4000 / len(x), 2, 12)), float(np.clip(200 / len(x) ** 0.75, 0.15, 0.7))
    axes.scatter(x, y, s=size, alpha=alpha, color=POINTS, lw=0, rasterized=True, label=f"{len(x)} points")
