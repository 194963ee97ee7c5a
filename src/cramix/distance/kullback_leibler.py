"""The Kullback-Leibler divergence (docs/others.md, eq. O15), by Monte Carlo and for `torch.distributions`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import register_kl

from cramix.distance.derivatives import first_order_only
from cramix.distance.likelihood import in_single_at_least
from cramix.distance.operands import Mixture, as_mixtures
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.quadrature import gauss_legendre, panel_edges

# Points for each component in d dimensions.
_POINTS = 4096


def kl_divergence(
    p: Mixture, q: Mixture, samples: int = 1024, generator: torch.Generator | None = None, with_error: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Estimate `KL(p || q) = E_p log(f(X) / g(X))`, `(*batch)`, by Monte Carlo.

    The estimate is unbiased, with a standard error of `sd(log(f / g)) / sqrt(samples)`, and may be negative. Gradients
    are unbiased: those of q directly, those of p through its reparameterised samples alone, since the term through f
    has mean 0; second derivatives in p raise an error.

    Args:
        p: mixture to draw from, without atoms.
        q: mixture of the same kind; batch shapes broadcast.
        samples: number of draws, at least 2.
        generator: source of randomness.
        with_error: whether to return the estimated standard error too.

    `torch.distributions.kl_divergence(p, q)` is deterministic: by quadrature on the line, to 1e-9 in float64, and with
    4096 quasi-random points for each component of p in d dimensions.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> kl_divergence(p, p.affine(1.0, 1.0), generator=torch.Generator().manual_seed(0), with_error=True)
        (tensor(0.5318), tensor(0.0302))
    """
    if not isinstance(samples, int) or samples < 2:
        raise ValueError(f"samples must be an integer >= 2; got {samples!r}.")
    p, q, batch = as_mixtures(p, q)
    p, q = in_single_at_least(p).expand(batch), in_single_at_least(q)
    x = p.rsample((samples,), generator)
    log_ratio = p.detach().log_prob(x) - q.log_prob(x)
    parts = (p.weights, p.means, p.scales if isinstance(p, NormalMixture) else p.covariance_kind.values)
    estimate = first_order_only(log_ratio.mean(0), *parts)
    return (estimate, log_ratio.detach().std(0) / samples**0.5) if with_error else estimate


@register_kl(NormalMixture, NormalMixture)
def _by_quadrature(p: NormalMixture, q: NormalMixture) -> Tensor:
    p, q, batch = as_mixtures(p, q)
    dtype = p.dtype
    p, q = (side.expand(batch).to(torch.float64) for side in (p, q))
    p._require_density("the Kullback-Leibler divergence")
    q._require_density("the Kullback-Leibler divergence")
    if not batch.numel():
        return p.means.new_empty(batch, dtype=dtype)
    with torch.no_grad():
        pairs = ((p.means, q.means), (p.scales, q.scales))
        means, scales = (torch.cat(pair, -1).reshape(batch.numel(), -1) for pair in pairs)
        x, mass = (y.T.reshape(-1, *batch) for y in gauss_legendre(panel_edges(means, scales)))
    log_f, log_g = p.log_prob(x), q.log_prob(x)
    density = log_f.clamp_min(-1e3).exp()  # 0 below, where the ratio may be anything
    return (mass * torch.where(density > 0, density * (log_f - log_g), 0)).sum(0).to(dtype)


@register_kl(MultivariateNormalMixture, MultivariateNormalMixture)
def _by_quasi_random_points(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> Tensor:
    p, q, batch = as_mixtures(p, q)
    p, q = (in_single_at_least(side).expand(batch) for side in (p, q))
    p._require_density("the Kullback-Leibler divergence")
    if not batch.numel():
        return p.means.new_empty(batch)
    x = p._quasi_samples(_POINTS).movedim(-2, 0)  # (k, n, *batch, d)
    each = (p.log_prob(x) - q.log_prob(x)).mean(1)  # (k, *batch)
    return (p.weights * each.movedim(0, -1)).sum(-1)
