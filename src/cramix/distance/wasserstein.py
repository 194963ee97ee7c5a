"""The Wasserstein distances W1 and W2 on the line and over slices, for mixtures and samples.

Formulas: docs/others.md, eq. O16 to O22.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cramix.directions import orthogonal
from cramix.distance.cramer.signature import Operand, operand_of
from cramix.distance.derivatives import first_order_only, root
from cramix.distance.kernels import block_size
from cramix.distance.lp import flat_in_float64, lp_distance
from cramix.distance.operands import as_operands, in_kind_of
from cramix.distance.slices import checked_directions, unit_vectors
from cramix.distance.transport import Line, squared_transport
from cramix.mixture import MultivariateNormalMixture, NormalMixture, components
from cramix.mixture.quantile import quantile
from cramix.torch_internals import readable


def wasserstein_distance(p: Any, q: Any, order: int = 2) -> Tensor:
    """Return `W_r(p, q) = (integral |F^-1(u) - G^-1(u)|^r du)^(1/r)` of order r = 1 or 2, `(*batch)`.

    Computed in float64. Between samples, and between a mixture and samples, it is exact: `W1` to 1e-14 of the scale,
    `W2^2` to 1e-13 of the variances. Between mixtures it is computed by quadrature: the square has a relative error of
    1e-10; for order 1 see `lp_distance`. Gradients reach weights (along the simplex), means, scales and samples; for
    order 2 between two mixtures to 1e-7 of the largest one. Second derivatives raise an error except between samples.
    The derivative at distance 0 is defined as 0.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(n,)`.
        q: the same; batch shapes broadcast, and samples need another side without batch. For order 2 between mixtures
            neither may mix atoms with other components.
        order: 1 or 2.

    Example:
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> wasserstein_distance(p, p.affine(3.0, 5.0))  # sqrt(3^2 + (5 - 1)^2)
        tensor(5.)
    """
    a, b, _, _ = as_operands(NormalMixture, p, q)
    return in_kind_of(root(wasserstein_power(a, b, order), order), p, q)


def sliced_wasserstein_distance(
    p: Any, q: Any, order: int = 2, directions: Any = 64, generator: torch.Generator | None = None
) -> Tensor:
    """Return `(mean over directions of W_r^r of the projections)^(1/r)`, `(*batch)`; see `wasserstein_distance`.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(n, d)`.
        q: the same; batch shapes broadcast, and samples need another side without batch.
        order: 1 or 2.
        directions: how many to draw, in orthogonal blocks, or unit vectors `(t, d)`.
        generator: source of randomness.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> sliced_wasserstein_distance(x[:1], x[1:], directions=torch.eye(2))  # sqrt((3^2 + 4^2) / 2)
        tensor(3.5355)
    """
    a, b, _, _ = as_operands(MultivariateNormalMixture, p, q)
    return in_kind_of(root(sliced_wasserstein_power(a, b, order, directions, generator), order), p, q)


def sliced_wasserstein_power(
    p: MultivariateNormalMixture,
    q: MultivariateNormalMixture,
    order: int = 2,
    directions: Any = 64,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the mean over directions of `W_r^r`, `(*batch)`: the sliced distance before the root is taken."""
    directions = checked_directions(directions, p.means)
    if isinstance(directions, str):
        raise ValueError(f"directions must be a number >= 1 or a tensor (t, {p.dim}); got {directions!r}.")
    if not isinstance(directions, Tensor):
        single = torch.promote_types(p.means.dtype, torch.float32)  # halves have no decomposition
        drawn = orthogonal(directions, p.dim, generator=generator, dtype=single, device=p.means.device)
        directions = drawn.to(p.means.dtype)
    directions = unit_vectors(directions)
    return wasserstein_power(p.project(directions), q.project(directions), order).mean(-1)


def wasserstein_power(p: NormalMixture, q: NormalMixture, order: int, block: int | None = None) -> Tensor:
    """Return `W_r^r` of mixtures of one dtype, `(*batch)`."""
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2; got {order!r}. For distances of other orders see lp_distance.")
    a, b = _recognised(operand_of(p)), _recognised(operand_of(q))
    if order == 1 and a.scales is not None and b.scales is not None:
        return lp_distance(p, q, 1.0)
    dtype = a.means.dtype
    batch = torch.broadcast_shapes(a.means.shape[:-1], b.means.shape[:-1])
    if batch.numel() == 0:
        return a.means.new_empty(batch)
    a, b = flat_in_float64(a, batch), flat_in_float64(b, batch)
    if a.scales is None and b.scales is None:
        power = _between_points(a, b, order)
    elif a.scales is None or b.scales is None:
        power = _to_points(*((b, a) if a.scales is None else (a, b)), order, block)
    else:
        power = squared_transport(_smooth("p", a), _smooth("q", b), block)
    return power.reshape(batch).to(dtype)


def _recognised(side: Operand) -> Operand:
    """Return a mixture whose scales are all 0 as samples, without scales."""
    if side.scales is None or not readable(side.scales) or (side.scales != 0).any():
        return side
    return Operand(side.weights, side.means)


def _smooth(name: str, side: Operand) -> Line:
    assert side.scales is not None
    if readable(side.scales) and (side.scales == 0).any():
        raise ValueError(
            f"{name} must have scales > 0 for W2 between two mixtures; got 0, an atom. Give it a small scale, or use "
            "order 1."
        )
    return Line(side.weights, side.means, side.scales)


def _sorted_levels(points: Operand) -> tuple[Tensor, Tensor]:
    """Return the points in order and the levels of their upper ends, the last of them exactly 1."""
    located, order = points.means.sort(-1)
    mass = points.weights.gather(-1, order).cumsum(-1)
    return located, mass / mass[:, -1:]


def _between_points(p: Operand, q: Operand, order: int) -> Tensor:
    """Sum `|x - y|^r` over the pieces between the levels of both, on which both quantiles are constant (eq. O17)."""
    (x, x_levels), (y, y_levels) = _sorted_levels(p), _sorted_levels(q)
    levels = torch.cat((torch.zeros_like(x_levels[:, :1]), x_levels, y_levels), -1).sort(-1).values
    middles = (0.5 * (levels[:, 1:] + levels[:, :-1])).detach()
    x_there = x.gather(-1, torch.searchsorted(x_levels.detach(), middles))
    y_there = y.gather(-1, torch.searchsorted(y_levels.detach(), middles))
    return (levels.diff(dim=-1) * (x_there - y_there).abs() ** order).sum(-1)


def _to_points(p: Operand, q: Operand, order: int, block: int | None) -> Tensor:
    """Return `W_r^r` between a mixture and points, from partial means of the mixture."""
    rows = max(1, block_size(p.means.device, block) // (p.means.shape[-1] * q.means.shape[-1]))
    assert p.scales is not None
    parameters = (p.weights, p.means, p.scales, q.weights, q.means)
    distance = _first_to_points if order == 1 else _second_to_points
    parts = [distance(*part) for part in zip(*(t.split(rows) for t in parameters), strict=True)]
    return first_order_only(torch.cat(parts), *parameters)


def _first_to_points(weights: Tensor, means: Tensor, scales: Tensor, masses: Tensor, points: Tensor) -> Tensor:
    """Return `W1`: between two points G is constant and F meets it at most once (eq. O19)."""
    shift = (masses * points).sum(-1, keepdim=True).detach()
    means, points = means - shift, points - shift
    y, levels = _sorted_levels(Operand(masses, points))
    left, right, level = y[:, :-1], y[:, 1:], levels[:, :-1]
    meet = torch.maximum(torch.minimum(_moving_quantile(level, weights, means, scales), right), left)
    at = torch.cat((y, meet), -1)
    below = _mean_below(at, weights, means, scales)
    at_y, at_meet = below.split((y.shape[-1], meet.shape[-1]), -1)
    between = at_y[:, :-1] + at_y[:, 1:] - 2 * at_meet - level * (left + right - 2 * meet)
    above = _mean_below(-y[:, -1:], weights, -means, scales)
    return (at_y[:, :1] + above).squeeze(-1) + between.sum(-1).clamp_min(0)


def _second_to_points(weights: Tensor, means: Tensor, scales: Tensor, masses: Tensor, points: Tensor) -> Tensor:
    """Return `W2^2`, for centred sides from the mean of their product (eq. O18)."""
    # Centred, since squares of the means would hide the variances.
    p_mean, q_mean = (weights * means).sum(-1, keepdim=True), (masses * points).sum(-1, keepdim=True)
    means, points = means - p_mean, points - q_mean
    p_variance = (weights * (means.square() + scales.square())).sum(-1)
    q_variance = (masses * points.square()).sum(-1)
    y, levels = _sorted_levels(Operand(masses, points))
    level = levels[:, :-1]
    x = _moving_quantile(level, weights, means, scales)
    partial_mean = x * level - _mean_below(x, weights, means, scales)
    covariance = -(y.diff(dim=-1) * partial_mean).sum(-1)
    return ((p_mean - q_mean).squeeze(-1).square() + p_variance + q_variance - 2 * covariance).clamp_min(0)


def _mean_below(x: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return `E(x - X)+` at `(B, n)`."""
    each = components.mean_below(x.unsqueeze(-1), means.unsqueeze(-2), scales.unsqueeze(-2))
    return (each @ weights.unsqueeze(-1)).squeeze(-1)


def _moving_quantile(u: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return quantiles at `(B, n)`, constant except on an atom, with which they move.

    The results have derivative 0 in them, and off atoms their own derivatives may be unbounded, in a gap.
    """
    weights, means, scales = weights.detach().unsqueeze(-2), means.unsqueeze(-2), scales.detach().unsqueeze(-2)
    inside = u.detach().clamp(torch.finfo(u.dtype).tiny, 1 - 2**-53)  # quantiles at 0 and 1 are infinite
    x = quantile(inside, weights, means.detach(), scales)
    on_atom = weights * ((scales == 0) & (means == x.unsqueeze(-1)))
    total = on_atom.sum(-1).clamp_min(torch.finfo(x.dtype).tiny)
    return x + (on_atom * (means - means.detach())).sum(-1) / total
