"""Rows of Dask arrays and dataframes: tasks on a cluster sum them up, and only the sums leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor, to_numpy
from cramix.data.columns import Choice, Options, choose
from cramix.data.memory import column_of
from cramix.data.partial import Partial, one_thread
from cramix.data.source import Batch, Function, Place, Progress, S, Source, good, position, rows_at_a_time

if TYPE_CHECKING:
    from dask.delayed import Delayed

# Sums that one task adds up.
_FAN_IN = 8


def open_source(X: Any, options: Options) -> DaskSource:
    """Return a source of the rows of a Dask collection."""
    if not type(X).__module__.startswith(("dask.array.", "dask.dataframe.")) or not hasattr(X, "to_delayed"):
        raise ValueError(f"X must be an array or a dataframe of Dask; got its {type(X).__name__}.")
    return DaskSource(X, options)


class DaskSource(Source):
    """The rows of a Dask array or dataframe, whose chunks or partitions are its parts.

    Tasks run where `dask.compute` would run them: on the cluster of the current `distributed.Client`, or by the
    scheduler that is set, which is threads by default. If a worker dies, Dask computes what it held again on another
    one. A sum is a task like any other, so each part counts once.

    Args:
        X: an array `(n, d)` or `(n,)`, a dataframe, or one column of it.
        options: see `cramix.data.source`. Weights of an array are another array, `(n,)`.
    """

    def __init__(self, X: Any, options: Options) -> None:
        from dask.base import tokenize

        self.skip_bad, self.weighted = options.skip_bad, options.sample_weight is not None
        self._choice: Choice | None = None
        self._frame: Any = None
        if type(X).__module__.startswith("dask.array."):
            self._open_array(X, options)
        else:
            self._open_frame(X, options)
        self._batch_rows = options.batch_rows or rows_at_a_time(self.dim)
        self._token = tokenize(X)

    def _open_array(self, X: Any, options: Options) -> None:
        if options.columns is not None:
            raise ValueError("columns must be None for a Dask array, whose columns have no names.")
        if X.ndim not in (1, 2):
            raise ValueError(f"X must be rows (n, d) or (n,); got an array of {X.ndim} axes.")
        self.univariate = X.ndim == 1
        self.dim = 1 if self.univariate else X.shape[1]
        if not self.dim >= 1:  # NaN if it is unknown
            raise ValueError(f"X must have a known number of columns, at least one; got {self.dim}.")
        self.dtype = torch.promote_types(as_tensor("X", np.empty(0, X.dtype)).dtype, torch.float32)
        if not self.univariate and len(X.chunks[1]) > 1:
            X = X.rechunk({1: -1})
        self._lengths: list[float] = list(X.chunks[0])  # NaN if they are unknown
        known = not np.isnan(self._lengths).any()
        self.n_rows = int(sum(self._lengths)) if known else None
        first = np.cumsum([0, *self._lengths[:-1]])
        self._starts = [int(first[i]) if known else position(i) for i in range(len(first))]
        self._place, blocks = "X.blocks", X.to_delayed().ravel().tolist()
        weights: list[Any] = [None] * len(blocks)
        if options.sample_weight is not None:
            weights = _aligned(options.sample_weight, X, self.n_rows).to_delayed().tolist()
        self._parts = list(zip(blocks, weights, strict=True))

    def _open_frame(self, X: Any, options: Options) -> None:
        single = X.ndim == 1
        X = X.to_frame(name="X" if X.name is None else X.name) if single else X
        if not all(isinstance(name, str) for name in X.columns):
            X = X.rename(columns={name: str(name) for name in X.columns})
        if not X.columns.is_unique:
            raise ValueError("X must have columns of different names.")
        self._choice = choose("X", [column_of(X._meta[name]) for name in X.columns], options)
        self.columns, self.dtype = self._choice.names, self._choice.dtype
        self.univariate, self.dim = single or self._choice.univariate, len(self.columns)
        if not self._choice.exact:
            X = X[self._choice.all()]  # the others need not be read
        self._frame = X
        self._place, partitions = "X.partitions", X.to_delayed()
        self._lengths = [float("nan")] * len(partitions)
        self._starts = [position(i) for i in range(len(partitions))]
        self._parts = [(partition, None) for partition in partitions]

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need to read a part that they have: all but the parts."""
        return {**self.__dict__, "_parts": None, "_frame": None}

    def count(self) -> int | None:
        """Return the number of rows; of Parquet files, Dask reads the metadata only."""
        return self.n_rows if self._frame is None else len(self._frame)

    def sum(self, function: Function[S], progress: Progress | None = None) -> S:
        """Return the sum of a function over all parts, added up on the cluster by a tree of fixed order."""
        from dask import delayed

        reader, each = delayed(self, traverse=False), delayed(function, traverse=False)
        sums = [delayed(sum_of_part)(reader, each, i, *part) for i, part in enumerate(self._parts)]
        counts = [delayed(rows_of_part)(partial) for partial in sums] if progress else []
        while len(sums) > 1:
            sums = [delayed(sum_of_sums)(*sums[i : i + _FAN_IN]) for i in range(0, len(sums), _FAN_IN)]
        total = _followed(sums[0], counts, progress) if progress else sums[0].compute()
        return total.checked(self)

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Return a function of the rows, `(n, d)` to `(n, ...)`, as a lazy Dask array: its rows stay on the cluster.

        It has the chunks of the array or the partitions of the dataframe. A bad row is always an error: every row has
        its place in the result.
        """
        import dask.array as da
        from dask import delayed

        with torch.no_grad():
            example = to_numpy(function(torch.zeros(1, self.dim, dtype=self.dtype)))
        shape, dtype, nothing = example.shape[1:], example.dtype, example[:0]
        reader, each = delayed(self, traverse=False), delayed(function, traverse=False)
        parts = [delayed(map_of_part)(reader, each, i, rows, nothing) for i, (rows, _) in enumerate(self._parts)]
        lengths = zip(parts, self._lengths, strict=True)
        return da.concatenate([da.from_delayed(part, (n, *shape), dtype, meta=nothing) for part, n in lengths])

    def batches(self, part: int, rows: Any, weights: Any = None) -> Iterator[Batch]:
        """Yield the batches of a part that is at hand."""
        place = f"{self._place}[{part}]"
        if self._choice is not None:
            self._choice.check(place, [column_of(rows[name]) for name in rows.columns])
            weights = None if self._choice.weights is None else rows[self._choice.weights]
            rows = rows[list(self._choice.names)]
        elif rows.shape[1:] != (() if self.univariate else (self.dim,)):
            raise ValueError(f"{place} must have {self.dim} columns, as X has; got a chunk of shape {rows.shape}.")
        if weights is not None and len(weights) != len(rows):
            raise ValueError(
                f"sample_weight must have one entry per row; got {len(weights)} for {len(rows)} of {place}."
            )
        for i in range(0, len(rows), self._batch_rows):
            some = slice(i, i + self._batch_rows)
            x = self._tensor(place, rows, some).reshape(-1, self.dim)
            w = None if weights is None else self._tensor(f"sample_weight of {place}", weights, some)
            yield Batch(x, w, self._starts[part] + i, Place(place, i))

    def _tensor(self, place: str, x: Any, some: slice) -> Tensor:
        return as_tensor(place, x.iloc[some] if hasattr(x, "iloc") else x[some]).to(self.dtype)

    def fingerprint(self) -> str:
        """Return a text that changes if the rows may have changed: with the token of the collection."""
        return f"{super().fingerprint()} {self._token}"


# Tasks. Dask shows their names.


def sum_of_part(source: DaskSource, function: Function[Any], part: int, rows: Any, weights: Any) -> Partial:
    """Return the sum of a function over a part."""
    return Partial.of(function, source.batches(part, rows, weights), source)


def sum_of_sums(*partials: Partial) -> Partial:
    """Return the sum over some parts."""
    return Partial.total(partials)


def rows_of_part(partial: Partial) -> int:
    """Return the number of rows of a part, which is all that travels to report progress."""
    return partial.rows + partial.bad


def map_of_part(
    source: DaskSource, function: Callable[[Tensor], Tensor], part: int, rows: Any, nothing: np.ndarray
) -> np.ndarray:
    """Return a function of the rows of a part; `nothing` is what it is of no rows."""
    batches = (batch._replace(weights=None) for batch in source.batches(part, rows))
    with one_thread(), torch.no_grad():
        results = [to_numpy(function(batch.rows)) for batch in good(batches, source, strict=True)]
    return np.concatenate([nothing, *results])


def _aligned(sample_weight: Any, X: Any, n_rows: int | None) -> Any:
    """Return weights as a Dask array with the chunks of X."""
    import dask.array as da

    if isinstance(sample_weight, str):
        raise ValueError(f"sample_weight must be an array (n,) for a Dask array; got {sample_weight!r}.")
    weights = da.asarray(sample_weight)
    if weights.ndim != 1:
        raise ValueError(f"sample_weight must be (n,); got {weights.ndim} axes.")
    if n_rows is None:
        if len(weights.chunks[0]) != len(X.chunks[0]):
            raise ValueError(
                "sample_weight must be a Dask array with the chunks of X where their sizes are unknown. "
                "Find them with X.compute_chunk_sizes()."
            )
        return weights
    if weights.shape[0] != n_rows:
        raise ValueError(f"sample_weight must have one entry per row, shape ({n_rows},); got shape {weights.shape}.")
    return weights.rechunk((X.chunks[0],))


def _followed(total: Delayed, counts: list[Delayed], progress: Progress) -> Partial:
    """Compute the total and report the rows of each part that is done, in this thread."""
    import dask
    from dask.base import get_scheduler
    from dask.callbacks import Callback

    client = getattr(get_scheduler(collections=[total]), "__self__", None)
    if client is None:
        keys = {count.key for count in counts}

        def report(key: Any, rows: Any, *_: Any) -> None:
            if key in keys:
                progress(rows)

        with Callback(posttask=report):
            return dask.compute(total, *counts)[0]

    from distributed import as_completed

    result, *futures = client.compute([total, *counts])
    finished = as_completed(futures, loop=client.loop, with_results=True)
    del futures  # a count that was reported need not be kept, nor computed again if its worker dies
    try:
        for _, rows in finished:
            progress(rows)
        return result.result()
    except BaseException:
        client.cancel([result, *finished.futures])
        raise
