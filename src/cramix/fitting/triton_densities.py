"""Triton kernels that compute the densities of components from their sums, the first part of a fused EM step.

They compute in float64 what the passes over the samples need: the inverse of a component's Cholesky factor or its
scales, and its log density at its mean. The layout of sums is that of `Family`: 1, the coordinates, and their products.
"""

# The parameters of kernels have no types but those of constants.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

_LOG_2PI = tl.constexpr(1.8378770664093453)


@triton.jit
def _central(component, row, column, d, rounding):
    """Return the weight and the central moments `(D, D)` of a component whose sums begin at a pointer."""
    weight = tl.load(component)
    inside = (row < d) & (column < d)
    products = tl.load(component + 1 + d + _entry(row, column, d), mask=inside, other=0.0) / weight
    products = tl.where(row == column, products + rounding * products, products)
    left = tl.load(component + 1 + row, mask=row < d, other=0.0) / weight
    right = tl.load(component + 1 + column, mask=column < d, other=0.0) / weight
    return weight, products - left * right


@triton.jit
def _entry(row, column, d):
    """Return the position of an entry of a symmetric matrix in its upper triangle, row by row."""
    low, high = tl.minimum(row, column), tl.maximum(row, column)
    return low * d - low * (low - 1) // 2 + high - low


@triton.jit
def _shrunk(weight, moments, strength, target):
    """Return central moments with those of the pseudo-samples of a prior; see `family.shrunk`."""
    return weight / (weight + strength) * moments + target / (1 + weight / strength)


@triton.jit
def _total(sums, k, count, K: tl.constexpr):
    """Return the sum of the weights of k components."""
    component = tl.arange(0, K)
    return tl.sum(tl.load(sums + component * count, mask=component < k, other=0.0), 0)


@triton.jit(do_not_specialize=["k", "d", "count", "stride", "strengths_stride", "rounding"])
def dense_densities(
    sums,
    strengths,
    moments,
    floor,
    whitening,
    offsets,
    constants,
    k,
    d,
    count,
    strengths_stride,
    stride,
    rounding,
    TIED: tl.constexpr,
    PRIOR: tl.constexpr,
    POOLED: tl.constexpr,
    DTYPE: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
):
    """Invert the Cholesky factor of a component's covariance: z = x W - b is white, W `(D, D)` and b `(D,)`.

    A program is a component of a fit. A covariance that is not positive definite gives NaN.
    """
    program = tl.program_id(0)
    fit = program // k
    own, first = sums + program * count, sums + fit * k * count
    index = tl.arange(0, D)
    row, column = index[:, None], index[None, :]
    total = _total(first, k, count, K)
    weight, matrix = _central(own, row, column, d, rounding)
    samples = weight
    if TIED or POOLED:
        pooled = tl.zeros((D, D), tl.float64)
        for j in range(k):
            other, central = _central(first + j * count, row, column, d, rounding)
            pooled += other * central
        pooled = pooled / total
    if TIED:
        matrix = pooled
        samples = total / k
    if PRIOR:
        if POOLED:
            target = pooled
            if TIED:  # which shrinks to its diagonal
                target = tl.where(row == column, pooled, 0.0)
        else:
            inside = (row < d) & (column < d)
            target = tl.load(moments + fit * stride + _entry(row, column, d), mask=inside, other=0.0)
        matrix = _shrunk(samples, matrix, tl.load(strengths + fit * strengths_stride), target)
    least = tl.load(floor + row, mask=row < d, other=1.0)  # beyond d coordinates: the identity
    matrix = tl.where(row == column, matrix + rounding * matrix + least, matrix)
    inverse = tl.where(row == column, 1.0, 0.0).to(tl.float64)
    pivots = tl.full((D,), 1.0, tl.float64)
    for i in range(d):
        below = tl.sum(tl.where(column == i, matrix, 0.0), 1)
        pivot = tl.sum(tl.where(index == i, below, 0.0), 0)
        root = tl.sqrt(pivot)
        below = tl.where(index > i, below / root, 0.0)
        across = tl.sum(tl.where(row == i, inverse, 0.0), 0) / root
        matrix = matrix - below[:, None] * below[None, :]
        inverse = tl.where(row == i, across[None, :], inverse - below[:, None] * across[None, :])
        pivots = tl.where(index == i, pivot, pivots)
    log_determinant = tl.sum(tl.where(index < d, tl.log(pivots) + _LOG_2PI, 0.0), 0)
    means = tl.load(own + 1 + index, mask=index < d, other=0.0) / weight
    tl.store(offsets + program * D + index, tl.sum(inverse * means[None, :], 1).to(DTYPE))
    inside = (row < d) & (column < d)
    tl.store(whitening + (program * D + column) * D + row, tl.where(inside, inverse, 0.0).to(DTYPE))
    tl.store(constants + program, tl.log(weight / total) - 0.5 * log_determinant)


@triton.jit(do_not_specialize=["k", "d", "count", "stride", "strengths_stride"])
def aligned_densities(
    sums,
    strengths,
    moments,
    floor,
    scales,
    means,
    constants,
    k,
    d,
    count,
    strengths_stride,
    stride,
    SPHERICAL: tl.constexpr,
    PRIOR: tl.constexpr,
    POOLED: tl.constexpr,
    DTYPE: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
):
    """Compute means and inverse scales along the axes, in the layout `(fit, D, K)`; a program is a component."""
    program = tl.program_id(0)
    fit, component = program // k, program % k
    own, first = sums + program * count, sums + fit * k * count
    index = tl.arange(0, D)
    inside = index < d
    total = _total(first, k, count, K)
    weight = tl.load(own)
    mean = tl.load(own + 1 + index, mask=inside, other=0.0) / weight
    variance = tl.load(own + 1 + d + index, mask=inside, other=0.0) / weight - mean * mean
    if PRIOR:
        if POOLED:
            target = tl.zeros((D,), tl.float64)
            for j in range(k):
                other = tl.load(first + j * count)
                centre = tl.load(first + j * count + 1 + index, mask=inside, other=0.0) / other
                square = tl.load(first + j * count + 1 + d + index, mask=inside, other=0.0) / other
                target += other * (square - centre * centre)
            target = target / total
        else:
            target = tl.load(moments + fit * stride + index, mask=inside, other=0.0)
        variance = _shrunk(weight, variance, tl.load(strengths + fit * strengths_stride), target)
    variance = tl.where(variance > 0, variance, 0.0) + tl.load(floor + index, mask=inside, other=0.0)
    if SPHERICAL:
        variance = tl.where(inside, tl.sum(variance, 0) / d, 0.0)
    log_determinant = tl.sum(tl.where(inside, tl.log(tl.where(inside, variance, 1.0)) + _LOG_2PI, 0.0), 0)
    where = (fit * D + index) * K + component
    tl.store(means + where, mean.to(DTYPE))
    tl.store(scales + where, tl.where(inside, 1 / tl.sqrt(tl.where(inside, variance, 1.0)), 0.0).to(DTYPE))
    tl.store(constants + program, tl.log(weight / total) - 0.5 * log_determinant)
