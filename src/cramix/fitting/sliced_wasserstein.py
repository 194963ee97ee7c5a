"""A fit by the sliced Wasserstein distance, after Kolouri, Rohde and Hoffmann 2018, to compare with.

"Sliced Wasserstein Distance for Learning Gaussian Mixture Models", CVPR 2018. From the paper: the loss is the mean of
`W2^2` between the projections of the mixture and of the samples, over random directions drawn in each step; RMSProp;
weights, means and covariances are all learned. Differences:

- The transport on a line is exact, by quantiles of the mixture; the paper discretises the density.
- Weights are a softmax and covariances have Cholesky factors; the paper projects on the valid set.
- Directions come in orthogonal blocks, two in a step, because exact transport is slow.
- The units are standardised, the start is at random samples, and the number of steps and the learning rate are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cramix.checks import check_integer
from cramix.fitting.descent import descend, follow, solution_at
from cramix.fitting.learning_rates import LearningRate, rates_of
from cramix.fitting.objectives import Objective
from cramix.fitting.problem import Components, Method, Problem, Solution
from cramix.fitting.starts import draw_starts
from cramix.fitting.unconstrained import Parametrization
from cramix.loss import sliced_wasserstein_loss


@dataclass(frozen=True)
class SlicedWasserstein(Method):
    """Minimise the squared sliced Wasserstein distance by RMSProp.

    Args:
        max_iter: number of steps, all of which are taken.
        slices: random directions in each step.
        learning_rate: one for all, three for weights, means and covariances, or a mapping from some of these names.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=SlicedWasserstein(max_iter=20), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "sliced-wasserstein"
    sets_outliers_aside = False  # as published
    max_iter: int = 300
    slices: int = 2
    learning_rate: LearningRate = 0.02

    def __post_init__(self) -> None:
        check_integer("max_iter", self.max_iter, 1)
        check_integer("slices", self.slices, 1)
        rates_of(self.learning_rate, "rmsprop")

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""
        parametrization = Parametrization(problem.family)
        sums = draw_starts(problem, "random_from_data", problem.data, problem.n_components, 1)
        start = parametrization.unconstrained(Components(*problem.family.parameters(sums.squeeze(0))))
        rates = rates_of(self.learning_rate, "rmsprop")
        iterates = descend(parametrization, start, _Transport(problem, self.slices), "rmsprop", rates, self.max_iter)
        named = (("sliced Wasserstein loss", iterate) for iterate in iterates)
        return solution_at(follow(problem, named, self.max_iter))


class _Transport(Objective):
    """The mean of `W2^2` over random slices."""

    def __init__(self, problem: Problem, slices: int) -> None:
        super().__init__(problem)
        self._slices = 1 if problem.target.dim == 1 else slices

    @property
    def random(self) -> bool:
        """Whether two evaluations at the same point differ."""
        return self.problem.target.dim > 1

    def __call__(self, components: Components) -> Tensor:
        """Return the loss, with a gradient."""
        mixture, generator = self.mixture(components), self.problem.generator
        return sliced_wasserstein_loss(mixture, self.batches.next(), directions=self._slices, generator=generator)
