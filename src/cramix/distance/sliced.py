"""The sliced Cramér distance: the Cramér loss of projections, averaged over the sphere, with slices and without.

Without slices it is a multiple of the energy distance (docs/math.md, eq. 24), which needs no direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cramix import directions as schemes
from cramix.distance.cramer import cramer_squared
from cramix.distance.multivariate.energy import energy_distance, moves
from cramix.distance.operands import multivariate_operands
from cramix.distance.root import root
from cramix.distance.slices import check_directions, unit_vectors
from cramix.mixture import MultivariateNormalMixture

# Projected numbers at a time.
_BLOCK = 1 << 22


def sliced_cramer_squared(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    directions: str | int | Tensor = "exact",
    normalization: str = "mean",
    *,
    tolerance: float = 1e-7,
    target_term: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the Cramér loss of the projections over all directions, for each batch element, without reduction.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n, d)`.
        q: the same; batch shapes broadcast.
        directions: "exact" for all of them, in closed form up to an integral; a number of random ones; or `(t, d)`
            vectors, of any length > 0, see `cramix.directions`.
        normalization: "mean" over the sphere; "integral", the mean times the sphere's area, as the paper defines it;
            "sum" over the slices, as the paper's algorithm computes it.
        tolerance: of "exact", the error of a mean distance as a part of the size of the problem; float32 gives 1e-6.
            Gradients of covariances are right to some hundred times as much.
        target_term: whether to subtract the own term of q, which does not depend on p; "exact" takes all pairs of q
            for it, once for tensors that stay the same. False if p is a mixture, and q if it is one needs no gradient.
        generator: for random directions.

    Returns:
        Losses `(*batch)`, in float32 for half-precision input.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
        >>> sliced_cramer_squared(p, torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor(0.2398)
    """
    p, q = multivariate_operands(p, q)
    check_directions(directions, p.means)
    check_options(directions, normalization, tolerance)
    if not target_term:
        check_target_term(directions, p, q)
    dtype = torch.promote_types(p.means.dtype, torch.float32)
    p, q = p.to(dtype), q.to(dtype)
    if isinstance(directions, str) and p.dim == 1 and target_term:
        directions = p.means.new_ones(1, 1)  # the sphere is two opposite points
    with torch.autocast(p.means.device.type, enabled=False):
        if isinstance(directions, str):
            tolerance = max(tolerance, 1e-6 if dtype == torch.float32 else 1e-14)
            mean = sphere_factor(p.dim) * energy_distance(p, q, tolerance, target_term)
        else:
            if not isinstance(directions, Tensor):
                like = p.means
                directions = schemes.random(
                    directions, p.dim, generator=generator, dtype=like.dtype, device=like.device
                )
            chosen = unit_vectors(directions.to(dtype))
            total = _over_slices(p, q, chosen)
            if normalization == "sum":
                return total
            mean = total / len(chosen)
    return mean * sphere_area(p.dim) if normalization == "integral" else mean


def sliced_cramer_distance(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    directions: str | int | Tensor = "exact",
    normalization: str = "mean",
    *,
    tolerance: float = 1e-7,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the metric, the root of `sliced_cramer_squared`, `(*batch)`; the derivative at 0 is taken as 0."""
    squared = sliced_cramer_squared(p, q, directions, normalization, tolerance=tolerance, generator=generator)
    return root(squared, 2)


def sphere_factor(dim: int) -> float:
    """Return `Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))`, the mean of |cos| over the sphere: from lengths to slices."""
    return math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)


def sphere_area(dim: int) -> float:
    """Return the area of the unit sphere in d dimensions, `2 pi^(d/2) / Gamma(d/2)`."""
    return 2 * math.exp(0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2))


def _over_slices(p: MultivariateNormalMixture, q: MultivariateNormalMixture, directions: Tensor) -> Tensor:
    """Sum over the slices, some at a time."""
    batch = torch.broadcast_shapes(p.batch_shape, q.batch_shape).numel()
    step = max(1, _BLOCK // max(1, batch * max(p.n_components, q.n_components)))
    sums = [cramer_squared(p.project(some), q.project(some)).sum(-1) for some in directions.split(step)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def check_target_term(
    directions: str | int | Tensor, p: MultivariateNormalMixture, q: MultivariateNormalMixture
) -> None:
    """Require sides for which the own term of q can be left out."""
    if not isinstance(directions, str) or p.only_points or (moves(q) and not q.only_points):
        raise ValueError(
            'target_term must be True unless p is a mixture, q a constant or points, and directions "exact"; '
            "got False. Leave it out."
        )


def check_options(directions: str | int | Tensor, normalization: str, tolerance: float) -> None:
    """Require options that go together, whatever the sides are."""
    if normalization not in ("mean", "integral", "sum"):
        raise ValueError(f'normalization must be "mean", "integral" or "sum"; got {normalization!r}. Try "mean".')
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 0.1:
        raise ValueError(f"tolerance must be between 0 and 0.1; got {tolerance!r}. The default is 1e-7.")
    if isinstance(directions, str) and normalization == "sum":
        raise ValueError('normalization must be "mean" or "integral" without slices; got "sum". Give directions.')
