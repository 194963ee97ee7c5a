"""Spark dataframes as sources, in a real session of two threads on this machine."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import cramix
from cramix.data import source
from cramix.data.source import BadRowsError, position
from tests.cluster_passes import moments, moments_by_numpy, positions, rows_and_weights, threads
from tests.source_fits import draw, in_passes, parameters

pyspark = pytest.importorskip("pyspark")
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

_JAVA = shutil.which("java") or os.environ.get("JAVA_HOME")
pytestmark = [
    pytest.mark.skipif(not _JAVA, reason="Spark needs Java: install it, or set JAVA_HOME"),
    # Older versions leave sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    # Spark warns about versions of pandas that it does not know well.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.slow,  # to start Java, Spark and two Python workers takes ten seconds
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that tries a failed task twice more; its ports are the system's choice."""
    folder = str(tmp_path_factory.mktemp("spark"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": folder,
        "spark.local.dir": folder,
        "spark.log.level": "OFF",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        session = SparkSession.builder.master("local[2,3]").config(map=settings).getOrCreate()
        try:
            yield session
        finally:
            _end(session)


def _end(session: SparkSession) -> None:
    """Stop the session and the process of Java, which would live as long as this one."""
    gateway = session.sparkContext._gateway
    session.stop()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(30)
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None


def _frame(spark: SparkSession, partitions: int, **columns: Any) -> DataFrame:
    """Return columns as a dataframe of partitions of consecutive rows; None is a null."""
    (n,) = {len(values) for values in columns.values()}
    texts = {
        name: ",".join("null" if x is None else f"double('{x}')" for x in map(_plain, values))
        for name, values in columns.items()
    }
    chosen = [f"array({text})[cast(id as int)] as `{name}`" for name, text in texts.items()]
    frame = spark.range(0, n, 1, partitions).selectExpr(*chosen)
    assert frame.rdd.getNumPartitions() == partitions
    return frame


def _plain(x: Any) -> Any:
    return None if x is None else float(x)


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_a_dataframe_gives_the_sums_of_numpy(spark: SparkSession, partitions: int) -> None:
    x, w = rows_and_weights()
    a, b, c = x.T
    X = _frame(spark, partitions, a=a, **{"w.1": w}, b=b, c=c)
    rows = source(X, sample_weight="w.1", batch_rows=6)
    assert (rows.columns, rows.dim, rows.n_rows, rows.weighted) == (("a", "b", "c"), 3, None, True)
    for _ in range(2):  # groups of partitions are added by executors first, then by the driver, too
        np.testing.assert_array_equal(rows.sum(moments()), moments_by_numpy(x, w))
    found = rows.sum(positions())
    assert [value for _, value in found] == a.tolist()
    lengths = [len(part) for part in X.rdd.glom().collect()]
    assert [at for at, _ in found] == [position(i, j) for i, length in enumerate(lengths) for j in range(length)]
    chosen = source(X, columns=["c", "a", "b"])
    np.testing.assert_array_equal(chosen.sum(moments()), moments_by_numpy(x[:, [2, 0, 1]]))
    assert set(rows.sum(threads())) == {1}


def test_sums_of_many_partitions_are_rounded_alike_every_time(spark: SparkSession) -> None:
    x = np.random.default_rng(1).normal(size=(68, 3))
    rows = source(_frame(spark, 34, a=x[:, 0], b=x[:, 1], c=x[:, 2]))
    by_executors, by_driver = rows.sum(moments()), rows.sum(moments())
    assert torch.equal(by_executors, by_driver)
    np.testing.assert_allclose(by_driver, moments_by_numpy(x), rtol=1e-12)


def test_progress_counts_all_rows_in_this_thread(spark: SparkSession) -> None:
    x, w = rows_and_weights()
    seen = list[tuple[int, int]]()
    rows = source(_frame(spark, 4, a=[None, *x[1:, 0]], b=x[:, 1], c=w), skip_bad=True)
    rows.sum(moments(), lambda done: seen.append((done, threading.get_ident())))
    assert sum(rows for rows, _ in seen) == 100
    assert {thread for _, thread in seen} == {threading.get_ident()}


def test_an_error_in_progress_ends_the_pass(spark: SparkSession) -> None:
    x, _ = rows_and_weights(40)

    def full(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source(_frame(spark, 20, a=x[:, 0])).sum(moments(1), full)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_bad_rows_are_named_or_counted(spark: SparkSession) -> None:
    x, w = rows_and_weights()
    w[77] = -1
    a, b, c = x.T
    X = _frame(spark, 4, a=a, b=[*b[:33], None, *b[34:]], c=c, w=w)
    with pytest.raises(BadRowsError, match=r"^partition 1, row 9 has a missing number in column 'b'\. Correct it, or"):
        source(X, sample_weight="w").sum(moments())
    with pytest.raises(BadRowsError, match=r"^partition 3, row 3 has a weight of -1"):
        source(X, columns=["a"], sample_weight="w").sum(moments(1), lambda rows: None)
    fine = np.delete(np.arange(100), [33, 77])
    got = source(X, sample_weight="w", skip_bad=True).sum(moments())
    np.testing.assert_array_equal(got, moments_by_numpy(x[fine], w[fine], bad=2))
    with pytest.raises(BadRowsError, match="X has no rows that can be used: all 3 are bad"):
        source(_frame(spark, 2, a=[None, np.inf, np.nan]), skip_bad=True).sum(moments(1))


def test_empty_partitions_add_nothing(spark: SparkSession) -> None:
    x, _ = rows_and_weights(50)
    X = _frame(spark, 7, a=x[:, 0], b=x[:, 1], c=x[:, 2])
    keep = x[:, 0] > 40
    some = X.where("a > 40")
    assert 0 in map(len, some.rdd.glom().collect())
    np.testing.assert_array_equal(source(some).sum(moments()), moments_by_numpy(x[keep]))
    with pytest.raises(ValueError, match="X must have rows; it has none"):
        source(X.where("a > 99")).sum(moments())


def test_a_task_that_fails_is_run_again_and_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    x, w = rows_and_weights()
    log, sums = str(tmp_path / "log"), moments()

    def unreliable(batches: Iterator[Any]) -> torch.Tensor:
        from pyspark import TaskContext

        context = TaskContext.get()
        with open(log, "a") as file:
            file.write(f"{context.partitionId()}.{context.attemptNumber()} ")
        total = sums(batches)
        if context.partitionId() == 2 and context.attemptNumber() == 0:
            raise OSError("the machine has gone")
        if context.partitionId() == 3 and context.attemptNumber() == 0:
            os._exit(1)  # the Python process dies
        return total

    rows = source(_frame(spark, 5, a=x[:, 0], b=x[:, 1], c=x[:, 2], w=w), sample_weight="w")
    for _ in range(2):
        np.testing.assert_array_equal(rows.sum(unreliable), moments_by_numpy(x, w))
        attempts = Path(log).read_text().split()
        assert sorted(attempts) == ["0.0", "1.0", "2.0", "2.1", "3.0", "3.1", "4.0"]
        Path(log).unlink()


def test_errors_of_a_function_arrive(spark: SparkSession) -> None:
    def refusing(batches: Iterator[Any]) -> torch.Tensor:
        raise ValueError("no such component")

    rows = source(_frame(spark, 2, a=[1, 2]))
    with pytest.raises(ValueError, match=r"^no such component\n") as caught:
        rows.sum(refusing)
    assert "in refusing" in caught.value.__notes__[0]


def test_map_appends_a_column(spark: SparkSession, tmp_path: Path) -> None:
    x, _ = rows_and_weights(30)
    called = str(tmp_path / "called")

    def largest(rows: torch.Tensor) -> torch.Tensor:
        if rows.any():  # not the rows of zeros that show the type of results
            Path(called).touch()
        return rows.argmax(-1)

    X = _frame(spark, 3, a=x[:, 0], b=x[:, 1], c=x[:, 2])
    rows = source(X, columns=["b", "c"])
    result = rows.map(largest)
    assert isinstance(result, DataFrame)
    assert result.dtypes == [*X.dtypes, ("prediction", "bigint")]
    assert not Path(called).exists()
    assert [tuple(row) for row in result.collect()] == [(*row, row[1:].argmax()) for row in x]
    wide = rows.map(lambda rows: rows.float() * 2, name="doubled")
    assert wide.dtypes[-1] == ("doubled", "array<float>")
    np.testing.assert_array_equal([row.doubled for row in wide.collect()], x[:, 1:] * 2)
    with pytest.raises(ValueError, match="'prediction' must be the name of a new column"):
        source(result, columns=["a"]).map(largest)
    with pytest.raises(ValueError, match=r"must return numbers \(n,\) or \(n, k\); got \(1, 2, 2\)"):
        rows.map(lambda rows: rows[:, :, None] * rows[:, None])


def test_map_gives_null_for_bad_rows_or_names_them(spark: SparkSession) -> None:
    X = _frame(spark, 1, a=[1, None, 3, np.inf], b=[3, 4, 1, 2])
    skipping, strict = source(X, skip_bad=True), source(X)
    labels = skipping.map(lambda rows: rows.argmax(-1)).collect()
    assert [row.prediction for row in labels] == [1, None, 0, None]
    copies = skipping.map(lambda rows: rows).collect()
    assert [row.prediction for row in copies] == [[1, 3], None, [3, 1], None]
    with pytest.raises(pyspark.errors.PythonException, match="partition 0, row 2 has a missing number in column 'a'"):
        strict.map(lambda rows: rows.argmax(-1)).collect()


def test_kinds_of_numbers(spark: SparkSession) -> None:
    X = spark.sql("select 1 as i, true as t, float(0.5) as f, float(2) as g, 1.5D as d, 2.25 as e, 's' as s")
    assert source(X, columns=["f", "g"]).dtype == torch.float32
    rows = source(X, columns=["i", "t", "f", "d", "e"])
    assert rows.dtype == torch.float64
    assert rows.sum(moments(5))[3:8].tolist() == [1, 1, 0.5, 1.5, 2.25]


def test_refusals(spark: SparkSession) -> None:
    X = spark.sql("select 1 as a, 's' as s, array(1.0D) as v")
    with pytest.raises(ValueError, match=r"hold numbers in every column; got 's' \(string\), 'v' \(array<double>\)"):
        source(X)
    with pytest.raises(ValueError, match=r"X has no column 'z'\. It has: a, s, v"):
        source(X, columns=["a", "z"])
    with pytest.raises(ValueError, match="X has 2 columns named 'a'"):
        source(X.select("a", "a"))
    with pytest.raises(ValueError, match="sample_weight must be the name of a column"):
        source(X, columns=["a"], sample_weight=np.ones(1))
    with pytest.raises(ValueError, match="columns must be the names of at least one column"):
        source(X, columns=[])


def test_a_fingerprint_names_the_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "rows")
    _frame(spark, 1, a=[1, 2]).write.parquet(folder)
    first = source(spark.read.parquet(folder)).fingerprint()
    assert first == source(spark.read.parquet(folder)).fingerprint()
    _frame(spark, 1, a=[3]).write.mode("append").parquet(folder)
    assert first != source(spark.read.parquet(folder)).fingerprint()


def test_other_things_of_spark_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"X must be a pyspark\.sql\.DataFrame; got pyspark.*RDD"):
        source(spark.range(3).rdd)


def test_a_fit_is_that_to_an_array(spark: SparkSession, tmp_path: Path) -> None:
    x = draw(2000)
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1]}), tmp_path / "x.parquet", row_group_size=300)
    X = spark.read.parquet(str(tmp_path / "x.parquet")).coalesce(1)
    expected = cramix.fit(x, 3, generator=torch.Generator().manual_seed(0))
    found = cramix.fit(X, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=1e-6, atol=1e-6)
    # Positions in partitions of unknown size draw another sample, which leads to the same optimum.
    passes = in_passes(X.repartition(3).cache(), sample=500)
    assert passes.passes > 2
    assert abs(passes.log_likelihood - expected.log_likelihood) < expected.n_parameters / (2 * len(x))
    model = cramix.CramerMixture(3, random_state=0).fit(x)
    labels = [row.prediction for row in model.predict(X).collect()]
    np.testing.assert_array_equal(labels, model.predict(x))
