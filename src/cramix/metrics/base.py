"""What the metrics share: torchmetrics, and the checks of observations and their weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cramix.distance.operands import Mixture, as_observations, observation_weights

try:
    from torchmetrics import Metric
except ImportError:
    raise ImportError("cramix.metrics needs torchmetrics. Use: pip install 'cramix[metrics]'") from None

__all__ = ["Metric", "Mixture", "read_observations"]


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
