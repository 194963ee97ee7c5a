"""k-means of weighted points: greedy k-means++ seeds and Lloyd's iterations, several runs in one batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Distances between points and centres that are computed at a time.
_BLOCK = 1 << 22
# Squared moves of centres, relative to the variance of the points, at which k-means has converged.
_TOL = 1e-4
# Iterations on a GPU between tests for convergence, for which the host has to wait.
_LOOK = 4


class Clusters(NamedTuple):
    """Labels `(B, n)` and centres `(B, k, d)` of B runs, the number of iterations, and whether all runs converged."""

    labels: Tensor
    centres: Tensor
    n_iter: int
    converged: bool


def kmeans(
    x: Tensor, weights: Tensor, k: int, n_init: int, max_iter: int, generator: torch.Generator | None
) -> Clusters:
    """Return `n_init` runs of k-means from k-means++ seeds.

    Args:
        x: points `(n, d)`.
        weights: `(n,)`, or one for each run, `(n_init, n)`.
        k: number of clusters.
        n_init: number of runs.
        max_iter: the largest number of iterations.
        generator: for the seeds.
    """
    return lloyd(x, weights, x[plus_plus(x, weights, k, n_init, generator)], max_iter)


def plus_plus(x: Tensor, weights: Tensor, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Return the indices of k points far from each other, `(batch, k)`, by greedy k-means++.

    The next point is drawn with a probability proportional to its squared distance to the nearest one so far, and is
    the best of several such draws (Arthur and Vassilvitskii 2007).
    """
    trials = 2 + int(math.log(k))
    rows, weights = torch.arange(batch, device=x.device), weights.expand(batch, -1)
    squares = x.square().sum(-1)

    def squared_distances(index: Tensor) -> Tensor:
        """Return those of the points with indices `(B, m)` to all points, `(B, m, n)`."""
        return (squares[index].unsqueeze(-1) + squares - 2 * (x[index] @ x.T)).clamp_min_(0)

    # All random numbers at once, run by run: the first runs do not depend on the number of runs.
    levels = torch.rand(batch, k, trials, generator=generator, dtype=x.dtype, device=x.device)
    chosen = _drawn(weights, levels[:, 0, :1])  # (B, 1)
    nearest = squared_distances(chosen).squeeze(1)  # (B, n)
    for i in range(1, k):
        chance = weights * nearest
        # If all points coincide with chosen ones, any will do.
        chance = torch.where(chance.sum(-1, keepdim=True) > 0, chance, weights)
        tried = _drawn(chance, levels[:, i])
        nearer = torch.minimum(nearest.unsqueeze(1), squared_distances(tried))  # (B, trials, n)
        best = (nearer @ weights.unsqueeze(-1)).squeeze(-1).argmin(-1)
        nearest = nearer[rows, best]
        chosen = torch.cat((chosen, tried[rows, best].unsqueeze(-1)), -1)
    return chosen


def lloyd(x: Tensor, weights: Tensor, centres: Tensor, max_iter: int) -> Clusters:
    """Assign points to the nearest centre and move centres to the means of their points, until centres stay.

    They stay if the sum of their squared moves is at most 1e-4 of the variance of the points, as in scikit-learn. A
    centre without points, or whose points have no weight, never moves.

    Args:
        x: points `(n, d)`.
        weights: `(n,)`, or one for each run, `(B, n)`.
        centres: the starts of B runs, `(B, k, d)`.
        max_iter: the largest number of iterations, at least 1.
    """
    shares = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)
    weighted = torch.cat((shares, shares * x), -1)  # sums over clusters are their weights, and sums of points
    variance = (shares * (x - weighted[..., 1:].sum(-2, keepdim=True)).square()).sum((-2, -1)) / x.shape[-1]
    enough = _TOL * variance
    every = _LOOK if x.is_cuda else 1
    for n_iter in range(1, max_iter + 1):
        labels, sums = _assigned(x, weighted, centres)
        mass = sums[..., :1]
        moved = torch.where(mass > 0, sums[..., 1:] / mass, centres)
        moves, centres = (moved - centres).square().sum((-2, -1)), moved
        if (n_iter % every == 0 or n_iter == max_iter) and bool((moves <= enough).all()):
            return Clusters(labels, centres, n_iter, True)
    return Clusters(labels, centres, max_iter, False)


def inertia(x: Tensor, weights: Tensor, clusters: Clusters) -> Tensor:
    """Return the weighted sum of squared distances to the centres for each run, `(B,)`."""
    offsets = [x - centres[labels] for labels, centres in zip(clusters.labels, clusters.centres, strict=True)]
    return torch.stack([weights @ offset.square().sum(-1) for offset in offsets])


def _assigned(x: Tensor, weighted: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each point, `(B, n)`, and the sums of rows of `weighted` by it, `(B, k, *)`."""
    batch, k, _ = centres.shape
    sums = centres.new_zeros(batch * k, weighted.shape[-1])
    first = k * torch.arange(batch, device=x.device).unsqueeze(-1)
    own = torch.arange(k, device=x.device).unsqueeze(-1)
    squares, labels = centres.square().sum(-1, keepdim=True), []
    rows = max(1, _BLOCK // (batch * k))
    for part, numbers in zip(x.split(rows), weighted.split(rows, -2), strict=True):
        # Squared distances, less the term that all centres share. `min` is several times faster than `argmin` here.
        label = (squares - 2 * centres @ part.T).min(-2).indices  # (B, n)
        if x.is_cuda:  # where sums by index have no fixed order
            sums += ((label.unsqueeze(-2) == own).to(numbers.dtype) @ numbers).flatten(0, 1)
        else:
            sums.index_add_(0, (first + label).flatten(), numbers.expand(batch, -1, -1).flatten(0, 1))
        labels.append(label)
    return torch.cat(labels, -1), sums.view(batch, k, -1)


def _drawn(chances: Tensor, levels: Tensor) -> Tensor:
    """Draw with replacement by the rows of chances, `(B, n)`; return the indices at levels in [0, 1), `(B, count)`."""
    mass = chances.cumsum(-1)
    return torch.searchsorted(mass, levels * mass[:, -1:], right=True).clamp_max(mass.shape[-1] - 1)
