"""What a fitted mixture says of samples, computed some of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.data import Batch
from cramix.mixture import MultivariateNormalMixture

# Numbers in the offsets of samples to components that are computed at a time.
_BLOCK = 1 << 22

Of = Callable[[MultivariateNormalMixture, Tensor], Tensor]


def labels(mixture: MultivariateNormalMixture, x: Tensor) -> Tensor:
    """Return the most probable component of each sample, `(n,)`."""
    return mixture.responsibilities(x).argmax(-1)


def of_blocks(mixture: MultivariateNormalMixture, of: Of, x: Tensor) -> Tensor:
    """Return something of each sample `(n, d)`, computed some samples at a time."""
    rows = max(1, _BLOCK // mixture.means.numel())
    return torch.cat([of(mixture, part.to(mixture.means)) for part in x.split(rows)])


class Likelihood(NamedTuple):
    """The total log likelihood of weighted samples, and their weight."""

    log_likelihood: float
    weight: float

    def __add__(self, other: Likelihood) -> Likelihood:  # type: ignore[override]
        return Likelihood(self.log_likelihood + other.log_likelihood, self.weight + other.weight)


def total_likelihood(mixture: MultivariateNormalMixture, batches: Iterator[Batch]) -> Likelihood:
    """Return the likelihood of a part of a source."""
    total = Likelihood(0.0, 0.0)
    for batch in batches:
        likelihood = of_blocks(mixture, MultivariateNormalMixture.log_prob, batch.rows)
        if batch.weights is None:
            total += Likelihood(likelihood.sum().item(), len(likelihood))
        else:
            weights = batch.weights.double()
            likelihood = torch.where(weights > 0, likelihood, 0)
            total += Likelihood((weights @ likelihood).item(), weights.sum().item())
    return total
