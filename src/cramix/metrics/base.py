"""torchmetrics, or how to get it."""

from __future__ import annotations

try:
    from torchmetrics import Metric
except ImportError:
    raise ImportError("cramix.metrics needs torchmetrics. Use: pip install 'cramix[metrics]'") from None

__all__ = ["Metric"]
