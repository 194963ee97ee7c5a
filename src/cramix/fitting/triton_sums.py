"""Triton kernels that compute sums of features over samples, the second part of a fused EM step.

`expect` reads a block of samples, computes log densities from whitened samples, and adds features times
responsibilities to the sums of its program; neither features nor responsibilities reach memory. `collect` adds the sums
of all programs in a fixed order.
"""

# The parameters of kernels have no types but those of constants.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "k", "tiles", "blocks", "each", "weights_stride"])
def expect(
    x,
    weights,
    whitening,
    offsets,
    constants,
    left,
    right,
    recent,
    partial,
    likelihoods,
    n,
    d: tl.constexpr,
    k,
    tiles,
    blocks,
    each,
    weights_stride,
    ALIGNED: tl.constexpr,
    TOGETHER: tl.constexpr,
    IN_REGISTERS: tl.constexpr,
    PRECISION: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    PART: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Add features times responsibilities over the samples of a program, and their log densities, in float64.

    Weights count relative to their mean, so that equal ones are exactly 1. Products of a feature tile are formed from
    the coordinates `left` and `right`; the coordinate d is 1.

    Args:
        x: samples `(n, d)`.
        weights: `(n,)`, or `(fits, n)` with a stride.
        whitening: `(fits, k, D, D)`, or inverse scales `(fits, D, K)`.
        offsets: `(fits, k, D)`, or means `(fits, D, K)`.
        constants: log densities of components at their means, `(fits, k)`.
        left: coordinates of the first factors, `(tiles * TILE,)`.
        right: those of the second factors.
        recent: sums over the last blocks of each program unless they are in registers, as `partial`.
        partial: sums of each program, `(programs, fits, tiles * TILE, K)`.
        likelihoods: of each program, `(programs, fits)`.
        n: number of samples.
        d: number of coordinates.
        k: number of components.
        tiles: number of feature tiles.
        blocks: number of blocks of samples.
        each: blocks of a program, of which there is at least one.
        weights_stride: from one fit to the next.
        ALIGNED: whether ellipsoids lie along the axes.
        TOGETHER: whether all components are whitened in one product.
        IN_REGISTERS: whether sums stay in registers; there is one tile then.
        PRECISION: of products of matrices in float32.
        DTYPE: of all but sums.
        ROWS: samples of a block.
        K: components, padded.
        D: coordinates, padded.
        PART: coordinates that are whitened at a time.
        TILE: features of a tile.
        GROUP: blocks whose sums are added in the dtype.
    """
    program, fit = tl.program_id(0), tl.program_id(1)
    fits = tl.num_programs(1)
    component = tl.arange(0, K)
    constant = tl.load(constants + fit * k + component, mask=component < k, other=float("-inf"))
    top = tl.max(constant, 0)  # exact in float64; what is left has few digits before the point
    constant = (constant - top).to(DTYPE)
    coordinate = tl.arange(0, PART)
    feature = tl.arange(0, TILE)
    if TOGETHER:
        column = tl.arange(0, K * D)
        of, axis = column // D, column % D
        whiten = tl.load(
            whitening + ((fit * k + of[None, :]) * D + coordinate[:, None]) * D + axis[None, :],
            mask=(coordinate < D)[:, None] & (of < k)[None, :],
            other=0.0,
        )
        offset = tl.load(offsets + (fit * k + of) * D + axis, mask=of < k, other=0.0)
    if IN_REGISTERS:
        sums = tl.zeros((TILE, K), tl.float64)
    likelihood = tl.zeros((ROWS,), tl.float64)
    mass = tl.zeros((ROWS,), tl.float64)
    first = program * each
    last = tl.minimum(first + each, blocks)
    for block in range(first, last):
        rows = block * ROWS + tl.arange(0, ROWS).to(tl.int64)
        present = rows < n
        points = x + rows * d
        weight = tl.load(weights + fit.to(tl.int64) * weights_stride + rows, mask=present, other=0.0)
        weight = (weight.to(tl.float64) * n).to(DTYPE)
        if ALIGNED:
            squares = tl.zeros((ROWS, K), DTYPE)
            for i in range(d):
                value = tl.load(points + i, mask=present, other=0.0).to(DTYPE)
                mean = tl.load(offsets + (fit * D + i) * K + component, mask=component < k, other=0.0)
                scale = tl.load(whitening + (fit * D + i) * K + component, mask=component < k, other=0.0)
                z = (value[:, None] - mean[None, :]) * scale[None, :]
                squares += z * z
        elif TOGETHER:
            inside = present[:, None] & (coordinate < d)[None, :]
            value = tl.load(points[:, None] + coordinate[None, :], mask=inside, other=0.0).to(DTYPE)
            z = tl.dot(value, whiten, input_precision=PRECISION) - offset[None, :]
            squares = tl.sum(tl.reshape(z * z, (ROWS, K, D)), 2)
        else:
            squares = tl.zeros((ROWS, K), DTYPE)
            if D == PART:
                inside = present[:, None] & (coordinate < d)[None, :]
                value = tl.load(points[:, None] + coordinate[None, :], mask=inside, other=0.0).to(DTYPE)
            for j in range(k):
                square = tl.zeros((ROWS,), DTYPE)
                for end in tl.static_range(0, D, PART):
                    z = tl.zeros((ROWS, PART), DTYPE)
                    for begin in tl.static_range(0, end + PART, PART):  # the inverse of a triangle is one
                        if D > PART:
                            inside = present[:, None] & (begin + coordinate < d)[None, :]
                            value = tl.load(points[:, None] + begin + coordinate[None, :], mask=inside, other=0.0)
                            value = value.to(DTYPE)
                        base = whitening + ((fit * k + j) * D + begin) * D + end
                        whiten = tl.load(base + coordinate[:, None] * D + coordinate[None, :])
                        z += tl.dot(value, whiten, input_precision=PRECISION)
                    z -= tl.load(offsets + (fit * k + j) * D + end + coordinate)[None, :]
                    square += tl.sum(z * z, 1)
                squares = tl.where(component[None, :] == j, square[:, None], squares)
        joint = constant[None, :] - 0.5 * squares
        most = tl.max(joint, 1)
        shares = tl.exp(joint - most[:, None])
        sum_of_shares = tl.sum(shares, 1)
        likelihood += (weight * (most + tl.log(sum_of_shares))).to(tl.float64)
        mass += weight.to(tl.float64)
        shares = shares * (weight / sum_of_shares)[:, None]
        if IN_REGISTERS:
            products = _products(points, present, left + feature, right + feature, d, DTYPE)
            sums += tl.dot(tl.trans(products), shares, input_precision=PRECISION).to(tl.float64)
        else:
            done = block - first
            for tile in range(tiles):
                own = tile * TILE + feature
                products = _products(points, present, left + own, right + own, d, DTYPE)
                new = tl.dot(tl.trans(products), shares, input_precision=PRECISION)
                where = ((program * fits + fit).to(tl.int64) * tiles * TILE + own[:, None]) * K + component[None, :]
                if done % GROUP > 0:
                    new += tl.load(recent + where)
                if (done % GROUP == GROUP - 1) | (block == last - 1):
                    total = new.to(tl.float64)
                    if done >= GROUP:
                        total += tl.load(partial + where)
                    tl.store(partial + where, total)
                else:
                    tl.store(recent + where, new)
    if IN_REGISTERS:
        where = ((program * fits + fit).to(tl.int64) * TILE + feature[:, None]) * K + component[None, :]
        tl.store(partial + where, sums)
    tl.store(likelihoods + program * fits + fit, tl.sum(likelihood, 0) + top * tl.sum(mass, 0))


@triton.jit
def _products(points, present, left, right, d: tl.constexpr, DTYPE: tl.constexpr):
    """Return features `(ROWS, TILE)`: products of two coordinates each; the coordinate d is 1."""
    first, second = tl.load(left)[None, :], tl.load(right)[None, :]
    here = present[:, None]
    one = tl.load(points[:, None] + first, mask=here & (first < d), other=1.0).to(DTYPE)
    other = tl.load(points[:, None] + second, mask=here & (second < d), other=1.0).to(DTYPE)
    return one * other


@triton.jit(do_not_specialize=["programs", "n", "k", "count", "slots"])
def collect(
    partial,
    likelihoods,
    old,
    sums,
    likelihood,
    programs,
    n,
    k,
    count,
    slots,
    LEAST: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    PART: tl.constexpr,
):
    """Add the sums of all programs, `(programs, fits, slots)`, into `(fits, k, count)`, and their likelihoods.

    A component that has lost its samples keeps the least weight, its mean and its covariance, from its `old` sums.
    """
    fit, fits = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    feature, component = column // K, column % K
    valid = (feature < count) & (component < k)
    new = tl.zeros((COLUMNS,), tl.float64)
    weight = tl.zeros((COLUMNS,), tl.float64)
    total = tl.zeros((PART,), tl.float64)
    for start in range(0, programs, PART):
        part = start + tl.arange(0, PART)
        there = part < programs
        base = partial + (part * fits + fit).to(tl.int64)[:, None] * slots
        wanted = there[:, None] & valid[None, :]
        new += tl.sum(tl.load(base + column[None, :], mask=wanted, other=0.0), 0)
        weight += tl.sum(tl.load(base + component[None, :], mask=wanted, other=0.0), 0)
        total += tl.load(likelihoods + part * fits + fit, mask=there, other=0.0)
    new, weight = new / n, weight / n
    own = (fit * k + component) * count
    kept = LEAST / tl.load(old + own, mask=valid, other=1.0) * tl.load(old + own + feature, mask=valid, other=0.0)
    tl.store(sums + own + feature, tl.where(weight < LEAST, kept, new), mask=valid)
    if tl.program_id(0) == 0:
        tl.store(likelihood + fit, tl.sum(total, 0) / n)
