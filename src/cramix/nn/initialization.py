"""Where the components of a head start: distributed over a sample of the targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.checks import check_finite
from cramix.clustering import lloyd
from cramix.mixture import NormalMixture
from cramix.mixture.weights import of_samples
from cramix.quadrature import even_points

# Iterations of k-means; a start does not need converged clusters.
_KMEANS_ITERATIONS = 10
# The scale of constant targets, relative to their absolute value.
_CONSTANT_SCALE = 1e-3
# Central probabilities, and the widths of these intervals in standard deviations of a normal distribution.
_CENTRAL_WIDTHS = {0.6827: 2.0, 0.9: 3.29, 0.99: 5.152}
# Vectors are clipped to this many scales from the median before they are clustered.
_CLIP = 5.0
# Means closer than this, relative to the scale, count as equal.
_MIN_GAP = 1e-3


class Initialization(NamedTuple):
    """Median and scale of the targets, `(d,)` each, and initial means of the components, `(k, d)`, in float64."""

    center: Tensor
    scale: Tensor
    means: Tensor


def standard_initialization(n_components: int, dim: int) -> Initialization:
    """Return the initialization for unknown targets, assumed to have mean 0 and variance 1."""
    means = torch.special.ndtri(even_points(n_components, dim))
    return Initialization(means.new_zeros(dim), means.new_ones(dim), means)


def initialization_from_targets(
    targets: Tensor, sample_weight: Tensor | None, n_components: int, dim: int
) -> Initialization:
    """Return the initialization for a sample of the targets, `(n,)` or `(n, d)`, with weights `(n,)`."""
    targets = as_tensor("targets", targets)
    if (targets.shape[1:] or (1,)) != (dim,) or not len(targets):
        expected = "(n,)" if dim == 1 else f"(n, {dim})"
        raise ValueError(
            f"targets must have shape {expected} with n >= 1, as event_dim is {dim}; got {tuple(targets.shape)}."
        )
    x = targets.detach().reshape(-1, dim).double().cpu()
    check_finite(targets=x)
    given = None if sample_weight is None else as_tensor("sample_weight", sample_weight).detach().double().cpu()
    weights = of_samples("targets", x.shape[:1], given, x)
    x, weights = x[weights > 0], weights[weights > 0]
    columns = [NormalMixture.from_samples(column, weights) for column in x.unbind(-1)]
    center, scale = (torch.stack(values) for values in zip(*map(_median_and_scale, columns), strict=True))
    if dim == 1:
        return Initialization(center, scale, _quantile_means(columns[0], n_components, scale).unsqueeze(-1))
    standardized = ((x - center) / scale).clamp(-_CLIP, _CLIP)
    return Initialization(center, scale, center + scale * _cluster_means(standardized, weights, n_components))


def weighted_moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of rows `(n, d)`, `(d,)` each; 0 for constant columns, up to rounding."""
    weights = (weights / weights.sum()).unsqueeze(-1)
    mean = (weights * x).sum(0)
    scale = (weights * (x - mean).square()).sum(0).sqrt()
    return mean, torch.where(scale > 1e-12 * mean.abs(), scale, 0)


def _median_and_scale(sample: NormalMixture) -> tuple[Tensor, Tensor]:
    """Return the median of a sample and half the width of its central 68 %, which outliers do not affect.

    If that interval has no width because values repeat, a wider one is used, rescaled to agree for a normal
    distribution.
    """
    lower, upper = ([0.5 + sign * c / 2 for c in _CENTRAL_WIDTHS] for sign in (-1, 1))
    median, *ends = sample.icdf(torch.tensor([0.5, *lower, *upper], dtype=torch.float64)).tolist()
    low, high = ends[: len(lower)], ends[len(lower) :]
    candidates = [(b - a) / sigmas for a, b, sigmas in zip(low, high, _CENTRAL_WIDTHS.values(), strict=True)]
    candidates += weighted_moments(sample.means.unsqueeze(-1), sample.weights)[1].tolist()
    positive = [scale for scale in candidates if scale > 1e-12 * abs(median)]
    scale = positive[0] if positive else _CONSTANT_SCALE * abs(median) or 1.0
    return torch.tensor(median, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64)


def _quantile_means(sample: NormalMixture, k: int, scale: Tensor) -> Tensor:
    """Return k quantiles of a sample, or k equally spaced points if some quantiles coincide.

    Components that start at the same mean have the same gradients and separate slowly.
    """
    means = sample.icdf((torch.arange(k, dtype=torch.float64) + 0.5) / k)
    if k == 1 or means.diff().min() > _MIN_GAP * scale:
        return means
    low, high = sample.icdf(torch.tensor([0.005, 0.995], dtype=torch.float64))
    return low + (high - low) * torch.linspace(0, 1, k, dtype=torch.float64)


def _cluster_means(x: Tensor, weights: Tensor, k: int) -> Tensor:
    """Return the centers of k clusters of points `(n, d)`, by k-means from quantiles along the first principal axis."""
    _, axes = torch.linalg.eigh((weights.unsqueeze(-1) * x).T @ x)
    order = (x @ axes[:, -1]).argsort()
    mass = weights[order].cumsum(0)
    levels = (torch.arange(k, dtype=x.dtype) + 0.5) / k
    centers = x[order[torch.searchsorted(mass, levels * mass[-1]).clamp_max(len(x) - 1)]]
    return lloyd(x, weights, centers.unsqueeze(0), _KMEANS_ITERATIONS).centres.squeeze(0)
