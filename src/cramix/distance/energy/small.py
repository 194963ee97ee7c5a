"""The energy distance in NumPy, for problems so small that the time goes into calls, not arithmetic.

The code is that of `blocked`, which works on arrays of both libraries.
"""

from __future__ import annotations

import numpy as np

from cramix.distance.energy import blocked
from cramix.distance.energy.array_protocol import Array, as_array, as_tensor
from cramix.distance.energy.flat_mixtures import Flat, Points
from cramix.distance.energy.signature import Evaluation, KnownEnergy
from cramix.torch_internals import as_numpy, shares_memory_with_numpy

# The largest number of variances of pairs of components, and of coordinates of points.
_FEW_VARIANCES = 1 << 12
_FEW_COORDINATES = 1 << 15


def applies(p: Flat, q: Flat) -> bool:
    """Return whether both sides are in plain CPU memory and small; points to points take few calls anyway."""
    if isinstance(p, Points):
        return False
    k = p.means.shape[1] + (0 if isinstance(q, Points) else q.means.shape[1])
    if len(p.weights) * k * k * p.covariances.shape[-1] > _FEW_VARIANCES:
        return False
    q_means = as_tensor(q.means)
    return q_means.numel() <= _FEW_COORDINATES and shares_memory_with_numpy(*_tensors(p), *_tensors(q))


def _tensors(side: Flat) -> list:
    return [as_tensor(x) for x in side if x is not None]


@np.errstate(all="ignore")  # as torch does
def evaluate(
    p: Flat,
    q: Flat,
    known_p: KnownEnergy | None,
    known_q: KnownEnergy | None,
    tolerance: float,
    *,
    grad_p: bool,
    grad_q: bool,
    block: int | None = None,
) -> Evaluation:
    """Evaluate distances and derivatives; see `signature.Implementation`."""
    p, q = _in_numpy(p), _in_numpy(q)
    return blocked.evaluate(p, q, known_p, known_q, tolerance, grad_p=grad_p, grad_q=grad_q, block=block)


def _in_numpy(side: Flat) -> Flat:
    def memory(x: Array) -> Array:
        return as_array(as_numpy(as_tensor(x)))

    if isinstance(side, Points):
        covariances = None if side.covariances is None else memory(side.covariances)
        return Points(memory(side.weights), memory(side.means), covariances)
    return type(side)(memory(side.weights), memory(side.means), memory(side.covariances))
