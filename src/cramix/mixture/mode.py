"""The highest mode of a mixture, by a fixed-point iteration from every component.

At a mode the gradient of the density vanishes, so that with responsibilities r_j and precisions P_j

    x = (sum_j r_j P_j)^-1 sum_j r_j P_j mu_j.

Repeating this map climbs to a mode from anywhere (M. A. Carreira-Perpinan, *Mode-finding for mixtures of Gaussian
distributions*, IEEE Trans. Pattern Anal. Mach. Intell., 2000). From the means of all components it finds all modes but
in contrived cases.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_MAX_ITER = 2000
# A step of this fraction of the mixture's size is the last one.
_TOL = 1e-11


@torch.no_grad()
def highest_mode(means: Tensor, precisions: Tensor, log_joint: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the highest mode, `(*batch, d)`, in float64.

    Args:
        means: `(*batch, k, d)`.
        precisions: inverse covariances, `(*batch, k, d, d)`.
        log_joint: from points `(*sample, *batch, d)` to log densities of point and component, `(*sample, *batch, k)`.
    """
    weighted_means = (precisions @ means.unsqueeze(-1)).squeeze(-1)
    size = (means.amax(-2) - means.amin(-2)).amax(-1) + precisions.diagonal(dim1=-2, dim2=-1).rsqrt().amax((-1, -2))
    x = means.movedim(-2, 0)  # a start at every component: (k, *batch, d)
    for _ in range(_MAX_ITER):
        r = log_joint(x).softmax(-1)
        precision = torch.einsum("...k,...kij->...ij", r, precisions.expand(*r.shape, -1, -1))
        pull = torch.einsum("...k,...ki->...i", r, weighted_means.expand(*r.shape, -1))
        moved = torch.linalg.solve(precision, pull)
        step, x = (moved - x).abs().amax(-1), moved
        if bool((step <= _TOL * size).all()):
            break
    best = log_joint(x).logsumexp(-1).argmax(0)  # (*batch)
    return x.take_along_dim(best[None, ..., None], 0).squeeze(0)
