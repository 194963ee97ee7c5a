"""Mean scores of predictions, the lower the better: the CRPS, and the energy score of vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_floating
from cramix.loss import crps, energy_score
from cramix.metrics.base import Metric
from cramix.mixture import MultivariateNormalMixture, NormalMixture


class _MeanScore(Metric):
    """The mean of a score over all observations, in all processes; abstract."""

    is_differentiable = True
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0

    total: Tensor
    weight: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("total", "weight"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Return the mean; NaN before the first observation."""
        return (self.total / self.weight).float()

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the mean, or values computed before; return figure and axes, see `torchmetrics.Metric.plot`."""
        return self._plot(val, ax)

    def _add(self, scores: Tensor, weights: Tensor | None) -> None:
        if weights is None:
            self.total = self.total + scores.double().sum()
            self.weight = self.weight + scores.numel()
            return
        check_floating(weights=weights)
        check_broadcast("Give one weight an observation.", weights=weights.shape, y=scores.shape)
        weights = weights.expand(scores.shape).double()
        self.total = self.total + (weights * scores).sum()
        self.weight = self.weight + weights.sum()


class CRPS(_MeanScore):
    """The mean continuous ranked probability score.

    Example:
        >>> metric = CRPS()
        >>> p = NormalMixture(torch.ones(2, 1), torch.zeros(2, 1), torch.ones(2, 1))
        >>> metric.update(p, torch.tensor([0.0, 2.0]))
        >>> metric.compute()
        tensor(0.8432)
    """

    def update(self, p: NormalMixture, y: Tensor, weights: Tensor | None = None) -> None:
        """Add observations `(*batch)`, one for each mixture, with weights `(*batch)`."""
        self._add(crps(p, y), weights)


class EnergyScore(_MeanScore):
    """The mean energy score of vectors; of numbers it is the CRPS.

    Example:
        >>> metric = EnergyScore()
        >>> p = MultivariateNormalMixture(torch.ones(1, 1), torch.zeros(1, 1, 2), torch.zeros(1, 1, 2, 2))
        >>> metric.update(p, torch.tensor([[3.0, 4.0]]))
        >>> metric.compute()
        tensor(5.)
    """

    def update(self, p: NormalMixture | MultivariateNormalMixture, y: Tensor, weights: Tensor | None = None) -> None:
        """Add observations `(*batch)` or `(*batch, d)`, one for each mixture, with weights `(*batch)`."""
        if y.shape != p.batch_shape + p.event_shape:
            raise ValueError(
                f"y must be one observation for each mixture, {tuple(p.batch_shape + p.event_shape)}; "
                f"got {tuple(y.shape)}. Flatten the batch."
            )
        self._add(energy_score(p, y), weights)
