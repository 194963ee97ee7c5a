"""The Cramér loss and its gradients in NumPy, for few pairs on the CPU, where the time goes into calls.

A call of NumPy takes about a third of the time of a call of torch. So two mixtures of k components each, in plain eager
CPU tensors with few pairs, are evaluated here, in float64 whatever their dtype. The formulas are those of `blocked`,
and so is the chain of sides p, p, q, q, p, whose neighbours, its links, are the pairs of sides that are needed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cramix.distance.cramer.blocked import FEW_PAIRS, INV_SQRT_PI, closed_form
from cramix.distance.cramer.cancellation import THRESHOLD, recomputed
from cramix.distance.cramer.signature import Evaluation, Operand, Problem, batch_of
from cramix.distance.kernels import LARGEST_EXPONENT
from cramix.torch_internals import shares_memory_with_numpy

# MKL starts threads for erf in float64 from about 1450 numbers on.
_UNTHREADED = 1400

_CHAIN = np.array([0, 0, 1, 1, 0])
_TINY = float(np.finfo(np.float64).tiny)
_LOG_INV_SQRT_PI = math.log(INV_SQRT_PI)
_MOST = LARGEST_EXPONENT[torch.float64] + _LOG_INV_SQRT_PI
_sum = np.add.reduce  # half the time of the method


def applies(p: Operand, q: Operand) -> bool:
    """Return whether both sides are in plain CPU memory, alike, and few."""
    k = p.means.shape[-1]
    if q.scales is None or q.means.shape[-1] != k or 4 * k * k * batch_of(p, q).numel() > FEW_PAIRS:
        return False
    return shares_memory_with_numpy(*p, *q)  # type: ignore[arg-type]


@np.errstate(all="ignore")  # as torch does
def evaluate(problem: Problem) -> Evaluation:
    """Evaluate losses and gradients; see `signature.Problem`. There is one block."""
    p, q, _, grad_p, grad_q, _, each = problem
    dtype, batch = np.float32 if p.means.dtype == torch.float32 else np.float64, batch_of(p, q)
    sides, totals = _component_major(p, q, batch)
    chain = sides.take(_CHAIN if grad_q else _CHAIN[:4], 1)
    terms = _pairs(chain)
    if not (grad_p or grad_q):
        terms = terms[:1]
    terms *= chain[0, 1:, None]
    sums = _sum(terms, 3)  # (3, links, k, B)
    energies = _sum(sums[0] * chain[0, :-1], 1)
    # For each side, the mean of the potential under it; the loss is half their sum, exactly 0 for equal sides.
    p_mean, q_mean = energies[1] - energies[0], energies[1] - energies[2]
    losses = p_mean + q_mean
    losses *= 0.5
    if dtype is np.float64:
        losses = _recomputed(losses, 0.5 * (energies[0] + energies[2]), sides)
    np.maximum(losses, 0, out=losses)
    at_p = at_q = None
    if grad_p:
        at_p = _gradients(sides[:, 0], totals[0], sums[:, 1] - sums[:, 0], p_mean, each, batch, dtype)
    if grad_q:
        at_q = _gradients(sides[:, 1], totals[1], sums[:, 3] - sums[:, 2], q_mean, each, batch, dtype)
    return Evaluation(torch.from_numpy(losses.astype(dtype, copy=False).reshape(batch)), at_p, at_q)


def _component_major(p: Operand, q: Operand, batch: torch.Size) -> tuple[np.ndarray, np.ndarray]:
    """Copy both sides component-major, `(3, 2, k, B)`, with weights divided by their sums, `(2, 1, B)`."""
    k = p.means.shape[-1]
    tensors = p.weights, q.weights, p.means, q.means, p.scales, q.scales
    if not p.means.shape[:-1] == q.means.shape[:-1] == batch:
        tensors = tuple(x.expand(*batch, k) for x in tensors)  # type: ignore[assignment, union-attr]
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
    variances += _TINY  # see blocked._doubled_variance
    widths = variances[:-1, :, None] + variances[1:, None]
    np.sqrt(widths, widths)
    d = means[:-1, :, None] - means[1:, None]
    np.divide(d, widths, e)
    np.multiply(e, e, h)
    np.minimum(h, _MOST, out=h)
    np.subtract(_LOG_INV_SQRT_PI, h, h)
    np.exp(h, h)
    _erf(e.reshape(-1))
    d *= e
    np.multiply(h, widths, a)
    a += d
    h /= widths
    return terms


def _erf(x: np.ndarray) -> None:
    """Apply erf in place, by torch, as NumPy has none; in parts so short that MKL starts no threads.

    Threads would cost more than they save here, and milliseconds whenever another process uses their core.
    """
    for start in range(0, x.size, _UNTHREADED):
        torch.from_numpy(x[start : start + _UNTHREADED]).erf_()


def _recomputed(losses: np.ndarray, scale: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Recompute losses that are small against the scale, if there are any."""
    if not (losses < 2 * THRESHOLD[torch.float64] * scale).any():
        return losses
    p, q = torch.from_numpy(sides).unbind(1)
    return recomputed(torch.from_numpy(losses), torch.from_numpy(scale), p, q, None, closed_form).numpy()


def _gradients(
    side: np.ndarray, total: np.ndarray, sums: np.ndarray, mean: np.ndarray, each: float, batch: torch.Size, dtype: type
) -> Tensor:
    """Turn differences of pair sums into gradients for weights, means and scales times `each`, `(3, *batch, k)`."""
    weights = side[0]
    potential, curve = sums[0], sums[2]
    potential -= mean
    potential /= total
    sums[1:] *= weights
    curve *= side[2]
    curve += curve
    if each != 1:
        sums *= each
    _, k, b = sums.shape
    out: np.ndarray = np.empty((3, b, k), dtype)
    np.copyto(out.transpose(0, 2, 1), sums, casting="same_kind")
    return torch.from_numpy(out.reshape(3, *batch, k))
