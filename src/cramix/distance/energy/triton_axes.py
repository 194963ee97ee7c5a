"""A kernel that decomposes symmetric matrices, by Jacobi's method in float64, without a word to the host.

torch's `eigh` waits for the GPU to report whether it has converged, so that it can neither be captured in a CUDA graph
nor be queued behind other work.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cramix.accelerator import next_power_of_2
from cramix.distance.energy.flat_mixtures import Components

# Sweeps at most, and the squares of entries that count as 0, of one and of all of them, relative to the matrix.
_SWEEPS = tl.constexpr(14)
_NO_ENTRY = tl.constexpr(1e-36)
_NO_ENTRIES = tl.constexpr(1e-32)


@triton.jit(do_not_specialize=["k", "d"])
def decompose(covariances, variances, axes, own_variances, own_axes, turns, k, d, D: tl.constexpr):
    """Write, of sums of two covariances, the variances along their axes and these axes as columns.

    A program is a pair i <= j of the components of a mixture or, if `variances` is None, a component with itself. In a
    round each coordinate is rotated together with one other: x and x ^ r, which are all pairs once for r from 1 to a
    power of two.

    Args:
        covariances: `(B, k, d, d)`, in float32 or float64.
        variances: of pairs, `(B, k, k, d)` in float64; those with i > j are left out. None for components alone.
        axes: of pairs, `(B, k, k, d, d)` in float64.
        own_variances: of each component with itself, `(B, k, d)` in float64.
        own_axes: the same, `(B, k, d, d)` in float64.
        turns: the same axes in another dtype; None to leave them out.
        k: number of components.
        d: number of coordinates.
        D: coordinates, padded to a power of two.
    """
    program = tl.program_id(0).to(tl.int64)
    if variances is not None:
        first, second = program // k, program // (k * k) * k + program % k
    else:
        first, second = program, program
    if first <= second:
        index = tl.arange(0, D)
        row, column = index[:, None], index[None, :]
        inside = (row < d) & (column < d)
        matrix = _symmetric(covariances + first * d * d, row, column, inside, d)
        matrix += _symmetric(covariances + second * d * d, row, column, inside, d)
        vectors = tl.where(row == column, 1.0, 0.0).to(tl.float64)
        size = tl.sum(tl.sum(matrix * matrix, 1), 0)
        for _ in range(_SWEEPS):
            left = tl.sum(tl.sum(tl.where(row == column, 0.0, matrix * matrix), 1), 0)
            if left > size * _NO_ENTRIES:
                for r in range(1, D):
                    matrix, vectors = _rotated(matrix, vectors, size, index, r)
        found = tl.sum(tl.where(row == column, matrix, 0.0), 0)
        found = tl.where(found > 0, found, 0.0)
        if variances is not None:
            tl.store(variances + program * d + index, found, index < d)
            tl.store(axes + (program * d + row) * d + column, vectors, inside)
        if first == second:
            place = (first * d + row) * d + column
            tl.store(own_variances + first * d + index, found, index < d)
            tl.store(own_axes + place, vectors, inside)
            if turns is not None:
                tl.store(turns + place, vectors.to(turns.dtype.element_ty), inside)


@triton.jit
def _symmetric(matrix, row, column, inside, d):
    there = tl.load(matrix + row * d + column, inside, 0.0).to(tl.float64)
    return 0.5 * (there + tl.load(matrix + column * d + row, inside, 0.0).to(tl.float64))


@triton.jit
def _rotated(matrix, vectors, size, index, r):
    """Return a matrix and its vectors after the rotations that annihilate the entries (x, x ^ r).

    Both coordinates of a pair compute their angle. They agree to the last bit, since the entry is the mean of both.
    """
    row, column = index[:, None], index[None, :]
    partner = index ^ r
    to_column = tl.broadcast_to(partner[None, :], matrix.shape)
    beside = tl.gather(matrix, to_column, 1)
    across = tl.sum(tl.where(row == column, beside, 0.0), 0)
    across = 0.5 * (across + tl.gather(across, partner, 0))
    diagonal = tl.sum(tl.where(row == column, matrix, 0.0), 0)
    gap = diagonal - tl.gather(diagonal, partner, 0)
    still = across * across <= size * _NO_ENTRY
    # The angle need not be exact, only the rotation has to be one: what is left of an entry is 1e-7 of it.
    factor = tl.rsqrt(size)
    cotangent = (gap * factor).to(tl.float32) / tl.where(still, 1.0, 2.0 * factor * across).to(tl.float32)
    tangent = 1.0 / (tl.abs(cotangent) + tl.sqrt(1.0 + cotangent * cotangent))
    positive = (cotangent > 0) | ((cotangent == 0) & (index > partner))
    tangent = tl.where(still, 0.0, tl.where(positive, tangent, -tangent)).to(tl.float64)
    cosine = tl.rsqrt(1.0 + tangent * tangent)
    sine = tangent * cosine
    matrix = cosine[None, :] * matrix + sine[None, :] * beside
    below = tl.gather(matrix, tl.broadcast_to(partner[:, None], matrix.shape), 0)
    matrix = cosine[:, None] * matrix + sine[:, None] * below
    vectors = cosine[None, :] * vectors + sine[None, :] * tl.gather(vectors, to_column, 1)
    return matrix, vectors


class Shapes(NamedTuple):
    """Variances along the axes of sums of two covariances, and these axes, None for the coordinate axes.

    They are those of pairs i <= j, `(B, k, k, d)` and `(B, k, k, d, d)`, or those of each component with itself.
    """

    variances: Tensor
    axes: Tensor | None


class Own(NamedTuple):
    """The shapes of components with themselves, `(B, k, d)` and `(B, k, d, d)`."""

    variances: Tensor
    axes: Tensor | None
    turns: Tensor | None = None  # the axes in the dtype of sums over points


def shapes_of(side: Components, of_pairs: bool, working: torch.dtype) -> tuple[Shapes | None, Own]:
    """Decompose the covariances of pairs i <= j of components, if they are wanted, and of each with itself."""
    (batch, k, d), covariances = side.means.shape, side.covariances
    if side.dense and covariances.is_cuda:

        def empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return covariances.new_empty(batch, k, *shape, dtype=dtype)

        pairs = Shapes(empty(k, d), empty(k, d, d)) if of_pairs else None
        turns = None if working == torch.float64 else empty(d, d, dtype=working)
        own = Own(empty(d), empty(d, d), turns)
        decomposed(covariances, pairs, own)
        return pairs, own if turns is not None else own._replace(turns=own.axes)
    covariances = covariances.double()
    sums = covariances.unsqueeze(2) + covariances.unsqueeze(1)
    if not side.dense:
        return Shapes(sums, None) if of_pairs else None, Own(2 * covariances, None)
    variances, axes = torch.linalg.eigh(0.5 * (sums + sums.mT))  # under the interpreter, where rotations take long
    pairs = Shapes(variances.clamp_min_(0), axes.contiguous())
    own_variances, own_axes = (x.diagonal(dim1=1, dim2=2).movedim(-1, 1).contiguous() for x in (variances, axes))
    return pairs if of_pairs else None, Own(own_variances, own_axes, own_axes.to(working))


def decomposed(covariances: Tensor, pairs: Shapes | None, own: Own) -> None:
    """Write the shapes of covariances `(B, k, d, d)` by Jacobi's method."""
    batch, k, d = own.variances.shape
    decompose[(batch * k * (1 if pairs is None else k),)](
        covariances, *(pairs or (None, None)), *own, k, d, next_power_of_2(d), num_warps=1 if d <= 16 else 4
    )
