"""Checks of arguments: each raises a ValueError that names the argument, the rule and the value."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import lru_cache
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from cramix.torch_internals import as_numpy, readable, shares_memory_with_numpy

_LARGEST = sys.float_info.max
# Up to this many numbers the time goes into calls, and those of NumPy are faster.
_FEW = 1 << 12
_least = np.minimum.reduce


def check_broadcast(cure: str, **shapes: torch.Size) -> torch.Size:
    """Require shapes that broadcast, and return what they broadcast to."""
    first, *others = shapes.values()
    if all(shape == first for shape in others):
        return first
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{' and '.join(shapes)} must broadcast; got {listed}. {cure}") from None


def check_finite(**tensors: Tensor) -> None:
    """Require values without NaN and infinity."""
    for name, x in tensors.items():
        if x.numel() == 0 or _lies_within(x, -_LARGEST, _LARGEST):
            continue
        bad = ~x.isfinite()
        if bad.any():
            count, first = int(bad.sum()), x[bad][0].item()
            raise ValueError(f"{name} must be finite; got {first} ({count} of {x.numel()} values).")


def check_integer(name: str, value: object, least: int) -> None:
    """Require an integer >= least."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}; got {value!r}.")


def check_number(name: str, value: object, *, positive: bool = False) -> None:
    """Require a finite number >= 0, or > 0."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf or (positive and value == 0):
        rule = "> 0" if positive else ">= 0"
        raise ValueError(f"{name} must be a number {rule}; got {value!r}.")


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Require one of some values."""
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}; got {value!r}.")


def check_within(name: str, x: Tensor, interval: str) -> None:
    """Require values in the unit interval, "[0, 1]" with either end open, as in "(0, 1]"; NaN is outside."""
    above = x >= 0 if interval[0] == "[" else x > 0
    below = x <= 1 if interval[-1] == "]" else x < 1
    bad = ~(above & below)
    if bad.any():
        raise ValueError(f"{name} must be in {interval}; got {x[bad][0].item():.6g}.")


def check_mixture(weights: Tensor, means: Tensor, scales: Tensor) -> None:
    """Require valid values of a mixture, where they can be read: a few reductions first, a full report on failure."""
    if torch.compiler.is_compiling():  # sizes may be symbolic
        return
    count = weights.numel()
    if (
        0 < count <= _FEW
        and shares_memory_with_numpy(weights, means, scales)
        and _clearly_valid(weights, means, scales)
    ):
        return
    if count == 0 or not readable(weights, means, scales):
        return
    with torch.no_grad():
        limits = torch.stack((weights.amin(), *scales.aminmax(), *means.aminmax()))
        excess = (weights.sum(-1) - 1).abs().amax()
        # One transfer from a GPU, which waits for it. NaN is neither above nor below anything.
        *finite, most = torch.cat((limits, excess.unsqueeze(0))).tolist()
        nonnegative = finite[0] >= 0 and finite[1] >= 0
        if nonnegative and all(abs(x) <= _LARGEST for x in finite) and most <= weight_tolerance(weights):
            return
        check_weights(weights)
        check_finite(means=means)
        check_nonnegative(scales=scales)


def _clearly_valid(weights: Tensor, means: Tensor, scales: Tensor) -> bool:
    """Return whether a few reductions by NumPy prove that a mixture is valid; if not, it may still be."""
    m, s = as_numpy(means), as_numpy(scales)
    # The last is finite only if all means and scales are.
    return _clearly_weights(weights) and float(_least(s, None)) >= 0 and abs(float(np.vdot(m, s))) <= _LARGEST


@np.errstate(all="ignore")  # NumPy's products may warn about padding
def _clearly_weights(weights: Tensor) -> bool:
    """Return whether weights are provably >= 0 and sum to one."""
    w = as_numpy(weights)
    ones = _ones(w.shape[-1], w.dtype)
    excess = w.dot(ones) - ones[0]
    # This is within the tolerance only if every sum is; half of it, as torch may round sums differently.
    near = float(np.vdot(excess, excess)) <= 0.5 * weight_tolerance(weights) ** 2
    return near and float(_least(w, None)) >= 0


@lru_cache
def _ones(k: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(k, dtype)


def _lies_within(x: Tensor, low: float, high: float) -> bool:
    """Return whether all values lie in the interval; NaN does not."""
    least, most = torch.stack(x.aminmax()).tolist()
    return low <= least and most <= high


def check_weights(weights: Tensor) -> None:
    """Require weights >= 0 that sum to one along the last axis, up to rounding in their dtype."""
    if 0 < weights.numel() <= _FEW and shares_memory_with_numpy(weights) and _clearly_weights(weights):
        return
    check_finite(weights=weights)
    if (weights < 0).any():
        raise ValueError(f"weights must be >= 0; got min {weights.min().item():.3g}. For log weights see from_logits.")
    total = weights.sum(-1)
    if ((total - 1).abs() > weight_tolerance(weights)).any():
        worst = total.flatten()[(total - 1).abs().argmax()].item()
        raise ValueError(
            f"weights must sum to 1 over components; got {worst:.6g}. Divide by weights.sum(-1, keepdim=True)."
        )


def check_nonnegative(**tensors: Tensor) -> None:
    """Require finite values >= 0."""
    check_finite(**tensors)
    for name, x in tensors.items():
        if (x < 0).any():
            raise ValueError(f"{name} must be >= 0; got min {x.min().item():.3g}.")


def weight_tolerance(weights: Tensor) -> float:
    """Return how far the sum of weights may be from one: the rounding error of a softmax grows with their number."""
    return _rounding(weights.dtype) * max(1.0, weights.shape[-1] ** 0.5 / 10)


@lru_cache
def _rounding(dtype: torch.dtype) -> float:
    return max(1e-6, 8 * torch.finfo(dtype).eps)


def check_covariances(matrices: Tensor) -> None:
    """Require finite, symmetric, positive semi-definite matrices `(*, d, d)`, up to rounding in their dtype."""
    check_finite(covariances=matrices)
    if matrices.numel() == 0:
        return
    with torch.no_grad():
        matrices, size, skew, rounding = _symmetry(matrices)
        if (skew > rounding * size).any():
            raise ValueError(
                f"covariances must be symmetric; got a difference of {skew.max().item():.3g} to the transpose. "
                "Use (A + A.mT) / 2."
            )
        if (torch.linalg.cholesky_ex(matrices).info == 0).all():
            return
        least = torch.linalg.eigvalsh(matrices)[..., 0]
        if (least < -rounding * size).any():
            raise ValueError(
                f"covariances must be positive semi-definite; got the eigenvalue {least.min().item():.3g}. "
                "For covariances S^T S of any matrix S see Factor."
            )


def surely_covariances(matrices: Tensor) -> Tensor:
    """Return whether matrices `(*, d, d)` are symmetric and positive definite, as a tensor: nothing waits for a GPU.

    Valid matrices that are singular do not count.
    """
    matrices, size, skew, rounding = _symmetry(matrices)
    return (skew <= rounding * size).all() & (torch.linalg.cholesky_ex(matrices).info == 0).all()


def _symmetry(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return matrices in float32 at least, their sizes, how far they are from symmetric, and what rounding permits."""
    rounding = 32 * matrices.shape[-1] * torch.finfo(matrices.dtype).eps
    matrices = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    size = matrices.diagonal(dim1=-2, dim2=-1).abs().amax(-1)
    skew = (matrices - matrices.mT).abs().amax((-2, -1))
    return matrices, size, skew, rounding


def surely_weights(weights: Tensor) -> Tensor:
    """Return whether weights are >= 0 and sum to one, as a tensor: nothing waits for a GPU."""
    return (weights >= 0).all() & ((weights.sum(-1) - 1).abs() <= weight_tolerance(weights)).all()
