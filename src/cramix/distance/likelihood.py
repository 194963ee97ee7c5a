"""The negative log likelihood of samples (docs/others.md, eq. O14)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cramix.distance.kernels import block_size, normalized
from cramix.distance.operands import Mixture


def negative_log_likelihood(p: Mixture, x: Tensor, weights: Tensor) -> Tensor:
    """Return `-sum_j w_j log f(x_j)`, `(*batch)`, in float32 at least (eq. O14).

    Args:
        p: mixture with batch shape `(*batch)`, without atoms.
        x: samples `(*batch, n)` of a univariate mixture, `(*batch, n, d)` of a multivariate one; batches broadcast.
        weights: `(*batch, n)`, of any positive sum.

    Example:
        >>> from cramix import NormalMixture
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> negative_log_likelihood(p, torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.5]))
        tensor(1.4189)
    """
    wide = in_single_at_least(p)
    event = len(p.event_shape)
    x = x.to(wide.means.dtype)
    batch = torch.broadcast_shapes(p.batch_shape, x.shape[: x.ndim - 1 - event])
    samples_first = x.expand(*batch, *x.shape[-1 - event :]).movedim(-1 - event, 0)
    log_density = wide.log_prob(samples_first).movedim(0, -1)  # (*batch, n)
    return -(normalized(weights.to(x.dtype))[0] * log_density).sum(-1)


def log_density(p: Mixture, x: Tensor, block: int | None = None) -> Tensor:
    """Return the log density of a mixture without batch at points `(n,)` or `(n, d)`, in blocks, without gradient.

    Example:
        >>> from cramix import NormalMixture
        >>> log_density(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), torch.tensor([0.0, 1.0]))
        tensor([-0.9189, -1.4189])
    """
    step = max(1, 4 * block_size(x.device, block) // p.means.numel())
    with torch.no_grad():
        return torch.cat([p.log_prob(some) for some in x.split(step)])


def in_single_at_least(mixture: Any) -> Any:
    """Return a mixture in float32 at least, since densities exceed the range of half precision."""
    return mixture.to(dtype=torch.promote_types(mixture.means.dtype, torch.float32))
