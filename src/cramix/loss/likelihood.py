"""The negative log likelihood as a loss, to samples and to mixtures."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cramix.distance.likelihood import Mixture, detached, negative_log_likelihood
from cramix.distance.operands import common_batch
from cramix.loss.reduction import reduce
from cramix.loss.targets import as_target
from cramix.mixture import NormalMixture
from cramix.quadrature import even_points

# Places and weights of Gauss and Hermite for means under a standard normal distribution.
_PLACES, _SHARES = (x.tolist() for x in np.polynomial.hermite_e.hermegauss(32))
# Places for a mean in d dimensions, half as many and their mirror images.
_LEAST_PAIRS = 64


def negative_log_likelihood_loss(
    p: Mixture, x: Mixture | Tensor, weights: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the negative log likelihood of samples, a mean over them (docs/others.md, eq. O14).

    To a mixture it is the cross entropy, the expected value: on the line by 32 nodes of Gauss and Hermite a component,
    in d dimensions by 128 or more quasi-random ones, right to rounding where p has one component. A target mixture has
    no gradient.

    Args:
        p: mixture with batch shape `(*batch)`.
        x: one sample each, `(*batch)` or `(*batch, d)`; several, `(*batch, n)` or `(*batch, n, d)`; or a mixture.
        weights: of several samples, `(*batch, n)`, of any positive sum.
        reduction: "none", "mean" or "sum" over the batch.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> negative_log_likelihood_loss(p, torch.tensor([-1.0, 1.0])), negative_log_likelihood_loss(p, p)
        (tensor(1.4189), tensor(1.4189))
    """
    if isinstance(x, Mixture):
        as_target(p, x, weights)  # refuses weights
        common_batch(p, x)
        samples, shares = _nodes(detached(x))
        return reduce(negative_log_likelihood(p, samples, shares), reduction)
    one_each = isinstance(p, Mixture) and isinstance(x, Tensor) and x.shape == p.batch_shape + p.event_shape
    samples = as_target(p, x, weights) if one_each else x
    return reduce(negative_log_likelihood(p, samples, weights), reduction)


def _nodes(q: Mixture) -> tuple[Tensor, Tensor]:
    """Return samples and weights that stand for a mixture, `(*batch, n)`, of vectors `(*batch, n, d)`."""
    if isinstance(q, NormalMixture):
        # The compiler has constants of its own; without it they are kept on the device, as a recorded graph asks for.
        rule = _rule.__wrapped__ if torch.compiler.is_compiling() else _rule
        places, shares = rule(q.means.dtype, q.means.device)
        nodes = q.means.unsqueeze(-1) + q.scales.unsqueeze(-1) * places  # (*batch, k, 32)
        return nodes.flatten(-2), (q.weights.unsqueeze(-1) * shares).flatten(-2)
    places = _normal_places(q.dim, q.means)
    roots = q.covariance_kind.roots(q.dim)
    around = places * roots.unsqueeze(-2) if q.covariance_kind.axis_aligned else places @ roots.mT
    nodes = q.means.unsqueeze(-2) + around  # (*batch, k, n, d)
    return nodes.flatten(-3, -2), q.weights.unsqueeze(-1).expand(nodes.shape[:-1]).flatten(-2)


@lru_cache(maxsize=16)
def _rule(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # kept for later calls, which may want gradients
        return torch.tensor(_PLACES, dtype=dtype, device=device), torch.tensor(_SHARES, dtype=dtype, device=device)


def _normal_places(dim: int, like: Tensor) -> Tensor:
    """Return places `(n, d)` with the first three moments of a standard normal distribution, evenly spread."""
    pairs = max(_LEAST_PAIRS, 2 * dim)
    normal = torch.special.ndtri(even_points(pairs, dim)).to(like.device)
    lower = torch.linalg.cholesky(normal.T @ normal / pairs)
    normal = torch.linalg.solve_triangular(lower, normal.T, upper=False).T
    return torch.cat((normal, -normal)).to(like.dtype)
