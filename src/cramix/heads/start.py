"""Where the components of a head begin: spread over a sample of the targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.checks import check_finite, check_floating
from cramix.mixture import NormalMixture
from cramix.mixture.weights import of_samples
from cramix.quadrature import even_points

# Rounds of k-means: clusters need not have settled for a start.
_ROUNDS = 10
# Targets that do not vary are uncertain by this part of their size.
_CONSTANT = 1e-3
# Places nearer than this part of the standard deviation are one.
_ALIKE = 1e-3


class Start(NamedTuple):
    """Centre and standard deviations of targets, `(d,)`, and places among them for components, `(k, d)`, in float64."""

    centre: Tensor
    scales: Tensor
    places: Tensor


def standard_start(k: int, dim: int) -> Start:
    """Return the start for targets that nobody has seen: of mean 0 and variance 1."""
    places = torch.special.ndtri(even_points(k, dim))
    return Start(places.new_zeros(dim), places.new_ones(dim), places)


def start_among(targets: Tensor, weights: Tensor | None, k: int, dim: int) -> Start:
    """Return the start for a sample of the targets, `(n,)` or `(n, d)`, with weights `(n,)`."""
    check_floating(targets=targets)
    if (targets.shape[1:] or (1,)) != (dim,) or not len(targets):
        wanted = "(n,)" if dim == 1 else f"(n, {dim})"
        raise ValueError(f"targets must be {wanted} with n >= 1; got {tuple(targets.shape)}. Reshape them.")
    x = targets.detach().reshape(-1, dim).double().cpu()
    check_finite(targets=x)
    shares = of_samples("targets", x.shape[:1], None if weights is None else weights.detach().double().cpu(), x)
    x, shares = x[shares > 0], shares[shares > 0]
    centre, scales = moments(x, shares)
    fallback = torch.where(centre == 0, 1.0, _CONSTANT * centre.abs())
    scales = torch.where(scales > 0, scales, fallback)
    if dim == 1:
        return Start(centre, scales, _quantiles(NormalMixture.from_samples(x[:, 0], shares), k, scales).unsqueeze(-1))
    return Start(centre, scales, centre + scales * _clusters((x - centre) / scales, shares, k))


def _quantiles(sample: NormalMixture, k: int, scale: Tensor) -> Tensor:
    """Return k quantiles of a sample; where some coincide, as of targets that repeat, equally spaced places instead.

    Two components in one place would have to move alike for long.
    """
    levels = (torch.arange(k, dtype=torch.float64) + 0.5) / k
    places = sample.icdf(levels)
    if k == 1 or places.diff().min() > _ALIKE * scale:
        return places
    low, high = sample.icdf(torch.tensor([0.005, 0.995], dtype=torch.float64))
    return low + (high - low) * torch.linspace(0, 1, k, dtype=torch.float64)


def moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of rows `(n, d)`, `(d,)` each; 0 where all are the same up to rounding."""
    shares = (weights / weights.sum()).unsqueeze(-1)
    centre = (shares * x).sum(0)
    scales = (shares * (x - centre).square()).sum(0).sqrt()
    return centre, torch.where(scales > 1e-12 * centre.abs(), scales, 0)


def _clusters(x: Tensor, weights: Tensor, k: int) -> Tensor:
    """Return the centres of k clusters of points `(n, d)`, by k-means from points along the longest axis."""
    _, axes = torch.linalg.eigh((weights.unsqueeze(-1) * x).T @ x)
    order = (x @ axes[:, -1]).argsort()
    mass = weights[order].cumsum(0)
    levels = (torch.arange(k, dtype=x.dtype) + 0.5) / k
    centres = x[order[torch.searchsorted(mass, levels * mass[-1]).clamp_max(len(x) - 1)]]
    for _ in range(_ROUNDS):
        nearest = torch.cdist(x, centres).argmin(-1)
        mass = weights.new_zeros(k).index_add_(0, nearest, weights).unsqueeze(-1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, weights.unsqueeze(-1) * x)
        centres = torch.where(mass > 0, sums / mass, centres)
    return centres
