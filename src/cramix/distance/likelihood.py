"""The negative log likelihood of samples, and the Kullback-Leibler divergence (docs/others.md, eq. O14, O15)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cramix.distance.derivatives import first_order_only
from cramix.distance.kernels import block_size, normalized
from cramix.distance.operands import Mixture, common_batch, promoted_mixtures, require_mixture
from cramix.mixture import NormalMixture


def negative_log_likelihood(p: Mixture, x: Tensor, weights: Tensor) -> Tensor:
    """Return `-sum_j w_j log f(x_j)`, `(*batch)`, in float32 at least (eq. O14).

    Args:
        p: mixture with batch shape `(*batch)`, without atoms.
        x: samples `(*batch, n)` of a univariate mixture, `(*batch, n, d)` of a multivariate one; batches broadcast.
        weights: `(*batch, n)`, of any positive sum.

    Example:
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
        >>> log_density(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), torch.tensor([0.0, 1.0]))
        tensor([-0.9189, -1.4189])
    """
    step = max(1, 4 * block_size(x.device, block) // p.means.numel())
    with torch.no_grad():
        return torch.cat([p.log_prob(some) for some in x.split(step)])


def kl_divergence(
    p: Mixture, q: Mixture, samples: int = 1024, generator: torch.Generator | None = None, with_error: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate `KL(p || q) = E_p log(f(X) / g(X))`, `(*batch)`, by Monte Carlo (eq. O15).

    The estimate is unbiased, with a standard error of `sd(log(f / g)) / sqrt(samples)`, and may be negative. Gradients
    are unbiased: those of q directly, those of p through its reparameterised samples alone, since the term through f
    has mean 0; second derivatives in p raise an error.

    Args:
        p: mixture to draw from, without atoms.
        q: mixture of the same kind; batch shapes broadcast.
        samples: number of draws, at least 2.
        generator: source of randomness.
        with_error: whether to return the estimated standard error too.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> kl_divergence(p, p.affine(1.0, 1.0), generator=torch.Generator().manual_seed(0), with_error=True)
        (tensor(0.5318), tensor(0.0302))
    """
    if not isinstance(samples, int) or samples < 2:
        raise ValueError(f"samples must be an integer >= 2; got {samples!r}.")
    require_mixture("p", p)
    require_mixture("q", q)
    batch = common_batch(p, q)
    p, q = promoted_mixtures(in_single_at_least(p), in_single_at_least(q))
    p = p.expand(batch)
    x = p.rsample((samples,), generator)
    log_ratio = p.detach().log_prob(x) - q.log_prob(x)
    parts = (p.weights, p.means, p.scales if isinstance(p, NormalMixture) else p.covariance_kind.values)
    estimate = first_order_only(log_ratio.mean(0), *parts)
    return (estimate, log_ratio.detach().std(0) / samples**0.5) if with_error else estimate


def in_single_at_least(mixture: Any) -> Any:
    """Return a mixture in float32 at least, since densities exceed the range of half precision."""
    return mixture.to(dtype=torch.promote_types(mixture.means.dtype, torch.float32))
