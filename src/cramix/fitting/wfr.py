"""A fit by the Wasserstein-Fisher-Rao gradient flow of the likelihood, after Yan, Wang and Rigollet 2023.

"Learning Gaussian Mixtures Using the Wasserstein-Fisher-Rao Gradient Flow", arXiv 2301.01766. Components are particles
with a mass each. The flow moves a particle along the Wasserstein gradient of the likelihood, and its mass grows or
shrinks along the Fisher-Rao one, so that particles are born and die. With `m_j` the mean responsibility for particle j
over the samples and `c_j` the mean of the samples by it, their equations (3.8) in steps of length h are

    weights_j += h (m_j - weights_j),      means_j += h m_j / weights_j (c_j - means_j).

Theirs: these steps, for covariances that are known and one for all, in units in which they are 1; the start at samples
drawn at random, with equal masses. They fit many more particles than there are components. What is ours:

- Covariances are learned, unless a scale is given. In the coordinates in which the component of a particle is standard,
  where the steps of means have their form above, a step is one of Bures and Wasserstein: `C = M M^T` with
  `M = 1 + h m_j / weights_j (A_j - 1)`, and `A_j` the second moment of the samples by responsibilities around the mean.
- Where the mass of a particle is far too small, it goes to `c_j` and no further, and its covariance half of the way.
- It ends when the likelihood gains less than a tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.fitting.em import LEAST
from cramix.fitting.families import Family
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import draw_starts

# The longest step of a covariance, and entries in a history, about.
_LONGEST, _ENTRIES = 0.5, 200


@dataclass(frozen=True)
class WassersteinFisherRao(Method):
    """Move particles and shift mass between them along the gradient flow of the likelihood.

    Args:
        step: of time, at most 1.
        scale: of all components, in standard units, where it is known as in the original; None to learn covariances.
        tolerance: gain of the mean log likelihood in a step at which to stop.
        max_iterations: steps at most.
    """

    name: ClassVar[str] = "wfr"
    step: float = 0.5
    scale: float | None = None
    tolerance: float = 1e-6
    max_iterations: int = 2000

    def __post_init__(self) -> None:
        check_integer("max_iterations", self.max_iterations, 1)
        check_number("tolerance", self.tolerance)
        check_number("step", self.step, positive=True)
        if self.step > 1:
            raise ValueError(f"step must be at most 1; got {self.step!r}. Masses would become negative.")
        if self.scale is not None:
            check_number("scale", self.scale, positive=True)

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        data, family, k = problem.data, problem.family, problem.n_components
        sums = draw_starts(problem, "random_from_data", data, k, 1).squeeze(0)
        particles = Particles(*family.parameters(sums))
        if self.scale is not None:
            round_ones = self.scale**2 * torch.eye(family.dim).to(sums).expand(k, -1, -1)
            particles = particles._replace(spread=_of_matrices(family, particles.weights, round_ones))
        last, every = -math.inf, -(-self.max_iterations // _ENTRIES)
        for iteration in range(1, self.max_iterations + 1):
            try:
                sums, likelihood = data.expect(family.coefficients(*particles).unsqueeze(0))
                following = particles.moved(family, sums.squeeze(0), self.step, self.scale is None)
            except torch.linalg.LinAlgError:
                problem.note_likelihood("gradient flow", k, last)
                return Found(*particles, False, "a covariance became singular", iteration)
            arrived = likelihood.item() - last < self.tolerance
            if iteration % every == 0 or arrived or iteration == self.max_iterations:
                problem.note_likelihood("gradient flow", k, likelihood.item())
            if arrived:
                return Found(*particles, True, "the log likelihood gains less than the tolerance", iteration)
            particles, last = following, likelihood.item()
        return Found(*particles, False, "out of iterations", self.max_iterations)


class Particles(NamedTuple):
    """Masses `(k,)`, places `(k, d)`, and what the kind of covariances holds."""

    weights: Tensor
    means: Tensor
    spread: Tensor

    def moved(self, family: Family, sums: Tensor, step: float, covariances: bool) -> Particles:
        """Return the particles after a step along the flow, by sums of features by responsibilities, `(k, F)`."""
        mass = sums[:, 0]
        alone = family.sums(self.weights, self.means, self._matrices(family))
        found, centres, spread = family.parameters(torch.where(mass.unsqueeze(-1) > LEAST, sums, alone))
        weights = (self.weights + step * (mass - self.weights)).clamp_min(LEAST)
        share = (step * mass / self.weights).clamp_max(1)
        offset = centres - self.means
        means = self.means + share.unsqueeze(-1) * offset
        if not covariances:
            return Particles(weights / weights.sum(), means, self.spread)
        matrices = family.kind(spread).matrices(family.dim) + offset.unsqueeze(-1) * offset.unsqueeze(-2)
        if family.kind(spread).shape[-1] == 1:  # what all share feels all the mass, which is 1
            share = share.new_tensor([step])
        return Particles(
            weights / weights.sum(),
            means,
            _bures_step(family, self.spread, _of_matrices(family, found, matrices), share),
        )

    def _matrices(self, family: Family) -> Tensor:
        return family.kind(self.spread).matrices(family.dim).expand(len(self.weights), -1, -1)


def _of_matrices(family: Family, weights: Tensor, matrices: Tensor) -> Tensor:
    """Return what the kind holds of covariances `(k, d, d)`, without another floor."""
    means = matrices.new_zeros(matrices.shape[:-1])
    _, _, spread = type(family)(family.dim, 0.0).parameters(family.sums(weights, means, matrices))
    return spread


def _bures_step(family: Family, spread: Tensor, wanted: Tensor, share: Tensor) -> Tensor:
    """Go a share `(k or 1,)` of the way from a spread to a wanted one, where the first is the unit of length."""
    share = share.clamp_max(_LONGEST)
    if family.kind.axis_aligned:
        share = share.view(-1, *(1,) * (spread.ndim - 1))
        return spread * (1 + share * (wanted / spread - 1)).square()
    lower = torch.linalg.cholesky(spread)
    half = torch.linalg.solve_triangular(lower, wanted, upper=False)
    white = torch.linalg.solve_triangular(lower, half.mT, upper=False)
    one = torch.eye(family.dim).to(spread)
    root = lower @ (one + share.view(-1, *(1,) * (spread.ndim - 1)) * (white - one))
    return root @ root.mT
