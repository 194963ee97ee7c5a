"""The negative log likelihood of samples, and the divergence of Kullback and Leibler (docs/others.md, eq. O14, O15)."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_floating
from cramix.distance.once import once
from cramix.distance.operands import common_batch
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.weights import of_samples

Mixture = NormalMixture | MultivariateNormalMixture
# Numbers in offsets of points from means at a time.
_BLOCK = 1 << 22


def negative_log_likelihood(p: Mixture, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return `-sum_j w_j log f(x_j)`, the mean over samples, `(*batch)` (eq. O14).

    Args:
        p: mixture with batch shape `(*batch)`, without atoms.
        x: samples `(*batch, n)` of a univariate mixture, `(*batch, n, d)` of a multivariate one; batches broadcast.
        weights: `(*batch, n)`, >= 0, of any positive sum; equal ones if None.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> negative_log_likelihood(p, torch.tensor([-1.0, 1.0]))
        tensor(1.4189)
    """
    wide = _at_least_single("p", p)
    check_floating(x=x, p=p.means) if weights is None else check_floating(x=x, weights=weights, p=p.means)
    event = len(p.event_shape)
    if x.ndim <= event or x.shape[-1 - event] == 0 or x.shape[x.ndim - event :] != p.event_shape:
        wanted = f"(*batch, n, {p.event_shape[0]})" if event else "(*batch, n)"
        raise ValueError(f"x must hold samples, {wanted} with n >= 1; got {tuple(x.shape)}. Use unsqueeze.")
    shape = x.shape[: x.ndim - event]
    batch = check_broadcast("Samples are the axis after the batch.", x=shape[:-1], p=p.batch_shape)
    x = x.to(wide.means.dtype)
    shares = of_samples("x", shape, None if weights is None else weights.to(x.dtype), x)
    samples_first = x.expand(*batch, *x.shape[-1 - event :]).movedim(-1 - event, 0)
    log_density = wide.log_prob(samples_first).movedim(0, -1)  # (*batch, n)
    return -(shares * log_density).sum(-1)


def log_density(p: Mixture, x: Tensor) -> Tensor:
    """Return the log density of an unbatched mixture at points `(n,)` or `(n, d)`, some at a time, without gradient.

    Example:
        >>> log_density(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), torch.tensor([0.0, 1.0]))
        tensor([-0.9189, -1.4189])
    """
    with torch.no_grad():
        return torch.cat([p.log_prob(some) for some in x.split(max(1, _BLOCK // p.means.numel()))])


def kl_divergence(
    p: Mixture, q: Mixture, samples: int = 1024, generator: torch.Generator | None = None, with_error: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate `KL(p || q) = E_p log(f(X) / g(X))`, `(*batch)`, by Monte Carlo (eq. O15).

    The estimate is unbiased, with a standard error of `sd(log(f / g)) / sqrt(samples)`, and may be negative. Gradients
    are unbiased: q's directly, p's through its reparameterised samples alone, since the part through f has mean 0;
    second derivatives in p are refused.

    Args:
        p: mixture to draw from, without atoms.
        q: mixture of the same kind; batch shapes broadcast.
        samples: number of draws, at least 2.
        generator: source of randomness.
        with_error: return the estimated standard error, too.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> kl_divergence(p, p.affine(1.0, 1.0), generator=torch.Generator().manual_seed(0), with_error=True)
        (tensor(0.5318), tensor(0.0302))
    """
    if not isinstance(samples, int) or samples < 2:
        raise ValueError(f"samples must be an integer >= 2; got {samples!r}. Some hundreds are usual.")
    p, q = _at_least_single("p", p), _at_least_single("q", q)
    batch = common_batch(p, q)
    p = p.expand(batch)
    x = p.rsample((samples,), generator)
    log_ratio = detached(p).log_prob(x) - q.log_prob(x)
    parts = (p.weights, p.means, p.scales if isinstance(p, NormalMixture) else p.covariance_kind.values)
    estimate = once(log_ratio.mean(0), *parts)
    return (estimate, log_ratio.detach().std(0) / samples**0.5) if with_error else estimate


def _at_least_single(name: str, side: Mixture) -> Mixture:
    """Return the mixture in float32 at least: densities leave half's range."""
    if not isinstance(side, Mixture):
        raise ValueError(f"{name} must be a mixture; got {type(side).__name__}. Samples have no density.")
    dtype = torch.promote_types(side.means.dtype, torch.float32)
    if dtype == side.means.dtype:
        return side
    if isinstance(side, NormalMixture):
        return side._like(*(t.to(dtype) for t in (side.weights, side.means, side.scales)))
    kind = side.covariance_kind
    return side._like(side.weights.to(dtype), side.means.to(dtype), kind.like(kind.values.to(dtype)))


def detached(side: Mixture) -> Mixture:
    """Return the mixture as a constant."""
    if isinstance(side, NormalMixture):
        return side._like(*(t.detach() for t in (side.weights, side.means, side.scales)))
    kind = side.covariance_kind
    return side._like(side.weights.detach(), side.means.detach(), kind.like(kind.values.detach()))
