"""Known conditional mixtures, for tests and benchmarks of networks."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix import NormalMixture


def crossing(x: Tensor) -> NormalMixture:
    means = torch.cat([x, -x], -1)
    return NormalMixture(torch.full_like(means, 0.5), means, torch.full_like(means, 0.1))


def growing(x: Tensor) -> NormalMixture:
    return NormalMixture(torch.ones_like(x), torch.sin(3 * x), 0.05 + 0.2 * (x + 1))
