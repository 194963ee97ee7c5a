"""Kinds of sources, and the choice of one by what the rows come as."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cramix.checks import check_integer
from cramix.data import arrow, files, iterables, memory
from cramix.data.columns import Options
from cramix.data.source import Source

# Tried in this order. Each module has `accepts(X)`, `is_large(X)` and `open_source(X, options)`.
KINDS = (files, memory, arrow, iterables)
# Modules that need a package, by the package that defines the type of X; each has `open_source(X, options)`.
PACKAGES = {"dask": "cramix.data.dask", "dask_expr": "cramix.data.dask", "pyspark": "cramix.data.spark"}


def source(
    X: Any,
    *,
    columns: Any = None,
    sample_weight: Any = None,
    skip_bad: bool = False,
    batch_rows: int | None = None,
) -> Source:
    """Return a source of rows, which is read in parts, so that the rows need not fit into memory.

    Args:
        X: one of

            - a path, a folder, a pattern such as `"data/*.parquet"`, or a list of paths: Parquet, csv (.csv, .tsv,
              .txt, also gzipped), Arrow (.arrow, .feather) or .npy files, all of one format;
            - Arrow data: a table, a dataset, a reader, a frame of Polars, a query of DuckDB, or anything else with
              `__arrow_c_stream__`;
            - an array `(n, d)` or `(n,)`, a tensor, a data frame, or a `numpy.memmap`, which is never read as a whole;
            - batches `(n, d)`: a `DataLoader`, a list of arrays, a generator;
            - a data frame or an array of Dask, a data frame of Spark.
        columns: names of the columns to read; all but the weights if None. A single name, not in a list, gives rows of
            single numbers. Only for data whose columns have names; those of files without are called x1, x2, ...
        sample_weight: name of the column of weights; for arrays and tensors an array `(n,)`. For batches, True if they
            are pairs of rows and weights, False to ignore all entries but the first.
        skip_bad: leave out and count rows with missing or infinite numbers, text or negative weights, instead of
            raising a `BadRowsError` that names the first. Files that cannot be read are always an error.
        batch_rows: rows that are read at a time; 65536, fewer if there are many columns, if None.

    Example:
        >>> import numpy as np
        >>> rows = source(np.arange(6.0).reshape(3, 2))
        >>> rows.n_rows, rows.dim, rows.sum(lambda batches: sum(batch.rows.sum() for batch in batches))
        (3, 2, tensor(15., dtype=torch.float64))
    """
    options = Options(columns, sample_weight, skip_bad, batch_rows)
    if isinstance(X, Source):
        if options != Options():
            raise ValueError("X must not be a source if options are given: pass them when it is made.")
        return X
    if batch_rows is not None:
        check_integer("batch_rows", batch_rows, 1)
    if (module := _package(X)) is not None:
        return import_module(module).open_source(X, options)
    if _is_lazy(X):
        raise ValueError("X must be rows, not a query of Polars. Pass X.collect(), or the path of its files.")
    for kind in KINDS:
        if kind.accepts(X):
            return kind.open_source(X, options)
    raise ValueError(
        f"X must be a path, Arrow data, an array, a table or an iterable of batches (n, d); got {type(X).__name__}."
    )


def is_source_like(X: Any) -> bool:
    """Return whether X is to be read as a source: a source, or rows that need not fit into memory.

    Arrays, tensors, data frames, sequences of numbers and mixtures are not.

    Example:
        >>> is_source_like("rows.parquet"), is_source_like([1.0, 2.0])
        (True, False)
    """
    if isinstance(X, Source) or _package(X) is not None or _is_lazy(X):
        return True
    kind = next((kind for kind in KINDS if kind.accepts(X)), None)
    return kind is not None and kind.is_large(X)


def _is_lazy(X: Any) -> bool:
    """Return whether X is a query of Polars, which has no rows yet."""
    return type(X).__module__.startswith("polars") and type(X).__name__ == "LazyFrame"


def _package(X: Any) -> str | None:
    """Return the module for a type that a package defines, without importing that package."""
    packages = (kind.__module__.split(".")[0] for kind in type(X).__mro__)
    return next((PACKAGES[x] for x in packages if x in PACKAGES), None)
