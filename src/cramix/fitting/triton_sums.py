"""Triton kernels that compute sums of features over samples, the second part of a fused EM step.

`expect` reads a block of samples, computes log densities from whitened samples, and adds features times
responsibilities to the sums of its program; neither features nor responsibilities reach memory. `collect` adds the sums
of all programs in a fixed order.
"""

# The parameters of kernels have no types but those of constants.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n", "k", "slots", "blocks", "each", "weights_stride"])
def expect(
    x,
    weights,
    whitening,
    offsets,
    constants,
    recent,
    partial,
    likelihoods,
    n,
    d: tl.constexpr,
    k,
    slots,
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
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Add features times responsibilities over the samples of a program, and their log densities, in float64.

    Weights count relative to their mean, so that equal ones are exactly 1. The sums of coordinates are in the first
    WIDTH rows of slots, in front of those of products; that of 1 follows the coordinates where there is a row left,
    and is the last one otherwise.

    Args:
        x: samples `(n, d)`.
        weights: `(n,)`, or `(fits, n)` with a stride.
        whitening: `(fits, k, D, D)`, or inverse scales `(fits, D, K)`.
        offsets: `(fits, k, D)`, or means `(fits, D, K)`.
        constants: log densities of components at their means, `(fits, k)`.
        recent: sums over the last blocks of each program unless they are in registers, as `partial`.
        partial: sums of each program, `(programs, fits, slots, K)`.
        likelihoods: of each program, `(programs, fits)`.
        n: number of samples.
        d: number of coordinates.
        k: number of components.
        slots: number of rows of sums.
        blocks: number of blocks of samples.
        each: blocks of a program, of which there is at least one.
        weights_stride: from one fit to the next.
        ALIGNED: whether ellipsoids lie along the axes.
        TOGETHER: whether all components are whitened in one product, and all pairs of coordinates multiplied at once.
        IN_REGISTERS: whether sums stay in registers.
        PRECISION: of products of matrices in float32.
        DTYPE: of all but sums.
        ROWS: samples of a block.
        K: components, padded.
        D: coordinates of a whitened sample, padded.
        WIDTH: coordinates of a sample, padded to 16 at least.
        PART: coordinates that are computed with at a time.
        GROUP: blocks whose sums are added in the dtype.
    """
    program, fit = tl.program_id(0), tl.program_id(1)
    fits = tl.num_programs(1)
    component = tl.arange(0, K)
    constant = tl.load(constants + fit * k + component, mask=component < k, other=float("-inf"))
    top = tl.max(constant, 0)  # exact in float64; what is left has few digits before the point
    constant = (constant - top).to(DTYPE)
    coordinate = tl.arange(0, PART)
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
        linear = tl.zeros((PART, K), tl.float64)
        second = tl.zeros((PART if ALIGNED else D * D, K), tl.float64)
    counts = tl.zeros((K,), tl.float64)
    likelihood = tl.zeros((ROWS,), tl.float64)
    mass = tl.zeros((ROWS,), tl.float64)
    own = (program * fits + fit).to(tl.int64) * slots * K
    recent += own
    partial += own
    row = tl.arange(0, ROWS)
    first = program * each
    last = tl.minimum(first + each, blocks)
    for block in range(first, last):
        start = tl.cast(block, tl.int64) * ROWS
        left = n - block * ROWS
        weight = tl.load(weights + fit.to(tl.int64) * weights_stride + start + row, mask=row < left, other=0.0)
        weight = (weight.to(tl.float64) * n).to(DTYPE)
        points = x + start * d
        begins = tl.minimum(row, left - 1) * d  # after the last sample comes that one again, without weight
        if WIDTH == PART:
            value = _coordinates(points, begins, coordinate, d, DTYPE)
        if ALIGNED:
            squares = tl.zeros((ROWS, K), DTYPE)
            for i in range(d):
                mean = tl.load(offsets + (fit * D + i) * K + component, mask=component < k, other=0.0)
                scale = tl.load(whitening + (fit * D + i) * K + component, mask=component < k, other=0.0)
                z = (tl.load(points + (begins + i)).to(DTYPE)[:, None] - mean[None, :]) * scale[None, :]
                squares += z * z
        elif TOGETHER:
            z = tl.dot(value, whiten, input_precision=PRECISION) - offset[None, :]
            squares = tl.sum(tl.reshape(z * z, (ROWS, K, D)), 2)
        else:
            squares = tl.zeros((ROWS, K), DTYPE)
            for j in range(k):
                square = tl.zeros((ROWS,), DTYPE)
                for end in tl.static_range(0, D, PART):
                    z = tl.zeros((ROWS, PART), DTYPE)
                    for begin in tl.static_range(0, end + PART, PART):  # the inverse of a triangle is one
                        if WIDTH > PART:
                            value = _coordinates(points, begins, begin + coordinate, d, DTYPE)
                        base = whitening + ((fit * k + j) * D + begin) * D + end
                        whiten = tl.load(base + (coordinate[:, None] * D + coordinate[None, :]))
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
        done, ends = block - first, block == last - 1
        if d == WIDTH:
            counts += tl.sum(shares, 0).to(tl.float64)
        if TOGETHER or (ALIGNED and WIDTH == PART):
            ones = tl.where(coordinate[None, :] == d, 1.0, value)
            of_ones = tl.dot(tl.trans(ones), shares, input_precision=PRECISION)
            if ALIGNED:
                pairs = value * value
            else:
                narrow = _coordinates(points, begins, tl.arange(0, D), d, DTYPE)
                pairs = tl.reshape(narrow[:, :, None] * narrow[:, None, :], (ROWS, D * D))
            of_pairs = tl.dot(tl.trans(pairs), shares, input_precision=PRECISION)
            if IN_REGISTERS:
                linear += of_ones.to(tl.float64)
                second += of_pairs.to(tl.float64)
            else:
                _add(recent, partial, of_ones, done, ends, GROUP)
                _add(recent + WIDTH * K, partial + WIDTH * K, of_pairs, done, ends, GROUP)
        else:
            for begin in tl.static_range(0, WIDTH, PART):
                part = _coordinates(points, begins, begin + coordinate, d, DTYPE)
                ones = tl.where(begin + coordinate[None, :] == d, 1.0, part)
                new = tl.dot(tl.trans(ones), shares, input_precision=PRECISION)
                _add(recent + begin * K, partial + begin * K, new, done, ends, GROUP)
                if ALIGNED:
                    new = tl.dot(tl.trans(part * part), shares, input_precision=PRECISION)
                    at = (WIDTH + begin) * K
                    _add(recent + at, partial + at, new, done, ends, GROUP)
                else:
                    for i in range(d if begin + PART > d else begin + PART):  # the upper triangle
                        factor = tl.load(points + (begins + i)).to(DTYPE)
                        new = tl.dot(tl.trans(factor[:, None] * part), shares, input_precision=PRECISION)
                        at = (WIDTH + i * WIDTH + begin) * K
                        _add(recent + at, partial + at, new, done, ends, GROUP)
    if IN_REGISTERS:
        tl.store(partial + (coordinate[:, None] * K + component[None, :]), linear)
        pair = tl.arange(0, PART if ALIGNED else D * D)
        tl.store(partial + ((WIDTH + pair[:, None]) * K + component[None, :]), second)
    if d == WIDTH:
        tl.store(partial + (slots - 1) * K + component, counts)
    tl.store(likelihoods + program * fits + fit, tl.sum(likelihood, 0) + top * tl.sum(mass, 0))


@triton.jit
def _coordinates(points, begins, coordinate, d: tl.constexpr, DTYPE: tl.constexpr):
    """Return some coordinates of samples, `(ROWS, PART)`; 0 after the last."""
    there = coordinate[None, :] < d
    return tl.load(points + (begins[:, None] + coordinate[None, :]), mask=there, other=0.0).to(DTYPE)


@triton.jit
def _add(recent, partial, new, done, ends, GROUP: tl.constexpr):
    """Add the sums of a block, `(rows, K)`, to recent ones, and every so many blocks, or at the end, these to all."""
    where = tl.arange(0, new.shape[0])[:, None] * new.shape[1] + tl.arange(0, new.shape[1])[None, :]
    if done % GROUP > 0:
        new += tl.load(recent + where)
    if (done % GROUP == GROUP - 1) | ends:
        total = new.to(tl.float64)
        if done >= GROUP:
            total += tl.load(partial + where)
        tl.store(partial + where, total)
    else:
        tl.store(recent + where, new)


@triton.jit(do_not_specialize=["programs", "n", "k", "count", "slots"])
def collect(
    partial,
    likelihoods,
    rows,
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
    """Add the sums of all programs, `(programs, fits, slots, K)`, into `(fits, k, count)`, and their likelihoods.

    The rows of the slots that hold the features are `(count,)`.
    A component that has lost its samples keeps the least weight, its mean and its covariance, from its `old` sums.
    """
    fit, fits = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    feature, component = column // K, column % K
    valid = (feature < count) & (component < k)
    mine = tl.load(rows + feature, mask=valid, other=0) * K + component
    heaviness = tl.load(rows) * K + component
    new = tl.zeros((COLUMNS,), tl.float64)
    weight = tl.zeros((COLUMNS,), tl.float64)
    total = tl.zeros((PART,), tl.float64)
    for start in range(0, programs, PART):
        part = start + tl.arange(0, PART)
        there = part < programs
        base = partial + (part * fits + fit).to(tl.int64)[:, None] * slots * K
        wanted = there[:, None] & valid[None, :]
        new += tl.sum(tl.load(base + mine[None, :], mask=wanted, other=0.0), 0)
        weight += tl.sum(tl.load(base + heaviness[None, :], mask=wanted, other=0.0), 0)
        total += tl.load(likelihoods + part * fits + fit, mask=there, other=0.0)
    new, weight = new / n, weight / n
    own = (fit * k + component) * count
    kept = LEAST / tl.load(old + own, mask=valid, other=1.0) * tl.load(old + own + feature, mask=valid, other=0.0)
    tl.store(sums + own + feature, tl.where(weight < LEAST, kept, new), mask=valid)
    if tl.program_id(0) == 0:
        tl.store(likelihood + fit, tl.sum(total, 0) / n)
