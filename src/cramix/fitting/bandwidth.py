"""How wide the normal component is that stands for a sample in a Cramér loss.

The loss tolerates covariances that are too narrow, the more so the higher the dimension, for samples are points and
points are narrow. Components as wide as samples are apart tell it what lies between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.fitting.problem import Problem

# Samples to look at.
_ENOUGH = 2000


def default_bandwidth(problem: Problem) -> float:
    """Return the median distance of samples to the nearest other one, over `sqrt(d)`, in the units of the problem.

    Of more samples than enough some are looked at, and the distance is that of as many as there are: it falls with
    their number to the power `1/d`. Samples at one place count as one.
    """
    target = problem.target
    n, d = target.means.shape
    places = problem.units.of(target.means[_some(n, target.means.device)] if n > _ENOUGH else target.means)
    apart = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = torch.where(apart > 0, apart, torch.inf).amin(-1)
    nearest = nearest[nearest < torch.inf]
    if not len(nearest):
        return 0.0
    return nearest.median().item() * (len(places) / n) ** (1 / d) / d**0.5


def _some(n: int, device: torch.device) -> Tensor:
    """Draw numbers below n, always the same; at equal steps samples that take turns would be missed."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randint(n, (_ENOUGH,), generator=generator, device=device).unique()
