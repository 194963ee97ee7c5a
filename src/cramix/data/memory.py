"""Rows in memory: arrays, mapped files of NumPy, tensors, data frames of pandas."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor, column_names
from cramix.data.columns import Column, Options, choose
from cramix.data.local import LocalSource
from cramix.data.source import BadRowsError, Batch, Place

# Rows of a part.
_PART_ROWS = 1 << 18
# Rows whose content enters the fingerprint.
_FINGERS = 256


def accepts(X: Any) -> bool:
    """Return whether X is held in memory as a whole, or mapped to it."""
    if isinstance(X, np.ndarray | Tensor) or _is_pandas(X):
        return True
    listed = isinstance(X, Sequence) and not isinstance(X, str | bytes)
    return listed and all(isinstance(x, Real) or _is_row(x) for x in X[:1])


def _is_row(x: Any) -> bool:
    """Return whether x is a sequence of numbers, and not a pair of rows and weights."""
    return isinstance(x, list | tuple) and not any(hasattr(y, "shape") and len(y.shape) for y in x[:1])


def is_large(X: Any) -> bool:
    """Return whether X need not fit into memory."""
    return isinstance(X, np.memmap)


def open_source(X: Any, options: Options) -> MemorySource:
    """Return a source of the rows `(n, d)` or `(n,)` of X."""
    return MemorySource(X, options)


class MemorySource(LocalSource):
    """Rows of an array, a mapped file, a tensor or a data frame."""

    def __init__(self, X: Any, options: Options) -> None:
        self.skip_bad, self.batch_rows = options.skip_bad, options.batch_rows
        self.name, self.tensors = "X", isinstance(X, Tensor)
        if _is_pandas(X) and column_names(X) is not None:
            X, weights = self._of_frame(X, options)
        else:
            if options.columns is not None:
                raise ValueError(f"columns must be None for {type(X).__name__}, whose columns have no names.")
            X = X if isinstance(X, np.ndarray | Tensor) else np.asarray(X)
            weights = options.sample_weight
            if isinstance(weights, str):
                raise ValueError(f"sample_weight must be an array (n,) for {type(X).__name__}; got {weights!r}.")
        if len(X.shape) not in (1, 2) or 0 in X.shape:
            raise ValueError(f"X must be rows (n, d) or (n,) with n, d >= 1; got shape {tuple(X.shape)}.")
        first = as_tensor("X", X[:1])
        small = first.dtype in (torch.float16, torch.bfloat16, torch.float32)
        self.dtype = torch.float32 if small else torch.float64
        if isinstance(X, Tensor) and not X.is_floating_point():
            self.dtype = torch.float64
        self.univariate = self.univariate or len(X.shape) == 1
        self.n_rows, self.dim = len(X), 1 if len(X.shape) == 1 else X.shape[1]
        if isinstance(X, np.memmap):
            self.name = str(X.filename)
        self.weighted = weights is not None
        self._rows = _Mapped(X) if isinstance(X, np.memmap) else X
        if weights is not None:
            weights = weights if isinstance(weights, np.ndarray | Tensor) else as_tensor("sample_weight", weights)
            if tuple(weights.shape) != (len(X),):
                raise ValueError(
                    f"sample_weight must have one entry per row, shape ({len(X)},); got shape {tuple(weights.shape)}."
                )
        self._weights = _Mapped(weights) if isinstance(weights, np.memmap) else weights

    def _of_frame(self, X: Any, options: Options) -> tuple[Any, Any]:
        """Return the chosen columns of a data frame, and its weights."""
        if column_names(X) != tuple(X.columns):
            X = X.rename(columns=str)
        columns = [column_of(X[name]) for name in X.columns] if X.columns.is_unique else []
        if not columns:
            raise ValueError("X must have columns of different names.")
        given = options.sample_weight
        by_name = given is None or isinstance(given, str)
        choice = choose("X", columns, options if by_name else options._replace(sample_weight=None))
        self.columns, self.univariate = choice.names, choice.univariate
        weights = given if choice.weights is None else X[choice.weights]
        return X[list(choice.names)], weights

    def parts(self) -> Iterator[_Slice]:
        """Yield slices of the rows."""
        assert self.n_rows is not None
        for start in range(0, self.n_rows, _PART_ROWS):
            end = min(start + _PART_ROWS, self.n_rows)
            yield _Slice(self._rows, self._weights, start, end, self.dtype, self.name)

    def fingerprint(self) -> str:
        """Return a text that depends on some of the rows."""
        assert self.n_rows is not None
        content = hashlib.sha256()
        step = max(1, self.n_rows // _FINGERS)
        for values in (self._rows, self._weights):
            if values is not None:
                for start in range(0, self.n_rows, step):
                    content.update(_numbers(values, start, start + 1, self.dtype).numpy().tobytes())
        return f"{super().fingerprint()} {content.hexdigest()}"


class _Slice(NamedTuple):
    """Rows start to end."""

    rows: Any
    weights: Any
    start: int
    end: int
    dtype: torch.dtype
    name: str

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        for start in range(self.start, self.end, rows):
            end = min(start + rows, self.end)
            x = _numbers(self.rows, start, end, self.dtype)
            w = None if self.weights is None else _numbers(self.weights, start, end, self.dtype)
            yield Batch(x if x.ndim == 2 else x.unsqueeze(-1), w, start, Place(self.name, start))


class _Mapped:
    """A mapped file, which is sent to other processes as its place in the file."""

    def __init__(self, array: np.memmap) -> None:
        self.array = array

    def __getitem__(self, rows: slice) -> np.ndarray:
        mapped = self.array._mmap  # type: ignore[attr-defined]
        # To read beyond the end of a file that has become shorter ends the process.
        if mapped.size() < self._offset() + self._extent():
            raise BadRowsError(f"{self.array.filename} has become shorter while it is read. Restore the file.")
        return np.array(self.array[rows])  # a copy, so that the file is read here and now, ahead of computing

    def __reduce__(self) -> Any:
        x = self.array
        contiguous = x.flags.c_contiguous or x.flags.f_contiguous
        if not contiguous or x.filename is None:
            return _unmapped, (np.array(x),)
        order = "C" if x.flags.c_contiguous else "F"
        return _mapped_again, (str(x.filename), x.dtype, self._offset(), x.shape, order)

    def _offset(self) -> int:
        """Return where the array starts in the file; NumPy does not know it of slices."""
        mapped = self.array._mmap  # type: ignore[attr-defined]
        start = self.array.offset - self.array.offset % mmap.ALLOCATIONGRANULARITY
        buffer = np.frombuffer(mapped, np.uint8)
        low, _ = np.lib.array_utils.byte_bounds(self.array)
        return start + low - buffer.ctypes.data

    def _extent(self) -> int:
        low, high = np.lib.array_utils.byte_bounds(self.array)
        return high - low


def _mapped_again(filename: str, dtype: np.dtype, offset: int, shape: tuple[int, ...], order: Any) -> _Mapped:
    return _Mapped(np.memmap(filename, dtype, "r", offset, shape, order))


def _unmapped(array: np.ndarray) -> np.ndarray:
    return array


def _numbers(values: Any, start: int, end: int, dtype: torch.dtype) -> Tensor:
    """Return some rows as a tensor on the CPU that is not the caller's to change."""
    some = values.iloc[start:end] if hasattr(values, "iloc") else values[start:end]
    # Integers of a tensor would pass through torch's default dtype, which rounds large ones.
    some = some.to(dtype) if isinstance(some, Tensor) and not some.is_complex() else some
    return as_tensor("X", some).detach().cpu().to(dtype)


def column_of(x: Any) -> Column:
    """Return what a column of a data frame holds; one of objects may hold numbers."""
    try:
        small = as_tensor("X", x.iloc[:1]).dtype == torch.float32
    except ValueError:
        return Column(str(x.name), None, str(x.dtype))
    return Column(str(x.name), torch.float32 if small else torch.float64, str(x.dtype))


def _is_pandas(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "pandas" and hasattr(X, "iloc")
