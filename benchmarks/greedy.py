"""Greedy merges of mixtures by the costs of Salmond and West, to compare `cramix.compress` with.

1. D. J. Salmond. *Mixture reduction algorithms for target tracking in clutter.* Proc. SPIE 1305, 1990.
2. M. West. *Approximating posterior distributions by mixtures.* J. R. Stat. Soc. B 55, 1993.
"""

from __future__ import annotations

import numpy as np

from cramix import MultivariateNormalMixture
from cramix.fitting.compression import GreedyMerge, merge_greedily

# Variances relative to the mixture's are at least this large in distances.
_FLOOR = 1e-14


class Salmond(GreedyMerge):
    """Join the two of the least `w_i w_j / (w_i + w_j) (m_i - m_j)^T P^-1 (m_i - m_j)`, P the mixture's covariance."""

    def costs(self, i: int) -> np.ndarray:
        """Return the costs of joining component i with each, `(n,)`; P is the identity in these coordinates."""
        offsets = self.means - self.means[:, i, None]
        return self.weights[i] * self.weights / (self.weights[i] + self.weights) * np.square(offsets).sum(0)


class West(GreedyMerge):
    """Merge the component i of the smallest weight with its nearest neighbour.

    The distance is Salmond's with `S_i` for P; West's components, which are kernels, share one covariance.
    """

    def costs(self, i: int) -> np.ndarray:
        """Return the distances of component i to each, `(n,)`."""
        variances, axes = np.linalg.eigh(self.covariances[:, :, i])
        white = (axes / np.sqrt(np.maximum(variances, _FLOOR))).T @ (self.means - self.means[:, i, None])
        return self.weights[i] * self.weights / (self.weights[i] + self.weights) * np.square(white).sum(0)

    def merge_down_to(self, k: int) -> None:
        """Merge until k components are left."""
        weights = self.weights.copy()
        for _ in range(len(weights) - k):
            i = int(weights.argmin())
            distances = np.where(self.alive, self.costs(i), np.inf)
            distances[i] = np.inf
            i, j = sorted((i, int(distances.argmin())))
            self.merge(i, j)
            weights[i], weights[j] = self.weights[i], np.inf


def merge_by(cost: str, mixture: MultivariateNormalMixture, k: int) -> MultivariateNormalMixture:
    """Merge a mixture down to k components by the cost of "runnalls", "salmond" or "west"."""
    if cost == "runnalls":
        return merge_greedily(mixture, k)
    merging = {"salmond": Salmond, "west": West}[cost](mixture)
    merging.merge_down_to(k)
    return merging.mixture()
