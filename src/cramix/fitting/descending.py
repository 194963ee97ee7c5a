"""Gradient descent over the free tensors of a mixture, one step at a time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from cramix.fitting.free import WIDEST, Chart, Free
from cramix.fitting.objectives import Objective
from cramix.fitting.optimizers import Rates, first_order
from cramix.fitting.quasi_newton import minimize
from cramix.mixture import MultivariateNormalMixture

# Steps of L-BFGS over which the gain counts.
_STEPS_BACK = 5
# First-order steps of which the mean loss counts, at least this part of them all where losses have noise, and how the
# rates fall where it gains nothing: so much, so often.
_WINDOW, _PART, _FALL, _FALLS = 50, 0.1, 0.25, 3


class Descent(NamedTuple):
    """A place on the way down.

    Args:
        step: 0 is the start.
        loss: there, as a history holds it.
        free: tensors of the place, which later steps leave alone.
        chart: what they mean.
        reason: why it is the last one; None if others follow.
        converged: whether that is a good one.
    """

    step: int
    loss: float
    free: Free
    chart: Chart
    reason: str | None = None
    converged: bool = False

    def mixture(self) -> MultivariateNormalMixture:
        """Return the mixture in the units of the problem."""
        return self.chart.mixture(self.free)


def descend(
    chart: Chart, start: Free, objective: Objective, optimizer: str, rates: Rates, steps: int, tolerance: float = 0.0
) -> Iterator[Descent]:
    """Yield the start and the place after each step; the last one says why.

    A loss or a gradient that is not finite ends it, at the last place where both were.

    Args:
        chart: what the free tensors mean.
        start: where to begin.
        objective: the loss.
        optimizer: "lbfgs", which wants losses without noise, or a name of `first_order`.
        rates: for each group of tensors. L-BFGS sees the tensors divided by them.
        steps: at most so many.
        tolerance: gain of the loss at which to stop, 1 being the size of the problem: over some steps of L-BFGS;
            of the mean loss over a window of first-order steps, when lower rates gain no more either. First-order
            steps of tolerance 0 are all taken, with the rates given.
    """
    if optimizer == "lbfgs":
        return _quasi_newton(chart, start, objective, rates, steps, tolerance)
    return _first_order(chart, start, objective, optimizer, rates, steps, tolerance)


def _first_order(
    chart: Chart, start: Free, objective: Objective, name: str, rates: Rates, steps: int, tolerance: float
) -> Iterator[Descent]:
    free = start.copy()
    optimizer = first_order(name, free, rates)
    window, least, falls = list[float](), math.inf, 0
    width = max(_WINDOW, int(_PART * steps)) if objective.random else _WINDOW
    place = Descent(0, math.nan, start, chart)
    for step in range(steps + 1):
        loss, gradients = _evaluate(chart, objective, free)
        if math.isinf(loss):
            yield place._replace(reason=f"the loss at step {step} was not finite")
            return
        place = Descent(step, objective.shown(loss), free.copy(), chart)
        window.append(loss)
        if tolerance and len(window) == width:
            mean = sum(window) / width
            if not mean < least - _share(tolerance, mean):
                falls += 1
                for group in optimizer.param_groups:
                    group["lr"] *= _FALL
            least = min(least, mean)
            window.clear()
        if falls > _FALLS:
            yield place._replace(reason="the mean loss gains less than the tolerance", converged=True)
            return
        if step < steps:
            yield place
            for x, gradient in zip(free, gradients, strict=True):
                x.grad = gradient
            optimizer.step()
    yield place._replace(reason="out of steps" if tolerance else "all steps taken", converged=not tolerance)


def _quasi_newton(
    chart: Chart, start: Free, objective: Objective, rates: Rates, steps: int, tolerance: float
) -> Iterator[Descent]:
    like, sizes = start.weights, [x.numel() for x in start]
    factors = torch.cat([torch.full((n,), rate, dtype=like.dtype) for n, rate in zip(sizes, rates, strict=True)])

    def free(scaled: np.ndarray) -> Free:
        parts = (factors * torch.from_numpy(scaled)).to(like).split(sizes)
        return Free(*(part.clone().view_as(x) for part, x in zip(parts, start, strict=True)))

    def slope(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradients = _evaluate(chart, objective, free(scaled))
        return loss, (factors * torch.cat([x.flatten().cpu() for x in gradients])).numpy()

    begin = torch.cat([x.flatten().cpu() for x in start]) / factors
    last = deque[float](maxlen=_STEPS_BACK + 1)
    for step, point in enumerate(minimize(slope, begin.numpy())):
        if math.isinf(point.value):
            yield Descent(0, math.nan, start, chart, "the loss of the start was not finite")
            return
        place = Descent(step, objective.shown(point.value), free(point.x), chart)
        last.append(point.value)
        if len(last) > _STEPS_BACK and last[0] - point.value <= _share(tolerance, point.value):
            break
        if step == steps:
            yield place._replace(reason="out of steps")
            return
        yield place
    yield place._replace(reason="the loss gains less than the tolerance", converged=True)


def _share(tolerance: float, loss: float) -> float:
    return tolerance * max(1.0, abs(loss))


def _evaluate(chart: Chart, objective: Objective, free: Free) -> tuple[float, tuple[torch.Tensor, ...]]:
    """Return the loss and its gradients in the free tensors; where either is not finite, infinity and zeros."""
    nothing = math.inf, tuple(torch.zeros_like(x) for x in free)
    with torch.enable_grad():
        leaves = Free(*(x.detach().requires_grad_() for x in free))
        weights, means, spread = chart.parameters(leaves)
        valid = [weights.isfinite().all(), means.isfinite().all(), spread.abs().amax() <= WIDEST * chart.family.floor]
        if not all(map(bool, valid)):
            return nothing
        try:
            loss = objective(weights, means, spread)
        except torch.linalg.LinAlgError:  # rounding has made a covariance singular
            return nothing
        gradients = torch.autograd.grad(loss, leaves)
    finite = [loss.isfinite(), *(x.isfinite().all() for x in gradients)]
    return (loss.item(), gradients) if all(map(bool, finite)) else nothing
