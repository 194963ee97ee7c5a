"""Arrays of two libraries: code written for an `Array` works on tensors and on NumPy arrays.

For a few numbers the time goes into calls, and a call of NumPy takes a third of the time of a call of torch.
"""

# ruff: noqa: D102 - the methods of the protocols are those of torch and NumPy

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from cramix.distance.kernels import LARGEST_EXPONENT

_LARGEST_EXPONENT = LARGEST_EXPONENT[torch.float64]


class Array(Protocol):
    """What tensors and NumPy arrays have in common, as far as it is used here."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __getitem__(self, index: Any, /) -> Array: ...
    def __setitem__(self, index: Any, value: Array | float, /) -> None: ...
    def __neg__(self) -> Array: ...
    def __abs__(self) -> Array: ...
    def __add__(self, other: Array | float, /) -> Array: ...
    def __radd__(self, other: Array | float, /) -> Array: ...
    def __sub__(self, other: Array | float, /) -> Array: ...
    def __rsub__(self, other: Array | float, /) -> Array: ...
    def __mul__(self, other: Array | float, /) -> Array: ...
    def __rmul__(self, other: Array | float, /) -> Array: ...
    def __truediv__(self, other: Array | float, /) -> Array: ...
    def __rtruediv__(self, other: Array | float, /) -> Array: ...
    def __pow__(self, other: Array | float, /) -> Array: ...
    def __matmul__(self, other: Array, /) -> Array: ...
    def __and__(self, other: Array, /) -> Array: ...
    def __or__(self, other: Array, /) -> Array: ...
    def __lt__(self, other: Array | float, /) -> Array: ...
    def __le__(self, other: Array | float, /) -> Array: ...
    def __gt__(self, other: Array | float, /) -> Array: ...
    def __ge__(self, other: Array | float, /) -> Array: ...
    def __eq__(self, other: object, /) -> Array: ...  # type: ignore[override]
    def any(self) -> Array: ...
    def sum(self, axis: int | tuple[int, ...] = ..., keepdims: bool = ...) -> Array: ...
    def reshape(self, *shape: int) -> Array: ...
    def swapaxes(self, first: int, second: int, /) -> Array: ...
    def diagonal(self, offset: int, first: int, second: int, /) -> Array: ...


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
    def amin(self, x: Array, axis: int, /, keepdims: bool = ...) -> Array: ...
    def amax(self, x: Array, axis: int, /, keepdims: bool = ...) -> Array: ...
    def einsum(self, subscripts: str, x: Array, /) -> Array: ...


def as_array(x: Tensor | np.ndarray) -> Array:
    """Return a tensor or a NumPy array as what both are."""
    return cast("Array", x)


def library(x: Array) -> Library:
    """Return the module that has the functions for an array."""
    return cast("Library", np if isinstance(x, np.ndarray) else torch)


def as_like(x: Array | Tensor | np.ndarray, like: Array | Tensor) -> Array:
    """Return an array in the library of another, and on its device."""
    if isinstance(like, np.ndarray):
        return as_array(x.numpy() if isinstance(x, Tensor) else cast("np.ndarray", x))
    return as_array(torch.as_tensor(x, device=cast("Tensor", like).device))


def as_tensor(x: Array | Tensor) -> Tensor:
    """Return an array as a tensor that shares its memory."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x)


def as_numpy(x: Array) -> np.ndarray:
    """Return an array as NumPy's, on the CPU."""
    return x if isinstance(x, np.ndarray) else cast("Tensor", x).cpu().numpy()


def in_dtype(x: Array, like: Array) -> Array:
    """Return an array in the dtype of another of its library."""
    if isinstance(x, np.ndarray):
        return as_array(x.astype(like.dtype, copy=False))
    return as_array(cast("Tensor", x).to(like.dtype))


def in_float64(x: Array) -> Array:
    """Return an array in float64."""
    return as_array(x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else cast("Tensor", x).double())


def rows_at(x: Array, index: Array) -> Array:
    """Return the rows `(B, E, *)` of `(B, k, *)` at the positions of an index `(E,)`."""
    if isinstance(x, np.ndarray):
        return as_array(x.take(cast("np.ndarray", index), 1))
    return as_array(cast("Tensor", x).index_select(1, cast("Tensor", index)))


def sums_at(index: Array, x: Array, count: int) -> Array:
    """Return sums `(B, count, f)` of the rows of `(B, E, f)` that have the same position in an index `(E,)`."""
    if isinstance(x, np.ndarray):
        return as_array((np.arange(count)[:, None] == cast("np.ndarray", index)).astype(x.dtype) @ x)
    tensor = cast("Tensor", x)
    sums = tensor.new_zeros(len(tensor), count, tensor.shape[-1])
    return as_array(sums.index_add_(1, cast("Tensor", index), tensor))


def exp(x: Array) -> Array:
    """Return exponentials of numbers <= 0 in float64; those that underflow, where torch is slow, are nearly 0."""
    if isinstance(x, np.ndarray):
        return as_array(np.exp(x))
    return as_array(cast("Tensor", x).clamp_min(-_LARGEST_EXPONENT).exp())


def squared_lengths(x: Array) -> Array:
    """Return the squared lengths of vectors `(B, n, d)`, `(B, n)`."""
    if isinstance(x, np.ndarray):
        return as_array((x * x) @ np.ones(x.shape[-1], x.dtype))
    return as_array(cast("Tensor", x).square().sum(-1))


def diagonal(x: Array) -> Array:
    """Return the diagonals of matrices, `(*, d)`."""
    return x.diagonal(0, -2, -1)


def add_to_diagonal(x: Array, added: Array) -> Array:
    """Return matrices `(*, d, d)` with `(*, d)` added to their diagonals, in place."""
    x.reshape(*added.shape[:-1], -1)[..., :: added.shape[-1] + 1] += added
    return x
