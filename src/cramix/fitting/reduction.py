"""Greedy reduction of a mixture, two components at a time, by the costs of Runnalls, Salmond and West.

Merging keeps the moments: the weights add up, and the new component has the mean and covariance of both together, so
that those of the mixture stay. What differs is which two are next.

1. A. R. Runnalls. *Kullback-Leibler approach to Gaussian mixture reduction.* IEEE Trans. Aerosp. Electron. Syst., 2007.
2. D. J. Salmond. *Mixture reduction algorithms for target tracking in clutter.* Proc. SPIE 1305, 1990.
3. M. West. *Approximating posterior distributions by mixtures.* J. R. Stat. Soc. B 55, 1993.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral

import numpy as np
import torch

from cramix.mixture import MultivariateNormalMixture

# Variances as a part of the mixture's that count as this much, so that logarithms of singular ones are numbers.
_FLOOR = 1e-14
# Directions in which the mixture's variance is this part of what its coordinates have, or less, do not exist.
_FLAT = 1e-13


def merge_down(mixture: MultivariateNormalMixture, k: int, cost: str = "runnalls") -> MultivariateNormalMixture:
    """Return a mixture of k components with full covariances, merged from those of a larger one, without gradient.

    Args:
        mixture: n components of any kind, without batch axes. Covariances may be singular: for the cost a variance is
            at least 1e-14 of the mixture's.
        k: how many to leave, 1 to n.
        cost: how to choose the two to merge next, with `w, m, S` weights, means and covariances.
            "runnalls" takes the two of the least bound on the Kullback-Leibler divergence,
            `1/2 ((w_i + w_j) log|S_ij| - w_i log|S_i| - w_j log|S_j|)` with the covariance `S_ij` of both together.
            "salmond" joins the two of the least `w_i w_j / (w_i + w_j) (m_i - m_j)^T P^-1 (m_i - m_j)`, P the
            covariance of the whole mixture.
            "west" merges the component i of the smallest weight with its nearest neighbour, by the same distance but
            with `S_i` for P; West's components, kernels, share one covariance.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
        >>> kernels = MultivariateNormalMixture(torch.full((3,), 1 / 3), x, torch.eye(2).expand(3, 2, 2))
        >>> merge_down(kernels, 2).means
        tensor([[0.0000, 0.5000],
                [9.0000, 9.0000]])
    """
    _check(mixture, k, cost)
    weights, means, covariances = (
        x.detach().double().cpu().numpy() for x in (mixture.weights, mixture.means, mixture.covariances)
    )
    parts = _Parts(weights, means, covariances)
    _SEARCHES[cost](parts, k)
    return _of_groups(mixture, weights, means, covariances, parts.group)


class _Parts:
    """Components of a mixture in coordinates in which its covariance is the identity, the last axis of all arrays.

    The costs are the same there. `group` says for each component as it was into which it has been merged.
    """

    def __init__(self, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> None:
        # Components without weight go first, and at no cost, but have a place until then.
        self.weights = np.maximum(weights / weights.sum(), np.finfo(float).tiny)
        offsets = means - self.weights @ means
        white = _whitening(np.tensordot(self.weights, covariances, 1) + (self.weights * offsets.T) @ offsets)
        self.means = np.ascontiguousarray((offsets @ white).T)  # (d, n)
        variances, axes = np.linalg.eigh(white.T @ covariances @ white)
        spread = (axes * np.maximum(variances, _FLOOR)[:, None, :]) @ np.swapaxes(axes, -1, -2)
        self.covariances = np.ascontiguousarray(np.moveaxis(spread, 0, -1))  # (d, d, n)
        self.log_determinants = _log_determinants(self.covariances.copy())
        self.alive = np.ones(len(weights), dtype=bool)
        self.group = np.arange(len(weights))

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


def _runnalls(parts: _Parts, i: int) -> np.ndarray:
    """Return the costs of merging component i with each, `(n,)`."""
    total = parts.weights[i] + parts.weights
    share = parts.weights / total
    offsets = parts.means - parts.means[:, i, None]
    own = parts.covariances[:, :, i, None]
    merged = own + share * (parts.covariances - own)
    merged += (share * (1 - share)) * offsets * offsets[:, None]
    apart = parts.weights[i] * parts.log_determinants[i] + parts.weights * parts.log_determinants
    return 0.5 * (total * _log_determinants(merged) - apart)


def _salmond(parts: _Parts, i: int) -> np.ndarray:
    """Return the costs of joining component i with each, `(n,)`; the covariance of the mixture is the identity here."""
    offsets = parts.means - parts.means[:, i, None]
    return parts.weights[i] * parts.weights / (parts.weights[i] + parts.weights) * np.square(offsets).sum(0)


def _west(parts: _Parts, i: int) -> np.ndarray:
    """Return the distances of component i to each, `(n,)`, in its own widths, farther for those of more weight."""
    variances, axes = np.linalg.eigh(parts.covariances[:, :, i])
    widths = (axes / np.sqrt(np.maximum(variances, _FLOOR))).T @ (parts.means - parts.means[:, i, None])
    return parts.weights[i] * parts.weights / (parts.weights[i] + parts.weights) * np.square(widths).sum(0)


def _merge_cheapest(parts: _Parts, k: int, costs: Callable[[_Parts, int], np.ndarray]) -> None:
    """Merge the pair of the least cost until k are left; after a merge only the row of the new component is computed.

    Each component knows its cheapest partner, so that the pair is found without a look at all of them.
    """
    n = len(parts.weights)
    table = np.stack([costs(parts, i) for i in range(n)])
    np.fill_diagonal(table, np.inf)
    partner = table.argmin(1)
    least = table[np.arange(n), partner]
    for _ in range(n - k):
        i = int(least.argmin())
        i, j = sorted((i, int(partner[i])))
        parts.merge(i, j)
        table[j] = table[:, j] = np.inf
        row = np.where(parts.alive, costs(parts, i), np.inf)
        row[i] = np.inf
        table[i] = table[:, i] = row
        lost = parts.alive & ((partner == i) | (partner == j))
        lost[i] = True
        cheaper = row < least
        partner[cheaper], least[cheaper] = i, row[cheaper]
        (again,) = lost.nonzero()
        partner[again] = table[again].argmin(1)
        least[again] = table[again, partner[again]]
        least[j] = np.inf


def _merge_lightest(parts: _Parts, k: int) -> None:
    """Merge the component of the smallest weight with its nearest neighbour until k are left."""
    weights = parts.weights.copy()
    for _ in range(len(weights) - k):
        i = int(weights.argmin())
        distances = np.where(parts.alive, _west(parts, i), np.inf)
        distances[i] = np.inf
        i, j = sorted((i, int(distances.argmin())))
        parts.merge(i, j)
        weights[i], weights[j] = parts.weights[i], np.inf


_SEARCHES: dict[str, Callable[[_Parts, int], None]] = {
    "runnalls": lambda parts, k: _merge_cheapest(parts, k, _runnalls),
    "salmond": lambda parts, k: _merge_cheapest(parts, k, _salmond),
    "west": _merge_lightest,
}


def _whitening(covariance: np.ndarray) -> np.ndarray:
    """Return W `(d, r)` with `W^T C W` the identity, in the r directions that exist, whatever the units are."""
    scales = np.sqrt(covariance.diagonal())
    scales = np.where(scales > 0, scales, 1)
    variances, axes = np.linalg.eigh(covariance / np.outer(scales, scales))
    there = variances > _FLAT
    there[-1] = True  # one coordinate, of nothing but zeros, for a mixture that is a single point
    return axes[:, there] / np.sqrt(np.maximum(variances[there], _FLAT)) / scales[:, None]


def _log_determinants(matrices: np.ndarray) -> np.ndarray:
    """Return those of positive definite matrices `(d, d, n)`, which are overwritten, by elimination of all at once.

    No pivot is below the least eigenvalue, so what is below the floor is rounding.
    """
    total = np.zeros(matrices.shape[-1])
    for a in range(len(matrices)):
        pivot = np.maximum(matrices[a, a], _FLOOR)
        total += np.log(pivot)
        column = matrices[a + 1 :, a]
        matrices[a + 1 :, a + 1 :] -= column[:, None] * (column / pivot)
    return total


def _of_groups(
    mixture: MultivariateNormalMixture,
    weights: np.ndarray,
    means: np.ndarray,
    covariances: np.ndarray,
    group: np.ndarray,
) -> MultivariateNormalMixture:
    """Return the mixture with one component for each group, with its moments, in the order of the first of each."""
    _, group = np.unique(group, return_inverse=True)
    member = np.equal.outer(np.arange(group.max() + 1), group)  # (k, n)
    shares = member * np.maximum(weights, np.finfo(float).tiny)
    shares /= shares.sum(1, keepdims=True)
    centre = weights @ means / weights.sum()  # far from the origin squares would lose the digits
    places = shares @ (means - centre)
    offsets = means - centre - places[group]
    each = covariances + offsets[:, :, None] * offsets[:, None, :]
    d = means.shape[1]
    merged = (shares @ each.reshape(len(each), -1)).reshape(-1, d, d)
    found = member @ weights / weights.sum(), centre + places, 0.5 * (merged + np.swapaxes(merged, -1, -2))
    new_weights, new_means, new_covariances = (torch.from_numpy(x).to(mixture.means) for x in found)
    return MultivariateNormalMixture(new_weights, new_means, new_covariances)


def _check(mixture: MultivariateNormalMixture, k: int, cost: str) -> None:
    if not isinstance(mixture, MultivariateNormalMixture):
        raise ValueError(
            f"mixture must be a MultivariateNormalMixture; got {type(mixture).__name__}. See its from_samples and "
            "from_torch."
        )
    if mixture.batch_shape:
        raise ValueError(
            f"mixture must have no batch axes; got batch shape {tuple(mixture.batch_shape)}. Merge one at a time."
        )
    n = mixture.n_components
    if not isinstance(k, Integral) or isinstance(k, bool) or not 1 <= k <= n:
        raise ValueError(f"k must be an integer from 1 to the {n} components; got {k!r}. Ask for fewer components.")
    if cost not in _SEARCHES:
        raise ValueError(f'cost must be "runnalls", "salmond" or "west"; got {cost!r}. Try "runnalls".')
