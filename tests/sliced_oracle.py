"""Truth from outside for sliced distances: mixtures to try them on, and rules over the sphere for the proven slices."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cramix import (
    Diagonal,
    Factor,
    Full,
    MultivariateNormalMixture,
    NormalMixture,
    Spherical,
    Tied,
    cramer_loss,
)
from cramix.distance.sliced import sliced_cramer_squared
from cramix.mixture.covariance import Covariance

KINDS = {"full": Full, "tied": Tied, "diagonal": Diagonal, "spherical": Spherical, "factor": Factor}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def random_values(kind: str, *batch: int, k: int, d: int, seed: int) -> Tensor:
    """Covariances of a kind as the tensor it holds, of a size around 1, with condition numbers around 10."""
    factors = 0.6 * randn(*batch, k, d, d, seed=seed) / d**0.5 + 0.7 * torch.eye(d, dtype=torch.float64)
    matrices = factors.mT @ factors
    return {
        "full": matrices,
        "tied": matrices[..., 0, :, :],
        "diagonal": matrices.diagonal(dim1=-2, dim2=-1).contiguous(),
        "spherical": matrices[..., 0, 0].contiguous(),
        "factor": factors[..., : max(1, d - 1), :].contiguous(),
    }[kind]


def random_mixture(
    *batch: int, k: int = 3, d: int = 2, kind: str = "full", seed: int = 0, dtype: torch.dtype = torch.float64
) -> MultivariateNormalMixture:
    weights = randn(*batch, k, seed=seed).softmax(-1)
    means = 1.5 * randn(*batch, k, d, seed=seed + 1000)
    values = random_values(kind, *batch, k=k, d=d, seed=seed + 2000)
    return MultivariateNormalMixture(weights.to(dtype), means.to(dtype), KINDS[kind](values.to(dtype)))


def single(covariance: Covariance | Tensor, mean: list[float] | Tensor) -> MultivariateNormalMixture:
    """One component."""
    mean = torch.as_tensor(mean, dtype=torch.float64)
    return MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), mean.reshape(1, -1), covariance)


def over_slices(p: MultivariateNormalMixture, q: MultivariateNormalMixture, directions: Tensor, weights: Tensor):
    """The weighted mean of the closed one-dimensional form over directions; differentiable."""
    return (weights * cramer_loss(line(p, directions), line(q, directions), reduction="none")).sum(-1)


def line(p: MultivariateNormalMixture, directions: Tensor) -> NormalMixture:
    """The projections, written out here."""
    means = p.means @ directions.mT  # (*batch, k, t)
    variances = torch.einsum("ti,...kij,tj->...kt", directions, p.covariances, directions)
    scales = torch.where(variances > 0, torch.where(variances > 0, variances, 1).sqrt(), 0)
    weights = p.weights.unsqueeze(-1).expand_as(means)
    return NormalMixture(weights.mT, means.mT, scales.mT, validate_args=False)


def circle(count: int) -> tuple[Tensor, Tensor]:
    """Equal angles over the half circle: a rule that converges geometrically for smooth pairs."""
    angle = (torch.arange(count, dtype=torch.float64) + 0.37) * math.pi / count
    return torch.stack((angle.cos(), angle.sin()), -1), torch.full((count,), 1 / count, dtype=torch.float64)


def ball(count: int) -> tuple[Tensor, Tensor]:
    """The half sphere in three dimensions: Gauss-Legendre in height times equal angles."""
    height, weight = (torch.as_tensor(x) for x in np.polynomial.legendre.leggauss(count))
    angle = (torch.arange(count, dtype=torch.float64) + 0.37) * math.pi / count
    flat = (1 - height.square()).sqrt().unsqueeze(-1)
    directions = torch.stack((flat * angle.cos(), flat * angle.sin(), height.unsqueeze(-1).expand(-1, count)), -1)
    return directions.reshape(-1, 3), (weight / (2 * count)).repeat_interleave(count)


def factor_of(d: int) -> float:
    """From lengths to the mean over slices, the mean of |cos|."""
    return math.gamma(d / 2) / (math.sqrt(math.pi) * math.gamma((d + 1) / 2)) if d < 100 else _large(d)


def _large(d: int) -> float:
    return math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)


def plane_loss(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> float:
    """The loss in the plane to 1e-13 of its size, from mean lengths, however thin, narrow or far the components are."""
    cross, within_p, within_q = (_mean_distance(a, b) for a, b in ((p, q), (p, p), (q, q)))
    return (2 / math.pi) * (cross - 0.5 * within_p - 0.5 * within_q)


def _mean_distance(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> float:
    delta = (p.means.unsqueeze(1) - q.means).reshape(-1, 2)
    spread = (p.covariances.unsqueeze(1) + q.covariances).reshape(-1, 2, 2)
    shares = (p.weights.unsqueeze(1) * q.weights).flatten()
    return (shares * _plane_length(delta, spread)).sum().item()


def _plane_length(delta: Tensor, spread: Tensor) -> Tensor:
    """E|Z| = 1/2 integral over the half circle of E|<Z, e>|; angles are dense where a slice is thin or crosses 0."""
    variances, axes = torch.linalg.eigh(spread)
    variances = variances.clamp_min(0)
    crossing = torch.atan2(delta[:, 1], delta[:, 0]) + math.pi / 2
    thin = torch.atan2(axes[:, 1, 0], axes[:, 0, 0])
    between = crossing + (thin - crossing).remainder(math.pi)
    total = torch.zeros_like(crossing)
    at, weights = _graded()
    for start, end in ((crossing, between), (between, crossing + math.pi)):
        width = (end - start).unsqueeze(-1)
        angle = start.unsqueeze(-1) + width * at
        mean = (delta.unsqueeze(-2) * torch.stack((angle.cos(), angle.sin()), -1)).sum(-1)
        turned = angle - thin.unsqueeze(-1)
        scale = (variances[:, :1] * turned.cos().square() + variances[:, 1:] * turned.sin().square()).sqrt()
        z = mean / scale.clamp_min(1e-300)
        length = mean * torch.erf(z / 2**0.5) + scale * (2 / math.pi) ** 0.5 * torch.exp(-z.square() / 2)
        total += 0.5 * (width * weights * length).sum(-1)
    return total


def _graded() -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes in panels on [0, 1] that shrink towards both ends."""
    left = [0.0, *(0.5 * 0.4**k for k in range(32, -1, -1))]
    ends = torch.tensor(left, dtype=torch.float64)
    ends = torch.cat((ends, 1 - ends.flip(0)[1:]))
    x, w = (torch.as_tensor(t) for t in np.polynomial.legendre.leggauss(12))
    start, width = ends[:-1, None], ends.diff()[:, None]
    return (start + width * (x + 1) / 2).flatten(), (width * w / 2).flatten()


def sliced_loss(
    p: MultivariateNormalMixture | Tensor,
    q: MultivariateNormalMixture | Tensor,
    directions: str | int | Tensor = "exact",
    normalization: str = "mean",
    reduction: str = "mean",
    **options,
) -> Tensor:
    """The sliced Cramér loss with tensors as sets of samples `(*batch, n, d)` on either side."""
    p, q = (MultivariateNormalMixture.from_samples(x) if isinstance(x, Tensor) else x for x in (p, q))
    losses = sliced_cramer_squared(p, q, directions, normalization, **options)
    return {"none": lambda: losses, "mean": losses.mean, "sum": losses.sum}[reduction]()
