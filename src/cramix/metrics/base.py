"""What the metrics share: torchmetrics, and the checks of observations and their weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cramix.arrays import as_tensor
from cramix.checks import check_finite
from cramix.mixture import MultivariateNormalMixture, NormalMixture

try:
    from torchmetrics import Metric
except ImportError:
    raise ImportError("cramix.metrics needs torchmetrics. Use: pip install 'cramix[metrics]'") from None

__all__ = ["Metric", "Mixture", "read_observations"]

Mixture = NormalMixture | MultivariateNormalMixture


def read_observations(p: Mixture, y: Any, sample_weight: Any) -> tuple[Tensor, Tensor | None]:
    """Return observations of mixtures and their weights as tensors.

    Args:
        p: mixtures with batch shape `(*batch)`.
        y: one observation for each mixture, `(*batch)` or `(*batch, d)`; for p without batch, one, or several `(n,)` or
            `(n, d)`.
        sample_weight: None, or a weight for each observation, `(*batch)` or `(n,)`, >= 0.
    """
    y = as_tensor("y", y, p.means)
    expected = p.batch_shape + p.event_shape
    several = not p.batch_shape and y.ndim == len(expected) + 1 and y.shape[1:] == expected
    if y.shape != expected and not several:
        shapes = f"{tuple(expected)}" + ("" if p.batch_shape else f" or {('n', *expected)}".replace("'", ""))
        raise ValueError(f"y must have shape {shapes}, one observation for each mixture; got {tuple(y.shape)}.")
    if sample_weight is None:
        return y, None
    sample_weight = as_tensor("sample_weight", sample_weight, p.means)
    count = y.shape[: y.ndim - len(p.event_shape)]
    if sample_weight.shape != count:
        raise ValueError(
            f"sample_weight must have shape {tuple(count)}, one weight for each observation; "
            f"got {tuple(sample_weight.shape)}."
        )
    check_finite(sample_weight=sample_weight)
    if sample_weight.numel() and sample_weight.min() < 0:
        raise ValueError(f"sample_weight must be >= 0; got min {sample_weight.min().item():.3g}.")
    return y, sample_weight
