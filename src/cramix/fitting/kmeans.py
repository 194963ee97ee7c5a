"""k-means as a fit of a mixture, to compare with: each cluster of samples becomes a component.

The likelihood plays no role. The clusters are found in standardised coordinates; the weight, mean and covariance of a
component are those of the samples in its cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cramix.checks import check_integer
from cramix.clustering import inertia, kmeans, lloyd
from cramix.fitting.problem import OUT_OF_ITERATIONS, Components, Method, Problem, Solution
from cramix.fitting.starts import clustered, draw_starts


@dataclass(frozen=True)
class HardAssignment(Method):
    """Find clusters and take their moments.

    Args:
        n_init: number of k-means++ starts, of which the one with the least inertia is kept; a problem that comes with
            `init_params` has one start.
        max_iter: the largest number of iterations of each start.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=HardAssignment(n_init=2), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "kmeans"
    sets_outliers_aside = False  # as published
    n_init: int = 10
    max_iter: int = 300

    def __post_init__(self) -> None:
        check_integer("n_init", self.n_init, 1)
        check_integer("max_iter", self.max_iter, 1)

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""
        data, family, k = problem.data, problem.family, problem.n_components
        if problem.init_params is None:
            clusters = kmeans(data.x, data.weights, k, self.n_init, self.max_iter, problem.generator)
        else:
            _, means, _ = family.parameters(draw_starts(problem, "k-means++", data, k, 1))
            clusters = lloyd(data.x, data.weights, means, self.max_iter)
        best = clusters.labels[inertia(data.x, data.weights, clusters).argmin()].unsqueeze(0)
        components = Components(*family.parameters(clustered(data, best, k).squeeze(0)))
        _, likelihood = data.expect(family.coefficients(*components).unsqueeze(0))
        problem.note_likelihood("k-means", k, likelihood.item())
        reason = "no sample changes its cluster" if clusters.converged else OUT_OF_ITERATIONS
        return Solution(components, clusters.converged, reason, clusters.n_iter)
