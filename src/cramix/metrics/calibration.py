"""Calibration: whether observations fall where predictions say, as often as they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.metrics.base import Metric
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.sampling import rosenblatt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS = tuple(i / 20 for i in range(1, 20))


class Calibration(Metric):
    """The histogram of `F(y)` (the probability integral transform, PIT), and the coverage of central intervals.

    Of vectors it is Rosenblatt's transform: each coordinate given those before it. What is kept are counts, which add
    up over batches and processes.

    `compute` returns a dictionary: "pit", the share of observations in each bin, `(bins,)`; "coverage", the share in
    each interval, `(levels,)`; "levels", what it should be; "error", the mean of their absolute difference.

    Args:
        bins: of the histogram.
        levels: probabilities of central intervals, each in (0, 1).
        kwargs: of `torchmetrics.Metric`.

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
    levels: Tensor

    def __init__(self, bins: int = 20, levels: Sequence[float] = _LEVELS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integer("bins", bins, 1)
        if not len(levels) or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must be in (0, 1); got {list(levels)}. They are probabilities of intervals.")
        self.register_buffer("levels", torch.tensor(list(levels), dtype=torch.float64))
        self.add_state("counts", torch.zeros(bins, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("inside", torch.zeros(len(levels), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, p: NormalMixture | MultivariateNormalMixture, y: Tensor) -> None:
        """Add observations `(*batch)` or `(*batch, d)`, one for each mixture."""
        if y.shape != p.batch_shape + p.event_shape:
            raise ValueError(
                f"y must be one observation for each mixture, {tuple(p.batch_shape + p.event_shape)}; "
                f"got {tuple(y.shape)}. Flatten the batch."
            )
        with torch.no_grad():
            u = p.cdf(y) if isinstance(p, NormalMixture) else rosenblatt(y, p.weights, p.means, p.covariance_kind)
        u = u.double().flatten().clamp(0, 1)
        bins = len(self.counts)
        self.counts = self.counts + (u * bins).long().clamp_max(bins - 1).bincount(minlength=bins)
        self.inside = self.inside + ((2 * u - 1).abs().unsqueeze(-1) <= self.levels).sum(0)

    def compute(self) -> dict[str, Tensor]:
        """Return shares, NaN before the first observation."""
        n = self.counts.sum()
        coverage = self.inside / n
        error = (coverage - self.levels).abs().mean()
        return {
            "pit": self.counts / n,
            "coverage": coverage,
            "levels": self.levels.float(),
            "error": error.float(),
        }

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Figure, Sequence[Axes]]:
        """Draw the histogram and the coverage over what it should be; return figure and axes.

        Args:
            val: ignored; what is drawn is what was counted.
            ax: two axes to draw on, or None for a figure of its own.
        """
        from cramix.plot.calibration import draw_pit, draw_reliability
        from cramix.plot.figure import require_matplotlib

        if ax is None:
            figure = require_matplotlib()(figsize=(9.5, 4.2), layout="constrained")
            ax = figure.subplots(1, 2)
            for axes in ax:
                axes.spines[["top", "right"]].set_visible(False)
        left, right = ax
        found = self.compute()
        draw_pit(left, self.counts.cpu().numpy())
        draw_reliability(right, found["levels"].cpu().numpy(), found["coverage"].cpu().numpy(), int(self.counts.sum()))
        return left.figure, (left, right)
