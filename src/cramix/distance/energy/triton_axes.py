"""Kernels that decompose symmetric matrices, by Jacobi's method in float64, without a word to the host.

torch's `eigh` waits for the GPU to report whether it has converged, so that it can neither be captured in a CUDA graph
nor be queued behind other work. In few dimensions a lane has a whole matrix in its registers (`decompose_in_lanes`);
`decompose` takes any number of dimensions, with a program for each matrix.

Both write, of sums of two covariances, the variances along their axes and these axes as columns: for pairs i <= j of
the components of a mixture, unless `variances` is None, and for each component with itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Sweeps at most, and the squares of entries that count as 0, of one and of all of them, relative to the matrix.
_SWEEPS = tl.constexpr(14)
_NO_ENTRY = tl.constexpr(1e-36)
_NO_ENTRIES = tl.constexpr(1e-32)


@triton.jit(do_not_specialize=["k", "d", "rounds"])
def decompose(covariances, variances, axes, own_variances, own_axes, turns, k, d, rounds, D: tl.constexpr):
    """Decompose one matrix.

    In a round each coordinate is rotated together with one other: x and x ^ r, which are all pairs once for r from 1 to
    a power of two.

    Args:
        covariances: `(B, k, d, d)`, in float32 or float64.
        variances: of pairs, `(B, k, k, d)` in float64; those with i > j are left out. None for components alone.
        axes: of pairs, `(B, k, k, d, d)` in float64.
        own_variances: of each component with itself, `(B, k, d)` in float64.
        own_axes: the same, `(B, k, d, d)` in float64.
        turns: the same axes in another dtype; None to leave them out.
        k: number of components.
        d: number of coordinates.
        rounds: the power of two that is not below d.
        D: coordinates, padded to 16 at least.
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
                for r in range(1, rounds):
                    rotation = _rotation(matrix, size, index, r)
                    matrix = tl.dot(matrix, rotation, input_precision="ieee")
                    matrix = tl.dot(tl.trans(rotation), matrix, input_precision="ieee")
                    vectors = tl.dot(vectors, rotation, input_precision="ieee")
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
def _rotation(matrix, size, index, r):
    """Return the product of the rotations that annihilate the entries (x, x ^ r) of a matrix.

    Both coordinates of a pair compute their angle. They agree to the last bit, since the entry is the mean of both.
    """
    row, column = index[:, None], index[None, :]
    own, partners = row == column, row == (column ^ r)
    diagonal = tl.where(own, matrix, 0.0)
    across = 0.5 * tl.sum(tl.where(partners, matrix + tl.trans(matrix), 0.0), 0)
    of_partner = tl.sum(tl.where(partners, tl.sum(diagonal, 1)[:, None], 0.0), 0)
    gap = tl.sum(diagonal, 0) - of_partner
    still = across * across <= size * _NO_ENTRY
    cotangent = gap / tl.where(still, 1.0, 2.0 * across)
    tangent = 1.0 / (tl.abs(cotangent) + tl.sqrt(1.0 + cotangent * cotangent))
    positive = (cotangent > 0) | ((cotangent == 0) & (index > (index ^ r)))
    tangent = tl.where(still, 0.0, tl.where(positive, tangent, -tangent))
    cosine = 1.0 / tl.sqrt(1.0 + tangent * tangent)
    return tl.where(own, cosine[None, :], 0.0) + tl.where(partners, (tangent * cosine)[None, :], 0.0)


@triton.jit(do_not_specialize=["count", "k"])
def decompose_in_lanes(
    covariances,
    variances,
    axes,
    own_variances,
    own_axes,
    turns,
    count,
    k,
    d: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Decompose a matrix in each lane.

    The arguments are those of `decompose`; there are `count` pairs or components, and ROUNDS is the power of two that
    is not below d. The rotations of a round have no coordinate in common, so that none waits for another.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if variances is not None:
        first, second = lane // k, lane // (k * k) * k + lane % k
    else:
        first, second = lane, lane
    live = (lane < count) & (first <= second)
    matrix, vectors = (), ()
    size = tl.zeros([BLOCK], tl.float64)
    for a in tl.static_range(d):
        for b in tl.static_range(a, d):
            entry = tl.zeros([BLOCK], tl.float64)
            for side in tl.static_range(2):
                at = covariances + (second if side else first) * (d * d)
                entry += 0.5 * tl.load(at + a * d + b, live, 0.0).to(tl.float64)
                entry += 0.5 * tl.load(at + b * d + a, live, 0.0).to(tl.float64)
            matrix = matrix + (entry,)
            if a == b:
                size += entry * entry
            else:
                size += 2.0 * entry * entry
    for a in tl.static_range(d):
        for b in tl.static_range(d):
            vectors = vectors + (tl.full([BLOCK], 1.0 if a == b else 0.0, tl.float64),)
    for _ in range(_SWEEPS):
        left = tl.zeros([BLOCK], tl.float64)
        for a in tl.static_range(d):
            for b in tl.static_range(a + 1, d):
                left += 2.0 * _entry(matrix, a, b, d) * _entry(matrix, a, b, d)
        if tl.max((left > size * _NO_ENTRIES).to(tl.int32), 0) > 0:
            for r in tl.static_range(1, ROUNDS):
                for x in tl.static_range(d):
                    if (x ^ r) > x and (x ^ r) < d:
                        matrix, vectors = _rotated(matrix, vectors, size, x, x ^ r, d)
    own = live & (first == second)
    for a in tl.static_range(d):
        found = _entry(matrix, a, a, d)
        found = tl.where(found > 0, found, 0.0)
        tl.store(own_variances + first * d + a, found, own)
        if variances is not None:
            tl.store(variances + lane * d + a, found, live)
        for c in tl.static_range(d):
            tl.store(own_axes + (first * d + c) * d + a, vectors[c * d + a], own)
            if turns is not None:
                tl.store(turns + (first * d + c) * d + a, vectors[c * d + a].to(turns.dtype.element_ty), own)
            if variances is not None:
                tl.store(axes + (lane * d + c) * d + a, vectors[c * d + a], live)


@triton.jit
def _entry(matrix, A: tl.constexpr, B: tl.constexpr, d: tl.constexpr):
    """Return an entry of a symmetric matrix, which is kept as its upper triangle, row by row."""
    LOW: tl.constexpr = min(A, B)
    INDEX: tl.constexpr = LOW * d - LOW * (LOW - 1) // 2 + max(A, B) - LOW
    return matrix[INDEX]


@triton.jit
def _rotated(matrix, vectors, size, X: tl.constexpr, Y: tl.constexpr, d: tl.constexpr):
    """Return a matrix and its vectors after the rotation of two coordinates that annihilates their entry."""
    across = _entry(matrix, X, Y, d)
    still = across * across <= size * _NO_ENTRY
    cotangent = (_entry(matrix, Y, Y, d) - _entry(matrix, X, X, d)) / tl.where(still, 1.0, 2.0 * across)
    tangent = 1.0 / (tl.abs(cotangent) + tl.sqrt(1.0 + cotangent * cotangent))
    tangent = tl.where(still, 0.0, tl.where(cotangent < 0, -tangent, tangent))
    cosine = 1.0 / tl.sqrt(1.0 + tangent * tangent)
    sine = tangent * cosine
    entries, columns = (), ()
    for a in tl.static_range(d):
        for b in tl.static_range(a, d):
            entry = _entry(matrix, a, b, d)
            if a == X and b == Y:
                entry = tl.where(still, across, 0.0)
            elif a == X and b == X:
                entry -= tangent * across
            elif a == Y and b == Y:
                entry += tangent * across
            elif a == X or b == X:
                entry = cosine * entry - sine * _entry(matrix, a + b - X, Y, d)
            elif a == Y or b == Y:
                entry = sine * _entry(matrix, a + b - Y, X, d) + cosine * entry
            entries = entries + (entry,)
    for a in tl.static_range(d):
        for b in tl.static_range(d):
            if b == X:
                column = cosine * vectors[a * d + X] - sine * vectors[a * d + Y]
            elif b == Y:
                column = sine * vectors[a * d + X] + cosine * vectors[a * d + Y]
            else:
                column = vectors[a * d + b]
            columns = columns + (column,)
    return entries, columns
