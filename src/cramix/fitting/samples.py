"""What is fitted: samples of any kind, or a mixture, as one mixture in d >= 1 dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.checks import check_finite
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates

# Samples that are read at a time, and numbers on a GPU, which is busy with large blocks only.
_ROWS, _GPU_NUMBERS = 1 << 16, 1 << 25
# Larger weights are no counts: in floating point all large numbers are whole.
_LARGEST_COUNT = 2.0**32
# Squares of larger numbers overflow in float64 when they are summed.
_LARGEST = 1e150


class Target(NamedTuple):
    """What to fit.

    Args:
        mixture: in d >= 1 dimensions, without gradients; samples are points.
        univariate: whether the caller's data had no axis of coordinates.
        samples: whether the caller's data were samples.
    """

    mixture: MultivariateNormalMixture
    univariate: bool
    samples: bool


def read_target(X: Any, sample_weight: Any = None) -> Target:
    """Return samples or a mixture as a target.

    Args:
        X: samples `(n, d)` or `(n,)`, as a tensor, an array, a table or a sequence; or a mixture without batch.
        sample_weight: of samples, `(n,)`.
    """
    if isinstance(X, NormalMixture | MultivariateNormalMixture):
        if sample_weight is not None:
            raise ValueError("sample_weight must be None if X is a mixture, which has weights of its own.")
        if X.batch_shape:
            raise ValueError(f"X must be one mixture; got a batch of shape {tuple(X.batch_shape)}. Fit one at a time.")
        mixture = in_coordinates(X).detach()
        return Target(mixture, isinstance(X, NormalMixture), False)
    x = as_tensor("X", X).detach()
    if x.ndim not in (1, 2) or 0 in x.shape:
        raise ValueError(f"X must be samples (n, d) or (n,) with n, d >= 1; got shape {tuple(x.shape)}.")
    check_finite(X=x)
    weights = None
    if sample_weight is not None:
        weights = read_weights(sample_weight, x)
        # Scaled first: few dtypes hold large weights.
        weights = weights if weights.dtype == x.dtype else (weights / weights.max()).to(x.dtype)
    rows = x if x.ndim == 2 else x.unsqueeze(-1)
    return Target(MultivariateNormalMixture.from_samples(rows, weights), x.ndim == 1, True)


def without_rows(target: Target, rows: Sequence[int], weighted: bool) -> Target:
    """Return the target without some of its samples; samples that are not weighted remain so, without rounding."""
    if not rows:
        return target
    x, weights = target.mixture.means, target.mixture.weights
    kept = torch.ones_like(weights, dtype=torch.bool)
    kept[list(rows)] = False
    return target._replace(mixture=MultivariateNormalMixture.from_samples(x[kept], weights[kept] if weighted else None))


def read_weights(sample_weight: Any, x: Tensor) -> Tensor:
    """Return the weights of samples, one for each row of x: `(n,)`, on its device."""
    if isinstance(sample_weight, str):
        raise ValueError(
            f"sample_weight must be numbers for data in memory; got {sample_weight!r}. For the name of a column use "
            "cramix.source(X, sample_weight=...)."
        )
    weights = as_tensor("sample_weight", sample_weight).detach().to(x.device)
    if weights.shape != x.shape[:1]:
        raise ValueError(
            f"sample_weight must have one entry per sample, shape ({len(x)},); got shape {tuple(weights.shape)}."
        )
    check_finite(sample_weight=weights)
    if weights.min() < 0:
        raise ValueError(f"sample_weight must be >= 0; got min {weights.min().item():.3g}.")
    if not bool(weights.any()):
        raise ValueError("sample_weight must have an entry > 0; got zeros only.")
    return weights


def n_samples(weights: Tensor) -> float:
    """Return the number of samples that weights `(n,)` stand for.

    Whole numbers are counts. Others are only relative, and stand for as many samples of equal weight as have a mean of
    the same variance (Kish).
    """
    weights = weights.double()
    if weights.max() < _LARGEST_COUNT and bool((weights == weights.round()).all()):
        return weights.sum().item()
    weights = weights / weights.max()
    return (weights.sum().square() / weights.square().sum()).item()


def check_range(x: Tensor) -> None:
    """Raise a ValueError for means or samples whose squares overflow."""
    largest = max(end.abs().item() for end in torch.aminmax(x))
    if largest > _LARGEST:
        raise ValueError(f"X must lie within {_LARGEST:g}, or squares overflow; got {largest:.3g}. Rescale it.")


def rows_at_a_time(x: Tensor, numbers: int = 1) -> int:
    """Return how many samples `(n, d)` or `(n,)` to read at a time, if so many numbers are computed of each entry."""
    return max(_ROWS, _GPU_NUMBERS // (numbers * x[:1].numel())) if x.is_cuda else _ROWS
