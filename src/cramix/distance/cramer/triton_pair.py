"""The terms of a pair of components on the line, for Triton kernels; the formulas are those of `blocked`."""

from __future__ import annotations

import triton
import triton.language as tl

# 1 / sqrt(pi), log2(e), and the smallest normal numbers of float32 and float64; see `blocked._doubled_variance`.
INV_SQRT_PI = tl.constexpr(0.5641895835477563)
_LOG2_E = tl.constexpr(1.4426950408889634)
TINY_32 = tl.constexpr(1.1754943508222875e-38)
TINY_64 = tl.constexpr(2.2250738585072014e-308)
# The square up to which erf is a polynomial times z, and the number beyond which it is 1 in float32.
_SMALL = tl.constexpr(0.81)
_ONE = tl.constexpr(4.2)


@triton.jit
def doubled_variance(scales):
    """Return `2 s^2` plus the smallest normal number, so that a sum of two is never 0."""
    if scales.dtype == tl.float64:
        return 2.0 * scales * scales + TINY_64
    else:
        return 2.0 * scales * scales + TINY_32


@triton.jit
def pair_terms(d, r):
    """Return `erf(z)` and `exp(-z^2)` for differences d of means, `z = d r` and `r = 1 / (t sqrt 2)`.

    In float32 erf shares the exponential: it is `1 - exp(-z^2) Q(|z|)` from 0.9 on, and `z P(z^2)` below. P and Q are
    minimax polynomials; the error of erf is below 1.5e-7, relative to erf where that is small.
    """
    z = d * r
    squares = z * z
    if z.dtype == tl.float64:
        return tl.erf(z), tl.exp(-squares)
    else:
        h = tl.exp2(squares * -_LOG2_E)
        low = 0.005011989269405603 + -0.0006090477691031992 * squares
        low = -0.02677893079817295 + low * squares
        low = 0.11282141506671906 + low * squares
        low = -0.3761252462863922 + low * squares
        low = 1.1283791065216064 + low * squares
        size = tl.minimum(tl.abs(z), _ONE)
        high = 0.007165717426687479 + -0.00048305856762453914 * size
        high = -0.04698895290493965 + high * size
        high = 0.18092839419841766 + high * size
        high = -0.4593074321746826 + high * size
        high = 0.8192774057388306 + high * size
        high = -1.0622279644012451 + high * size
        high = 0.9892194867134094 + high * size
        high = 1.0 - h * high
        return tl.where(squares < _SMALL, z * low, tl.where(z < 0, -high, high)), h


@triton.jit
def distance_terms(d, v):
    """Return A, E and H of pairs with differences d of means and sums v of doubled variances (see `blocked`)."""
    r = tl.rsqrt(v)
    e, h = pair_terms(d, r)
    return d * e + h * (v * r) * INV_SQRT_PI, e, h * r
