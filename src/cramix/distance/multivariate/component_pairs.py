"""Mean distances over pairs of multivariate components, and of components and points, with their derivatives."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.distance.multivariate.arrays import Array, as_like, library, rows_at, sums_at
from cramix.distance.multivariate.mean_norm import Lengths, Rows, moments, with_derivatives
from cramix.distance.multivariate.nodes import Nodes
from cramix.distance.multivariate.pair_norm import pair_norm
from cramix.distance.multivariate.sides import Components, Ellipsoids, Points, ellipsoids
from cramix.distance.scratch import Scratch

# Numbers in the largest temporary array: on the CPU it stays in cache, a GPU wants much to do at a time.
_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 25}
# Up to this many numbers float32 gains nothing over float64.
_SMALL = 1 << 11


class Result(NamedTuple):
    """A sum over pairs, `(B,)`, with derivatives in weights, means and spread of the components, None if not wanted."""

    value: Array
    weights: Array
    means: Array
    spread: Array


def pairs(rows: int, k: int, like: Array) -> tuple[Array, Array]:
    """Return all pairs i <= j of k components with i among the first ones, those of i = j before the others."""
    if not isinstance(like, Tensor):
        return _few_pairs(rows, k)
    same = torch.arange(rows, device=like.device)
    first, second = torch.triu_indices(rows, k, 1, device=like.device)
    return torch.cat((same, first)), torch.cat((same, second))


@lru_cache
def _few_pairs(rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    same, (first, second) = np.arange(rows), np.triu_indices(rows, 1, k)
    return np.concatenate((same, first)), np.concatenate((same, second))


def with_pairs(parts: Components) -> tuple[Ellipsoids, Ellipsoids]:
    """Decompose the covariances of components and of all pairs of them, in the order of `pairs`, at once."""
    k = parts.means.shape[1]
    first, second = pairs(k, k, parts.means)
    sums = rows_at(parts.spread, first) + rows_at(parts.spread, second)
    sums[:, :k] *= 0.5
    variances, axes = ellipsoids(sums, parts.dense)
    own = Ellipsoids(variances[:, :k], None if axes is None else axes[:, :k])
    return own, Ellipsoids(library(variances).concatenate((2 * own.variances, variances[:, k:]), 1), axes)


def within_components(parts: Components, nodes: Nodes, derivatives: bool, shapes: Ellipsoids | None = None) -> Result:
    """Return `1/2 sum_ij s_i s_j E|X_i - X_j|` over all pairs of components, each met once."""
    k = parts.means.shape[1]
    return between_components(parts, *pairs(k, k, parts.means), nodes, derivatives, shapes)


def between_components(
    parts: Components,
    first: Array,
    second: Array,
    nodes: Nodes,
    derivatives: bool,
    shapes: Ellipsoids | None = None,
) -> Result:
    """Return `sum s_i s_j E|X_i - X_j|` over pairs (i, j) of components, half of it where i = j.

    Few pairs may come with their shapes.
    """
    weights, means, spread = parts
    lib, (batch, k, dim), own = library(means), means.shape, spread.shape[2:]
    places = lib.concatenate((weights[..., None], means), -1)
    width = math.prod(own) + (3 * own[-1] + 2) * nodes.t.shape[-1]
    step = max(1, block_size(means) // (batch * width)) if shapes is None else len(first)
    value, sums = lib.zeros_like(weights[:, 0]), None
    for start in range(0, len(first), step):
        i, j = first[start : start + step], second[start : start + step]
        at_i, at_j = rows_at(places, i), rows_at(places, j)
        of_pairs = shapes or ellipsoids(rows_at(spread, i) + rows_at(spread, j), parts.dense)
        norm = pair_norm(nodes, of_pairs, parts.multiplicity, (at_i - at_j)[..., 1:], derivatives)
        w_i, w_j, half = at_i[..., :1], at_j[..., :1], lib.where(i == j, 0.5, 1.0)[:, None]
        share, length = half * w_i * w_j, norm.value[..., None]
        value += (share * length).sum((1, 2))
        if norm.at_offsets is None or norm.at_spread is None:
            continue
        pull, stretch = share * norm.at_offsets, share * norm.at_spread.reshape(batch, len(i), -1)
        length = half * length
        both = lib.concatenate((w_j * length, pull, stretch), -1), lib.concatenate((w_i * length, -pull, stretch), -1)
        block = sums_at(i, both[0], k) + sums_at(j, both[1], k)
        sums = block if sums is None else sums + block
    if sums is None:
        return Result(value, None, None, None)
    return Result(value, sums[..., 0], sums[..., 1 : 1 + dim], sums[..., 1 + dim :].reshape(spread.shape))


class Cross(NamedTuple):
    """What pairs of components and points add up to; the derivatives in the points only where asked for."""

    components: Result
    at_points: tuple[Tensor, ...]  # weights (B, n), places (B, n, d)


def components_to_points(
    parts: Components, shapes: Ellipsoids, points: Points, nodes: Nodes, at_components: bool, at_points: bool
) -> Cross:
    """Return `sum_in p_i w_n E|X_i - y_n|`, in blocks of points."""
    batch, k, dim = parts.means.shape
    masses, everywhere = torch.as_tensor(points.weights), torch.as_tensor(points.places)
    n = everywhere.shape[-2]
    working = everywhere.dtype if batch * k * n > _SMALL else torch.float64
    rows = Rows(nodes, shapes, parts.multiplicity, working, at_components or at_points)
    shares = torch.as_tensor(parts.weights)
    means = torch.as_tensor(parts.means).to(working).unsqueeze(-1)  # (B, k, d, 1)
    at = (shares.new_zeros(batch, n), shares.new_zeros(batch, n, dim)) if at_points else ()
    sums: Any = None  # moments, or only the values among them
    step = max(1, block_size(means) // (batch * k * max(nodes.t.shape[-1], 3 * dim)))
    for start in range(0, n, step):
        part = slice(start, start + step)
        columns = everywhere[:, part].to(working).mT.contiguous()  # (B or 1, d, m)
        scratch = Scratch(columns)
        offsets = scratch.empty(batch, k, dim, columns.shape[-1])
        offsets = torch.sub(means, columns.unsqueeze(1), out=offsets).flatten(0, 1)
        weights = masses[:, part].to(working)
        own = weights if len(weights) == 1 else weights.repeat_interleave(k, 0)
        lengths = rows.at(offsets, scratch)
        if at:
            at[0][:, part] = (shares.unsqueeze(-1) * lengths.value.view(batch, k, -1)).sum(1)
            at[1][:, part] = -_pulls(rows, lengths, shares) * weights.unsqueeze(-1).double()
        block = moments(rows, lengths, own) if at_components else (lengths.value * own).sum(-1).double()
        sums = block if sums is None else sums + block
    if not at_components:
        potential = as_like(sums.view(batch, k), parts.weights)
        return Cross(Result((parts.weights * potential).sum(-1), potential, None, None), at)
    potential, centre, covariance = with_derivatives(rows, sums)
    scale = parts.weights.reshape(batch, k, *(1,) * (parts.spread.ndim - 2))
    total = (parts.weights * potential).sum(-1)
    return Cross(Result(total, potential, parts.weights[..., None] * centre, scale * covariance), at)


def block_size(like: Array) -> int:
    """Return how many numbers a temporary array may hold."""
    return _BLOCK["cuda" if isinstance(like, Tensor) and like.device.type != "cpu" else "cpu"]


def _pulls(rows: Rows, lengths: Lengths, weights: Tensor) -> Tensor:
    """Return the derivatives of the lengths in the offsets, summed over components with their weights, `(B, n, d)`."""
    pull = lengths.turned * lengths.slope
    pull = pull if rows.turn is None else rows.turn.mT @ pull
    return (pull.view(*weights.shape, *pull.shape[1:]).double() * weights[..., None, None]).sum(1).mT
