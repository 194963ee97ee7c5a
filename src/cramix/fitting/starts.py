"""Starts of fits as sums of features, many at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cramix.clustering import kmeans, lloyd, plus_plus
from cramix.fitting.features import LEAST_WEIGHT, Data
from cramix.fitting.problem import Problem
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.covariance import Family

# Iterations of k-means to convergence, and the few that improve a start.
_ITERATIONS, _FEW_ITERATIONS = 300, 8


def draw_starts(problem: Problem, default: str, data: Data, k: int, batch: int) -> Tensor:
    """Return the starts that the problem asks for, or the default: sums of features `(batch, k, F)`."""
    start = default if problem.init_params is None else problem.init_params
    if isinstance(start, MultivariateNormalMixture):
        return sums_of(problem, start).expand(batch, -1, -1)
    return STARTS[start](data, k, batch, problem.generator)


def sums_of(problem: Problem, mixture: MultivariateNormalMixture) -> Tensor:
    """Return the sums of features of a mixture, `(1, k, F)`."""
    scale = problem.units.scale
    covariances = mixture.covariances.double() / scale / scale.unsqueeze(-1)
    weights = mixture.weights.double().clamp_min(LEAST_WEIGHT)
    return sums_with(problem.family, weights, problem.units.of(mixture.means), covariances).unsqueeze(0)


def sums_with(family: Family, weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
    """Return sums of features `(*, k, F)` whose parameters have the covariances `(*, k, d, d)`, floor included."""
    variances = covariances.diagonal(dim1=-2, dim2=-1)
    floor = torch.minimum(torch.as_tensor(family.floor, dtype=variances.dtype, device=variances.device), variances)
    return family.sums(weights, means, covariances - torch.diag_embed(floor))


def clustered(data: Data, labels: Tensor, k: int) -> Tensor:
    """Return the sums of features of the samples in each cluster, `(B, k, F)`, for labels `(B, n)`."""
    shares = one_hot(labels, k).mT.to(data.x.dtype)
    # With fewer distinct points than clusters, some are empty or have no weight: these get 1/n of every sample.
    mass = shares @ data.weights.unsqueeze(-1)
    return data.sums(torch.where(mass > 0, shares, 1 / len(data)))


def regrouped(data: Data, sums: Tensor) -> Tensor:
    """Return starts `(B, k, F)` whose components are clusters around the means, after a few k-means iterations."""
    centres = sums[..., 1 : 1 + data.family.dim] / sums[..., :1]
    labels = lloyd(data.x, data.weights, centres, _FEW_ITERATIONS).labels
    found = data.sums(one_hot(labels, sums.shape[-2]).mT.to(data.x.dtype))
    # A cluster without weight keeps its shape and gets a small weight.
    return torch.where(found[..., :1] > 0, found, sums / len(data))


def start_covariance(data: Data, k: int) -> Tensor:
    """Return the covariance with which k components together fill the volume of the data.

    It is `(d, d)`, or `(B, 1, d, d)` if fits have weights of their own.
    """
    covariance = data.covariance / k ** (2 / data.family.dim)
    return covariance if covariance.ndim == 2 else covariance.unsqueeze(1)


def _at(data: Data, means: Tensor) -> Tensor:
    """Return components of equal weight and shape at the means `(B, k, d)`, as sums `(B, k, F)`."""
    batch, k, dim = means.shape
    covariance = start_covariance(data, k)
    return data.family.sums(means.new_full((batch, k), 1 / k), means, covariance.expand(batch, k, dim, dim))


def _random_from_data(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Centre components of equal shape at random samples."""
    # The first k of exponential times whose rates are the weights: a weighted draw without replacement of any size.
    times = data.x.new_empty(batch, len(data)).exponential_(generator=generator) / data.weights
    return _at(data, data.x[times.topk(k, largest=False).indices])


def _random(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Draw random responsibilities, which centre all components near the mean."""
    shares = torch.rand(batch, k, len(data), generator=generator, dtype=data.x.dtype, device=data.x.device)
    return data.sums(shares / shares.sum(-2, keepdim=True))


def _plus_plus(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Centre components of equal shape at samples far from each other."""
    return _at(data, data.x[plus_plus(data.x, data.weights, k, batch, generator)])


def _kmeans(data: Data, k: int, batch: int, generator: torch.Generator | None) -> Tensor:
    """Take the weight, mean and covariance of the clusters of k-means."""
    return clustered(data, kmeans(data.x, data.weights, k, batch, _ITERATIONS, generator).labels, k)


STARTS: dict[str, Callable[[Data, int, int, torch.Generator | None], Tensor]] = {
    "kmeans": _kmeans,
    "k-means++": _plus_plus,
    "random": _random,
    "random_from_data": _random_from_data,
}
