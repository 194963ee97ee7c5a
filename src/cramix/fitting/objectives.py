"""What gradient descent makes small: the distance to a target, or minus its likelihood, in the units of a problem."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.prepared import PreparedTarget
from cramix.fitting.batches import Batches
from cramix.fitting.em import Data
from cramix.fitting.problem import Problem
from cramix.loss import sliced_cramer_loss
from cramix.mixture import MultivariateNormalMixture, Tied

# Up to this many points, and this many with a bandwidth, the self energy of the target, a sum over all pairs, is worth
# its time: losses are then distances.
_FEW_POINTS, _FEW_SMOOTHED = 1 << 13, 1 << 11


class Objective(ABC):
    """A loss of weights, means and what the kind of covariances holds; abstract.

    Args:
        problem: what to fit.
        batch_size: components of the target for one loss; None for all.
    """

    def __init__(self, problem: Problem, batch_size: int | None = None) -> None:
        self.problem, self.batches = problem, Batches(problem, batch_size)

    @property
    def random(self) -> bool:
        """Whether two losses of one mixture differ."""
        return self.batches.size is not None

    @abstractmethod
    def __call__(self, weights: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """Return the loss, with a gradient."""

    def shown(self, loss: float) -> float:
        """Return the loss as a history holds it."""
        return loss

    def mixture(self, weights: Tensor, means: Tensor, spread: Tensor) -> MultivariateNormalMixture:
        """Return the mixture in the units."""
        return MultivariateNormalMixture(weights, means, self.problem.family.kind(spread), validate_args=False)


class Likelihood(Objective):
    """Minus the mean log likelihood of samples; log densities are added up by log-sum-exp."""

    def __init__(self, problem: Problem, batch_size: int | None = None) -> None:
        super().__init__(problem, batch_size)
        if not problem.target.only_points:
            raise ValueError(
                'objective must be "cramer" for a mixture as the target; got "nll", which needs samples. Draw some.'
            )

    def __call__(self, weights: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """Return the loss, with a gradient."""
        family = self.problem.family
        return -_MeanLogLikelihood.apply(family.coefficients(weights, means, spread), self._data())

    def shown(self, loss: float) -> float:
        """Return the loss in the units of the data."""
        return loss + self.problem.units.log_volume

    def _data(self) -> Data:
        if self.batches.size is None:
            return self.problem.data
        batch = self.batches.next()
        return Data(self.problem.family, batch.means, batch.weights)


class _MeanLogLikelihood(Function):
    """The mean log likelihood by coefficients of the log densities, `(k, F)`, with its derivative in one pass."""

    @staticmethod
    def forward(ctx, coefficients, data):
        sums, likelihood = data.expect(coefficients.unsqueeze(0))
        ctx.save_for_backward(sums.squeeze(0))
        return likelihood.squeeze(0)

    @staticmethod
    def backward(ctx, grad):
        (sums,) = ctx.saved_tensors
        return grad * sums, None


class Cramer(Objective):
    """The sliced Cramér loss.

    Args:
        problem: what to fit.
        batch_size: components of the target for one loss; None for all.
        directions: "exact", a number of random slices anew for each loss, or directions `(t, d)`.
        bandwidth: the scale of a normal component in place of each point of the target; 0 for points.
        normalization: as in `sliced_cramer_loss`.
    """

    def __init__(
        self,
        problem: Problem,
        batch_size: int | None = None,
        directions: str | int | Tensor = "exact",
        bandwidth: float = 0.0,
        normalization: str = "mean",
    ) -> None:
        super().__init__(problem, batch_size)
        like = problem.units.scale
        if isinstance(directions, str) and problem.target.dim == 1:
            directions = torch.ones_like(like).unsqueeze(0)  # there is but one
        self._directions = directions.to(like) if isinstance(directions, Tensor) else directions
        self._normalization = normalization
        self._kernel = Tied(bandwidth**2 * torch.eye(len(like)).to(like)) if bandwidth else None
        self._target = PreparedTarget(self._smoothed(self.batches.next())) if batch_size is None else None

    @property
    def random(self) -> bool:
        """Whether two losses of one mixture differ."""
        return super().random or isinstance(self._directions, int)

    def __call__(self, weights: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """Return the loss, with a gradient."""
        target = self._smoothed(self.batches.next()) if self._target is None else self._target
        return sliced_cramer_loss(
            self.mixture(weights, means, spread),
            target,
            directions=self._directions,
            normalization=self._normalization,
            target_self_energy=self._with_target_self_energy(target),
            generator=self.problem.generator,
        )

    def _smoothed(self, target: MultivariateNormalMixture) -> MultivariateNormalMixture:
        if self._kernel is None or not target.only_points:
            return target
        return MultivariateNormalMixture(target.weights, target.means, self._kernel, validate_args=False)

    def _with_target_self_energy(self, target: MultivariateNormalMixture | PreparedTarget) -> bool:
        """Return whether to subtract the self energy of the target, which does not depend on the mixture."""
        if not isinstance(self._directions, str):
            return True  # it takes no longer
        mixture = target.mixture if isinstance(target, PreparedTarget) else target
        few = _FEW_POINTS if mixture.is_empirical else _FEW_SMOOTHED if self._kernel is not None else 0
        return self._target is not None and mixture.n_components <= few
