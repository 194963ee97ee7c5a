"""Rows of Dask arrays and dataframes: tasks on a cluster sum them up, and only the sums leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor, to_numpy
from cramix.data.parts import Partial, one_thread, rows_at_a_time
from cramix.data.source import BadRowsError, Batch, Function, Place, Progress, S, Source, good, position

if TYPE_CHECKING:
    from dask.delayed import Delayed

# Sums that one task adds up.
_FAN_IN = 8


def is_dask(X: object) -> bool:
    """Return whether X is an array or a dataframe of Dask, or a column of one, without importing Dask."""
    return type(X).__module__.startswith(("dask.array.", "dask.dataframe."))


class DaskSource(Source):
    """The rows of a Dask array or dataframe, whose chunks or partitions are its parts.

    Tasks run where `dask.compute` would run them: on the cluster of the current `distributed.Client`, or by the
    scheduler that is set, which is threads by default. If a worker dies, Dask computes what it held again, on another
    one. A sum is a task like any other, so each part counts once.

    Args:
        X: an array `(n, d)` or `(n,)`, a dataframe, or one column of it.
        columns: names of the columns to use; None for all but that of the weights.
        sample_weight: name of the column of weights; for an array another array, `(n,)`.
        skip_bad: whether to leave bad rows out.
        batch_rows: rows of a batch; None for a number that suits the columns.
    """

    def __init__(
        self,
        X: Any,
        columns: Sequence[str] | None = None,
        sample_weight: Any = None,
        skip_bad: bool = False,
        batch_rows: int | None = None,
    ) -> None:
        from dask.base import tokenize

        self.skip_bad, self.weighted = skip_bad, sample_weight is not None
        self._weight: str | None = None
        if type(X).__module__.startswith("dask.array."):
            self._open_array(X, columns, sample_weight)
        else:
            self._open_frame(X, columns, sample_weight)
        self._batch_rows = batch_rows or rows_at_a_time(self.dim)
        self._token = tokenize(X)

    def _open_array(self, X: Any, columns: Sequence[str] | None, sample_weight: Any) -> None:
        if columns is not None:
            raise ValueError(f"columns must be None for a Dask array; got {columns!r}. Choose some by X[:, [0, 2]].")
        if X.ndim not in (1, 2):
            raise ValueError(f"X must be (n, d) or (n,); got an array of {X.ndim} axes.")
        self.univariate = X.ndim == 1
        self.dim = 1 if self.univariate else X.shape[1]
        if not self.dim >= 1:  # NaN if it is unknown
            raise ValueError(f"X must have a known number of columns, at least one; got {X.shape[1]}.")
        self.dtype = torch.promote_types(as_tensor("X", np.empty(0, X.dtype)).dtype, torch.float32)
        if not self.univariate and len(X.chunks[1]) > 1:
            X = X.rechunk({1: -1})
        self._lengths: Sequence[float] = X.chunks[0]
        known = not np.isnan(self._lengths).any()
        self.n_rows = sum(map(int, self._lengths)) if known else None
        self._starts = np.cumsum([0, *self._lengths[:-1]]).tolist() if known else None
        self._place, blocks = "X.blocks", X.to_delayed().ravel().tolist()
        weights = [None] * len(blocks)
        if sample_weight is not None:
            weights = _aligned(sample_weight, X, self.n_rows).to_delayed().tolist()
        self._parts = list(zip(blocks, weights, strict=True))

    def _open_frame(self, X: Any, columns: Sequence[str] | None, sample_weight: Any) -> None:
        from dask.dataframe.utils import meta_nonempty

        if X.ndim == 1:
            self.univariate, X = True, X.to_frame(name=X.name if X.name is not None else "X")
        if sample_weight is not None and not isinstance(sample_weight, str):
            kind = type(sample_weight).__name__
            raise ValueError(f"sample_weight must be the name of a column of a Dask dataframe; got {kind}.")
        labels = list(X.columns)
        chosen = [label for label in labels if label != sample_weight] if columns is None else list(columns)
        doubled = [label for label in chosen if max(labels.count(label), chosen.count(label)) > 1]
        if doubled:
            raise ValueError(f"names of columns must differ; got {doubled[0]!r} twice. Rename or leave out one.")
        needed = chosen if sample_weight is None else [*dict.fromkeys([*chosen, sample_weight])]
        missing = [label for label in needed if label not in labels]
        if missing:
            raise ValueError(f"X has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, labels))}.")
        self._labels, self._weight = chosen, sample_weight
        self.columns, self.dim = tuple(map(str, chosen)), len(chosen)
        example = meta_nonempty(X._meta)  # two rows that Dask makes up
        self.dtype = torch.promote_types(as_tensor("X", example[chosen]).dtype, torch.float32)
        if sample_weight is not None:
            as_tensor("sample_weight", example[sample_weight])
        # Only if some are left out: a partition that lacks a column is then found by a task that knows its number.
        X = X if len(needed) == len(labels) else X[needed]
        self._starts = None
        self._place, partitions = "X.partitions", X.to_delayed()
        self._lengths = [float("nan")] * len(partitions)
        self._parts = [(partition, None) for partition in partitions]

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need to read a part that they have: all but the parts."""
        return {**self.__dict__, "_parts": None}

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
        shape, dtype = example.shape[1:], example.dtype
        reader, each = delayed(self, traverse=False), delayed(function, traverse=False)
        blocks = [delayed(map_of_part)(reader, each, i, part, example[:0]) for i, (part, _) in enumerate(self._parts)]
        return da.concatenate(
            [
                da.from_delayed(block, (length, *shape), dtype, meta=example[:0])
                for block, length in zip(blocks, self._lengths, strict=True)
            ]
        )

    def batches(self, part: int, rows: Any, weights: Any = None) -> Iterator[Batch]:
        """Yield the batches of a part that is at hand."""
        place = f"{self._place}[{part}]"
        if self.columns is not None:
            rows, weights = self._of_frame(place, rows)
        elif rows.shape[1:] != ((self.dim,) if not self.univariate else ()):
            raise BadRowsError(f"{place} must have {self.dim} columns, as X has; got a chunk of shape {rows.shape}.")
        if weights is not None and len(weights) != len(rows):
            raise ValueError(f"sample_weight must have a number for each row; got {len(weights)} for {place}.")
        start = self._starts[part] if self._starts is not None else position(part)
        for i in range(0, len(rows), self._batch_rows):
            some = slice(i, i + self._batch_rows)
            x = self._tensor(place, rows, some).reshape(-1, self.dim)
            w = None if weights is None else self._tensor(f"sample_weight of {place}", weights, some)
            yield Batch(x, w, start + i, Place(place, i))

    def _of_frame(self, place: str, frame: Any) -> tuple[Any, Any]:
        """Return the chosen columns of a partition, in order, and that of the weights."""
        needed = self._labels if self._weight is None else [*self._labels, self._weight]
        missing = [label for label in needed if label not in frame.columns]
        if missing:
            has = ", ".join(map(repr, frame.columns))
            raise BadRowsError(f"{place} must have the columns of X; it has {has} and lacks {missing[0]!r}.")
        return frame[self._labels], None if self._weight is None else frame[self._weight]

    def _tensor(self, place: str, x: Any, some: slice) -> Tensor:
        try:
            return as_tensor(place, x.iloc[some] if hasattr(x, "iloc") else x[some]).to(self.dtype)
        except ValueError as error:
            raise BadRowsError(str(error)) from None

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
        raise ValueError(f"sample_weight must have a number for each of {n_rows} rows; got {weights.shape[0]}.")
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
