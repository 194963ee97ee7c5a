"""Mean scores of predictions, lower is better: the CRPS, and for vectors the energy score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cramix.distance.operands import Mixture, as_observations, observation_weights
from cramix.loss import crps, energy_score
from cramix.mixture import NormalMixture

try:
    from torchmetrics import Metric
except ImportError:
    raise ImportError("cramix.metrics needs torchmetrics. Use: pip install 'cramix[metrics]'") from None


class _MeanScore(Metric):
    """The mean of a score over all observations of all processes; abstract."""

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
        """Plot the mean, or values computed before; return figure and axes, see `torchmetrics.Metric.plot`."""
        return self._plot(val, ax)

    def _add(self, scores: Tensor, sample_weight: Tensor | None) -> None:
        scores = scores.double()
        weights = torch.ones_like(scores) if sample_weight is None else sample_weight.double()
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

    def update(self, p: NormalMixture, y: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add observations, one for each mixture, `(*batch)`, with weights `(*batch)`.

        A mixture without batch takes several observations, `(n,)`.
        """
        if not isinstance(p, NormalMixture):
            raise ValueError(f"p must be a NormalMixture; got {type(p).__name__}. For vectors use EnergyScore.")
        y, sample_weight = read_observations(p, y, sample_weight)
        self._add(crps(p, y), sample_weight)


class EnergyScore(_MeanScore):
    """The mean energy score of vectors; in one dimension it equals the CRPS.

    Example:
        >>> from cramix import MultivariateNormalMixture
        >>> metric = EnergyScore()
        >>> p = MultivariateNormalMixture(torch.ones(1, 1), torch.zeros(1, 1, 2), torch.zeros(1, 1, 2, 2))
        >>> metric.update(p, torch.tensor([[3.0, 4.0]]))
        >>> metric.compute()
        tensor(5.)
    """

    def update(self, p: Mixture, y: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add observations, one for each mixture, `(*batch)` or `(*batch, d)`, with weights `(*batch)`.

        A mixture without batch takes several observations, `(n,)` or `(n, d)`.
        """
        y, sample_weight = read_observations(p, y, sample_weight)
        self._add(energy_score(p, y), sample_weight)


def read_observations(p: Mixture, y: Any, sample_weight: Any) -> tuple[Tensor, Tensor | None]:
    """Return observations of mixtures and their weights as tensors.

    Args:
        p: mixtures with batch shape `(*batch)`.
        y: one observation for each mixture, `(*batch)` or `(*batch, d)`; for p without batch, one, or several `(n,)` or
            `(n, d)`.
        sample_weight: None, or a weight for each observation, `(*batch)` or `(n,)`, >= 0.
    """
    p, y = as_observations(p, y)
    count = y.shape[: y.ndim - len(p.event_shape)]
    return y, observation_weights(sample_weight, count, p)
