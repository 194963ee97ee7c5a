"""Calibration: whether predicted probabilities agree with observed frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.distance.operands import Mixture
from cramix.metrics.scores import Metric, read_observations
from cramix.mixture import NormalMixture
from cramix.mixture.sampling import rosenblatt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS = tuple(i / 20 for i in range(1, 20))


class Calibration(Metric):
    """The histogram of `F(y)` (the probability integral transform, PIT), and the coverage of central intervals.

    For vectors it is the Rosenblatt transform: each coordinate conditional on those before it. The state consists of
    weighted counts, which add up over batches and processes.

    `compute` returns a dictionary: "pit", the fraction of observations in each bin, `(bins,)`; "coverage", the fraction
    in each interval, `(levels,)`; "levels", the nominal coverage; "error", the mean absolute difference of the two.

    Args:
        bins: number of bins of the histogram.
        levels: nominal coverages of the central intervals, each in (0, 1).
        kwargs: arguments of `torchmetrics.Metric`.

    Example:
        >>> metric = Calibration(bins=4, levels=[0.5, 0.9])
        >>> p = NormalMixture(torch.ones(1000, 1), torch.zeros(1000, 1), torch.ones(1000, 1))
        >>> metric.update(p, p.icdf((torch.arange(1000.0) + 0.5) / 1000))
        >>> metric.compute()["pit"], metric.compute()["coverage"]
        (tensor([0.2500, 0.2500, 0.2500, 0.2500]), tensor([0.5000, 0.9000]))
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    counts: Tensor
    inside: Tensor
    squares: Tensor
    levels: Tensor

    def __init__(self, bins: int = 20, levels: Sequence[float] = _LEVELS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integer("bins", bins, 1)
        if not len(levels) or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must be probabilities in (0, 1), at least one; got {list(levels)}.")
        self.register_buffer("levels", torch.tensor(list(levels), dtype=torch.float64))
        for name, size in (("counts", (bins,)), ("inside", (len(levels),)), ("squares", ())):
            self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, p: Mixture, y: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add observations, one for each mixture, `(*batch)` or `(*batch, d)`, with weights `(*batch)`.

        A mixture without batch takes several observations, `(n,)` or `(n, d)`.
        """
        y, sample_weight = read_observations(p, y, sample_weight)
        u = p.cdf(y) if isinstance(p, NormalMixture) else rosenblatt(y, p.weights, p.means, p.covariance_kind)
        u = u.double().clamp(0, 1)
        if sample_weight is None:
            weights = torch.ones_like(u).flatten()
        else:  # the coordinates of a vector have its weight
            weights = sample_weight.double().reshape(*sample_weight.shape, *(1,) * len(p.event_shape))
            weights = weights.expand(u.shape).flatten()
        u = u.flatten()
        bins = len(self.counts)
        self.counts = self.counts.index_add(0, (u * bins).long().clamp_max(bins - 1), weights)
        self.inside = self.inside + weights @ ((2 * u - 1).abs().unsqueeze(-1) <= self.levels).double()
        self.squares = self.squares + weights.square().sum()

    def compute(self) -> dict[str, Tensor]:
        """Return the fractions; NaN before the first observation."""
        n = self.counts.sum()
        coverage = self.inside / n
        error = (coverage - self.levels).abs().mean()
        return {
            "pit": (self.counts / n).float(),
            "coverage": coverage.float(),
            "levels": self.levels.float(),
            "error": error.float(),
        }

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Figure, Sequence[Axes]]:
        """Plot the histogram, and the observed over the nominal coverage; return figure and axes.

        Args:
            val: ignored; the current state is plotted.
            ax: two axes to draw on, or None for a new figure.
        """
        from cramix.plot.calibration import draw_pit, draw_reliability
        from cramix.plot.figure import figure_and_axes

        if ax is None:
            _, ax = figure_and_axes(9.5, 4.2, columns=2)
        left, right = ax
        result = self.compute()
        # Bands for the effective number of observations, which is their number if all have the same weight.
        effective = self.counts.sum() / self.squares
        draw_pit(left, (effective * self.counts).cpu().numpy())
        size = round((effective * self.counts.sum()).item())
        draw_reliability(right, result["levels"].cpu().numpy(), result["coverage"].cpu().numpy(), size)
        return left.figure, (left, right)
