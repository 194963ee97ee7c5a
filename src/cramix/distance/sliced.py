"""The sliced Cramér distance: the Cramér loss of projections, averaged over the sphere, with slices and without.

Without slices it is a multiple of the energy distance (docs/math.md, eq. 24), which needs no direction.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cramix import directions as schemes
from cramix.checks import check_choice
from cramix.distance.cramer import atoms, projections
from cramix.distance.cramer.autograd import cramer_of_mixtures
from cramix.distance.derivatives import root
from cramix.distance.energy.autograd import Energy, Operand, energy_distance, requires_grad
from cramix.distance.energy.ladder import check_backend
from cramix.distance.kernels import block_size
from cramix.distance.operands import as_operands, as_sketched, in_kind_of
from cramix.distance.prepared import PreparedTarget
from cramix.distance.sketch import SliceSketch
from cramix.distance.slices import checked_directions, unit_vectors
from cramix.mixture import MultivariateNormalMixture, NormalMixture


def sliced_cramer_squared(
    p: Any,
    q: Any,
    directions: Any = "exact",
    normalization: str = "mean",
    *,
    tolerance: float = 1e-7,
    target_self_energy: bool = True,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    block: int | None = None,
) -> Tensor:
    """Return the Cramér loss of the projections over all directions, for each batch element, without reduction.

    Args:
        p: mixture with batch shape `(*batch)`, samples `(n, d)`, a `PreparedTarget` or a `SliceSketch`.
        q: the same; batch shapes broadcast.
        directions: "exact" for all of them, in closed form up to an integral; a number of random ones; or `(t, d)`
            vectors, of any length > 0, see `cramix.directions`. A sketch has directions of its own, which are used.
        normalization: "mean" over the sphere; "integral", the mean times the sphere's area, as the paper defines it;
            "sum" over the slices, as the paper's algorithm computes it.
        tolerance: of "exact", the error of a mean distance relative to the size of the problem; float32 reaches 1e-6.
            Gradients of covariances are accurate to a few hundred times the tolerance.
        target_self_energy: whether to subtract the self energy of q, `1/2 E|Y - Y'|`, which does not depend on p. With
            "exact" it is a sum over all pairs of q, computed at every call unless q is a `PreparedTarget`; with slices
            the points are sorted. It can be left out if p is a mixture and q is points or, with "exact", has no
            gradient.
        generator: for random directions.
        backend: the implementation of "exact", see `energy.ladder`.
        block: numbers in the temporary arrays of one block; None for the best size.

    Returns:
        Losses `(*batch)`, in float32 for half-precision input.

    Example:
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
        >>> sliced_cramer_squared(p, torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor(0.2398)
    """
    check_backend(backend)
    with_sketch = isinstance(p, SliceSketch) or isinstance(q, SliceSketch)
    check_options(None if with_sketch else directions, normalization, tolerance)
    if with_sketch:
        losses = _with_sketch(p, q, directions, target_self_energy, block)
        total, dim = _not_negative(losses.sum(-1)), (p if isinstance(p, SliceSketch) else q).dim
        return total if normalization == "sum" else _normalized(total / losses.shape[-1], normalization, dim)
    p, q, prepared_p, prepared_q = as_operands(MultivariateNormalMixture, p, q)
    directions = checked_directions(directions, p.means)
    exact = isinstance(directions, str)
    can_leave_it_out = not p.is_empirical and (q.is_empirical or (exact and not requires_grad(q)))
    if not (target_self_energy or can_leave_it_out):
        raise ValueError(
            "target_self_energy must be True unless p is a mixture with covariances and the target is points or, with "
            'directions "exact", a constant; got False.'
        )
    dtype = torch.promote_types(p.means.dtype, torch.float32)
    p, q = p.to(dtype=dtype), q.to(dtype=dtype)
    if isinstance(directions, str) and p.dim == 1 and target_self_energy:
        directions = p.means.new_ones(1, 1)  # the sphere is two opposite points
    with torch.autocast(p.means.device.type, enabled=False):
        if isinstance(directions, str):
            tolerance = max(tolerance, 1e-6 if dtype == torch.float32 else 1e-14)
            distance = energy_distance(
                Operand(p, _known_energy(prepared_p, dtype, tolerance)),
                Operand(q, _known_energy(prepared_q, dtype, tolerance) if target_self_energy else None),
                tolerance,
                target_self_energy=target_self_energy,
                backend=backend,
                block=block,
            )
            mean = sphere_factor(p.dim) * distance
        else:
            if not isinstance(directions, Tensor):
                device = p.means.device
                directions = schemes.random(directions, p.dim, generator=generator, dtype=dtype, device=device)
            chosen = unit_vectors(directions.to(dtype))
            total = _over_slices(p, q, chosen, target_self_energy, block)
            if normalization == "sum":
                return total
            mean = total / len(chosen)
    return _normalized(mean, normalization, p.dim)


def sliced_cramer_distance(
    p: Any,
    q: Any,
    directions: Any = "exact",
    normalization: str = "mean",
    *,
    tolerance: float = 1e-7,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the metric, the root of the sliced Cramér loss, `(*batch)`; the derivative at 0 is defined as 0.

    Args:
        p: mixture with batch shape `(*batch)`, samples `(n, d)`, a `PreparedTarget` or a `SliceSketch`.
        q: the same; batch shapes broadcast, and samples need another side without batch.
        directions: "exact", a number of random slices, or directions `(t, d)`, see `cramix.directions`. A sketch has
            directions of its own, which are used.
        normalization: "mean" over the sphere, "integral" (times its area), or with slices their "sum".
        tolerance: of "exact", the error of a mean distance relative to the size of the problem; float32 reaches 1e-6.
        generator: for random slices.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> sliced_cramer_distance(x[:1], x[1:]).square()  # 5 times the mean of |cos|
        tensor(3.1831)
    """
    squared = sliced_cramer_squared(p, q, directions, normalization, tolerance=tolerance, generator=generator)
    return in_kind_of(root(squared, 2), p, q)


def sphere_factor(dim: int) -> float:
    """Return `Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))`, the mean of |cos| over the sphere, from lengths to slices."""
    return math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)


def sphere_area(dim: int) -> float:
    """Return the area of the unit sphere in d dimensions, `2 pi^(d/2) / Gamma(d/2)`."""
    return 2 * math.exp(0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2))


def _with_sketch(p: Any, q: Any, directions: Any, target_self_energy: bool, block: int | None) -> Tensor:
    """Return the losses along the directions of a sketch, `(*batch, t)`."""
    if not (isinstance(directions, str) and directions == "exact"):
        raise ValueError(
            "directions must be left out with a SliceSketch, which has directions of its own; "
            f"got {type(directions).__name__}."
        )
    p, q = as_sketched(p, q)
    if not target_self_energy and (isinstance(p, SliceSketch) or p.is_empirical):
        raise ValueError("target_self_energy must be True unless p is a mixture and the target a sketch; got False.")
    sketch, other = (q, p) if isinstance(q, SliceSketch) else (p, q)
    return sketch.losses(other, target_self_energy=target_self_energy, block=block)


def _not_negative(x: Tensor) -> Tensor:
    """Return 0 in place of negative numbers, with the same gradient."""
    return x + (x.clamp_min(0) - x).detach()


def _normalized(mean: Tensor, normalization: str, dim: int) -> Tensor:
    return mean * sphere_area(dim) if normalization == "integral" else mean


def _known_energy(prepared: PreparedTarget | None, dtype: torch.dtype, tolerance: float) -> Energy | None:
    return None if prepared is None else prepared.in_dtype(dtype).self_energy(tolerance)


def _over_slices(
    p: MultivariateNormalMixture,
    q: MultivariateNormalMixture,
    directions: Tensor,
    target_self_energy: bool,
    block: int | None,
) -> Tensor:
    """Sum over the slices, some at a time."""
    if projections.applies(p, q):
        return projections.cramer_of_slices(p, q, directions, target_self_energy).sum(-1)
    batch = torch.broadcast_shapes(p.batch_shape, q.batch_shape).numel()
    numbers = max(1, batch * max(p.n_components, q.n_components))
    step = max(1, 4 * block_size(p.means.device, block) // numbers)
    sums = [_of_slices(p.project(some), q.project(some), target_self_energy, block) for some in directions.split(step)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def _of_slices(p: NormalMixture, q: NormalMixture, target_self_energy: bool, block: int | None) -> Tensor:
    if target_self_energy:
        return cramer_of_mixtures(p, q, block=block).sum(-1)
    energy = atoms.self_energy(q.means, q.weights)
    return (cramer_of_mixtures(p, q, energy, block=block) + energy.to(p.means.dtype)).sum(-1)


def check_options(directions: Any, normalization: str, tolerance: float) -> None:
    """Require options that go together, whatever the sides are."""
    check_choice("normalization", normalization, ("mean", "integral", "sum"))
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 0.1:
        raise ValueError(f"tolerance must be between 0 and 0.1; got {tolerance!r}.")
    if isinstance(directions, str) and normalization == "sum":
        raise ValueError('normalization must be "mean" or "integral" without slices; got "sum". Give directions.')
