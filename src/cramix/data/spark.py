"""Rows of Spark dataframes: executors sum them up, and only the sums leave the cluster."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from torch import Tensor

from cramix.arrays import as_tensor, to_numpy
from cramix.data.arrow import read
from cramix.data.columns import Column, Options, choose
from cramix.data.partial import Partial, one_thread
from cramix.data.source import (
    BadRowsError,
    Batch,
    Function,
    Place,
    Progress,
    S,
    Source,
    good,
    position,
    rows_at_a_time,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Sums of so many consecutive partitions are added first; executors do that unless partitions are few.
_FAN_IN, _FEW = 32, 64
# What a partition answers: its number and a sum or an error, pickled.
_ANSWER = "part int, answer binary"
# Seconds between reports of progress.
_INTERVAL = 0.1
_SQL_TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.int64: "bigint",
    torch.int32: "int",
    torch.bool: "boolean",
}


Answer = Partial | ValueError


def open_source(X: Any, options: Options) -> SparkSource:
    """Return a source of the rows of a Spark dataframe."""
    if not type(X).__module__.startswith("pyspark.sql.") or not hasattr(X, "mapInArrow"):
        raise ValueError(
            f"X must be a pyspark.sql.DataFrame; got {type(X).__module__}.{type(X).__name__}. "
            "A frame of pandas-on-Spark becomes one by X.to_spark()."
        )
    return SparkSource(X, options)


class SparkSource(Source):
    """The rows of a Spark dataframe, whose partitions are its parts.

    Spark runs a failed task again and takes the result of one attempt only, so each part counts once. A fit reads the
    dataframe several times: cache one that is expensive to compute, and also one that is not computed alike each time,
    because draws depend on the partition of a row and its place there.

    Args:
        X: a dataframe with columns of numbers. A null makes a row a bad one.
        options: see `cramix.data.source`. Batches join those of Spark, of which its setting
            `spark.sql.execution.arrow.maxRecordsPerBatch` bounds the size.
    """

    def __init__(self, X: Any, options: Options) -> None:
        choice = choose("X", _columns(X), options)
        self.columns, self.dtype = choice.names, choice.dtype
        self.univariate, self.dim = choice.univariate, len(self.columns)
        self._names = choice.all()
        # Spark cannot hand over columns with a dot in their names, which means a field of a struct to it.
        plain = [f"c{i}" for i in range(len(self._names))]
        weight = None if choice.weights is None else plain[-1]
        self._choice = choice._replace(names=tuple(plain[: self.dim]), weights=weight)
        self.skip_bad, self.weighted = options.skip_bad, options.sample_weight is not None
        self._batch_rows = options.batch_rows or rows_at_a_time(self.dim)
        self._frame = X
        self._n_parts: int | None = None  # unknown before a pass

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors need to read a partition: all but the dataframe."""
        return {**self.__dict__, "_frame": None}

    def count(self) -> int:
        """Return the number of rows; of Parquet files, Spark reads the metadata only."""
        return self._frame.count()

    def sum(self, function: Function[S], progress: Progress | None = None) -> S:
        """Return the sum of a function over all partitions, each of which answers with one row.

        Answers are added in the order of partitions, groups of consecutive ones first.
        """
        import pyspark.sql.functions as F
        from pyspark import TaskContext

        reader, done = self, self._accumulator() if progress else None

        def run(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            part = TaskContext.get().partitionId()  # type: ignore[union-attr]
            answer = _answer(function, reader.batches(part, records), reader)
            if done is not None and isinstance(answer, Partial):
                done.add(answer.rows + answer.bad)
            yield _packed(part, answer)

        answers = self._frame.select(*self._cast()).mapInArrow(run, _ANSWER)
        if self._n_parts is None or self._n_parts > _FEW:
            answers = answers.groupBy(F.floor(F.col("part") / _FAN_IN)).applyInArrow(_packed_total, _ANSWER)
        rows, reported = _collected(answers, done, progress) if progress else (answers.collect(), 0)
        found = _unpacked((row.part, row.answer) for row in rows)
        self._n_parts = max((part for part, _ in found), default=-1) + 1
        groups = groupby(found, lambda answer: answer[0] // _FAN_IN)
        total = _total(_total(answer for _, answer in group) for _, group in groups)
        if isinstance(total, ValueError):
            raise total
        if progress and total.rows + total.bad > reported:
            progress(total.rows + total.bad - reported)
        return total.checked(self)

    def map(self, function: Callable[[Tensor], Tensor], name: str = "prediction") -> Any:
        """Return the dataframe with a function of the rows as one more column; it is lazy, so rows stay on the cluster.

        Results `(n,)` give a column of numbers, `(n, k)` one of arrays. A bad row is an error when Spark comes to it;
        with `skip_bad` its result is null.

        Args:
            function: of rows `(n, d)`.
            name: of the new column; MLlib's word by default.
        """
        import pandas as pd
        import pyspark.sql.functions as F
        from pyspark import TaskContext

        if name in self._frame.columns:
            raise ValueError(f"{name!r} must be the name of a new column; X has it already. Rename or drop that one.")
        reader = self

        def results(frames: Iterator[pd.DataFrame]) -> Iterator[pd.Series]:
            part, row = TaskContext.get().partitionId(), 0  # type: ignore[union-attr]
            for frame in frames:
                rows = as_tensor(f"partition {part}", frame)
                yield _column(function, Batch(rows, None, position(part, row), Place(f"partition {part}", row)), reader)
                row += len(frame)

        results.__annotations__ = {"frames": Iterator[pd.DataFrame], "return": Iterator[pd.Series]}  # Spark reads them
        column = F.pandas_udf(results, self._kind_of(function))  # type: ignore[call-overload]
        return self._frame.withColumn(name, column(F.struct(*self._cast()[: self.dim])))

    def batches(self, part: int, records: Iterable[pa.RecordBatch]) -> Iterator[Batch]:
        """Yield the batches of a partition."""
        return read(records, self._batch_rows, self._choice, position(part), Place(f"partition {part}"))

    def fingerprint(self) -> str:
        """Return a text that changes if the rows may have changed, as far as the names of their files tell."""
        return " ".join((super().fingerprint(), *sorted(self._frame.inputFiles())))

    def _cast(self) -> list[Any]:
        """Return the chosen columns and that of the weights as numbers of the dtype, with plain names."""
        import pyspark.sql.functions as F

        kind = _SQL_TYPES[self.dtype]
        quoted = [f"`{name.replace('`', '``')}`" for name in self._names]
        return [F.col(name).cast(kind).alias(plain) for name, plain in zip(quoted, self._choice.all(), strict=True)]

    def _kind_of(self, function: Callable[[Tensor], Tensor]) -> str:
        """Return the SQL type of one result."""
        with torch.no_grad():
            example = function(torch.zeros(1, self.dim, dtype=self.dtype))
        if example.ndim > 2 or example.dtype not in _SQL_TYPES:
            got = f"{tuple(example.shape)} of {example.dtype}"
            raise ValueError(f"function of rows (n, d) must return numbers (n,) or (n, k); got {got} for n = 1.")
        kind = _SQL_TYPES[example.dtype]
        return kind if example.ndim == 1 else f"array<{kind}>"

    def _accumulator(self) -> Any:
        """Return a number that executors add to; None where Spark is remote and has no such thing."""
        if ".connect." in type(self._frame).__module__:
            return None
        return self._frame.sparkSession.sparkContext.accumulator(0)


def _columns(X: Any) -> list[Column]:
    """Return what the schema says about the columns."""
    from pyspark.sql.types import BooleanType, FloatType, NumericType

    def dtype(kind: Any) -> torch.dtype | None:
        if isinstance(kind, FloatType):
            return torch.float32
        return torch.float64 if isinstance(kind, NumericType | BooleanType) else None

    return [Column(x.name, dtype(x.dataType), x.dataType.simpleString()) for x in X.schema.fields]


def _answer(function: Function[Any], batches: Iterator[Batch], source: Source) -> Answer:
    """Return the sum over a partition, or the error in its data: raised here, Spark would only try again."""
    try:
        return Partial.of(function, batches, source)
    except BadRowsError as error:
        return BadRowsError(str(error))
    except ValueError as error:
        answer = ValueError(str(error))
        answer.add_note(traceback.format_exc())
        return answer


def _total(answers: Iterable[Answer]) -> Answer:
    """Return the sum of answers in this order, or the first error."""
    partials = [Partial()]
    for answer in answers:
        if isinstance(answer, ValueError):
            return answer
        partials.append(answer)
    return Partial.total(partials)


def _collected(answers: Any, done: Any, progress: Progress) -> tuple[list[Any], int]:
    """Return all answers, and the number of rows that were reported here while Spark worked in another thread."""
    from pyspark import inheritable_thread_target

    session, tag, reported = answers.sparkSession, f"cramix-{uuid4()}", 0

    def collect() -> list[Any]:
        session.addTag(tag)
        return answers.collect()

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(inheritable_thread_target(session)(collect))
        try:
            while wait([job], _INTERVAL).not_done:
                if done is not None and (rows := done.value) > reported:
                    progress(rows - reported)
                    reported = rows
        except BaseException:
            session.interruptTag(tag)
            raise
        return job.result(), reported


def _packed(part: int, answer: Answer) -> pa.RecordBatch:
    """Return an answer as a row. Nothing but the executors and the driver of this job ever reads it."""
    import pyarrow as pa
    from pyspark import cloudpickle

    arrays = [pa.array([part], pa.int32()), pa.array([cloudpickle.dumps(answer)], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["part", "answer"])


def _unpacked(rows: Iterable[tuple[int, bytes]]) -> list[tuple[int, Answer]]:
    """Return the answers of partitions in their order."""
    from pyspark import cloudpickle

    return [(part, cloudpickle.loads(answer)) for part, answer in sorted(rows)]


def _packed_total(table: pa.Table) -> pa.Table:
    """Return the sum over a group of partitions as a row with the number of the last one."""
    import pyarrow as pa

    found = _unpacked(zip(table["part"].to_pylist(), table["answer"].to_pylist(), strict=True))
    return pa.Table.from_batches([_packed(found[-1][0], _total(answer for _, answer in found))])


def _column(function: Callable[[Tensor], Tensor], batch: Batch, source: Source) -> pd.Series:
    """Return results for a batch as a column, null for rows that are skipped."""
    import pandas as pd

    fine = to_numpy(batch.rows.isfinite().all(-1))
    with one_thread(), torch.no_grad():
        (values,) = (to_numpy(function(some.rows)) for some in good([batch], source))
    if fine.all():
        return pd.Series(values if values.ndim == 1 else list(values))
    column = pd.Series([None] * len(fine), dtype=object)
    column[fine] = values if values.ndim == 1 else pd.Series(list(values), dtype=object).to_numpy()
    return column
