"""A kernel that decomposes symmetric matrices, by Jacobi's method in float64, without a word to the host.

torch's `eigh` waits for the GPU to report whether it has converged, so that it can neither be captured in a CUDA graph
nor be queued behind other work.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Sweeps at most, and the squares of entries that count as 0, of one and of all of them, relative to the matrix.
_SWEEPS = tl.constexpr(14)
_NO_ENTRY = tl.constexpr(1e-36)
_NO_ENTRIES = tl.constexpr(1e-32)


@triton.jit(do_not_specialize=["k", "d", "rounds"])
def decompose(covariances, variances, axes, k, d, rounds, PAIRS: tl.constexpr, D: tl.constexpr):
    """Write variances along the axes of sums of two covariances, and these axes as columns.

    A program is a pair i <= j of components of a mixture, or with itself unless PAIRS. In a round each coordinate is
    rotated together with one other: x and x ^ r, which are all pairs once for r from 1 to a power of two.

    Args:
        covariances: `(B, k, d, d)`, in float32 or float64.
        variances: `(B, k, k or 1, d)` in float64; pairs with i > j are left out.
        axes: `(B, k, k or 1, d, d)` in float64.
        k: number of components.
        d: number of coordinates.
        rounds: the power of two that is not below d.
        PAIRS: whether to visit pairs of components.
        D: coordinates, padded to 16 at least.
    """
    program = tl.program_id(0).to(tl.int64)
    if PAIRS:
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
        tl.store(variances + program * d + index, tl.where(found > 0, found, 0.0), index < d)
        tl.store(axes + (program * d + row) * d + column, vectors, inside)


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
