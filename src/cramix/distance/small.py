"""The Cramér loss and its gradients for few pairs on the CPU, where the time goes into calls, not arithmetic.

A call of NumPy takes about a third of the time of a call of torch. So mixtures in plain eager CPU tensors with up to
`SMALL` pairs are evaluated here, in float64 whatever their dtype, as one square of pairs: the components of p and q are
one list of n, component-major, `(3, n, B)`, and the pairs are `(n, n, B)`. The formulas are those of `pairs`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cramix.distance.operands import Operand
from cramix.distance.pairs import INV_SQRT_PI, LARGEST_EXPONENT
from cramix.distance.resolve import THRESHOLD, resolve

# Pairs of the square, those within a side counted too.
SMALL = 1 << 14

_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
_TINY = float(np.finfo(np.float64).tiny)
_sum = np.add.reduce  # half the time of the method


def is_small(p: Operand, q: Operand, batch: torch.Size) -> bool:
    """Whether p and q, in plain eager mode, can be evaluated here: few pairs, and memory that NumPy can look at."""
    if q.scales is None or (p.means.shape[-1] + q.means.shape[-1]) ** 2 * batch.numel() > SMALL:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    return all(type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu" for x in (*p, *q))


@np.errstate(all="ignore")  # as torch does
def evaluate_small(
    p: Operand, q: Operand, batch: torch.Size, grad_p: bool, grad_q: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the loss `(*batch)` and, where asked for, its gradients `(3, *batch, k)` for p and for q."""
    dtype = _DTYPES[p.means.dtype]
    k = p.means.shape[-1]
    sides, p_total, q_total = _packed(p, q, batch)
    weights = sides[0]
    terms = _pairs(sides)[: 3 if grad_p or grad_q else 1]
    terms *= weights
    to_p, to_q = _sum(terms[:, :, :k], 2), _sum(terms[:, :, k:], 2)
    sums = to_q - to_p
    weighted = weights * sums
    p_mean, q_mean = _sum(weighted[0, :k]), _sum(weighted[0, k:])
    value = 0.5 * (p_mean - q_mean)  # exactly 0 for equal mixtures, as all sums are
    if dtype is np.float64:
        scale = 0.5 * (_sum(weights[:k] * to_p[0, :k]) + _sum(weights[k:] * to_q[0, k:]))
        value = _resolved(value, scale, sides, k)
    np.maximum(value, 0, out=value)
    at_p = at_q = None
    if grad_p:
        at_p = _gradients(weighted[:, :k], sums[0, :k], p_mean, p_total, sides[2, :k], dtype, batch)
    if grad_q:
        at_q = _gradients(-weighted[:, k:], -sums[0, k:], -q_mean, q_total, sides[2, k:], dtype, batch)
    return torch.from_numpy(value.astype(dtype, copy=False).reshape(batch)), at_p, at_q


def _packed(p: Operand, q: Operand, batch: torch.Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay out all components, p's first, with weights divided by their sums, `(B,)`, which come last."""
    k, m = p.means.shape[-1], q.means.shape[-1]
    tensors = [p.weights, q.weights, p.means, q.means, p.scales, q.scales]
    if not p.means.shape[:-1] == q.means.shape[:-1] == batch:
        tensors = [x.expand(*batch, -1) for x in tensors]  # type: ignore[union-attr]
    rows = torch.cat(tensors, -1).numpy().reshape(-1, 3 * (k + m))  # type: ignore[arg-type]
    sides = rows.T.astype(np.float64, order="C").reshape(3, k + m, len(rows))
    of_p, of_q = sides[0, :k], sides[0, k:]
    p_total, q_total = _sum(of_p), _sum(of_q)
    of_p /= p_total
    of_q /= q_total
    return sides, p_total, q_total


def _pairs(sides: np.ndarray) -> np.ndarray:
    """Return A, E and `H / sqrt(pi)` of all pairs, `(3, n, n, B)`."""
    _, means, scales = sides
    terms = np.empty((3, len(means), *means.shape))
    a, e, h = terms
    variances = scales * scales
    variances += variances
    variances += _TINY  # see pairs._doubled_variance
    spread = variances[:, None] + variances
    np.sqrt(spread, spread)
    d = means[:, None] - means
    np.divide(d, spread, e)
    np.multiply(e, e, h)
    np.minimum(h, LARGEST_EXPONENT[torch.float64], out=h)
    np.negative(h, h)
    np.exp(h, h)
    h *= INV_SQRT_PI
    torch.from_numpy(e).erf_()  # NumPy has none
    d *= e
    np.multiply(h, spread, a)
    a += d
    h /= spread
    return terms


def _resolved(value: np.ndarray, scale: np.ndarray, sides: np.ndarray, k: int) -> np.ndarray:
    """Compute small elements anew, see `resolve`, where there are some."""
    if not (value < 2 * THRESHOLD[torch.float64] * scale).any():
        return value
    both = torch.from_numpy(sides)
    return resolve(torch.from_numpy(value), torch.from_numpy(scale), both[:, :k], both[:, k:], None).numpy()


def _gradients(
    weighted: np.ndarray,
    potential: np.ndarray,
    mean: np.ndarray,
    total: np.ndarray,
    scales: np.ndarray,
    dtype: type,
    batch: torch.Size,
) -> Tensor:
    """Turn weighted pair sums, in place, into gradients for weights, means and scales, `(3, *batch, k)` (eq. 8)."""
    of_weights, _, of_scales = weighted
    np.subtract(potential, mean, of_weights)
    of_weights /= total
    of_scales *= scales
    of_scales *= 2
    rows = weighted.transpose(0, 2, 1).astype(dtype, order="C")
    return torch.from_numpy(rows.reshape(3, *batch, weighted.shape[1]))
