"""L-BFGS (Liu and Nocedal 1989) on a flat vector, a step at a time.

torch's implementation takes several steps per call, evaluates each point twice, and resets its curvature where
gradients are small. Values may be infinite: a step that ends there is halved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray

# Wolfe's conditions: the fraction of the predicted gain that a step must reach, and of the slope that may remain.
_GAIN, _SLOPE = 1e-4, 0.9
# Pairs of steps and gradient changes that are stored, trials of a line search, and the length of the first step.
_MEMORY, _TRIALS, _FIRST = 20, 30, 0.1


class Point(NamedTuple):
    """A point `(n,)`, the value there and the gradient."""

    x: ndarray
    value: float
    gradient: ndarray


def minimize(function: Callable[[ndarray], tuple[float, ndarray]], x: ndarray) -> Iterator[Point]:
    """Yield the start and the point after each step, with decreasing values, until no step gains.

    Args:
        function: from a point `(n,)` to the value and the gradient.
        x: the start, where the value is finite.
    """
    pairs = deque[tuple[ndarray, ndarray, float]](maxlen=_MEMORY)
    point = Point(x, *function(x))
    while True:
        yield point
        following = _search(function, point, _direction(point.gradient, pairs))
        if following is None and pairs:
            pairs.clear()
            following = _search(function, point, _direction(point.gradient, pairs))
        if following is None:
            return
        step, change = following.x - point.x, following.gradient - point.gradient
        curvature = float(step @ change)
        if curvature > np.finfo(x.dtype).eps * float(np.sqrt((step @ step) * (change @ change))):
            pairs.append((step, change, curvature))
        point = following


def _direction(gradient: ndarray, pairs: deque[tuple[ndarray, ndarray, float]]) -> ndarray:
    """Return minus the gradient times the inverse Hessian that the stored pairs imply."""
    if not pairs:
        return -_FIRST / max(float(np.linalg.norm(gradient)), np.finfo(float).tiny) * gradient
    direction, shares = -gradient, list[float]()
    for step, change, curvature in reversed(pairs):
        shares.append(float(step @ direction) / curvature)
        direction = direction - shares[-1] * change
    _, change, curvature = pairs[-1]
    direction = curvature / float(change @ change) * direction
    for (step, change, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction = direction + (share - float(change @ direction) / curvature) * step
    return direction


def _search(function: Callable[[ndarray], tuple[float, ndarray]], point: Point, direction: ndarray) -> Point | None:
    """Find a step along the direction that meets Wolfe's conditions, by bisection (Lewis and Overton 2013).

    Failing that, return one that gains, or None where rounding hides any gain.
    """
    slope = float(point.gradient @ direction)
    if not slope < 0:
        return None
    low, high, length, best = 0.0, np.inf, 1.0, None
    for _ in range(_TRIALS):
        x = point.x + length * direction
        trial = Point(x, *function(x))
        if not trial.value <= point.value + _GAIN * length * slope:
            high = length
        elif float(trial.gradient @ direction) < _SLOPE * slope:
            low, best = length, trial
        else:
            return trial
        length = 0.5 * (low + high) if high < np.inf else 2 * low
    return best
