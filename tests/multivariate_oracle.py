"""Truth from outside the library for multivariate mixtures: loops over numpy matrices and scipy's densities."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from torch import Tensor

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, Spherical, Tied
from cramix.mixture import Covariance


class Kind(NamedTuple):
    """One kind of covariances: the shape of its values, free tensors to valid ones, and the matrices meant by them."""

    build: Callable[[Tensor], Covariance]
    shape: Callable[[int, int], tuple[int, ...]]  # of k and d, behind the batch axes
    valid: Callable[[Tensor], Tensor]
    matrix: Callable[[np.ndarray, int, int], np.ndarray]  # of the values of one batch element, component and d


def _definite(free: Tensor) -> Tensor:
    return free @ free.mT + 0.25 * torch.eye(free.shape[-1], dtype=free.dtype)


def _lower(free: Tensor) -> Tensor:
    return free.tril(-1) + torch.diag_embed(free.diagonal(dim1=-2, dim2=-1).exp())


def _of_its_own(values: np.ndarray, i: int) -> np.ndarray:
    """The values of component i, which may be shared."""
    return values[i if len(values) > 1 else 0]


KINDS = {
    "full": Kind(Full, lambda k, d: (k, d, d), _definite, lambda v, i, d: _of_its_own(v, i)),
    "full, shared": Kind(Full, lambda k, d: (1, d, d), _definite, lambda v, i, d: v[0]),
    "tied": Kind(Tied, lambda k, d: (d, d), _definite, lambda v, i, d: v),
    "diagonal": Kind(Diagonal, lambda k, d: (k, d), torch.exp, lambda v, i, d: np.diag(_of_its_own(v, i))),
    "spherical": Kind(Spherical, lambda k, d: (k,), torch.exp, lambda v, i, d: _of_its_own(v, i) * np.eye(d)),
    "factor": Kind(Factor, lambda k, d: (k, d, d), lambda s: s, lambda v, i, d: v[i].T @ v[i]),
    "wide factor": Kind(Factor, lambda k, d: (k, d + 2, d), lambda s: s, lambda v, i, d: v[i].T @ v[i]),
    "scale_tril": Kind(
        Factor.from_scale_tril, lambda k, d: (k, d, d), _lower, lambda v, i, d: np.tril(v[i]) @ np.tril(v[i]).T
    ),
}
SINGULAR = {
    "full": Kind(Full, lambda k, d: (k, 1, d), lambda s: s.mT @ s, lambda v, i, d: v[i]),
    "tied": Kind(Tied, lambda k, d: (1, d), lambda s: s.mT @ s, lambda v, i, d: v),
    "diagonal": Kind(Diagonal, lambda k, d: (k, d), lambda s: s.relu(), lambda v, i, d: np.diag(v[i])),
    "spherical": Kind(Spherical, lambda k, d: (k,), lambda s: s.relu(), lambda v, i, d: v[i] * np.eye(d)),
    "factor": Kind(Factor, lambda k, d: (k, 1, d), lambda s: s, lambda v, i, d: v[i].T @ v[i]),
    "zero": Kind(Full, lambda k, d: (k, d, d), lambda s: 0 * s, lambda v, i, d: np.zeros((d, d))),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
every_singular_kind = pytest.mark.parametrize("kind", SINGULAR.values(), ids=SINGULAR)

# Batch shapes of weights, means and covariances that broadcast.
BATCHES = {
    "none": ((), (), ()),
    "one": ((2,), (2,), (2,)),
    "shared covariances": ((4, 2), (4, 2), ()),
    "fewer axes of covariances": ((4, 2), (4, 2), (2,)),
    "grown by each other": ((4, 1), (2,), ()),
    "grown by covariances": ((), (), (3,)),
    "axes of length one": ((2,), (1, 2), (4, 1)),
}
every_batch = pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)


def tensor(x, **options) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, **options)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def free_parameters(kind: Kind, batches: tuple = ((), (), ()), k: int = 3, d: int = 3, seed: int = 0) -> list[Tensor]:
    """Logits, means and free values of covariances."""
    shapes = ((*batches[0], k), (*batches[1], k, d), (*batches[2], *kind.shape(k, d)))
    g = generator(seed)
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


def of_free(kind: Kind, logits: Tensor, means: Tensor, free: Tensor, **options) -> MultivariateNormalMixture:
    return MultivariateNormalMixture(logits.softmax(-1), means, kind.build(kind.valid(free)), **options)


def elements(kind: Kind, logits: Tensor, means: Tensor, free: Tensor) -> np.ndarray:
    """Weights, means and covariance matrices as numpy arrays, an array of such triples over the batch."""
    weights, means, values = (x.detach().numpy() for x in (logits.softmax(-1), means, kind.valid(free)))
    d, own = means.shape[-1], len(kind.shape(1, 1))
    shape = np.broadcast_shapes(weights.shape[:-1], means.shape[:-2], values.shape[: values.ndim - own])
    weights = np.broadcast_to(weights, (*shape, *weights.shape[-1:]))
    means = np.broadcast_to(means, (*shape, *means.shape[-2:]))
    values = np.broadcast_to(values, (*shape, *values.shape[values.ndim - own :]))
    out = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        matrices = [kind.matrix(values[index], i, d) for i in range(weights.shape[-1])]
        out[index] = (weights[index], means[index], np.array(matrices))
    return out


def each(function: Callable[..., object], batch: np.ndarray) -> np.ndarray:
    """The function of weights, means and matrices for each element of a batch."""
    values = np.array([function(*batch[index]) for index in np.ndindex(*batch.shape)])
    return values.reshape(batch.shape + values.shape[1:])


def log_density(x: np.ndarray, weights: np.ndarray, means: np.ndarray, matrices: np.ndarray) -> float:
    parts = [multivariate_normal(m, c).logpdf(x) for m, c in zip(means, matrices, strict=True)]
    return float(logsumexp(parts, b=weights))


def mean_of(weights: np.ndarray, means: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    return sum(w * m for w, m in zip(weights, means, strict=True))


def covariance_of(weights: np.ndarray, means: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    centre = mean_of(weights, means, matrices)
    parts = zip(weights, means, matrices, strict=True)
    return sum(w * (c + np.outer(m - centre, m - centre)) for w, m, c in parts)


def close(got: Tensor, expected: object, rtol: float = 1e-12, atol: float = 1e-13) -> None:
    expected = expected if isinstance(expected, Tensor) else torch.tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(got.detach().double(), expected.detach(), rtol=rtol, atol=atol)


def near(draws: Tensor, truth: Tensor, *, sigmas: float = 5.0, precision: float = 0.05) -> None:
    """Check the mean of draws along their first axis, to so many standard errors, none of them above `precision`.

    Five of them are exceeded by chance once in 1.7 million numbers compared.
    """
    error = (draws.mean(0) - truth).abs()
    standard_error = draws.std(0) / len(draws) ** 0.5
    assert (standard_error <= precision).all(), f"standard error {standard_error.max():.3g} tells too little"
    assert (error <= sigmas * standard_error + 1e-12).all(), f"off by {(error / standard_error).max():.3g} sigmas"
