"""Where fits begin: places for components, as sums of features, many starts at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cramix.fitting.em import LEAST, Data
from cramix.fitting.problem import Problem
from cramix.mixture import MultivariateNormalMixture

if TYPE_CHECKING:
    from sklearn.cluster import KMeans


# Rounds of k-means: clusters need not have settled for a start.
_ROUNDS = 8


def draw_starts(problem: Problem, default: str, data: Data, k: int, batch: int) -> Tensor:
    """Return the starts that the problem asks for, the default if none: sums of features `(batch, k, F)`."""
    start = default if problem.start is None else problem.start
    if isinstance(start, MultivariateNormalMixture):
        return sums_of(problem, start).expand(batch, -1, -1)
    return STARTS[start](data, k, batch, problem.generator)


def sums_of(problem: Problem, mixture: MultivariateNormalMixture) -> Tensor:
    """Return the sums of features of a mixture, `(1, k, F)`."""
    scale = problem.units.scale
    covariances = mixture.covariances.double() / scale / scale.unsqueeze(-1)
    weights = mixture.weights.double().clamp_min(LEAST)
    return problem.family.sums(weights, problem.units.of(mixture.means), covariances).unsqueeze(0)


def _random_from_data(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Put components of one shape at random samples."""
    # The k first of exponential times, each with the weight as its rate: drawing without replacement, of any number.
    times = data.x.new_empty(batch, len(data)).exponential_(generator=generator) / data.weights
    return _at(data, data.x[times.topk(k, largest=False).indices])


def _random(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Share out every sample at random, so that all components lie in the middle."""
    shares = torch.rand(batch, k, len(data), generator=generator, dtype=data.x.dtype, device=data.x.device)
    return data.sums(shares / shares.sum(-2, keepdim=True))


def _plus_plus(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Put components of one shape at samples far from each other.

    The next sample is drawn by its squared distance to the nearest one so far, as the best of some trials (greedy
    k-means++; Arthur and Vassilvitskii 2007).
    """
    trials = 2 + int(math.log(k))
    every = torch.arange(batch, device=data.x.device)
    chosen = _drawn(data.weights.expand(batch, -1), 1, generator)  # (B, 1)
    nearest = _squared_distances(data, chosen).squeeze(1)  # (B, n)
    for _ in range(k - 1):
        chance = data.weights * nearest
        # Where all samples coincide with chosen ones, any will do.
        chance = torch.where(chance.sum(-1, keepdim=True) > 0, chance, data.weights)
        tried = _drawn(chance, trials, generator)
        nearer = torch.minimum(nearest.unsqueeze(1), _squared_distances(data, tried))  # (B, trials, n)
        best = (nearer @ data.weights).argmin(-1)
        nearest = nearer[every, best]
        chosen = torch.cat((chosen, tried[every, best].unsqueeze(-1)), -1)
    return _at(data, data.x[chosen])


def _drawn(chances: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw with replacement by the rows of chances, `(B, n)`; return numbers `(B, count)`."""
    mass = chances.cumsum(-1)
    levels = torch.rand(len(mass), count, generator=generator, dtype=mass.dtype, device=mass.device)
    return torch.searchsorted(mass, levels * mass[:, -1:], right=True).clamp_max(mass.shape[-1] - 1)


def _squared_distances(data: Data, index: Tensor) -> Tensor:
    """From the samples with the numbers `(B, m)` to all, `(B, m, n)`."""
    squares = data.x.square().sum(-1)
    return (squares[index].unsqueeze(-1) + squares - 2 * (data.x[index] @ data.x.T)).clamp_min_(0)


def _kmeans(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Give every sample to its cluster."""
    x, weights = data.x.cpu().numpy(), data.weights.cpu().numpy()
    device = None if generator is None else generator.device
    seeds = torch.randint(2**31, (batch,), generator=generator, device=device).tolist()
    cluster = sklearn_kmeans()
    labels = [cluster(k, n_init=1, random_state=seed).fit(x, sample_weight=weights).labels_ for seed in seeds]
    return clustered(data, np.stack(labels), k)


def clustered(data: Data, labels: np.ndarray, k: int) -> Tensor:
    """Return the sums of features of samples in clusters by numbers, `(B, n)`."""
    shares = one_hot(torch.tensor(labels, device=data.x.device).long(), k).mT.to(data.x.dtype)
    # With fewer places than clusters some are empty, or of no weight, and get one sample's worth of all.
    return data.sums(torch.where((shares @ data.weights).unsqueeze(-1) > 0, shares, 1 / len(data)))


def sklearn_kmeans() -> type[KMeans]:
    """Return the class, or say how to get it."""
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise ImportError("k-means needs scikit-learn. Use: pip install 'cramix[sklearn]'") from None
    return KMeans


def regrouped(data: Data, sums: Tensor) -> Tensor:
    """Return starts `(B, k, F)` whose components are the clusters of samples around the means, after a few rounds."""
    for _ in range(_ROUNDS):
        centres = sums[..., 1 : 1 + data.family.dim] / sums[..., :1]
        distances = centres.square().sum(-1, keepdim=True) - 2 * centres @ data.x.T  # less what is the same for all
        shares = one_hot(distances.argmin(-2), sums.shape[-2]).mT.to(data.x.dtype)
        found = data.sums(shares)
        # A cluster without samples that have a weight stays a component of its shape, of little weight.
        sums = torch.where(found[..., :1] > 0, found, sums / len(data))
    return sums


def start_covariance(data: Data, k: int) -> Tensor:
    """Return the covariance `(d, d)` with which k components share the space of the data."""
    return data.covariance / k ** (2 / data.family.dim)


def _at(data: Data, places: Tensor) -> Tensor:
    """Components at the places `(B, k, d)`, as wide as lets them share the space of the data, `(B, k, F)`."""
    batch, k, dim = places.shape
    spread = start_covariance(data, k)
    return data.family.sums(places.new_full((batch, k), 1 / k), places, spread.expand(batch, k, dim, dim))


STARTS: dict[str, Callable[[Data, int, int, torch.Generator | None], Tensor]] = {
    "kmeans": _kmeans,
    "k-means++": _plus_plus,
    "random": _random,
    "random_from_data": _random_from_data,
}
