"""k-means as a fit of a mixture: every sample belongs to one cluster, and every cluster is a component.

A rival: the likelihood is never looked at. The clusters are scikit-learn's, by Lloyd's algorithm in standard units; the
weight, mean and covariance of a component are those of the samples in its cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from cramix.checks import check_integer
from cramix.fitting.problem import Found, Method, Problem
from cramix.fitting.starts import clustered, draw_starts, sklearn_kmeans


@dataclass(frozen=True)
class HardAssignment(Method):
    """Find clusters, and take their moments.

    Args:
        starts: how many, by k-means++, of which the best is kept; one if the problem has a start of its own.
        max_iterations: of each start.
    """

    name: ClassVar[str] = "kmeans"
    starts: int = 10
    max_iterations: int = 300

    def __post_init__(self) -> None:
        check_integer("starts", self.starts, 1)
        check_integer("max_iterations", self.max_iterations, 1)

    def run(self, problem: Problem) -> Found:
        """Solve the problem."""
        data, family, k = problem.data, problem.family, problem.n_components
        begin: str | np.ndarray = "k-means++"
        if problem.start is not None:
            _, places, _ = family.parameters(draw_starts(problem, "k-means++", data, k, 1))
            begin = places.squeeze(0).cpu().numpy()
        device = None if problem.generator is None else problem.generator.device
        model = sklearn_kmeans()(
            k,
            init=begin,
            n_init=self.starts if problem.start is None else 1,
            max_iter=self.max_iterations,
            random_state=int(torch.randint(2**31, (), generator=problem.generator, device=device)),
        )
        model.fit(data.x.cpu().numpy(), sample_weight=data.weights.cpu().numpy())
        weights, means, spread = family.parameters(clustered(data, model.labels_[None], k).squeeze(0))
        _, likelihood = data.expect(family.coefficients(weights, means, spread).unsqueeze(0))
        problem.note_likelihood("k-means", k, likelihood.item())
        converged = model.n_iter_ < self.max_iterations
        reason = "the clusters stay" if converged else "out of iterations"
        return Found(weights, means, spread, converged, reason, int(model.n_iter_))
