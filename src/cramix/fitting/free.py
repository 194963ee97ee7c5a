"""Free tensors of a mixture, which any step of gradient descent leaves valid, and the way back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.families import Family
from cramix.mixture import MultivariateNormalMixture
from cramix.parameters import CHOLESKY, GRAM, LOG_POSITIVE, WEIGHTS, Map

# A weight of 0 has no logit, and a variance as small as the floor no logarithm beyond it: these parts are the least.
_LEAST_WEIGHT, _LEAST_OF_FLOOR = 1e-9, 1e-2
# Variances in units of the floor from which on covariances have no inverse in float64.
WIDEST = 1e14

# From free tensors to what is added to the floor: for matrices, and for variances along the axes.
_SPREADS: dict[str, tuple[Map, Map]] = {
    "cholesky": (
        Map(
            lambda free: _squared(CHOLESKY.constrain(free)),
            lambda matrix: CHOLESKY.unconstrain(torch.linalg.cholesky(matrix)),
        ),
        Map(
            lambda free: LOG_POSITIVE.constrain(free).square(),
            lambda variances: LOG_POSITIVE.unconstrain(variances.sqrt()),
        ),
    ),
    "gram": (GRAM, Map(torch.square, torch.sqrt)),
}
PARAMETRIZATIONS = tuple(_SPREADS)


class Free(NamedTuple):
    """Logits `(k,)`, means `(k, d)` and a free spread, of the shape of what the kind of covariances holds."""

    weights: Tensor
    means: Tensor
    covariances: Tensor

    def copy(self) -> Free:
        """Return the same numbers, which later steps leave alone."""
        return Free(*(x.detach().clone() for x in self))


class Chart:
    """Mixtures of a family by free tensors: weights are a softmax, means are free, covariances have the floor added.

    Args:
        family: the kind of covariances and their floor.
        parametrization: "cholesky", lower factors with the logarithm of their diagonal, or the logarithm of scales;
            "gram", the paper's `S^T S` of any matrix S, or the square of any number.
    """

    def __init__(self, family: Family, parametrization: str = "cholesky") -> None:
        self.family = family
        self._map = _SPREADS[parametrization][family.kind.axis_aligned]

    def free(self, weights: Tensor, means: Tensor, spread: Tensor) -> Free:
        """Return free tensors of weights, means and what the kind holds.

        No variance comes below the floor, and none so far above that descents could not begin there, as those of starts
        do that outliers make wide.
        """
        least, most = _LEAST_OF_FLOOR * self.family.floor, 0.5 * WIDEST * self.family.floor
        if self.family.kind.axis_aligned:
            above = (spread - self.family.floor).clamp(least, most)
        else:
            variances, axes = torch.linalg.eigh(spread)
            above = (axes * (variances - self.family.floor).clamp(least, most).unsqueeze(-2)) @ axes.mT
        return Free(WEIGHTS.unconstrain(weights.clamp_min(_LEAST_WEIGHT)), means.clone(), self._map.unconstrain(above))

    def parameters(self, free: Free) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, means and what the kind holds."""
        above = self._map.constrain(free.covariances)
        if self.family.kind.axis_aligned:
            spread = above + self.family.floor
        else:
            spread = above + self.family.floor * torch.eye(self.family.dim, dtype=above.dtype, device=above.device)
        return WEIGHTS.constrain(free.weights), free.means, spread

    def mixture(self, free: Free) -> MultivariateNormalMixture:
        """Return the mixture, in the units of the problem."""
        weights, means, spread = self.parameters(free)
        return MultivariateNormalMixture(weights, means, self.family.kind(spread), validate_args=False)


def _squared(lower: Tensor) -> Tensor:
    return lower @ lower.mT
