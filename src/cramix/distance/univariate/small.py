"""The Cramér loss and its gradients for few pairs on the CPU, where the time goes into calls, not arithmetic.

A call of NumPy takes about a third of the time of a call of torch. So two mixtures of k components each, in plain eager
CPU tensors with up to `SMALL` pairs, are evaluated here, in float64 whatever their dtype. The formulas are those of
`pairs`, and so is the chain of sides p, p, q, q, p, whose neighbours, its links, are the pairs of sides wanted.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cramix.distance.operands import Operand
from cramix.distance.underflow import LARGEST_EXPONENT
from cramix.distance.univariate.pairs import INV_SQRT_PI
from cramix.distance.univariate.resolve import THRESHOLD, resolve
from cramix.torch_internals import shares_memory_with_numpy

# Pairs of all links of the chain.
SMALL = 1 << 14
# MKL starts threads for erf in float64 from some 1450 numbers on.
_UNTHREADED = 1400

_CHAIN = np.array([0, 0, 1, 1, 0])
_TINY = float(np.finfo(np.float64).tiny)
_LOG_INV_SQRT_PI = math.log(INV_SQRT_PI)
_MOST = LARGEST_EXPONENT[torch.float64] + _LOG_INV_SQRT_PI
_sum = np.add.reduce  # half the time of the method


def is_small(p: Operand, q: Operand, batch: torch.Size) -> bool:
    """Whether p and q, in plain eager mode, can be evaluated here."""
    k = p.means.shape[-1]
    if q.scales is None or q.means.shape[-1] != k or 4 * k * k * batch.numel() > SMALL:
        return False
    return shares_memory_with_numpy(*p, *q)  # type: ignore[arg-type]


@np.errstate(all="ignore")  # as torch does
def evaluate_small(
    p: Operand, q: Operand, batch: torch.Size, grad_p: bool, grad_q: bool, share: float | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the loss and, where asked for, its gradients for p and for q, as in `Evaluation`."""
    dtype = np.float32 if p.means.dtype == torch.float32 else np.float64
    sides, totals = _packed(p, q, batch)
    chain = sides.take(_CHAIN if grad_q else _CHAIN[:4], 1)
    terms = _pairs(chain)
    if not (grad_p or grad_q):
        terms = terms[:1]
    terms *= chain[0, 1:, None]
    sums = _sum(terms, 3)  # (3, links, k, B)
    energies = _sum(sums[0] * chain[0, :-1], 1)
    # Of each side, the mean of the potential under it; the loss is half their sum, exactly 0 for equal sides.
    p_mean, q_mean = energies[1] - energies[0], energies[1] - energies[2]
    value = p_mean + q_mean
    value *= 0.5
    if dtype is np.float64:
        value = _resolved(value, 0.5 * (energies[0] + energies[2]), sides)
    np.maximum(value, 0, out=value)
    at_p = at_q = None
    if grad_p:
        at_p = _gradients(sides[:, 0], totals[0], sums[:, 1] - sums[:, 0], p_mean, batch, dtype, share)
    if grad_q:
        at_q = _gradients(sides[:, 1], totals[1], sums[:, 3] - sums[:, 2], q_mean, batch, dtype, share)
    result = value.reshape(batch) if share is None else _sum(value) * share
    return torch.from_numpy(np.array(result, dtype)), at_p, at_q


def _packed(p: Operand, q: Operand, batch: torch.Size) -> tuple[np.ndarray, np.ndarray]:
    """Lay out both sides component-major, `(3, 2, k, B)`, with weights divided by their sums, `(2, 1, B)`."""
    k = p.means.shape[-1]
    tensors = p.weights, q.weights, p.means, q.means, p.scales, q.scales
    if not p.means.shape[:-1] == q.means.shape[:-1] == batch:
        tensors = tuple(x.expand(*batch, k) for x in tensors)  # type: ignore
    rows = torch.cat(tensors, -1).numpy().reshape(-1, 6 * k)  # type: ignore[arg-type]
    sides = np.array(rows.T, np.float64, order="C").reshape(3, 2, k, len(rows))
    weights = sides[0]
    totals = _sum(weights, 1, keepdims=True)
    weights /= totals
    return sides, totals


def _pairs(chain: np.ndarray) -> np.ndarray:
    """Return A, E and `H / sqrt(pi)` of all pairs of each link of the chain, `(3, links, k, k, B)`."""
    means, scales = chain[1], chain[2]
    sides, k, batch = means.shape
    terms = np.empty((3, sides - 1, k, k, batch))
    a, e, h = terms[0], terms[1], terms[2]
    variances = scales * scales
    variances += variances
    variances += _TINY  # see pairs._doubled_variance
    spread = variances[:-1, :, None] + variances[1:, None]
    np.sqrt(spread, spread)
    d = means[:-1, :, None] - means[1:, None]
    np.divide(d, spread, e)
    np.multiply(e, e, h)
    np.minimum(h, _MOST, out=h)
    np.subtract(_LOG_INV_SQRT_PI, h, h)
    np.exp(h, h)
    _erf(e.reshape(-1))
    d *= e
    np.multiply(h, spread, a)
    a += d
    h /= spread
    return terms


def _erf(x: np.ndarray) -> None:
    """Take erf in place, by torch, as NumPy has none; in parts for which MKL starts no threads.

    Threads would cost more than they bring here, and milliseconds whenever another process has their core.
    """
    for start in range(0, x.size, _UNTHREADED):
        torch.from_numpy(x[start : start + _UNTHREADED]).erf_()


def _resolved(value: np.ndarray, scale: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Compute small elements anew, see `resolve`, where there are some."""
    if not (value < 2 * THRESHOLD[torch.float64] * scale).any():
        return value
    p, q = torch.from_numpy(sides).unbind(1)
    return resolve(torch.from_numpy(value), torch.from_numpy(scale), p, q, None).numpy()


def _gradients(
    side: np.ndarray,
    total: np.ndarray,
    sums: np.ndarray,
    mean: np.ndarray,
    batch: torch.Size,
    dtype: type,
    share: float | None,
) -> Tensor:
    """Turn the difference of pair sums into gradients for weights, means and scales, `(3, *batch, k)` (eq. 8)."""
    weights = side[0]
    potential, curve = sums[0], sums[2]
    potential -= mean
    potential /= total
    sums[1:] *= weights
    curve *= side[2]
    curve += curve
    _, k, b = sums.shape
    out: np.ndarray = np.empty((3, b, k), dtype)
    np.multiply(sums, 1.0 if share is None else share, out.transpose(0, 2, 1), casting="same_kind")
    return torch.from_numpy(out.reshape(3, *batch, k))
