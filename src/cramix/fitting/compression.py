"""Compression: a small mixture near a large one, without sampling."""

from __future__ import annotations

from typing import overload

import numpy as np
import torch

from cramix.checks import check_integer, check_number
from cramix.fitting.descent import GradientDescent
from cramix.fitting.problem import Method
from cramix.fitting.search import MergeDown
from cramix.fitting.solve import Options, solve
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import runnalls_cost

# Up to this value of n^2 d^3 the greedy merge, which computes the cost of all pairs, takes less than a second.
_GREEDY = 2e8
# Variances relative to the mixture's are at least this large in costs, so that singular ones have a logarithm.
_FLOOR = 1e-14
# Directions in which the mixture has at most this variance, relative to its coordinates, are left out.
_FLAT = 1e-13
# Added to variances, relative to the mixture's, while the components are fitted.
_REG_COVAR = 1e-9


@overload
def compress(mixture: NormalMixture, n_components: int, *, tol: float = ...) -> NormalMixture: ...
@overload
def compress(
    mixture: MultivariateNormalMixture, n_components: int, *, tol: float = ...
) -> MultivariateNormalMixture: ...
def compress(
    mixture: NormalMixture | MultivariateNormalMixture, n_components: int, *, tol: float = 1e-8
) -> NormalMixture | MultivariateNormalMixture:
    """Return a smaller mixture, with full covariances, that is near a larger one in the sliced Cramér distance.

    Components are merged by Runnalls' cost, or by a fit of the likelihood if there are too many for that. L-BFGS then
    minimises the exact distance. Coordinates are measured in their standard deviations, so that units do not matter.
    The result is deterministic.

    Args:
        mixture: without batch; its components may be points.
        n_components: of the result, at most the number of components with a weight.
        tol: gain of the squared distance at which to stop, in standard units.

    Example:
        >>> p = NormalMixture(torch.full((4,), 0.25), torch.tensor([0.0, 0.1, 5.0, 5.2]), torch.ones(4))
        >>> compress(p, 2).means.sort().values
        tensor([0.0500, 5.1000])
    """
    if not isinstance(mixture, NormalMixture | MultivariateNormalMixture):
        raise ValueError(
            f"mixture must be a NormalMixture or a MultivariateNormalMixture; got {type(mixture).__name__}."
        )
    check_integer("n_components", n_components, 1)
    check_number("tol", tol)
    if mixture.batch_shape:
        shape = tuple(mixture.batch_shape)
        raise ValueError(f"mixture must not have a batch; got batch shape {shape}. Compress one at a time.")
    count = int((mixture.weights > 0).sum())
    if n_components > count:
        raise ValueError(
            f"n_components must be at most the number of components with a weight, {count}; got {n_components}."
        )
    whole = in_coordinates(mixture)
    if mixture.n_components**2 * whole.dim**3 <= _GREEDY:
        start = merge_greedily(whole, n_components)
    else:
        start = _solved(whole, n_components, MergeDown(), None)
    small = _solved(whole, n_components, GradientDescent(bandwidth=0.0, tol=tol), start)
    return small if isinstance(mixture, MultivariateNormalMixture) else small.marginal(0)


def _solved(
    mixture: MultivariateNormalMixture, k: int, method: Method, start: MultivariateNormalMixture | None
) -> MultivariateNormalMixture:
    generator = torch.Generator(mixture.means.device).manual_seed(0)
    options = Options(init_params=start, generator=generator, relative_reg_covar=_REG_COVAR)
    return in_coordinates(solve(mixture, k, method, options).mixture)


def merge_greedily(mixture: MultivariateNormalMixture, k: int) -> MultivariateNormalMixture:
    """Merge the two components of least cost until k are left; the result has full covariances and no gradient.

    A merge keeps the moments: the new component has the weight, mean and covariance of both together. The cost is
    Runnalls' bound on the Kullback-Leibler divergence,
    `1/2 ((w_i + w_j) log|S_ij| - w_i log|S_i| - w_j log|S_j|)` with the covariance `S_ij` of both together (A. R.
    Runnalls, "Kullback-Leibler approach to Gaussian mixture reduction", IEEE Trans. Aerosp. Electron. Syst., 2007).

    Args:
        mixture: of any kind, without batch. Covariances may be singular: in costs a variance is at least 1e-14 of the
            mixture's.
        k: number of components to keep, 1 to n.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
        >>> kernels = MultivariateNormalMixture(torch.full((3,), 1 / 3), x, torch.eye(2).expand(3, 2, 2))
        >>> merge_greedily(kernels, 2).means
        tensor([[0.0000, 0.5000],
                [9.0000, 9.0000]])
    """
    merging = GreedyMerge(mixture)
    merging.merge_down_to(k)
    return merging.mixture()


class GreedyMerge:
    """The state of a greedy merge: components in coordinates in which the mixture has the identity as its covariance.

    Components are the last axis of arrays. Costs do not depend on coordinates. `group` is the component into which each
    original component has been merged.

    Args:
        mixture: of any kind, without batch.
    """

    def __init__(self, mixture: MultivariateNormalMixture) -> None:
        self._original = mixture
        self._arrays = weights, means, covariances = tuple(
            x.detach().double().cpu().numpy() for x in (mixture.weights, mixture.means, mixture.covariances)
        )
        # Components without weight are merged first and at no cost, but need a location until then.
        self.weights = np.maximum(weights / weights.sum(), np.finfo(float).tiny)
        offsets = means - self.weights @ means
        white = _whitening(np.tensordot(self.weights, covariances, 1) + (self.weights * offsets.T) @ offsets)
        self.means = np.ascontiguousarray((offsets @ white).T)  # (d, n)
        variances, axes = np.linalg.eigh(white.T @ covariances @ white)
        floored = (axes * np.maximum(variances, _FLOOR)[:, None, :]) @ np.swapaxes(axes, -1, -2)
        self.covariances = np.ascontiguousarray(np.moveaxis(floored, 0, -1))  # (d, d, n)
        self.log_determinants = _log_determinants(self.covariances.copy())
        self.alive = np.ones(len(weights), dtype=bool)
        self.group = np.arange(len(weights))

    def merge_down_to(self, k: int) -> None:
        """Merge the cheapest pair until k components are left.

        After a merge only the costs of the new component are computed. Each component stores its cheapest partner, so
        that finding the pair does not take a scan of all pairs.
        """
        n = len(self.weights)
        table = np.stack([self.costs(i) for i in range(n)])
        np.fill_diagonal(table, np.inf)
        partner = table.argmin(1)
        least = table[np.arange(n), partner]
        for _ in range(n - k):
            i = int(least.argmin())
            i, j = sorted((i, int(partner[i])))
            self.merge(i, j)
            table[j] = table[:, j] = np.inf
            row = np.where(self.alive, self.costs(i), np.inf)
            row[i] = np.inf
            table[i] = table[:, i] = row
            lost = self.alive & ((partner == i) | (partner == j))
            lost[i] = True
            cheaper = row < least
            partner[cheaper], least[cheaper] = i, row[cheaper]
            (again,) = lost.nonzero()
            partner[again] = table[again].argmin(1)
            least[again] = table[again, partner[again]]
            least[j] = np.inf

    def merge(self, i: int, j: int) -> None:
        """Merge component j into i."""
        share = self.weights[j] / (self.weights[i] + self.weights[j])
        offset = self.means[:, j] - self.means[:, i]
        self.covariances[:, :, i] += share * (self.covariances[:, :, j] - self.covariances[:, :, i])
        self.covariances[:, :, i] += share * (1 - share) * np.outer(offset, offset)
        self.means[:, i] += share * offset
        self.weights[i] += self.weights[j]
        self.log_determinants[i] = _log_determinants(self.covariances[:, :, i : i + 1].copy())[0]
        self.alive[j] = False
        self.group[self.group == j] = i

    def costs(self, i: int) -> np.ndarray:
        """Return the costs of merging component i with each, `(n,)`."""
        total = self.weights[i] + self.weights
        share = self.weights / total
        offsets = self.means - self.means[:, i, None]
        own = self.covariances[:, :, i, None]
        merged = own + share * (self.covariances - own)
        merged += (share * (1 - share)) * offsets * offsets[:, None]
        each = self.weights * self.log_determinants
        return runnalls_cost(total * _log_determinants(merged), each[i], each)

    def mixture(self) -> MultivariateNormalMixture:
        """Return the mixture with one component per group, which has its moments, in the order of first members."""
        weights, means, covariances = self._arrays
        _, group = np.unique(self.group, return_inverse=True)
        member = np.equal.outer(np.arange(group.max() + 1), group)  # (k, n)
        shares = member * np.maximum(weights, np.finfo(float).tiny)
        shares /= shares.sum(1, keepdims=True)
        centre = weights @ means / weights.sum()  # far from the origin squares would lose digits
        centres = shares @ (means - centre)
        offsets = means - centre - centres[group]
        each = covariances + offsets[:, :, None] * offsets[:, None, :]
        d = means.shape[1]
        merged = (shares @ each.reshape(len(each), -1)).reshape(-1, d, d)
        found = member @ weights / weights.sum(), centre + centres, 0.5 * (merged + np.swapaxes(merged, -1, -2))
        new_weights, new_means, new_covariances = (torch.from_numpy(x).to(self._original.means) for x in found)
        return MultivariateNormalMixture(new_weights, new_means, new_covariances)


def _whitening(covariance: np.ndarray) -> np.ndarray:
    """Return W `(d, r)` for which `W^T C W` is the identity, in the r directions in which there is variance."""
    scales = np.sqrt(covariance.diagonal())
    scales = np.where(scales > 0, scales, 1)
    variances, axes = np.linalg.eigh(covariance / np.outer(scales, scales))
    there = variances > _FLAT
    there[-1] = True  # a mixture that is a single point keeps one coordinate
    return axes[:, there] / np.sqrt(np.maximum(variances[there], _FLAT)) / scales[:, None]


def _log_determinants(matrices: np.ndarray) -> np.ndarray:
    """Return those of positive definite matrices `(d, d, n)`, which are overwritten, by elimination of all at once.

    No pivot is below the least eigenvalue, so that anything below the floor is a rounding error.
    """
    total = np.zeros(matrices.shape[-1])
    for a in range(len(matrices)):
        pivot = np.maximum(matrices[a, a], _FLOOR)
        total += np.log(pivot)
        column = matrices[a + 1 :, a]
        matrices[a + 1 :, a + 1 :] -= column[:, None] * (column / pivot)
    return total
