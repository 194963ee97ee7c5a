"""A fit by the Wasserstein-Fisher-Rao gradient flow, after Yan, Wang and Rigollet 2023, to compare with.

"Learning Gaussian Mixtures Using the Wasserstein-Fisher-Rao Gradient Flow", arXiv 2301.01766. Components are particles
with a mass each. The flow moves a particle along the Wasserstein gradient of the likelihood, and its mass grows or
shrinks along the Fisher-Rao gradient, so that particles are born and die. With `m_j` the mean responsibility of
particle j over the samples and `c_j` the mean of the samples weighted by it, their equations (3.8) in time steps h are

    weights_j += h (m_j - weights_j),      means_j += h m_j / weights_j (c_j - means_j).

From the paper: these steps, for one known covariance, in units in which it is 1; the start at random samples with equal
masses. The paper fits many more particles than there are components. Ours:

- Covariances are learned, unless a scale is given. In coordinates in which the component of a particle is standard,
  where the steps of means have the form above, they take a Bures-Wasserstein step: `C = M M^T` with
  `M = 1 + h m_j / weights_j (A_j - 1)`, and `A_j` the second moment of the samples around the mean, weighted by
  responsibilities.
- A particle whose mass is far too small goes to `c_j` and no farther, and its covariance half of the way.
- It stops when the likelihood gains less than `tol`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.fitting.features import LEAST_WEIGHT
from cramix.fitting.problem import OUT_OF_ITERATIONS, Components, Method, Problem, Solution
from cramix.fitting.starts import draw_starts
from cramix.mixture.covariance import Family

# The longest step of a covariance, and the approximate number of entries in a history.
_LONGEST, _ENTRIES = 0.5, 200


@dataclass(frozen=True)
class WassersteinFisherRao(Method):
    """Move particles, and shift mass between them, along the gradient flow of the likelihood.

    Args:
        step: length of a time step, at most 1.
        scale: of all components, in standard units, if it is known as in the paper; None to learn covariances.
        tol: gain of the mean log likelihood in a step at which to stop.
        max_iter: the largest number of steps.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=WassersteinFisherRao(max_iter=20, tol=1e-2), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "wfr"
    sets_outliers_aside = False  # as published
    step: float = 0.5
    scale: float | None = None
    tol: float = 1e-6
    max_iter: int = 2000

    def __post_init__(self) -> None:
        check_integer("max_iter", self.max_iter, 1)
        check_number("tol", self.tol)
        check_number("step", self.step, positive=True)
        if self.step > 1:
            raise ValueError(f"step must be at most 1, or masses would become negative; got {self.step!r}.")
        if self.scale is not None:
            check_number("scale", self.scale, positive=True)

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""
        data, family, k = problem.data, problem.family, problem.n_components
        sums = draw_starts(problem, "random_from_data", data, k, 1).squeeze(0)
        particles = Components(*family.parameters(sums))
        if self.scale is not None:
            spheres = self.scale**2 * torch.eye(family.dim).to(sums).expand(k, -1, -1)
            particles = particles._replace(covariances=_of_matrices(family, particles.weights, spheres))
        last, every = -math.inf, -(-self.max_iter // _ENTRIES)
        for iteration in range(1, self.max_iter + 1):
            try:
                sums, likelihood = data.expect(family.coefficients(*particles).unsqueeze(0))
                following = moved(particles, family, sums.squeeze(0), self.step, learn_covariances=self.scale is None)
            except torch.linalg.LinAlgError:
                problem.note_likelihood("gradient flow", k, last)
                return Solution(particles, False, "a covariance became singular", iteration)
            converged = likelihood.item() - last < self.tol
            if iteration % every == 0 or converged or iteration == self.max_iter:
                problem.note_likelihood("gradient flow", k, likelihood.item())
            if converged:
                return Solution(particles, True, "the log likelihood gains less than tol", iteration)
            particles, last = following, likelihood.item()
        return Solution(particles, False, OUT_OF_ITERATIONS, self.max_iter)


def moved(particles: Components, family: Family, sums: Tensor, step: float, *, learn_covariances: bool) -> Components:
    """Return the particles after a step along the flow, by sums of features over responsibilities, `(k, F)`."""
    weights, means, covariances = particles
    mass = sums[:, 0]
    alone = family.sums(weights, means, family.kind(covariances).matrices(family.dim).expand(len(weights), -1, -1))
    found, centres, values = family.parameters(torch.where(mass.unsqueeze(-1) > LEAST_WEIGHT, sums, alone))
    new_weights = (weights + step * (mass - weights)).clamp_min(LEAST_WEIGHT)
    share = (step * mass / weights).clamp_max(1)
    offset = centres - means
    new = Components(new_weights / new_weights.sum(), means + share.unsqueeze(-1) * offset, covariances)
    if not learn_covariances:
        return new
    matrices = family.kind(values).matrices(family.dim) + offset.unsqueeze(-1) * offset.unsqueeze(-2)
    if family.kind(values).shape[-1] == 1:  # a shared covariance belongs to all mass, which is 1
        share = share.new_tensor([step])
    wanted = _of_matrices(family, found, matrices)
    return new._replace(covariances=_bures_step(family, covariances, wanted, share))


def _of_matrices(family: Family, weights: Tensor, matrices: Tensor) -> Tensor:
    """Return the values of the kind for covariances `(k, d, d)`, without adding the floor again."""
    means = matrices.new_zeros(matrices.shape[:-1])
    _, _, values = type(family)(family.dim, 0.0).parameters(family.sums(weights, means, matrices))
    return values


def _bures_step(family: Family, values: Tensor, wanted: Tensor, share: Tensor) -> Tensor:
    """Move covariances by a fraction `(k or 1,)` of the way to wanted ones, along a Bures-Wasserstein geodesic."""
    share = share.clamp_max(_LONGEST)
    if family.kind.axis_aligned:
        share = share.view(-1, *(1,) * (values.ndim - 1))
        return values * (1 + share * (wanted / values - 1)).square()
    lower = torch.linalg.cholesky(values)
    half = torch.linalg.solve_triangular(lower, wanted, upper=False)
    white = torch.linalg.solve_triangular(lower, half.mT, upper=False)
    one = torch.eye(family.dim).to(values)
    root = lower @ (one + share.view(-1, *(1,) * (values.ndim - 1)) * (white - one))
    return root @ root.mT
