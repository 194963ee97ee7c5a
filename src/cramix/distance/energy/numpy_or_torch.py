"""Code for two libraries: what is written for an `Array` works on tensors and on NumPy arrays.

For a few numbers the time goes into calls, and a call of NumPy takes a third of the time of a call of torch. An `Array`
has the type of a tensor, so that the type checker knows its methods; only those that NumPy has too are used. What the
libraries write differently is here.
"""

# ruff: noqa: D102 - the methods of the protocol are functions of torch and NumPy

from __future__ import annotations

from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from cramix.distance.kernels import LARGEST_EXPONENT

_LARGEST_EXPONENT = LARGEST_EXPONENT[torch.float64]

Array = Tensor
A = TypeVar("A", np.ndarray, Tensor)


class Library(Protocol):
    """The functions of torch and NumPy that are called alike."""

    def concatenate(self, arrays: tuple[Array, ...], axis: int) -> Array: ...
    def zeros_like(self, x: Array, /) -> Array: ...
    def where(self, condition: Array, x: Array | float, y: Array | float, /) -> Array: ...
    def sqrt(self, x: Array, /) -> Array: ...
    def expm1(self, x: Array, /) -> Array: ...
    def log1p(self, x: Array, /) -> Array: ...
    def exp2(self, x: Array, /) -> Array: ...
    def log2(self, x: Array, /) -> Array: ...
    def round(self, x: Array, /) -> Array: ...
    def maximum(self, x: Array, y: Array, /) -> Array: ...
    def amin(self, x: Array, axis: int, /) -> Array: ...
    def amax(self, x: Array, axis: int, /) -> Array: ...
    def einsum(self, subscripts: str, x: Array, /) -> Array: ...


def is_numpy(x: Array) -> bool:
    """Return whether an array is NumPy's."""
    return isinstance(x, np.ndarray)


def library(x: Array) -> Library:
    """Return the module that has the functions for an array."""
    return cast("Library", np if is_numpy(x) else torch)


def as_like(x: Array | np.ndarray, like: Array) -> Array:
    """Return an array in the library of another, and on its device."""
    if is_numpy(like):
        return cast("Array", x.numpy() if isinstance(x, Tensor) else x)
    return torch.as_tensor(x, device=like.device)


def as_tensor(x: Array) -> Tensor:
    """Return an array as a tensor that shares its memory."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x)


def as_numpy(x: Array) -> np.ndarray:
    """Return an array as NumPy's, on the CPU."""
    return x.cpu().numpy() if isinstance(x, Tensor) else x


def in_dtype(x: A, like: A) -> A:
    """Return an array in the dtype of another of its library."""
    return x.to(like.dtype) if isinstance(x, Tensor) else x.astype(like.dtype, copy=False)


def in_float64(x: A) -> A:
    """Return an array in float64."""
    return x.double() if isinstance(x, Tensor) else x.astype(np.float64, copy=False)


def rows_at(x: A, index: A) -> A:
    """Return the rows `(B, E, *)` of `(B, k, *)` at the positions of an index `(E,)`."""
    return x.index_select(1, index) if isinstance(x, Tensor) else x.take(index, 1)


def sums_at(index: A, x: A, count: int) -> A:
    """Return sums `(B, count, f)` of the rows of `(B, E, f)` that have the same position in an index `(E,)`."""
    if isinstance(x, Tensor):
        return x.new_zeros(len(x), count, x.shape[-1]).index_add_(1, index, x)
    return (np.arange(count)[:, None] == index).astype(x.dtype) @ x


def exp(x: A) -> A:
    """Return exponentials of numbers <= 0 in float64; those that underflow, where torch is slow, are nearly 0."""
    return x.clamp_min(-_LARGEST_EXPONENT).exp() if isinstance(x, Tensor) else np.exp(x)


def squared_lengths(x: A) -> A:
    """Return the squared lengths of vectors `(B, n, d)`, `(B, n)`."""
    return x.square().sum(-1) if isinstance(x, Tensor) else (x * x) @ np.ones(x.shape[-1], x.dtype)


def add_to_diagonal(x: Array, added: Array) -> Array:
    """Return matrices `(*, d, d)` with `(*, d)` added to their diagonals, in place."""
    x.reshape(*added.shape[:-1], -1)[..., :: added.shape[-1] + 1] += added
    return x
