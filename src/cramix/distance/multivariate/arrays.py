"""Arrays of two libraries: what is written for an `Array` serves tensors, and arrays of NumPy where there are few.

For a few numbers the time goes into calls, and a call of NumPy takes a third of the time of a call of torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.distance.underflow import LARGEST_EXPONENT

_LARGEST_EXPONENT = LARGEST_EXPONENT[torch.float64]

Array = Any  # a Tensor or an np.ndarray


def library(x: Array) -> Any:
    """Return the module that has the functions for an array."""
    return np if isinstance(x, np.ndarray) else torch


def as_like(x: Array, like: Array) -> Array:
    """Return an array in the library of another, and on its device."""
    if isinstance(like, np.ndarray):
        return x.numpy() if isinstance(x, Tensor) else x
    return torch.as_tensor(x, device=like.device)


def in_dtype(x: Array, like: Array) -> Array:
    """Return an array in the dtype of another of its library."""
    return x.astype(like.dtype, copy=False) if isinstance(x, np.ndarray) else x.to(like.dtype)


def in_float64(x: Array) -> Array:
    """Return an array in float64."""
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x.double()


def rows_at(x: Array, index: Array) -> Array:
    """Return the rows `(B, E, *)` of `(B, k, *)` that have the numbers of an index `(E,)`."""
    return x.take(index, 1) if isinstance(x, np.ndarray) else x.index_select(1, index)


def sums_at(index: Array, x: Array, count: int) -> Array:
    """Return sums `(B, count, f)` of the rows of `(B, E, f)` that have the same number in an index `(E,)`."""
    if isinstance(x, np.ndarray):
        return (np.arange(count)[:, None] == index).astype(x.dtype) @ x
    return x.new_zeros(len(x), count, x.shape[-1]).index_add_(1, index, x)


def exp(x: Array) -> Array:
    """Return exponentials of what is <= 0, in float64, kept from where torch is slow because they underflow."""
    return np.exp(x) if isinstance(x, np.ndarray) else x.clamp_min(-_LARGEST_EXPONENT).exp()


def squared_lengths(x: Array) -> Array:
    """Return the squared lengths of vectors `(B, n, d)`, `(B, n)`."""
    return (x * x) @ np.ones(x.shape[-1], x.dtype) if isinstance(x, np.ndarray) else x.square().sum(-1)


def diagonal(x: Array) -> Array:
    """Return the diagonals of matrices, `(*, d)`."""
    return x.diagonal(0, -2, -1)


def on_diagonal(x: Array, added: Array) -> Array:
    """Return matrices `(*, d, d)` with `(*, d)` added on their diagonals, in place."""
    x.reshape(*added.shape[:-1], -1)[..., :: added.shape[-1] + 1] += added
    return x
