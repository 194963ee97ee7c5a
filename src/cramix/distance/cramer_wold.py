"""The Cramér-Wold distance of CWAE (Knop et al. 2020) and SeGMA (Śmieja et al. 2019), docs/others.md, eq. O10 to O12.

It smooths both sides with a spherical normal distribution, projects them on every direction of the sphere, and averages
the squared L2 distance of the projections' densities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.distance.operands import multivariate_operands
from cramix.distance.spherical import Balls, balls, mean_density, mean_over_pairs, squared_distances
from cramix.mixture import MultivariateNormalMixture
from cramix.torch_internals import readable


def cramer_wold_squared(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    bandwidth: float | Tensor | None = None,
) -> Tensor:
    """Return the squared Cramér-Wold distance, `(*batch)`, in closed form for any dimension.

    Computed in float64; gradients reach weights (along the simplex), means and variances, of any order.

    Args:
        p: mixture with `Spherical` covariances and batch shape `(*batch)`, or samples `(*batch, n, d)`.
        q: the same; batch shapes broadcast.
        bandwidth: the variance of the smoothing, > 0, a number or `(*batch)`. By default Silverman's rule, as in CWAE.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> cramer_wold_squared(x[:1], x[1:], bandwidth=0.5)
        tensor(0.6677)
    """
    smoothing = silverman(p, q) if bandwidth is None else torch.as_tensor(bandwidth, dtype=torch.float64)
    if readable(smoothing) and not bool((smoothing > 0).all()):
        raise ValueError(
            f"bandwidth must be > 0; got {smoothing.min().item():.3g}. Silverman's rule is a multiple of the points' "
            "variance; points that all coincide need a bandwidth given."
        )
    p_side, q_side, dtype = balls(p, q, "sliced_cramer_loss")
    smoothing = smoothing.to(p_side.means.device)[..., None, None]

    def overlap(p: Balls, q: Balls) -> Tensor:
        squared, variance = squared_distances(p, q)
        return mean_over_pairs(p, q, mean_density(squared, variance + 2 * smoothing, p.means.shape[-1]))

    cross, within_p, within_q = overlap(p_side, q_side), overlap(p_side, p_side), overlap(q_side, q_side)
    return (within_p + within_q - 2 * cross).clamp_min(0).to(dtype)


@torch.no_grad()
def silverman(p: MultivariateNormalMixture | Tensor, q: MultivariateNormalMixture | Tensor) -> Tensor:
    """Return Silverman's rule `(4 / (3n))^(2/5) v`, `(*batch)`, for n points of mean variance v a coordinate (eq. O12).

    Of two sets of points n is the larger number, and v the mean of both variances. CWAE has v = 1, for codes that are
    drawn to a standard normal distribution.
    """
    sides = [side for side in multivariate_operands(p, q) if side.only_points]
    if not sides:
        raise ValueError("bandwidth must be given for two mixtures; got None. Silverman's rule needs points to count.")
    count = max(side.n_components for side in sides)
    variances = [_mean_variance(side) for side in sides]
    return (4 / (3 * count)) ** 0.4 * (variances[0] + variances[-1]) / 2


def _mean_variance(side: MultivariateNormalMixture) -> Tensor:
    weights, means = side.weights.double().unsqueeze(-1), side.means.double()
    offset = means - (weights * means).sum(-2, keepdim=True)
    return (weights * offset.square()).sum(-2).mean(-1)
