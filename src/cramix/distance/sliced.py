"""The sliced Cramér distance: the Cramér loss of projections, averaged over the sphere, with slices and without.

Without slices it is a multiple of the energy distance (docs/math.md, eq. 24), which needs no direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cramix import directions as schemes
from cramix.checks import check_finite, check_floating, readable
from cramix.distance.cramer import cramer_squared
from cramix.distance.multivariate.energy import energy_distance
from cramix.distance.operands import multivariate_operands
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
        target_term: whether to subtract the own term of points q, which does not depend on p; "exact" takes all
            pairs of points for it, once for a tensor that stays the same.
        generator: for random directions.

    Returns:
        Losses `(*batch)`, in float32 for half-precision input.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
        >>> sliced_cramer_squared(p, torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor(0.2398)
    """
    p, q = multivariate_operands(p, q)
    _check_directions(directions, p.means)
    check_options(directions, normalization, tolerance)
    if not target_term and (not isinstance(directions, str) or p.only_points or not q.only_points):
        raise ValueError(
            'target_term must be True unless p is a mixture, q points and directions "exact"; got False. Leave it out.'
        )
    dtype = torch.promote_types(p.means.dtype, torch.float32)
    p, q = p.to(dtype), q.to(dtype)
    if isinstance(directions, str) and p.dim == 1 and target_term:
        directions = p.means.new_ones(1, 1)  # the sphere is two opposite points
    with torch.autocast(p.means.device.type, enabled=False):
        if isinstance(directions, str):
            tolerance = max(tolerance, 1e-6 if dtype == torch.float32 else 1e-14)
            mean = sphere_factor(p.dim) * energy_distance(p, q, tolerance, target_term)
        else:
            chosen = _unit_vectors(directions, p, generator)
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
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)


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


def _unit_vectors(directions: int | Tensor, p: MultivariateNormalMixture, generator: torch.Generator | None) -> Tensor:
    if isinstance(directions, int):
        like = p.means
        return schemes.random(directions, p.dim, generator=generator, dtype=like.dtype, device=like.device)
    directions = directions.to(p.means.dtype)
    directions = directions / directions.abs().amax(-1, keepdim=True)  # the squares of very long or short ones overflow
    return directions / torch.linalg.vector_norm(directions, dim=-1, keepdim=True)


def check_options(directions: str | int | Tensor, normalization: str, tolerance: float) -> None:
    """Require options that go together, whatever the sides are."""
    if normalization not in ("mean", "integral", "sum"):
        raise ValueError(f'normalization must be "mean", "integral" or "sum"; got {normalization!r}. Try "mean".')
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 0.1:
        raise ValueError(f"tolerance must be between 0 and 0.1; got {tolerance!r}. The default is 1e-7.")
    if isinstance(directions, str) and normalization == "sum":
        raise ValueError('normalization must be "mean" or "integral" without slices; got "sum". Give directions.')


def _check_directions(directions: str | int | Tensor, means: Tensor) -> None:
    dim = means.shape[-1]
    if not isinstance(directions, Tensor):
        number = isinstance(directions, int) and not isinstance(directions, bool) and directions >= 1
        if not number and not (isinstance(directions, str) and directions == "exact"):
            got = repr(directions) if isinstance(directions, str | int | float | None) else type(directions).__name__
            raise ValueError(
                f'directions must be "exact", a number >= 1 or a tensor (t, {dim}); got {got}. See cramix.directions.'
            )
        return
    check_floating(directions=directions, means=means)
    if directions.ndim != 2 or directions.shape[1] != dim or len(directions) == 0:
        raise ValueError(
            f"directions must be (t, {dim}) with t >= 1 in {dim} dimensions; got {tuple(directions.shape)}. "
            "See cramix.directions."
        )
    if readable(directions):
        check_finite(directions=directions)
        if (empty := directions.abs().amax(-1) == 0).any():
            raise ValueError(f"directions must have a length > 0; got {int(empty.sum())} of length 0. Drop them.")
