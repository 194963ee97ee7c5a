"""Mean distances over pairs of multivariate components, and of components and points, with their derivatives."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.energy.flat_mixtures import Components, Ellipsoids, Points, ellipsoids
from cramix.distance.energy.mean_norm import Lengths, Moments, Rows, moments, with_derivatives
from cramix.distance.energy.nodes import Nodes
from cramix.distance.energy.numpy_or_torch import Array, as_like, as_tensor, is_numpy, library, rows_at, sums_at
from cramix.distance.energy.pair_norm import pair_norm
from cramix.distance.kernels import Scratch, block_size

# Up to this many lengths float32 gains nothing over float64.
FEW_LENGTHS = 1 << 11


class PairSum(NamedTuple):
    """A sum over pairs, `(B,)`, with derivatives in weights, means and covariances where requested."""

    total: Array
    derivatives: tuple[Array, ...] = ()


def pairs(rows: int, k: int, like: Array) -> tuple[Array, Array]:
    """Return all pairs i <= j of k components with i among the first `rows`; the pairs i = j come first."""
    if is_numpy(like):
        first, second = _few_pairs(rows, k)
        return as_like(first, like), as_like(second, like)
    same = torch.arange(rows, device=like.device)
    first, second = torch.triu_indices(rows, k, 1, device=like.device)
    return torch.cat((same, first)), torch.cat((same, second))


@lru_cache
def _few_pairs(rows: int, k: int) -> tuple[Tensor, Tensor]:
    return pairs(rows, k, torch.empty(0, device="cpu"))


def with_pairs(parts: Components) -> tuple[Ellipsoids, Ellipsoids]:
    """Decompose the covariances of components and of all pairs of them, in the order of `pairs`, in one call."""
    k = parts.means.shape[1]
    first, second = pairs(k, k, parts.means)
    sums = rows_at(parts.covariances, first) + rows_at(parts.covariances, second)
    sums[:, :k] *= 0.5
    variances, axes = ellipsoids(sums, parts.dense)
    each = Ellipsoids(variances[:, :k], None if axes is None else axes[:, :k])
    return each, Ellipsoids(library(variances).concatenate((2 * each.variances, variances[:, k:]), 1), axes)


def between_components(
    side: Components, index: tuple[Array, Array], nodes: Nodes, grad: bool, shapes: Ellipsoids | None, block: int | None
) -> PairSum:
    """Return `sum s_i s_j E|X_i - X_j|` over pairs (i, j) of components, see `pairs`; half of it where i = j.

    The decomposed covariances of the pairs may be given if all pairs fit in one block.
    """
    (weights, means, covariances), (first, second) = side, index
    lib, (batch, k, dim), shape = library(means), means.shape, covariances.shape[2:]
    located = lib.concatenate((weights[..., None], means), -1)
    width = math.prod(shape) + (3 * shape[-1] + 2) * nodes.t.shape[-1]
    step = max(1, array_size(means, block) // (batch * width)) if shapes is None else len(first)
    total, sums = lib.zeros_like(weights[:, 0]), None
    for start in range(0, len(first), step):
        i, j = first[start : start + step], second[start : start + step]
        at_i, at_j = rows_at(located, i), rows_at(located, j)
        of_pairs = shapes or ellipsoids(rows_at(covariances, i) + rows_at(covariances, j), side.dense)
        norm = pair_norm(nodes, of_pairs, side.multiplicity, (at_i - at_j)[..., 1:], grad)
        w_i, w_j, half = at_i[..., :1], at_j[..., :1], lib.where(i == j, 0.5, 1.0)[:, None]
        weight, length = half * w_i * w_j, norm.lengths[..., None]
        total = total + (weight * length).sum((1, 2))
        if norm.at_offsets is None or norm.at_covariances is None:
            continue
        pull, stretch = weight * norm.at_offsets, weight * norm.at_covariances.reshape(batch, len(i), -1)
        length = half * length
        both = lib.concatenate((w_j * length, pull, stretch), -1), lib.concatenate((w_i * length, -pull, stretch), -1)
        added = sums_at(i, both[0], k) + sums_at(j, both[1], k)
        sums = added if sums is None else sums + added
    if sums is None:
        return PairSum(total)
    at_covariances = sums[..., 1 + dim :].reshape(*covariances.shape)
    return PairSum(total, (sums[..., 0], sums[..., 1 : 1 + dim], at_covariances))


def components_to_points(
    p: Components, shapes: Ellipsoids, q: Points, nodes: Nodes, grad_p: bool, grad_q: bool, block: int | None
) -> tuple[PairSum, tuple[Tensor, ...]]:
    """Return `sum_in p_i w_n E|X_i - y_n|`, in blocks of points, with derivatives for components p or points q.

    Those for the points, in weights `(B, n)` and points `(B, n, d)`, come second.
    """
    batch, k, dim = p.means.shape
    masses, everywhere = as_tensor(q.weights), as_tensor(q.means)
    n, few = everywhere.shape[-2], min(FEW_LENGTHS, array_size(p.means, block))
    working = everywhere.dtype if batch * k * n > few else torch.float64
    rows = Rows(nodes, shapes, p.multiplicity, working, grad_p or grad_q)
    weights = as_tensor(p.weights)
    means = as_tensor(p.means).to(working).unsqueeze(-1)  # (B, k, d, 1)
    at = (weights.new_zeros(batch, n), weights.new_zeros(batch, n, dim)) if grad_q else ()
    lengths_sum = weights.new_zeros(batch * k)
    sums: Moments | None = None
    step = max(1, array_size(p.means, block) // (batch * k * max(nodes.t.shape[-1], 3 * dim)))
    for start in range(0, n, step):
        part = slice(start, start + step)
        columns = everywhere[:, part].to(working).mT.contiguous()  # (B or 1, d, m)
        scratch = Scratch(columns)
        offsets = scratch.empty(batch, k, dim, columns.shape[-1])
        offsets = torch.sub(means, columns.unsqueeze(1), out=offsets).flatten(0, 1)
        mass = masses[:, part].to(working)
        of_rows = mass if len(mass) == 1 else mass.repeat_interleave(k, 0)
        lengths = rows.at(offsets, scratch)
        if at:
            at[0][:, part] = (weights.unsqueeze(-1) * lengths.mean.view(batch, k, -1)).sum(1)
            at[1][:, part] = -_pulls(rows, lengths, weights) * mass.unsqueeze(-1).double()
        if grad_p:
            added = moments(rows, lengths, of_rows)
            sums = added if sums is None else sums + added
        else:
            lengths_sum += (lengths.mean * of_rows).sum(-1)
    if sums is None:
        return PairSum((p.weights * as_like(lengths_sum.view(batch, k), p.weights)).sum(-1)), at
    at_weights, at_means, at_covariances = with_derivatives(rows, sums)
    scale = p.weights.reshape(batch, k, *(1,) * (p.covariances.ndim - 2))
    derivatives = at_weights, p.weights[..., None] * at_means, scale * at_covariances
    return PairSum((p.weights * at_weights).sum(-1), derivatives), at


def array_size(like: Array, block: int | None) -> int:
    """Return how many numbers the largest temporary array of a block may hold, half of the block."""
    return max(1, block_size(torch.device("cpu") if is_numpy(like) else like.device, block) // 2)


def _pulls(rows: Rows, lengths: Lengths, weights: Tensor) -> Tensor:
    """Return the derivatives of the lengths in the offsets, summed over components with their weights, `(B, n, d)`."""
    pull = lengths.turned * lengths.slope
    pull = pull if rows.turn is None else rows.turn.mT @ pull
    return (pull.view(*weights.shape, *pull.shape[1:]).double() * weights[..., None, None]).sum(1).mT
