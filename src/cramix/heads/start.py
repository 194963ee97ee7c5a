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
# Shares of targets in the middle, and how many standard deviations of a normal distribution they are wide.
_WIDTHS = {0.6827: 2.0, 0.9: 3.29, 0.99: 5.152}
# Vectors further out than this many units are drawn in before they are clustered.
_REACH = 5.0
# Places nearer than this part of the spread are one.
_ALIKE = 1e-3


class Start(NamedTuple):
    """Centre and spread of targets, `(d,)`, and places among them for components, `(k, d)`, in float64."""

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
    columns = [NormalMixture.from_samples(column, shares) for column in x.unbind(-1)]
    centre, scales = (torch.stack(parts) for parts in zip(*map(_middle, columns), strict=True))
    if dim == 1:
        return Start(centre, scales, _quantiles(columns[0], k, scales).unsqueeze(-1))
    within = ((x - centre) / scales).clamp(-_REACH, _REACH)
    return Start(centre, scales, centre + scales * _clusters(within, shares, k))


def _middle(sample: NormalMixture) -> tuple[Tensor, Tensor]:
    """Return the median of a sample and half the width of its middle 68 %, on which outliers have no hold.

    If most of the sample is one number, it is of a larger part, made to be the same for a normal distribution.
    """
    levels = torch.tensor([0.5, *(0.5 - part / 2 for part in _WIDTHS), *(0.5 + part / 2 for part in _WIDTHS)])
    median, *ends = sample.icdf(levels.double()).tolist()
    count = len(_WIDTHS)
    widths = [
        (high - low) / sigmas for low, high, sigmas in zip(ends[:count], ends[count:], _WIDTHS.values(), strict=True)
    ]
    (deviation,) = moments(sample.means.unsqueeze(-1), sample.weights)[1].tolist()
    found = [width for width in (*widths, deviation) if width > 1e-12 * abs(median)]
    scale = found[0] if found else _CONSTANT * abs(median) or 1.0
    return torch.tensor(median, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64)


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
