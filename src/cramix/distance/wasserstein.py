"""Wasserstein's distances W1 and W2 on the line and over slices, for mixtures and points.

Formulas: docs/others.md, eq. O16 to O22.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.directions import orthogonal
from cramix.distance.lp import lp_distance
from cramix.distance.once import once
from cramix.distance.operands import Operand, multivariate_operands, operands
from cramix.distance.root import root
from cramix.distance.slices import check_directions, unit_vectors
from cramix.distance.transport import Line, squared_transport
from cramix.mixture import MultivariateNormalMixture, NormalMixture, components
from cramix.mixture.quantile import quantile
from cramix.quadrature import BLOCK
from cramix.torch_internals import readable


def wasserstein(p: NormalMixture | Tensor, q: NormalMixture | Tensor, order: int = 2) -> Tensor:
    """Return `W_r(p, q) = (integral |F^-1(u) - G^-1(u)|^r du)^(1/r)` of order r = 1 or 2, `(*batch)`.

    Computed in float64. Exact between points, and between a mixture and points: `W1` to 1e-14 of the spread, `W2^2` to
    1e-13 of the variances. Between mixtures by quadrature: the square is right to 1e-10 relative; for order 1 see
    `lp_distance`. Gradients reach weights (along the simplex), means, scales and points; for order 2 between two
    mixtures to 1e-7 of the largest one. Second derivatives are refused but between points. The derivative at distance 0
    is taken as 0.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n)`.
        q: the same; batch shapes broadcast. Of order 2 between mixtures neither may have an atom beside its components.
        order: 1 or 2.

    Example:
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> wasserstein(p, p.affine(3.0, 5.0))  # sqrt(3^2 + (5 - 1)^2)
        tensor(5.)
    """
    return root(_power(p, q, order), order)


def sliced_wasserstein(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    order: int = 2,
    directions: int | Tensor = 64,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return `(mean over directions of W_r^r of the projections)^(1/r)`, `(*batch)`; see `wasserstein`.

    Args:
        p: mixture with batch shape `(*batch)`, or samples `(*batch, n, d)`.
        q: the same; batch shapes broadcast.
        order: 1 or 2.
        directions: how many to draw, in orthogonal blocks, or unit vectors `(t, d)`.
        generator: source of randomness.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> sliced_wasserstein(x[:1], x[1:], directions=torch.eye(2))  # sqrt((3^2 + 4^2) / 2)
        tensor(3.5355)
    """
    return root(sliced_wasserstein_power(p, q, order, directions, generator), order)


def sliced_wasserstein_power(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    order: int = 2,
    directions: int | Tensor = 64,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the mean over directions of `W_r^r`, `(*batch)`: `sliced_wasserstein` before the root is taken."""
    p, q = multivariate_operands(p, q)
    if not isinstance(directions, Tensor):
        single = torch.promote_types(p.means.dtype, torch.float32)  # halves have no decomposition
        drawn = orthogonal(directions, p.dim, generator=generator, dtype=single, device=p.means.device)
        directions = drawn.to(p.means.dtype)
    check_directions(directions, p.means)
    directions = unit_vectors(directions)
    return _power(p.project(directions), q.project(directions), order).mean(-1)


def _power(p: NormalMixture | Tensor, q: NormalMixture | Tensor, order: int) -> Tensor:
    """Return `W_r^r`, `(*batch)`."""
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2; got {order!r}. For distances of other orders see lp_distance.")
    a, b, dtype = operands(p, q)
    a, b = _without_zeros(a), _without_zeros(b)
    if order == 1 and a.scales is not None and b.scales is not None:
        return lp_distance(p, q, 1.0)
    batch = torch.broadcast_shapes(a.means.shape[:-1], b.means.shape[:-1])
    if batch.numel() == 0:
        return a.means.new_empty(batch)
    a, b = _flat(a, batch), _flat(b, batch)
    if a.scales is None and b.scales is None:
        power = _between_points(a, b, order)
    elif a.scales is None or b.scales is None:
        power = _to_points(*((b, a) if a.scales is None else (a, b)), order)
    else:
        power = squared_transport(_smooth("p", a), _smooth("q", b))
    return power.reshape(batch).to(dtype)


def _without_zeros(side: Operand) -> Operand:
    """Know points also where they come as a mixture whose scales are all 0."""
    if side.scales is None or not readable(side.scales) or (side.scales != 0).any():
        return side
    return Operand(side.weights, side.means, None)


def _flat(side: Operand, batch: torch.Size) -> Operand:
    def flat(x: Tensor) -> Tensor:
        return x.double().expand(*batch, -1).reshape(-1, x.shape[-1])

    weights = flat(side.weights)
    weights = weights / weights.sum(-1, keepdim=True)
    return Operand(weights, flat(side.means), None if side.scales is None else flat(side.scales))


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
    places, order = points.means.sort(-1)
    mass = points.weights.gather(-1, order).cumsum(-1)
    return places, mass / mass[:, -1:]


def _between_points(p: Operand, q: Operand, order: int) -> Tensor:
    """Sum `|x - y|^r` over the pieces between the levels of both, on which both quantiles are constant (eq. O17)."""
    (x, x_levels), (y, y_levels) = _sorted_levels(p), _sorted_levels(q)
    levels = torch.cat((torch.zeros_like(x_levels[:, :1]), x_levels, y_levels), -1).sort(-1).values
    middles = (0.5 * (levels[:, 1:] + levels[:, :-1])).detach()
    x_there = x.gather(-1, torch.searchsorted(x_levels.detach(), middles))
    y_there = y.gather(-1, torch.searchsorted(y_levels.detach(), middles))
    return (levels.diff(dim=-1) * (x_there - y_there).abs() ** order).sum(-1)


def _to_points(p: Operand, q: Operand, order: int) -> Tensor:
    """Return `W_r^r` between a mixture and points, from partial means of the mixture."""
    rows = max(1, BLOCK // (p.means.shape[-1] * q.means.shape[-1]))
    assert p.scales is not None
    parameters = (p.weights, p.means, p.scales, q.weights, q.means)
    distance = _first_to_points if order == 1 else _second_to_points
    parts = [distance(*part) for part in zip(*(t.split(rows) for t in parameters), strict=True)]
    return once(torch.cat(parts), *parameters)


def _first_to_points(weights: Tensor, means: Tensor, scales: Tensor, shares: Tensor, places: Tensor) -> Tensor:
    """Return `W1`: between two points G is constant and F meets it at most once (eq. O19)."""
    shift = (shares * places).sum(-1, keepdim=True).detach()
    means, places = means - shift, places - shift
    y, levels = _sorted_levels(Operand(shares, places, None))
    left, right, level = y[:, :-1], y[:, 1:], levels[:, :-1]
    meet = torch.maximum(torch.minimum(_moving_quantile(level, weights, means, scales), right), left)
    at = torch.cat((y, meet), -1)
    below = _mean_below(at, weights, means, scales)
    at_y, at_meet = below.split((y.shape[-1], meet.shape[-1]), -1)
    between = at_y[:, :-1] + at_y[:, 1:] - 2 * at_meet - level * (left + right - 2 * meet)
    above = _mean_below(-y[:, -1:], weights, -means, scales)
    return (at_y[:, :1] + above).squeeze(-1) + between.sum(-1).clamp_min(0)


def _second_to_points(weights: Tensor, means: Tensor, scales: Tensor, shares: Tensor, places: Tensor) -> Tensor:
    """Return `W2^2`, for centred sides from the mean of their product (eq. O18)."""
    # Lest squares of the means hide the variances.
    p_mean, q_mean = (weights * means).sum(-1, keepdim=True), (shares * places).sum(-1, keepdim=True)
    means, places = means - p_mean, places - q_mean
    p_variance = (weights * (means.square() + scales.square())).sum(-1)
    q_variance = (shares * places.square()).sum(-1)
    y, levels = _sorted_levels(Operand(shares, places, None))
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
    """Return quantiles at `(B, n)`, constants but on an atom, with which they move.

    What is made of them has a derivative of 0 in them, and off atoms theirs may be out of all bounds, in a gap.
    """
    weights, means, scales = weights.detach().unsqueeze(-2), means.unsqueeze(-2), scales.detach().unsqueeze(-2)
    inside = u.detach().clamp(torch.finfo(u.dtype).tiny, 1 - 2**-53)  # quantiles at 0 and 1 are infinite
    x = quantile(inside, weights, means.detach(), scales)
    share = weights * ((scales == 0) & (means == x.unsqueeze(-1)))
    total = share.sum(-1).clamp_min(torch.finfo(x.dtype).tiny)
    return x + (share * (means - means.detach())).sum(-1) / total
