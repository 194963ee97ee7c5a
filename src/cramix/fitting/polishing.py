"""The last stage of a fit: one fit up to its optimum, by steps of expectation maximisation and leaps along them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cramix.fitting.em import Data, Outcome

# How far the first leap may go, in steps; by how much that grows after one that gained, and shrinks after another; and
# the least it comes to.
_FIRST, _GROWTH, _LEAST = 4.0, 4.0, 2.0


def polish(
    data: Data,
    sums: Tensor,
    iterations: int,
    tolerance: float,
    watch: Callable[[float], None] = lambda log_likelihood: None,
) -> Outcome:
    """Climb until a step gains less than the tolerance.

    Near an optimum steps shrink by about the same factor, and where components overlap it is close to one. After two
    steps a leap goes to where they seem to lead (Varadhan and Roland 2008, SQUAREM), which stays only if the mean log
    likelihood is higher there.

    Args:
        data: what to fit.
        sums: where the fit is, `(1, k, F)`.
        iterations: at most so many steps, leaps included.
        tolerance: of the gain in the mean log likelihood.
        watch: called with the mean log likelihood before each step.
    """
    taken = 0

    def step(place: Tensor) -> tuple[Tensor, float]:
        nonlocal taken
        taken += 1
        following, likelihood = data.step(place)
        watch(likelihood.item())
        return following, likelihood.item()

    farthest = _FIRST
    first, value = step(sums)
    while taken < iterations:
        second, first_value = step(first)
        if first_value - value < tolerance:
            return Outcome(second, sums.new_tensor([first_value]), taken, True)
        length, place = _leap(sums, first, second, farthest)
        sums, value, first = first, first_value, second
        if place is None or taken == iterations:
            continue
        try:
            landing, there = step(place)
        except torch.linalg.LinAlgError:  # no mixture is there
            there = -torch.inf
        if there >= first_value:
            sums, value, first = place, there, landing
            farthest = farthest * _GROWTH if length == farthest else farthest
        else:
            farthest = max(farthest / _GROWTH, _LEAST)
    return Outcome(first, sums.new_tensor([value]), taken, False)


def _leap(start: Tensor, first: Tensor, second: Tensor, farthest: float) -> tuple[float, Tensor | None]:
    """Return how many steps a leap goes, and its place; none where it would be no further than the steps."""
    step = first - start
    change = second - first - step
    length = min((step.norm() / change.norm().clamp_min(1e-300)).item(), farthest)
    if length <= 1:
        return length, None
    place = start + 2 * length * step + length**2 * change
    return length, place if bool((place[..., 0] > 0).all()) else None
