"""Truth from outside the library: the Cramér distance and its parts at 60 digits, and mixtures to try them on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import mpmath
import torch
from torch import Tensor

from cramix import NormalMixture

DIGITS = 60


def mean_distance(m: mpmath.mpf, s: mpmath.mpf) -> mpmath.mpf:
    """E|Z| for Z ~ N(m, s^2)."""
    if s == 0:
        return abs(m)
    z = m / (s * mpmath.sqrt(2))
    return m * mpmath.erf(z) + s * mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-z * z)


def parts(p: NormalMixture, q: NormalMixture) -> tuple[mpmath.mpf, mpmath.mpf]:
    """C2^2 and the scale, half of E|X - X'| + E|Y - Y'|, of two unbatched mixtures with weights normalised."""
    with mpmath.workdps(DIGITS):
        a, b = _triples(p), _triples(q)

        def expected(x: list, y: list) -> mpmath.mpf:
            return mpmath.fsum(
                u * v * mean_distance(m - n, mpmath.sqrt(s * s + t * t)) for u, m, s in x for v, n, t in y
            )

        def within(p: NormalMixture, x: list) -> mpmath.mpf:
            """E|X - X'|, for samples as an integral of 2 F (1 - F) over the gaps."""
            if not p.is_empirical:
                return expected(x, x)
            x = sorted(x, key=lambda atom: atom[1])
            mass = list(itertools.accumulate(atom[0] for atom in x))
            return mpmath.fsum(
                2 * f * (1 - f) * (z[1] - y[1]) for f, (y, z) in zip(mass, itertools.pairwise(x), strict=False)
            )

        scale = (within(p, a) + within(q, b)) / 2
        return expected(a, b) - scale, scale


def cramer(p: NormalMixture, q: NormalMixture) -> float:
    return float(parts(p, q)[0])


def batch(p: NormalMixture) -> Iterator[NormalMixture]:
    """The elements of a mixture with one batch axis."""
    for weights, means, scales in zip(p.weights, p.means, p.scales, strict=True):
        yield NormalMixture(weights, means, scales)


def random_mixture(*shape: int, seed: int, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> NormalMixture:
    weights, means, scales = random_parameters(*shape, seed=seed, spread=spread, dtype=dtype)
    return NormalMixture(weights, means, scales)


def random_parameters(*shape: int, seed: int, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    draw = [torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3)]
    return [draw[0].softmax(-1).to(dtype), (spread * draw[1]).to(dtype), draw[2].exp().to(dtype)]


def _triples(p: NormalMixture) -> list[tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]]:
    rows = [[mpmath.mpf(x) for x in t.tolist()] for t in (p.weights, p.means, p.scales)]
    total = mpmath.fsum(rows[0])
    return [(w / total, m, s) for w, m, s in zip(*rows, strict=True)]


def mp_parts(case: tuple) -> list[tuple[mpmath.mpf, ...]]:
    """The components of `(weights, means, scales)` that are there."""
    return [tuple(map(mpmath.mpf, part)) for part in zip(*case, strict=True) if part[0]]


def mp_cdf(x: mpmath.mpf, case: tuple) -> mpmath.mpf:
    """P(X <= x), atoms included."""
    sqrt2 = mpmath.sqrt(2)
    return mpmath.fsum(
        w * (mpmath.erfc((m - x) / (s * sqrt2)) / 2 if s else mpmath.mpf(m <= x)) for w, m, s in mp_parts(case)
    )


def mp_quantile(u: float, case: tuple) -> mpmath.mpf:
    """The smallest x with F(x) >= u, by bisection."""
    low = min(m - 60 * s for _, m, s in mp_parts(case)) - 1
    high = max(m + 60 * s for _, m, s in mp_parts(case))
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (low, middle) if mp_cdf(middle, case) >= mpmath.mpf(u) else (middle, high)
    return high
