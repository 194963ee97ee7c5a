"""The energy distance in NumPy, for problems so small that the time goes into calls, not arithmetic.

The code is that of `blocked`, which works on arrays of both libraries.
"""

from __future__ import annotations

import numpy as np

from cramix.distance.energy import blocked
from cramix.distance.energy.flat_mixtures import Points, Side
from cramix.distance.energy.signature import Evaluation, Problem
from cramix.torch_internals import as_numpy, shares_memory_with_numpy

# The largest number of variances of pairs of components, and of coordinates of points.
_FEW_VARIANCES = 1 << 12
_FEW_COORDINATES = 1 << 15


def applies(p: Side, q: Side) -> bool:
    """Return whether both sides are in plain CPU memory and small; points to points take few calls anyway."""
    if isinstance(p, Points):
        return False
    k = p.means.shape[1] + (0 if isinstance(q, Points) else q.means.shape[1])
    if len(p.weights) * k * k * p.covariances.shape[-1] > _FEW_VARIANCES or q.means.numel() > _FEW_COORDINATES:
        return False
    return shares_memory_with_numpy(*(x for x in (*p, *q) if x is not None))


@np.errstate(all="ignore")  # as torch does
def evaluate(problem: Problem) -> Evaluation:
    """Evaluate distances and derivatives; see `signature.Problem`."""
    return blocked.evaluate(problem._replace(p=_in_numpy(problem.p), q=_in_numpy(problem.q)))


def _in_numpy(side: Side) -> Side:
    return type(side)(*(None if x is None else as_numpy(x) for x in side))  # type: ignore[arg-type]
