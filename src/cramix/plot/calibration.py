"""Calibration of predictions: PIT histogram, coverage of intervals, distribution function against a sample.

The probability integral transform (PIT) of an observation is the predicted distribution function there, `F(y)`. It is
uniform for calibrated predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cramix.arrays import as_tensor
from cramix.mixture import NormalMixture
from cramix.plot.figure import COLOURS, DENSITY, POINTS, figure_and_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Half the width of a normal distribution's central 95 % interval, in standard deviations.
_SIGMAS = 1.96


def pit_histogram(pit: Any, bins: int = 20) -> Figure:
    """Draw the histogram of `F(y)`, `(n,)`.

    It is flat for calibrated predictions, a hump for too wide ones, a bowl for too narrow ones and a slope for biased
    ones. Of calibrated predictions, 95 % of the bars end between the dashed lines.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> pit_histogram(p.cdf(torch.randn(500))).savefig("pit.png")  # doctest: +SKIP
    """
    figure, axes = figure_and_axes(5.5, 4.2)
    counts, _ = np.histogram(_levels(pit), bins, (0, 1))
    draw_pit(axes, counts)
    return figure


def reliability(pit: Any) -> Figure:
    """Draw the coverage of central intervals over their probability, from `F(y)`, `(n,)`.

    Below the diagonal predictions are overconfident, above it underconfident.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> reliability(p.cdf(torch.randn(500))).savefig("reliability.png")  # doctest: +SKIP
    """
    figure, axes = figure_and_axes(4.8, 4.2)
    u = _levels(pit)
    levels = np.linspace(0, 1, 101)
    inside = 2 * np.abs(u - 0.5)
    draw_reliability(axes, levels, (inside[:, None] <= levels).mean(0), len(u))
    return figure


def cdf_and_sample(p: NormalMixture, x: Any, *, name: str = "y") -> Figure:
    """Draw the distribution functions of an unbatched mixture and of a sample, `(n,)`; the gap makes up C2.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> cdf_and_sample(p, torch.randn(50)).savefig("cdf.png")  # doctest: +SKIP
    """
    from cramix.distance.cramer.distance import cramer_distance

    if p.batch_shape:
        raise ValueError(f"p must have no batch; got {tuple(p.batch_shape)}. Index it first.")
    figure, axes = figure_and_axes(6.5, 4.2)
    mixture, x = p.detach().to("cpu", torch.float64), as_tensor("x", x).detach().to("cpu", torch.float64)
    ends = torch.cat((mixture.icdf(torch.tensor([0.001, 0.999], dtype=x.dtype)), x))
    low, high = ends.min().item(), ends.max().item()
    pad = 0.03 * (high - low) or 1.0
    points = torch.cat((torch.linspace(low - pad, high + pad, 600, dtype=x.dtype), x)).sort().values
    ours, theirs = mixture.cdf(points).numpy(), NormalMixture.from_samples(x).cdf(points).numpy()
    grid = points.numpy()
    axes.fill_between(grid, ours, theirs, step="post", color=DENSITY, alpha=0.25, lw=0)
    axes.step(grid, theirs, where="post", color=POINTS, lw=1.3, label=f"{len(x)} samples")
    axes.plot(grid, ours, color=DENSITY, lw=2, label="mixture")
    axes.set(xlabel=name, ylabel="probability below", ylim=(0, 1), title=f"C2 = {cramer_distance(mixture, x):.3g}")
    axes.legend(frameon=False, fontsize=9)
    return figure


def draw_pit(axes: Axes, counts: np.ndarray) -> None:
    """Draw counts of `F(y)` in equal bins as a density, with the 95 % interval of calibrated predictions."""
    bins, n = len(counts), max(1, counts.sum())
    margin = _SIGMAS * np.sqrt((1 - 1 / bins) * bins / n)
    axes.stairs(counts * bins / n, np.linspace(0, 1, bins + 1), fill=True, color=DENSITY, alpha=0.5, label="F(y)")
    axes.axhline(1, color="0.3", lw=1)
    for end, label in ((1 - margin, None), (1 + margin, "95 % of bars if calibrated")):
        axes.axhline(max(0.0, end), color="0.3", lw=1, ls="--", label=label)
    axes.set(xlabel="F(y)", ylabel="density", xlim=(0, 1), ylim=(0, None))
    axes.legend(framealpha=0.8, edgecolor="none", fontsize=9, loc="lower center")


def draw_reliability(axes: Axes, levels: np.ndarray, coverage: np.ndarray, n: int) -> None:
    """Draw the coverage of central intervals by n observations over their probability."""
    margin = _SIGMAS * np.sqrt(levels * (1 - levels) / max(1, n))
    axes.fill_between(levels, levels - margin, levels + margin, color="0.9", lw=0, label="95 % if calibrated")
    axes.plot([0, 1], [0, 1], color="0.5", lw=1)
    axes.plot(levels, coverage, color=COLOURS[0], lw=2, marker="." if len(levels) < 30 else None, label="observed")
    axes.set(
        xlabel="probability of the interval", ylabel="observations inside", xlim=(0, 1), ylim=(0, 1), aspect="equal"
    )
    axes.legend(frameon=False, fontsize=9)


def _levels(pit: Any) -> np.ndarray:
    u = as_tensor("pit", pit).detach().double().cpu().flatten().numpy()
    if not len(u) or not ((u >= 0) & (u <= 1)).all():
        raise ValueError(f"pit must be numbers in [0, 1]; got {u[:3]} of {len(u)}. Use p.cdf(y).")
    return u
