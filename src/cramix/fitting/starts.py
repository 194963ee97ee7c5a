"""Where a fit begins: places for components, as sums of features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cramix.fitting.em import Data
from cramix.fitting.problem import Problem
from cramix.mixture import MultivariateNormalMixture


def draw_starts(problem: Problem, default: str, k: int, batch: int = 1) -> Tensor:
    """Return the starts that the problem asks for, the default if none: sums of features `(batch, k, F)`."""
    start = default if problem.start is None else problem.start
    if isinstance(start, MultivariateNormalMixture):
        return _of_mixture(problem, start).expand(batch, -1, -1)
    return torch.stack([STARTS[start](problem.data, k, problem.generator) for _ in range(batch)])


def _of_mixture(problem: Problem, mixture: MultivariateNormalMixture) -> Tensor:
    """Return the sums of features of a mixture, `(k, F)`."""
    scale = problem.units.scale
    covariances = mixture.covariances.double() / scale / scale.unsqueeze(-1)
    return problem.family.sums(mixture.weights.double(), problem.units.of(mixture.means), covariances)


def _random_from_data(data: Data, k: int, generator: torch.Generator | None) -> Tensor:
    """Put components of one shape at random samples."""
    # The k first of exponential times, each with the weight as its rate: drawing without replacement, of any number.
    times = torch.empty_like(data.weights).exponential_(generator=generator) / data.weights
    return _at(data, data.x[times.topk(k, largest=False).indices])


def _random(data: Data, k: int, generator: torch.Generator | None) -> Tensor:
    """Share out every sample at random, so that all components lie in the middle."""
    shares = torch.rand(k, len(data), generator=generator, dtype=data.x.dtype, device=data.x.device)
    return data.sums(shares / shares.sum(0))


def _plus_plus(data: Data, k: int, generator: torch.Generator | None) -> Tensor:
    """Put components of one shape at samples far from each other."""
    cluster = _sklearn_cluster()
    centres, _ = cluster.kmeans_plusplus(
        data.x.cpu().numpy(), k, sample_weight=data.weights.cpu().numpy(), random_state=_seed(generator)
    )
    return _at(data, torch.from_numpy(centres).to(data.x))


def _kmeans(data: Data, k: int, generator: torch.Generator | None) -> Tensor:
    """Give every sample to its cluster."""
    cluster = _sklearn_cluster().KMeans(k, n_init=1, random_state=_seed(generator))
    labels = cluster.fit(data.x.cpu().numpy(), sample_weight=data.weights.cpu().numpy()).labels_
    labels = torch.from_numpy(labels).long().to(data.x.device)
    return data.sums(torch.nn.functional.one_hot(labels, k).to(data.x.dtype).T)


def _at(data: Data, places: Tensor) -> Tensor:
    """Components at the places, as wide as lets them share the space of the data, `(k, F)`."""
    k, dim = places.shape
    spread = data.covariance / k ** (2 / dim)
    return data.family.sums(places.new_full((k,), 1 / k), places, spread.expand(k, dim, dim))


def _seed(generator: torch.Generator | None) -> int:
    return int(torch.randint(2**31, (), generator=generator))


def _sklearn_cluster():
    try:
        import sklearn.cluster
    except ImportError:
        raise ImportError("k-means starts need scikit-learn. Use: pip install 'cramix[sklearn]'") from None
    return sklearn.cluster


STARTS: dict[str, Callable[[Data, int, torch.Generator | None], Tensor]] = {
    "kmeans": _kmeans,
    "k-means++": _plus_plus,
    "random": _random,
    "random_from_data": _random_from_data,
}
