"""Linear pools: the weights of several predictions with which their mixture has the least CRPS."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from cramix.distance.cramer.distance import cramer_distance
from cramix.loss import crps
from cramix.mixture import NormalMixture

# How far weights are moved towards equal ones: what is tried, and by how many standard errors the score may rise.
_SHARES, _TOLERANCE = tuple(1 - 0.05 * i for i in range(20)), 0.5


def pool_weights(predictions: Sequence[NormalMixture], y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Return weights `(j,)` that nearly minimise the mean CRPS of the mixture of j predictions for targets `(n,)`.

    For weights a, scores s and distances D^2 between predictions, it is `a s - 1/2 a D^2 a`: a convex quadratic form,
    so the least value is found among those with some weights 0 and equal derivatives for the others. Between these
    weights and equal ones, those nearest to equal are returned whose score is not higher by more than half a standard
    error: few rows say little about the best weights, and equal ones are a good guess.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)).expand((2,))
        >>> q = p.affine(2.0, 1.0)
        >>> pool_weights([p, q], torch.tensor([0.0, 2.0]))
        tensor([0.5000, 0.5000])
    """
    w = torch.ones_like(y) if sample_weight is None else sample_weight.to(y)
    w = w / w.sum()
    j = len(predictions)
    scores = torch.stack([crps(p, y) for p in predictions], -1)  # (n, j)
    distances = scores.new_zeros(len(y), j, j)
    for a, b in combinations(range(j), 2):
        distances[:, a, b] = distances[:, b, a] = cramer_distance(predictions[a], predictions[b]).square()
    best = _least(w @ scores, torch.einsum("n,nab->ab", w, distances))

    def score(weights: Tensor) -> Tensor:
        return scores @ weights - 0.5 * torch.einsum("a,nab,b->n", weights, distances, weights)

    equal = scores.new_full((j,), 1 / j)
    for share in _SHARES:
        weights = share * equal + (1 - share) * best
        behind = score(weights) - score(best)
        mean = (w * behind).sum()
        error = (w.square() * (behind - mean).square()).sum().sqrt()
        if mean <= _TOLERANCE * error:
            return weights
    return best


def _least(scores: Tensor, distances: Tensor) -> Tensor:
    """Return the weights with the least `a s - 1/2 a D^2 a`."""
    j = len(scores)
    least, found = torch.inf, scores.new_zeros(j)
    for size in range(1, j + 1):
        for support in combinations(range(j), size):
            chosen = _stationary(scores[list(support)], distances[list(support)][:, list(support)])
            if bool((chosen >= 0).all()):
                weights = scores.new_zeros(j).index_put((torch.tensor(support),), chosen)
                value = (weights @ scores - 0.5 * weights @ distances @ weights).item()
                if value < least:
                    least, found = value, weights
    return found


def _stationary(scores: Tensor, distances: Tensor) -> Tensor:
    """Return weights that sum to one and have equal derivatives `s - D^2 a`; equal ones where these are not unique."""
    j = len(scores)
    ones = scores.new_ones(j, 1)
    system = torch.cat((torch.cat((distances, ones), 1), torch.cat((ones.T, ones.new_zeros(1, 1)), 1)))
    return (torch.linalg.pinv(system) @ torch.cat((scores, scores.new_ones(1))))[:j]
