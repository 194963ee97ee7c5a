"""The three fits of the paper: by the sliced Cramér loss, by the likelihood, and by one after the other.

Zhang 2023, "Cramer Type Distances for Learning Gaussian Mixture Models by Gradient Descent", experiment with 850 points
in the plane. From the paper: Lion with learning rates 5e-6, 2e-2 and 3e-3 for the logits of weights, the means, and S
in the covariances `S^T S`; 7 slices, the corners of a heptagon, and the sum of their losses; 1200 steps. Differences
and choices of ours:

- The paper does not describe the start. Ours has equal weights, standard normal means around the centre of the data,
  and S = 1.
- The data are centred, which the start needs, but not scaled: the learning rates refer to the units of the data.
- `reg_covar` is added to variances, so that the likelihood exists wherever the descent leads.
- Log densities are combined by log-sum-exp. The overflows that the paper reports for the likelihood do not occur.
- For covariances that are not full, S is shared, diagonal, or a number.
- In other dimensions than two, the same number of slices is drawn in each step, as in the paper's algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from cramix.checks import check_integer
from cramix.directions import equispaced
from cramix.fitting.descent import Iterate, descend, follow, solution_at
from cramix.fitting.learning_rates import LearningRate, rates_of
from cramix.fitting.objectives import Cramer, Likelihood, Objective
from cramix.fitting.problem import Components, Method, Problem, Solution, Units
from cramix.fitting.starts import draw_starts
from cramix.fitting.unconstrained import Parametrization


@dataclass(frozen=True)
class PaperDescent(Method):
    """Lion from a random start, in stages; abstract.

    Args:
        max_iter: steps of the first stage, all of which are taken.
        learning_rate: of the logits of weights, of means, and of S.
    """

    sets_outliers_aside = False  # as published
    max_iter: int = 1200
    learning_rate: LearningRate = (5e-6, 2e-2, 3e-3)

    def __post_init__(self) -> None:
        check_integer("max_iter", self.max_iter, 1)
        rates_of(self.learning_rate, "lion")

    @abstractmethod
    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield the name, the loss and the number of steps of each stage."""

    def units(self, standard: Units) -> Units:
        """Return the units of the data, with the origin at its mean."""
        return standard._replace(scale=torch.ones_like(standard.scale))

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""
        return solution_at(follow(problem, self.descents(problem), self.max_iter))

    def descents(self, problem: Problem) -> Iterator[tuple[str, Iterate]]:
        """Yield the iterates with the name of their stage; each stage starts where the one before has ended."""
        parametrization = Parametrization(problem.family, "gram")
        tensors, rates = _start(problem, parametrization), rates_of(self.learning_rate, "lion")
        for name, objective, steps in self.stages(problem):
            for iterate in descend(parametrization, tensors, objective, "lion", rates, steps):
                yield name, iterate
            if not iterate.converged:
                return
            tensors = iterate.unconstrained


@dataclass(frozen=True)
class SlicedCramer(PaperDescent):
    """Minimise the sliced Cramér loss.

    Args:
        max_iter: number of steps, all of which are taken.
        learning_rate: of the logits of weights, of means, and of S in covariances `S^T S`.
        slices: number of directions to project on.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=SlicedCramer(max_iter=20), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "sc2"
    slices: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("slices", self.slices, 1)

    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield the one stage: the sum over a regular polygon in the plane, over random slices elsewhere."""
        dim = problem.target.dim
        polygon = equispaced(self.slices, dtype=torch.float64)
        directions = torch.ones(1, 1) if dim == 1 else polygon if dim == 2 else self.slices
        yield "sliced Cramér loss", Cramer(problem, directions=directions, normalization="sum"), self.max_iter


@dataclass(frozen=True)
class GradientLikelihood(PaperDescent):
    """Minimise the negative log likelihood of samples, with the settings of `SlicedCramer`.

    Args:
        max_iter: number of steps, all of which are taken.
        learning_rate: of the logits of weights, of means, and of S in covariances `S^T S`.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=GradientLikelihood(max_iter=20), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "nll"

    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield the one stage."""
        yield "negative log likelihood", Likelihood(problem), self.max_iter


@dataclass(frozen=True)
class SlicedCramerThenLikelihood(SlicedCramer):
    """Minimise the sliced Cramér loss, and from there the negative log likelihood: the paper's best fit.

    Args:
        max_iter: steps on the Cramér loss.
        learning_rate: of the logits of weights, of means, and of S in covariances `S^T S`, in both stages.
        slices: number of directions to project on.
        likelihood_iter: steps on the likelihood.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> method = SlicedCramerThenLikelihood(max_iter=20, likelihood_iter=10)
        >>> p = cramix.fit(x, 2, method=method, generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "sc2+nll"
    likelihood_iter: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("likelihood_iter", self.likelihood_iter, 1)

    def stages(self, problem: Problem) -> Iterator[tuple[str, Objective, int]]:
        """Yield both stages."""
        likelihood = Likelihood(problem)
        yield from super().stages(problem)
        yield "negative log likelihood", likelihood, self.likelihood_iter


def _start(problem: Problem, parametrization: Parametrization) -> Components:
    family, k, dim, like = problem.family, problem.n_components, problem.target.dim, problem.units.scale
    if problem.init_params is not None:
        sums = draw_starts(problem, "random_from_data", problem.data, k, 1).squeeze(0)
    else:
        means = torch.randn(k, dim, generator=problem.generator, dtype=like.dtype, device=like.device)
        standard = torch.eye(dim).to(like).expand(k, dim, dim)
        sums = family.sums(torch.full_like(means[:, 0], 1 / k), means, standard)
    return parametrization.unconstrained(Components(*family.parameters(sums)))
