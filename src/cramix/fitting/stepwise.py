"""Stepwise EM: a fit that takes samples batch by batch and does not need them again.

Each batch is one expectation step: the sums of its features are added to those of all batches before, and the mixture
follows from the total. Nothing is forgotten, or earlier samples lose weight at a constant rate (Cappé and Moulines
2009). Responsibilities of earlier samples stay those under the mixtures of their time, so the start matters: it should
be a fit to some thousands of samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from cramix.fitting.features import LEAST_WEIGHT, Data, without_empty
from cramix.fitting.problem import Components, Units, floor_in, standard_units
from cramix.fitting.starts import sums_with
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.covariance import FAMILIES, Family


@dataclass(frozen=True)
class Stepwise:
    """A fit to all samples so far.

    Args:
        family: the kind of covariances.
        units: to compute in.
        sums: of the features, relative to the weight, `(1, k, F)`.
        weight: of all samples so far, less what is forgotten.
    """

    family: Family
    units: Units
    sums: Tensor
    weight: float

    @classmethod
    def after(
        cls,
        mixture: MultivariateNormalMixture,
        covariance_type: str,
        weight: float,
        reg_covar: float | None = None,
        relative_reg_covar: float = 1e-6,
    ) -> Self:
        """Return a fit that goes on from a mixture.

        Args:
            mixture: in float64, of the covariance type.
            covariance_type: the kind of covariances.
            weight: of the samples that it was fitted to.
            reg_covar: added to every variance; None is relative to the variances of the mixture.
            relative_reg_covar: for that.
        """
        family = FAMILIES[covariance_type]
        standard = standard_units(mixture, family)
        fitted = family(mixture.dim, floor_in(standard, standard, reg_covar, relative_reg_covar))
        covariances = mixture.covariances / standard.scale / standard.scale.unsqueeze(-1)
        means, weights = standard.of(mixture.means), mixture.weights.clamp_min(LEAST_WEIGHT)
        return cls(fitted, standard, sums_with(fitted, weights, means, covariances).unsqueeze(0), weight)

    def updated(self, x: Tensor, weights: Tensor, forgetting: float = 0.0) -> tuple[Self, float]:
        """Return the fit after a batch, and the mean log likelihood of the batch before it, in the units of the data.

        Args:
            x: samples `(n, d)`.
            weights: `(n,)` in float64, not all 0.
            forgetting: the part of the earlier weight that is lost with each sample of weight 1.
        """
        added = weights.sum().item()
        data = Data(self.family, self.units.of(x), weights)
        new, likelihood = data.expect(self.family.coefficients(*self.family.parameters(self.sums)))
        kept = self.weight * (1 - forgetting) ** added
        total = kept + added
        sums = (kept / total) * self.sums + (added / total) * without_empty(new, self.sums)
        sums = torch.where(sums[..., :1] < LEAST_WEIGHT, LEAST_WEIGHT / sums[..., :1] * sums, sums)
        return replace(self, sums=sums, weight=total), likelihood.item() - self.units.log_volume

    @property
    def mixture(self) -> MultivariateNormalMixture:
        """The fitted mixture in the units of the data."""
        weights, means, values = (x.squeeze(0) for x in self.family.parameters(self.sums))
        kind = self.family.kind(self.family.stretched(values, self.units.scale))
        return MultivariateNormalMixture(
            weights, self.units.centre + self.units.scale * means, kind, validate_args=False
        )


def sums_at(family: Family, components: Components) -> Tensor:
    """Return the sums of features that belong to components, `(1, k, F)`."""
    weights, means, values = components
    covariances = family.kind(values).matrices(family.dim).expand(*means.shape, -1)
    return sums_with(family, weights.clamp_min(LEAST_WEIGHT), means, covariances).unsqueeze(0)
