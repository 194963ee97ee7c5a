"""Rows from Arrow: tables, datasets, readers, frames of Polars, queries of DuckDB, anything else that streams them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cramix.data.columns import Choice, Column, Options, choose
from cramix.data.local import LocalSource
from cramix.data.source import Batch, Place
from cramix.extras import require

if TYPE_CHECKING:
    import pyarrow

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def accepts(X: Any) -> bool:
    """Return whether X gives Arrow data."""
    return hasattr(X, "__arrow_c_stream__") or _reader_method(X) is not None or _is_dataset(X)


def is_large(X: Any) -> bool:
    """Return whether X need not fit into memory: anything but data frames and their columns."""
    return not _comes_from(X, "polars", "pandas")


def open_source(X: Any, options: Options) -> ArrowSource:
    """Return a source of what X gives."""
    return ArrowSource(X, options)


def require_arrow() -> Any:
    """Return pyarrow, or raise an ImportError that says how to install it."""
    return require("pyarrow", "Arrow, csv and Parquet data need pyarrow. Install it with: pip install 'cramix[io]'")


class ArrowSource(LocalSource):
    """Rows of Arrow record batches, which are converted in parallel.

    Tables, datasets, frames and queries are read again in each pass. Readers and results of a connection are read once.
    """

    def __init__(self, X: Any, options: Options) -> None:
        arrow = require_arrow()
        self.skip_bad, self.batch_rows = options.skip_bad, options.batch_rows
        self.name = type(X).__name__
        self._stream = _stream(X, options)
        self.repeatable = _is_repeatable(X)
        self.again = "Pass a table, a dataset or a file instead, or write it to a Parquet file first."
        try:
            self._first: pyarrow.RecordBatchReader | None = self._stream()
        except (arrow.ArrowException, TypeError) as error:
            raise ValueError(f"X must give record batches; got {self.name}: {error}") from None
        self._choice = choose(self.name, columns_of(self._first.schema), options)
        self.columns, self.univariate = self._choice.names, self._choice.univariate
        self.dim, self.dtype = len(self.columns), self._choice.dtype
        self.weighted = self._choice.weights is not None
        if self.repeatable:
            self._first.close()
            self._first = None
            self.n_rows = _count(X)

    def parts(self) -> Iterator[_Batches]:
        """Yield record batches, several small ones together."""
        reader, self._first = self._first or self._stream(), None
        rows, first = self.rows_at_a_time(), 0
        some: list[pyarrow.RecordBatch] = []
        with reader:
            for batch in reader:
                for start in range(0, batch.num_rows, rows):
                    some.append(batch.slice(start, rows))
                    if (total := sum(x.num_rows for x in some)) >= rows:
                        yield _Batches(some, self._choice, first, self.name)
                        first, some = first + total, []
        yield _Batches(some, self._choice, first, self.name)


class _Batches(NamedTuple):
    """Consecutive record batches."""

    batches: list[Any]
    choice: Choice
    first: int
    name: str

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        yield from read(self.batches, rows, self.choice, self.first, Place(self.name, self.first))


def read(batches: Any, rows: int, choice: Choice, first: int, place: Place) -> Iterator[Batch]:
    """Yield record batches as tensors, those of few rows together.

    Args:
        batches: an iterable of record batches.
        rows: of a batch, at most.
        choice: the columns.
        first: position of the first row.
        place: of the first row.
    """
    columns, wanted = choice.all(), choice.dtype
    waiting: list[np.ndarray] = []
    for record in batches:
        for start in range(0, record.num_rows, rows):
            some = record.slice(start, rows)
            if waiting and sum(map(len, waiting)) + some.num_rows > rows:
                batch = _batch(waiting, choice, first, place)
                yield batch
                first, place, waiting = first + len(batch.rows), place.after(len(batch.rows)), []
            waiting.append(matrix(some, columns, wanted))
    if waiting:
        yield _batch(waiting, choice, first, place)


def _batch(arrays: list[np.ndarray], choice: Choice, first: int, place: Place) -> Batch:
    x = torch.from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
    if choice.weights is None:
        return Batch(x, None, first, place)
    return Batch(x[:, :-1], x[:, -1], first, place)


def matrix(batch: pyarrow.RecordBatch, columns: list[str], dtype: torch.dtype) -> np.ndarray:
    """Return some columns as an array `(n, d)`, with NaN for nulls; column by column, as Arrow has them."""
    kind = _NUMPY[dtype]
    result = np.empty((len(columns), batch.num_rows), kind)
    for row, name in zip(result, columns, strict=True):
        row[:] = numbers(batch.column(name), kind)
    return result.T


def numbers(column: pyarrow.Array, kind: type) -> np.ndarray:
    """Return a column as floating-point numbers, with NaN for nulls."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not types.is_floating(column.type) or types.is_float16(column.type):
        column = column.cast(pyarrow.from_numpy_dtype(kind), safe=False)
    return column.to_numpy(zero_copy_only=False)


def columns_of(schema: pyarrow.Schema) -> list[Column]:
    """Return what a schema says about its columns."""
    return [Column(field.name, _dtype(field.type), str(field.type)) for field in schema]


def _dtype(kind: pyarrow.DataType) -> torch.dtype | None:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_float16(kind) or types.is_float32(kind):
        return torch.float32
    numeric = (types.is_float64, types.is_integer, types.is_decimal, types.is_boolean)
    return torch.float64 if any(test(kind) for test in numeric) else None


def _stream(X: Any, options: Options) -> Callable[[], pyarrow.RecordBatchReader]:
    """Return a function that opens a reader of X."""
    import pyarrow

    if _is_dataset(X):
        names = set(X.schema.names)
        asked = [options.columns] if isinstance(options.columns, str) else list(options.columns or ())
        wanted = [x for x in (*asked, options.sample_weight) if isinstance(x, str)]
        # Other columns stay on the disk; those that do not exist are an error later.
        some = wanted if asked and set(wanted) <= names and len(set(wanted)) == len(wanted) else None
        return lambda: X.scanner(columns=some).to_reader()
    method = _reader_method(X)  # first, as it does not collect the result in memory
    return method if method is not None else lambda: pyarrow.RecordBatchReader.from_stream(X)


def _is_dataset(X: Any) -> bool:
    return _comes_from(X, "pyarrow") and hasattr(X, "scanner")


def _reader_method(X: Any) -> Callable[[], Any] | None:
    """Return the method by which results of DuckDB give a reader."""
    if not _comes_from(X, "duckdb", "_duckdb"):
        return None
    return next((getattr(X, x) for x in ("to_arrow_reader", "fetch_record_batch") if hasattr(X, x)), None)


def _is_repeatable(X: Any) -> bool:
    """Return whether X can be read again: what has a length is held in memory, or is a query that runs again."""
    return _is_dataset(X) or hasattr(X, "__len__")


def _count(X: Any) -> int | None:
    """Return the number of rows, where no query has to run for it."""
    if _is_dataset(X) or _comes_from(X, "duckdb", "_duckdb"):
        return None
    return len(X)


def _comes_from(X: Any, *packages: str) -> bool:
    return any(kind.__module__.split(".")[0] in packages for kind in type(X).__mro__)
