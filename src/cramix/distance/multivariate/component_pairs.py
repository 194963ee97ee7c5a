"""Mean distances over pairs of multivariate components, and of components and points, with their derivatives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.multivariate.mean_norm import Lengths, Moments, Rows, gradients, moments
from cramix.distance.multivariate.nodes import Nodes, choose_nodes
from cramix.distance.multivariate.pair_norm import pair_norm
from cramix.distance.multivariate.sides import Components, Ellipsoids, Points, Side, ellipsoids

# Numbers in the largest temporary array: on the CPU it stays in cache, a GPU wants much to do at a time.
_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 25}
# Up to this many numbers float32 gains nothing over float64.
_SMALL = 1 << 11


class Result(NamedTuple):
    """A sum over pairs, `(B,)`, with derivatives in weights, means and spread of the components, as those in shape."""

    value: Tensor
    weights: Tensor
    means: Tensor
    spread: Tensor


def nodes_for(p: Components, variances: Tensor, q: Side, tolerance: float, unit: Tensor) -> Nodes:
    """Choose the nodes that serve all pairs of a distance; lengths are in units of its size.

    A side that shares one covariance gets those it would get with a copy of it for each component.
    """
    count = p.means.shape[1] + q[1].shape[1]
    centre = (p.means.sum(-2, keepdim=True) + q[1].sum(-2, keepdim=True).double()) / count
    reach = (p.means - centre).square().sum(-1) + p.multiplicity * variances.sum(-1)
    far = (q[1] - centre.to(q[1].dtype)).square().sum(-1).double()
    if q.spread is not None:
        own = ellipsoids(q.spread, p.dense).variances
        far = far + p.multiplicity * own.sum(-1)
        variances = torch.cat((variances, own.expand(len(variances), -1, -1)), 1)
    radius = torch.maximum(reach.amax(-1), far.amax(-1)).sqrt()
    radius = 2 * 3**0.25 * radius  # two of them, and a normal vector has E|Z|^4 <= 3 (E|Z|^2)^2
    return choose_nodes(variances, p.multiplicity, radius.clamp_min(1.0), tolerance, unit)


def within_components(parts: Components, nodes: Nodes, derivatives: bool) -> Result:
    """Return `1/2 sum_ij s_i s_j E|X_i - X_j|` over all pairs of components, each met once."""
    k = parts.means.shape[1]
    first, second = torch.triu_indices(k, k, device=parts.means.device)
    return between_components(parts, first, second, nodes, derivatives)


def between_components(parts: Components, first: Tensor, second: Tensor, nodes: Nodes, derivatives: bool) -> Result:
    """Return `sum s_i s_j E|X_i - X_j|` over pairs (i, j) of components, half of it where i = j."""
    weights, means, spread = parts
    batch = len(means)
    at_weights, at_means, at_spread = (torch.zeros_like(x) for x in parts)
    value = weights.new_zeros(batch)
    width = spread[0, 0].numel() + (3 * spread.shape[-1] + 2) * nodes.t.shape[-1]
    step = max(1, block_size(means) // (batch * width))
    for i, j in zip(first.split(step), second.split(step), strict=True):
        (w_i, m_i, s_i), (w_j, m_j, s_j) = ([x.index_select(1, at) for x in parts] for at in (i, j))
        shapes = ellipsoids(s_i + s_j, parts.dense)
        length, at_offsets, at_sums = pair_norm(nodes, shapes, parts.multiplicity, m_i - m_j, derivatives)
        half = torch.where(i == j, 0.5, 1.0)
        share = half * w_i * w_j
        value += (share * length).sum(-1)
        if at_offsets is None or at_sums is None:
            continue
        length *= half
        at_weights.index_add_(1, i, w_j * length).index_add_(1, j, w_i * length)
        pull = share.unsqueeze(-1) * at_offsets
        at_means.index_add_(1, i, pull).index_add_(1, j, pull, alpha=-1)
        at_sums *= share.view(*share.shape, *(1,) * (spread.ndim - 2))
        at_spread.index_add_(1, i, at_sums).index_add_(1, j, at_sums)
    return Result(value, at_weights, at_means, at_spread)


class Cross(NamedTuple):
    """What pairs of components and points add up to; the derivatives in the points only where asked for."""

    components: Result
    at_points: tuple[Tensor, ...]  # weights (B, n), places (B, n, d)


def components_to_points(
    parts: Components, shapes: Ellipsoids, points: Points, nodes: Nodes, at_components: bool, at_points: bool
) -> Cross:
    """Return `sum_in p_i w_n E|X_i - y_n|`, in blocks of points."""
    batch, k, dim = parts.means.shape
    n = points.places.shape[-2]
    working = points.places.dtype if batch * k * n > _SMALL else torch.float64
    rows = Rows(nodes, shapes, parts.multiplicity, working, at_components or at_points)
    means = parts.means.to(working).unsqueeze(-1)  # (B, k, d, 1)
    sums: Moments | None = None
    value = parts.weights.new_zeros(batch * k)
    at = (value.new_zeros(batch, n), value.new_zeros(batch, n, dim)) if at_points else ()
    step = max(1, block_size(means) // (batch * k * max(nodes.t.shape[-1], 3 * dim)))
    for start in range(0, n, step):
        part = slice(start, start + step)
        places = points.places[:, part].to(working).mT.contiguous().unsqueeze(1)  # (B or 1, 1, d, m)
        offsets = (means - places).flatten(0, 1)
        weights = points.weights[:, part].to(working)
        own = weights if len(weights) == 1 else weights.repeat_interleave(k, 0)
        lengths = rows.at(offsets)
        if at_components:
            block = moments(rows, lengths, own)
            sums = block if sums is None else sums + block
        else:
            value += (lengths.value * own).sum(-1).double()
        if at:
            at[0][:, part] = (parts.weights.unsqueeze(-1) * lengths.value.view(batch, k, -1)).sum(1)
            at[1][:, part] = -_pulls(rows, lengths, parts.weights) * weights.unsqueeze(-1).double()
    if sums is None:
        potential = value.view(batch, k)
        empty = value.new_empty(0)
        return Cross(Result((parts.weights * potential).sum(-1), potential, empty, empty), at)
    potential = sums.value.view(batch, k)
    centre, covariance = gradients(rows, sums)
    centre, covariance = centre.view(batch, k, dim), covariance.view(batch, k, *parts.spread.shape[2:])
    scale = parts.weights.view(batch, k, *(1,) * (parts.spread.ndim - 2))
    result = Result(
        (parts.weights * potential).sum(-1), potential, parts.weights.unsqueeze(-1) * centre, scale * covariance
    )
    return Cross(result, at)


def block_size(like: Tensor) -> int:
    """Return how many numbers a temporary array may hold."""
    return _BLOCK["cpu" if like.device.type == "cpu" else "cuda"]


def _pulls(rows: Rows, lengths: Lengths, weights: Tensor) -> Tensor:
    """Return the derivatives of the lengths in the offsets, summed over components with their weights, `(B, n, d)`."""
    assert lengths.slope is not None, "rows were made with derivatives"
    pull = lengths.turned * lengths.slope
    pull = pull if rows.axes is None else rows.axes @ pull
    return (pull.view(*weights.shape, *pull.shape[1:]).double() * weights[..., None, None]).sum(1).mT
