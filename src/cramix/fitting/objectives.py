"""What gradient descent minimises: the distance to a target or its negative log likelihood, in batches or not."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.distance.prepared import PreparedTarget
from cramix.fitting.features import Data
from cramix.fitting.problem import Components, Problem
from cramix.loss import sliced_cramer_loss
from cramix.mixture import MultivariateNormalMixture, Tied

# Up to this many points, and this many with a bandwidth, the self energy of the target, a sum over all pairs, is worth
# its time: losses are then distances.
_FEW_POINTS, _FEW_SMOOTHED = 1 << 13, 1 << 11
# Samples to draw a start from, for methods that read only batches, and to estimate the default bandwidth.
_START_ROWS, _BANDWIDTH_ROWS = 1 << 14, 2000


class Batches:
    """The target of a problem in its units: all of it, or components of it drawn by their weights.

    The components of a batch have equal weights, so that a mean over it is an unbiased estimate. Only the rows of a
    batch are read, which may lie in a file.

    Args:
        problem: whose target it is.
        size: of a batch; None for the whole target.
    """

    def __init__(self, problem: Problem, size: int | None) -> None:
        self._problem, self.size = problem, size
        weights = problem.target.weights
        equal = weights.stride() == (0,)
        self._mass = None if equal or size is None else weights.double().cumsum(0)
        self._whole = self._taken(slice(None), weights.double()) if size is None else None

    def next(self) -> MultivariateNormalMixture:
        """Return the whole target, or the next batch."""
        if self._whole is not None:
            return self._whole
        assert self.size is not None, "without a size there is a whole"
        rows = self._drawn(self.size)
        return self._taken(rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64, device=rows.device))

    def for_start(self) -> Data:
        """Return data to draw a start from: the whole target, or some samples if only batches are to be read."""
        problem, n = self._problem, self._problem.target.n_components
        enough = max(_START_ROWS, 10 * problem.n_components)
        if self.size is None or not problem.target.is_empirical or n <= enough:
            return problem.data
        rows, times = self._drawn(enough).unique(return_counts=True)
        return Data(problem.family, problem.units.of(problem.target.means[rows]), times.double())

    def _drawn(self, count: int) -> Tensor:
        """Draw rows by their weights, with replacement."""
        target, generator = self._problem.target, self._problem.generator
        n, device = target.n_components, target.means.device
        if self._mass is None:
            return torch.randint(n, (count,), generator=generator, device=device)
        levels = torch.rand(count, generator=generator, dtype=torch.float64, device=device) * self._mass[-1]
        return torch.searchsorted(self._mass, levels, right=True).clamp_max(n - 1)

    def _taken(self, rows: Tensor | slice, weights: Tensor) -> MultivariateNormalMixture:
        target, units = self._problem.target, self._problem.units
        means = units.of(target.means[rows])
        if target.is_empirical:
            return MultivariateNormalMixture.from_samples(means, weights)
        kind = target.covariance_kind
        values = kind.values if kind.shape[-1] == 1 else kind.values[rows]
        stretched = kind.like(values.double()).transform(torch.diag(1 / units.scale))
        return MultivariateNormalMixture(weights, means, stretched, validate_args=False)


class Objective(ABC):
    """A loss of components; abstract.

    Args:
        problem: what to fit.
        batch_size: components of the target for each evaluation; None for all.
    """

    def __init__(self, problem: Problem, batch_size: int | None = None) -> None:
        self.problem, self.batches = problem, Batches(problem, batch_size)

    @property
    def random(self) -> bool:
        """Whether two evaluations at the same point differ."""
        return self.batches.size is not None

    @abstractmethod
    def __call__(self, components: Components) -> Tensor:
        """Return the loss, with a gradient."""

    def shown(self, loss: float) -> float:
        """Return the loss as the history records it."""
        return loss

    def mixture(self, components: Components) -> MultivariateNormalMixture:
        """Return the mixture in the units of the problem."""
        weights, means, values = components
        return MultivariateNormalMixture(weights, means, self.problem.family.kind(values), validate_args=False)


class Likelihood(Objective):
    """The negative mean log likelihood of samples."""

    def __init__(self, problem: Problem, batch_size: int | None = None) -> None:
        super().__init__(problem, batch_size)
        if not problem.target.is_empirical:
            raise ValueError("The likelihood needs samples; X is a mixture. Fit it by the Cramér loss, or sample it.")

    def __call__(self, components: Components) -> Tensor:
        """Return the loss, with a gradient."""
        return -_MeanLogLikelihood.apply(self.problem.family.coefficients(*components), self._data())

    def shown(self, loss: float) -> float:
        """Return the loss in the units of the data."""
        return loss + self.problem.units.log_volume

    def _data(self) -> Data:
        if self.batches.size is None:
            return self.problem.data
        batch = self.batches.next()
        return Data(self.problem.family, batch.means, batch.weights)


class _MeanLogLikelihood(Function):
    """The mean log likelihood by coefficients of the log densities, `(k, F)`, and its derivative, in one pass."""

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
        batch_size: components of the target for each evaluation; None for all.
        directions: "exact", a number of random slices drawn for each evaluation, or directions `(t, d)`.
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
            directions = torch.ones_like(like).unsqueeze(0)  # the only direction there is
        self._directions = directions.to(like) if isinstance(directions, Tensor) else directions
        self._normalization = normalization
        self._kernel = Tied(bandwidth**2 * torch.eye(len(like)).to(like)) if bandwidth else None
        self._target = PreparedTarget(self._smoothed(self.batches.next())) if batch_size is None else None

    @property
    def random(self) -> bool:
        """Whether two evaluations at the same point differ."""
        return super().random or isinstance(self._directions, int)

    def __call__(self, components: Components) -> Tensor:
        """Return the loss, with a gradient."""
        target = self._smoothed(self.batches.next()) if self._target is None else self._target
        return sliced_cramer_loss(
            self.mixture(components),
            target,
            directions=self._directions,
            normalization=self._normalization,
            target_self_energy=self._with_self_energy(target),
            generator=self.problem.generator,
        )

    def _smoothed(self, target: MultivariateNormalMixture) -> MultivariateNormalMixture:
        if self._kernel is None or not target.is_empirical:
            return target
        return MultivariateNormalMixture(target.weights, target.means, self._kernel, validate_args=False)

    def _with_self_energy(self, target: MultivariateNormalMixture | PreparedTarget) -> bool:
        """Return whether to subtract the self energy of the target, which does not depend on the mixture."""
        if not isinstance(self._directions, str):
            return True  # it takes no longer
        mixture = target.mixture if isinstance(target, PreparedTarget) else target
        few = _FEW_POINTS if mixture.is_empirical else _FEW_SMOOTHED if self._kernel is not None else 0
        return self._target is not None and mixture.n_components <= few


def default_bandwidth(problem: Problem) -> float:
    """Return the median distance of samples to their nearest neighbour, over `sqrt(d)`, in the units of the problem.

    The Cramér loss of points tolerates covariances that are too narrow, the more so in many dimensions. Kernels as wide
    as the gaps between samples correct that. Large data are subsampled, and the distance is extrapolated to the full
    number of samples: it falls with their number to the power `1/d`. Repeated samples count once.
    """
    means = problem.target.means
    n, d = means.shape
    if n > _BANDWIDTH_ROWS:
        # Drawn, not at equal steps, which could follow a period in the order of the data; always the same draw.
        generator = torch.Generator(means.device).manual_seed(0)
        means = means[torch.randint(n, (_BANDWIDTH_ROWS,), generator=generator, device=means.device).unique()]
    x = problem.units.of(means)
    apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = torch.where(apart > 0, apart, torch.inf).amin(-1)
    nearest = nearest[nearest < torch.inf]
    if not len(nearest):
        return 0.0
    return nearest.median().item() * (len(x) / n) ** (1 / d) / d**0.5
