"""Plots of the paper's experiment: slicing, fits side by side, losses over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cramix.mixture import MultivariateNormalMixture
from cramix.plot.figure import COLOURS, require_matplotlib
from cramix.plot.plane import draw_components, draw_points, panels
from cramix.plot.view import Data
from experiments.paper import INIT, OURS, PAPER, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {INIT: "Init", "sc2": "SC2", "nll": "NLL", "sc2+nll": "SC2+NLL", OURS: "cramix"}


def slicing(x: Tensor, mixture: MultivariateNormalMixture, directions: Tensor) -> Figure:
    """Draw points `(n, 2)`, a mixture and some directions, and both CDFs along each direction."""
    figure = require_matplotlib()(figsize=(10, 3.4), layout="constrained")
    axes, *slices = figure.subplots(1, 1 + len(directions), width_ratios=[1.6] + [1] * len(directions))
    data = Data(x, None)
    draw_points(axes, data, 0, 1)
    draw_components(axes, mixture)
    middle, reach = data.x.mean(0), 0.6 * np.ptp(data.x, axis=0).max()
    points = MultivariateNormalMixture.from_samples(x)
    for number, (direction, colour, panel) in enumerate(zip(directions, COLOURS[1:], slices, strict=False), 1):
        ends = middle + reach * np.outer([-1, 1], direction.numpy())
        axes.plot(ends[:, 0], ends[:, 1], color=colour, lw=2)
        axes.annotate(str(number), ends[1], color=colour, fontsize=11, ha="left", va="bottom")
        ours, theirs = (side.project(direction.unsqueeze(0)) for side in (mixture, points))
        low, high = theirs.means.min().item(), theirs.means.max().item()
        grid = torch.linspace(low - 0.3, high + 0.3, 600, dtype=x.dtype)
        fitted, empirical = (side.cdf(grid.unsqueeze(-1)).squeeze(-1).numpy() for side in (ours, theirs))
        panel.fill_between(grid.numpy(), fitted, empirical, color=colour, alpha=0.3, lw=0)
        panel.plot(grid.numpy(), empirical, color="0.35", lw=1.4, label="points")
        panel.plot(grid.numpy(), fitted, color=colour, lw=1.4, label="mixture")
        panel.set(title=f"slice {number}", yticks=[0, 1], xlabel="position along the slice")
        panel.legend(frameon=False, fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    axes.set(aspect="equal", xticks=[], yticks=[], title="directions of the slices")
    axes.margins(0.1)
    figure.suptitle(
        "The loss of a slice is the integral of the squared difference; the sliced loss is their mean.", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def fits(x: Tensor, runs: Sequence[Run]) -> Figure:
    """Draw a row of panels for each seed: the initial mixture, the paper's three fits, and ours."""
    titled = [
        (f"{_NAMES[run.method]}, seed {run.seed}: {-run.end.negative_log_likelihood:.3f}", run.mixture) for run in runs
    ]
    return panels(x, titled, columns=2 + len(PAPER))


def losses(runs: Sequence[Run]) -> Figure:
    """Draw both losses over the steps of the paper's fits, and the final losses of ours."""
    figure = require_matplotlib()(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = dict(zip((*PAPER, OURS), COLOURS, strict=False))
    shared = {run.seed: run.history for run in runs if run.method == PAPER[0]}
    for run in runs:
        label = _NAMES[run.method] if run.seed == runs[0].seed else None
        if run.method == OURS:
            left.axhline(run.end.cramer, color=colours[OURS], lw=1, ls="--", label=label)
            right.axhline(run.end.negative_log_likelihood, color=colours[OURS], lw=1, ls="--", label=label)
        elif run.history:
            # The last method continues the first one, and is drawn from its end.
            first = (
                max((losses.step for losses in shared.get(run.seed, ())), default=0) if run.method == PAPER[-1] else 0
            )
            steps, cramer, likelihood = zip(*(losses for losses in run.history if losses.step >= first), strict=True)
            left.plot(steps, cramer, color=colours[run.method], lw=1, alpha=0.8, label=label)
            right.plot(steps, likelihood, color=colours[run.method], lw=1, alpha=0.8, label=label)
    left.set(yscale="log", xlabel="step", title="sliced Cramér loss, mean over all directions")
    right.set(xlabel="step", title="negative mean log likelihood", ylim=(1.4, 6.5))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(framealpha=0.9, edgecolor="none", fontsize=9, loc="upper right")
    return figure
