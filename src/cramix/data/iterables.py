"""Batches of rows from an iterable: a DataLoader of torch, a list of arrays, a generator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.data.columns import Options
from cramix.data.local import LocalSource
from cramix.data.source import Batch, Place


def accepts(X: Any) -> bool:
    """Return whether X may give batches: an iterator, a DataLoader, a list of arrays, another iterable."""
    if isinstance(X, list | tuple):
        batches = [x[0] if isinstance(x, list | tuple) and len(x) else x for x in X]
        return len(X) > 0 and all(len(getattr(x, "shape", ())) == 2 for x in batches)
    if isinstance(X, str | bytes | Mapping | Set | range) or hasattr(X, "__array__") or hasattr(X, "dtype"):
        return False
    return isinstance(X, Iterable)


def is_large(X: Any) -> bool:
    """Return whether X need not fit into memory, or is no array."""
    return True


def open_source(X: Any, options: Options) -> IterableSource:
    """Return a source of the batches of X."""
    return IterableSource(X, options)


class IterableSource(LocalSource):
    """Rows of batches `(n, d)`, which are tensors, arrays or data frames.

    Batches may also be tuples or lists of rows and something else. What that is must be said: `sample_weight=True`
    takes the second entry as the weights of the rows, `sample_weight=False` ignores all but the rows.

    Iterators and generators are read once. Everything is iterated over in the calling thread, as files or connections
    of a generator may be tied to it.
    """

    reads_in_caller = True
    again = "Pass a list, a DataLoader or an object whose __iter__ starts over, or write the rows to a file first."

    def __init__(self, X: Any, options: Options) -> None:
        if options.columns is not None:
            raise ValueError("columns must be None for batches: let these hold the columns wanted.")
        if options.sample_weight not in (None, True, False):
            raise ValueError(
                "sample_weight must be True if X gives pairs of rows and weights, False if all but the rows is to be "
                f"ignored, or None; got {type(options.sample_weight).__name__}."
            )
        self.skip_bad, self.batch_rows = options.skip_bad, options.batch_rows
        self.name = type(X).__name__
        self.repeatable = not isinstance(X, Iterator)
        self._pairs, self.weighted = options.sample_weight, options.sample_weight is True
        self._X = X
        # The first batch tells the dimension. It belongs to the first pass, so that nothing is read twice.
        self._first: Iterator[Any] | None = iter(X)
        self._peeked = next(self._first, None)
        if self._peeked is None:
            raise ValueError(f"{self.name} must give at least one batch; it gives none.")
        rows, _ = self._split(self._peeked, 0)
        self.dim = rows.shape[1]
        self.tensors = isinstance(self._peeked[0] if isinstance(self._peeked, list | tuple) else self._peeked, Tensor)
        self.dtype = torch.float32 if rows.dtype.itemsize <= 4 else torch.float64

    def parts(self) -> Iterator[_Rows]:
        """Yield batches, several small ones together."""
        limit, first = self.rows_at_a_time(), 0
        waiting: list[tuple[Tensor, Tensor | None]] = []
        for number, batch in enumerate(self._batches()):
            rows, weights = self._split(batch, number)
            if rows.shape[1] != self.dim:
                raise ValueError(
                    f"batches must have as many columns each; batch {number} of {self.name} has {rows.shape[1]}, "
                    f"the first one {self.dim}."
                )
            waiting.append((rows.to(self.dtype), None if weights is None else weights.to(self.dtype)))
            if (total := sum(len(x) for x, _ in waiting)) >= limit:
                part, waiting = _Rows(waiting, first, self.name), []
                yield part
                del part  # or its rows live until there is a next one
                first += total
        yield _Rows(waiting, first, self.name)

    def _batches(self) -> Iterator[Any]:
        if self._first is None:
            yield from self._X
            return
        iterator, self._first = self._first, None
        first, self._peeked = self._peeked, None
        yield first
        del first
        yield from iterator

    def _split(self, batch: Any, number: int) -> tuple[Tensor, Tensor | None]:
        """Return the rows of a batch, and their weights."""
        name, weights = f"batch {number} of {self.name}", None
        if isinstance(batch, list | tuple) and not all(isinstance(x, Real) for x in batch):
            if self._pairs is None and len(batch) != 1:
                raise ValueError(
                    f"{name} must be rows (n, d); it is a {type(batch).__name__} of {len(batch)}. If the second entry "
                    "is the weights of rows, pass sample_weight=True; to ignore it, pass sample_weight=False."
                )
            if self._pairs is True and len(batch) != 2:
                raise ValueError(f"{name} must be a pair of rows and weights; it has {len(batch)} entries.")
            batch, weights = batch[0], batch[1] if self._pairs is True else None
        elif self._pairs is True:
            raise ValueError(f"{name} must be a pair of rows and weights; it is a {type(batch).__name__}.")
        rows = _numbers(name, batch)
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(
                f"{name} must have shape (n, d); got {tuple(rows.shape)}. Reshape single numbers to (n, 1), and put "
                "single rows together."
            )
        w = None if weights is None else _numbers(f"the weights of {name}", weights)
        if w is not None and w.shape != rows.shape[:1]:
            raise ValueError(
                f"{name} must have a weight for each row, shape ({len(rows)},); got shape {tuple(w.shape)}."
            )
        return rows, w


class _Rows:
    """Some rows, already read."""

    def __init__(self, batches: list[tuple[Tensor, Tensor | None]], first: int, name: str) -> None:
        self.batches, self.first, self.name = batches, first, name

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        batches, self.batches = self.batches, []
        if not batches:
            return
        x = torch.cat([x for x, _ in batches])
        w = None if batches[0][1] is None else torch.cat([w for _, w in batches if w is not None])
        del batches
        for start in range(0, len(x), rows):
            weights = None if w is None else w[start : start + rows]
            yield Batch(x[start : start + rows], weights, self.first + start, Place(self.name, self.first + start))


def _numbers(name: str, x: Any) -> Tensor:
    integers = isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex()
    return as_tensor(name, x.double() if integers else x).detach().cpu()
