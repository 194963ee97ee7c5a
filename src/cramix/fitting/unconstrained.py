"""Unconstrained tensors for the parameters of a mixture, which are valid after any gradient step, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.fitting.problem import Components
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.covariance import Family
from cramix.parameters import CHOLESKY, GRAM, LOG_POSITIVE, WEIGHTS, Map

# The least weight, and the least variance above the floor relative to it: both have a finite logarithm.
_LEAST_WEIGHT, _LEAST_ABOVE_FLOOR = 1e-9, 1e-2
# Ratio of a variance to the floor beyond which a covariance has no inverse in float64.
WIDEST = 1e14

# From unconstrained tensors to what is added to the floor: for matrices, and for variances along the axes.
_COVARIANCES: dict[str, tuple[Map, Map]] = {
    "cholesky": (
        Map(
            lambda x: _squared(CHOLESKY.constrain(x)),
            lambda matrix: CHOLESKY.unconstrain(torch.linalg.cholesky(matrix)),
        ),
        Map(
            lambda x: LOG_POSITIVE.constrain(x).square(),
            lambda variances: LOG_POSITIVE.unconstrain(variances.sqrt()),
        ),
    ),
    "gram": (GRAM, Map(torch.square, torch.sqrt)),
}
PARAMETRIZATIONS = tuple(_COVARIANCES)


class Parametrization:
    """Components of a family by unconstrained tensors: logits of weights, means, and factors of covariances.

    The unconstrained tensors are `Components`, too: logits `(k,)`, means `(k, d)`, and a tensor of the shape that the
    kind of covariances has. The floor is added to the covariances.

    Args:
        family: the kind of covariances and their floor.
        name: "cholesky", lower factors with the logarithm of their diagonal, or the logarithm of scales; or "gram",
            the paper's `S^T S` of any matrix S, or the square of any number.
    """

    def __init__(self, family: Family, name: str = "cholesky") -> None:
        self.family = family
        self.least_floor = float(torch.as_tensor(family.floor).min())
        self._map = _COVARIANCES[name][family.kind.axis_aligned]

    def unconstrained(self, components: Components) -> Components:
        """Return the unconstrained tensors of components.

        Variances are clamped between the floor and the largest ones for which a descent can start: an outlier makes
        starts wide.
        """
        weights, means, values = components
        least, most = _LEAST_ABOVE_FLOOR * self.least_floor, 0.5 * WIDEST * self.least_floor
        if self.family.kind.axis_aligned:
            above = (values - self._floor(values)).clamp(least, most)
        else:
            variances, axes = torch.linalg.eigh(values - self._floor(values))
            above = (axes * variances.clamp(least, most).unsqueeze(-2)) @ axes.mT
        logits = WEIGHTS.unconstrain(weights.clamp_min(_LEAST_WEIGHT))
        return Components(logits, means.clone(), self._map.unconstrain(above))

    def components(self, unconstrained: Components) -> Components:
        """Return the components that unconstrained tensors stand for."""
        above = self._map.constrain(unconstrained.covariances)
        weights = WEIGHTS.constrain(unconstrained.weights)
        return Components(weights, unconstrained.means, above + self._floor(above))

    def mixture(self, unconstrained: Components) -> MultivariateNormalMixture:
        """Return the mixture that unconstrained tensors stand for, in the units of the problem."""
        weights, means, values = self.components(unconstrained)
        return MultivariateNormalMixture(weights, means, self.family.kind(values), validate_args=False)

    def _floor(self, values: Tensor) -> Tensor:
        """Return the floor in the form of the values of the kind."""
        floor = torch.as_tensor(self.family.floor, dtype=values.dtype, device=values.device)
        if self.family.kind.axis_aligned:
            return floor
        return torch.diag_embed(floor.expand(self.family.dim))


def _squared(lower: Tensor) -> Tensor:
    return lower @ lower.mT
