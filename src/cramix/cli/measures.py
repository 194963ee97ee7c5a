"""What the commands measure: distances, divergences, likelihoods."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.directions import orthogonal
from cramix.distance.density import density_l2_squared
from cramix.distance.kullback_leibler import kl_divergence
from cramix.distance.likelihood import log_density
from cramix.distance.sliced import sliced_cramer_distance
from cramix.mixture import MultivariateNormalMixture

# Beyond this many pairs of points, about ten seconds' worth, the distance is averaged over slices.
_MOST_PAIRS = 2e9
_SLICES = 256
# Draws for the divergence, and numbers in a block of them.
_DRAWS, _BLOCK = 1 << 16, 1 << 20


class Estimate(NamedTuple):
    """A Monte Carlo estimate."""

    value: float
    standard_error: float


class Distance(NamedTuple):
    """The sliced Cramér distance, and over how many directions; None for all of them."""

    value: float
    directions: int | None


def cramer(p: MultivariateNormalMixture, q: MultivariateNormalMixture, most_pairs: float = _MOST_PAIRS) -> Distance:
    """Return the distance C2 between mixtures or points: over all directions unless there are too many pairs."""
    sizes = [side.n_components if side.is_empirical else 0 for side in (p, q)]
    pairs = sizes[0] ** 2 + sizes[1] ** 2 + sizes[0] * sizes[1]
    with torch.no_grad():
        if pairs <= most_pairs or p.dim == 1:
            return Distance(sliced_cramer_distance(p, q).item(), None)
        generator = torch.Generator().manual_seed(0)
        directions = orthogonal(_SLICES, p.dim, generator=generator, dtype=p.means.dtype)
        return Distance(sliced_cramer_distance(p, q, directions).item(), _SLICES)


def rescaled(p: MultivariateNormalMixture, scales: Tensor) -> MultivariateNormalMixture:
    """Return the distribution of `X / scales`."""
    return p.affine(0.0, torch.diag(1 / scales))


def has_density(p: MultivariateNormalMixture) -> bool:
    """Whether all covariances are positive definite."""
    try:
        p.log_prob(p.means[:1])
    except ValueError:
        return False
    return True


def squared_error(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> float | None:
    """Return the integrated squared error, `integral (f - g)^2 dx`; None where one has no density."""
    return density_l2_squared(p, q).item() if has_density(p) and has_density(q) else None


def kullback_leibler(p: MultivariateNormalMixture, q: MultivariateNormalMixture, block: int = _BLOCK) -> Estimate:
    """Estimate `E_p log(f / g)` by Monte Carlo with a fixed seed, from blocks of about `block` numbers."""
    generator = torch.Generator().manual_seed(0)
    draws = min(_DRAWS, max(16, block // max(p.means.numel(), q.means.numel())))
    rounds = math.ceil(_DRAWS / draws)
    with torch.no_grad():
        parts = [kl_divergence(p, q, draws, generator, with_error=True) for _ in range(rounds)]
    values, errors = (torch.stack(column) for column in zip(*parts, strict=True))
    return Estimate(values.mean().item(), errors.square().sum().sqrt().item() / rounds)


def mean_log_likelihood(p: MultivariateNormalMixture, x: Tensor) -> float:
    """Return the mean of the log density over samples `(n, d)`."""
    return log_density(p, x).mean().item()


def density_threshold(p: MultivariateNormalMixture, fraction: float) -> float:
    """Return the log density that draws from the mixture fall below with probability `fraction`.

    It is the quantile over draws with a fixed seed.
    """
    drawn = p.sample((_DRAWS,), generator=torch.Generator().manual_seed(0))
    return log_density(p, drawn).quantile(fraction).item()
