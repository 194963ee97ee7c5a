"""Dask arrays and dataframes as sources, on a real cluster of two processes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cramix
from cramix.data import source
from cramix.data.source import BadRowsError, position
from tests.cluster_passes import moments, moments_by_numpy, positions, rows_and_weights, threads
from tests.source_fits import draw, in_passes, parameters

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")
import dask  # noqa: E402
import pandas as pd  # noqa: E402

# Older versions warn that a client is at hand while threads are asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler:UserWarning")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two worker processes of one thread each, on ports of the system's choice."""
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "memory_limit": 0}
    quiet = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with (
        dask.config.set({"distributed.nanny.environ.OMP_NUM_THREADS": 1}),
        distributed.LocalCluster(**settings, **quiet) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(lambda: logging.getLogger("distributed").setLevel(logging.CRITICAL))
        yield client


@pytest.fixture(params=["cluster", "threads", "synchronous"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cluster":
        request.getfixturevalue("client")
        yield "cluster"
    else:
        with dask.config.set(scheduler=request.param):
            yield request.param


def _frame(x: np.ndarray, w: np.ndarray, partitions: int) -> Any:
    return dd.from_pandas(pd.DataFrame({"a": x[:, 0], "w": w, "b": x[:, 1], "c": x[:, 2]}), npartitions=partitions)


def _from_parts(*frames: pd.DataFrame) -> Any:
    """Return a dataframe of given partitions, of which the first is what Dask believes all to be like."""
    return dd.from_delayed([dask.delayed(frame) for frame in frames], meta=frames[0][:0], verify_meta=False)


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_an_array_gives_the_sums_of_numpy(scheduler: str, partitions: int) -> None:
    x, w = rows_and_weights()
    X = da.from_array(x, chunks=(-(-len(x) // partitions), 3))
    assert X.numblocks == (partitions, 1)
    np.testing.assert_array_equal(source(X).sum(moments()), moments_by_numpy(x))
    for weights in (w, da.from_array(w, chunks=13)):
        rows = source(X, sample_weight=weights, batch_rows=6)
        assert rows.weighted
        np.testing.assert_array_equal(rows.sum(moments()), moments_by_numpy(x, w))
    assert source(X, batch_rows=6).sum(positions()) == list(enumerate(x[:, 0]))


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_a_dataframe_gives_the_sums_of_numpy(scheduler: str, partitions: int) -> None:
    x, w = rows_and_weights()
    X = _frame(x, w, partitions)
    assert X.npartitions == partitions
    rows = source(X, sample_weight="w", batch_rows=6)
    assert (rows.columns, rows.dim, rows.n_rows, rows.weighted) == (("a", "b", "c"), 3, None, True)
    np.testing.assert_array_equal(rows.sum(moments()), moments_by_numpy(x, w))
    chosen = source(X, columns=["c", "a", "b"])
    np.testing.assert_array_equal(chosen.sum(moments()), moments_by_numpy(x[:, [2, 0, 1]]))
    found = rows.sum(positions())
    assert [value for _, value in found] == x[:, 0].tolist()
    lengths = X.map_partitions(len).compute()
    assert [at for at, _ in found] == [position(i, j) for i, length in enumerate(lengths) for j in range(length)]


def test_sums_are_rounded_alike_every_time(scheduler: str) -> None:
    x = np.random.default_rng(1).normal(size=(999, 3))
    rows = source(da.from_array(x, chunks=(50, 3)))
    first, *others = (rows.sum(moments(), progress) for progress in (None, None, lambda rows: None))
    assert all(torch.equal(first, other) for other in others)
    np.testing.assert_allclose(first, moments_by_numpy(x), rtol=1e-12)


def test_progress_counts_the_rows_of_each_part_in_this_thread(scheduler: str) -> None:
    x, _ = rows_and_weights()
    x[3, 0] = np.nan
    seen = list[tuple[int, int]]()
    rows = source(da.from_array(x, chunks=(40, 3)), skip_bad=True)
    rows.sum(moments(), lambda done: seen.append((done, threading.get_ident())))
    assert sorted(seen) == [(rows, threading.get_ident()) for rows in (20, 40, 40)]


def test_a_task_has_one_thread_and_the_caller_as_many_as_before(scheduler: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert source(da.ones((9, 1), chunks=(3, 1))).sum(threads()) == [1, 1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_bad_rows_are_named_or_counted(scheduler: str) -> None:
    x, w = rows_and_weights()
    x[33, 1], w[77] = np.inf, -1
    X = _frame(x, w, 7)
    with pytest.raises(BadRowsError, match=r"^X\.partitions\[2\], row 4 has inf in column 'b'\. Correct it, or skip"):
        source(X, columns=["a", "b", "c"]).sum(moments())
    with pytest.raises(BadRowsError, match=r"^X\.blocks\[5\], row 8 has a weight of -1"):
        source(da.ones((100, 3), chunks=(14, 3)), sample_weight=w).sum(moments(), lambda rows: None)
    fine = np.delete(np.arange(100), [33, 77])
    got = source(X, sample_weight="w", skip_bad=True).sum(moments())
    np.testing.assert_array_equal(got, moments_by_numpy(x[fine], w[fine], bad=2))
    with pytest.raises(BadRowsError, match="X has no rows that can be used: all 100 are bad"):
        source(da.full((100, 2), np.nan, chunks=(30, 2)), skip_bad=True).sum(moments(2))


def test_empty_partitions_add_nothing(scheduler: str) -> None:
    x, w = rows_and_weights()
    X = _frame(x, w, 7)
    some = X[X["a"] > 45]
    assert 0 in some.map_partitions(len).compute().to_numpy()
    keep = x[:, 0] > 45
    np.testing.assert_array_equal(source(some, sample_weight="w").sum(moments()), moments_by_numpy(x[keep], w[keep]))
    assert source(some, columns=["a", "b"]).map(lambda rows: rows).compute().tolist() == x[keep][:, :2].tolist()
    with pytest.raises(ValueError, match="X must have rows; it has none"):
        source(X[X["a"] > 99]).sum(moments(4))


def test_a_partition_unlike_the_others_is_named(scheduler: str) -> None:
    good = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    with pytest.raises(ValueError, match=r"^X\.partitions\[1\] has no column 'b'\. It has: a, z"):
        source(_from_parts(good, good.rename(columns={"b": "z"}))).sum(moments(2))
    with pytest.raises(ValueError, match=r"^X\.partitions\[2\] must hold numbers .*; got 'b' \((object|str)\)"):
        source(_from_parts(good, good, good.astype({"b": str}))).sum(moments(2))
    # Other dtypes of numbers and another order of the columns do no harm.
    other = pd.DataFrame({"b": [5, 6], "a": np.float32([7, 8])})
    assert [x for _, x in source(_from_parts(good, other)).sum(positions())] == [1, 2, 7, 8]


def test_chunks_of_unknown_size_have_positions_of_parts() -> None:
    x, w = rows_and_weights()
    X = _frame(x, w, 3).to_dask_array()
    rows = source(X[:, 2:], sample_weight=X[:, 1])
    assert rows.n_rows is None
    np.testing.assert_array_equal(rows.sum(moments(2)), moments_by_numpy(x[:, 1:], w))
    assert {at >> 40 for at, _ in rows.sum(positions())} == {0, 1, 2}
    with pytest.raises(ValueError, match="chunks of X where their sizes are unknown"):
        source(X, sample_weight=w)


def test_chunks_of_columns_are_joined() -> None:
    x, _ = rows_and_weights()
    rows = source(da.from_array(x, chunks=(30, 2)))
    np.testing.assert_array_equal(rows.sum(moments()), moments_by_numpy(x))


def test_map_is_lazy_and_its_rows_stay_on_the_cluster(client: Any, tmp_path: Path) -> None:
    x, w = rows_and_weights()
    called = str(tmp_path / "called")

    def norms(rows: torch.Tensor) -> torch.Tensor:
        if rows.any():  # not the rows of zeros that show the shape of results
            Path(called).touch()
        return rows.square().sum(-1)

    result = source(da.from_array(x, chunks=(30, 3))).map(norms)
    assert isinstance(result, da.Array)
    assert (result.chunks, result.dtype) == (((30, 30, 30, 10),), np.float64)
    assert not Path(called).exists()
    result = result.persist()
    distributed.wait(result)
    held = [key for keys in client.who_has(result).values() for key in keys]
    assert len(held) >= result.npartitions
    np.testing.assert_array_equal(result, (x**2).sum(1))
    wide = source(_frame(x, w, 3), columns=["a", "b"]).map(lambda rows: rows.float() * 2)
    assert (wide.shape[1], wide.dtype) == (2, np.float32)
    np.testing.assert_array_equal(wide.compute(), x[:, :2] * 2)


def test_map_has_a_place_for_each_row(client: Any) -> None:
    x, w = rows_and_weights()
    x[70, 0], w[2] = np.nan, -1
    rows = source(_frame(x, w, 2), sample_weight="w", skip_bad=True)
    with pytest.raises(BadRowsError, match=r"X\.partitions\[1\], row 21 has a missing number in column 'a'"):
        rows.map(lambda rows: rows.sum(-1)).compute()
    labels = source(_frame(x[:70], w[:70], 2), sample_weight="w").map(lambda rows: rows.argmax(-1)).compute()
    assert labels.tolist() == x[:70].argmax(1).tolist()  # a weight is of no matter


def test_kinds_of_numbers_and_single_columns() -> None:
    ones = da.ones((6, 2), chunks=3, dtype=np.float32)
    assert source(ones).dtype == torch.float32
    assert source(ones.astype(np.float16)).dtype == torch.float32
    assert source(ones.astype(int)).dtype == torch.float64
    column = source(da.arange(6, chunks=4))
    assert (column.univariate, column.dim) == (True, 1)
    assert column.sum(positions()) == [(i, float(i)) for i in range(6)]
    frame = dd.from_pandas(pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64")}), npartitions=1)
    series = source(frame["a"], skip_bad=True)
    assert (series.univariate, series.columns) == (True, ("a",))
    assert [x for _, x in series.sum(positions())] == [1, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["a", "z"]}, "X has no column 'z'. It has: a, w, b, c"),
        ({"columns": ["a", "a"]}, "columns must name each column once, and none of weights; got 'a' again"),
        ({"sample_weight": "z"}, "X has no column 'z'"),
        ({"sample_weight": np.ones(100)}, "sample_weight must be the name of a column"),
    ],
)
def test_refusals_of_a_dataframe(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(_frame(*rows_and_weights(), 2), **arguments)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match=r"X must hold numbers in every column; got 's' \(string\)"):
        source(dd.from_pandas(pd.DataFrame({"a": [1.0], "s": ["x"]}), npartitions=1))
    with pytest.raises(ValueError, match=r"X must be rows \(n, d\) or \(n,\); got an array of 3 axes"):
        source(da.ones((2, 2, 2)))
    with pytest.raises(ValueError, match="X must be an array or a dataframe of Dask; got its Delayed"):
        source(dask.delayed(1))
    with pytest.raises(ValueError, match="columns must be None for a Dask array"):
        source(da.ones((2, 2)), columns=["a"])
    with pytest.raises(ValueError, match=r"sample_weight must have one entry per row, shape \(4,\); got shape \(3,\)"):
        source(da.ones((4, 2)), sample_weight=np.ones(3))


def test_a_fingerprint_changes_with_the_rows() -> None:
    x, _ = rows_and_weights()
    first, again, other = (source(da.from_array(y, chunks=50)).fingerprint() for y in (x, x.copy(), x + 1))
    assert first == again != other


def test_a_worker_that_is_killed_loses_and_doubles_nothing(client: Any, tmp_path: Path) -> None:
    x, w = rows_and_weights(240)
    log, sums = str(tmp_path / "log"), moments()

    def slow(batches: Iterator[Any]) -> torch.Tensor:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        return sums(batches)

    victim, *_ = client.run(os.getpid).values()
    done = list[int]()

    def kill(rows: int) -> None:
        done.append(rows)
        if len(done) == 5:
            os.kill(victim, signal.SIGKILL)

    got = source(da.from_array(x, chunks=(12, 3)), sample_weight=w).sum(slow, kill)
    np.testing.assert_array_equal(got, moments_by_numpy(x, w))
    assert done == [12] * 20
    calls = Path(log).read_text().split()
    assert str(victim) in calls
    assert len(calls) > 20  # what the victim held was computed again
    client.wait_for_workers(2, timeout=30)
    assert victim not in client.run(os.getpid).values()


def test_an_error_in_a_pass_ends_it(client: Any, tmp_path: Path) -> None:
    log = str(tmp_path / "log")

    def failing(batches: Iterator[Any]) -> torch.Tensor:
        with open(log, "a") as file:
            file.write("called\n")
        time.sleep(0.1)
        raise ZeroDivisionError("no such luck")

    rows = source(da.ones((200, 1), chunks=(1, 1)))
    for progress in (None, lambda rows: None):
        with pytest.raises(ZeroDivisionError, match="no such luck"):
            rows.sum(failing, progress)
        calls = -1
        while calls != (calls := len(Path(log).read_text().split())):
            time.sleep(0.7)
        assert calls < 150


@pytest.mark.parametrize("partitions", [1, 5])
def test_a_fit_is_that_to_an_array(client: Any, partitions: int) -> None:
    x = draw(2000)
    expected = cramix.fit(x, 3, generator=torch.Generator().manual_seed(0))
    X = da.from_array(x, chunks=(-(-len(x) // partitions), 2))
    frame = dd.from_pandas(pd.DataFrame(x, columns=["a", "b"]), npartitions=partitions)
    for rows in (X, frame):
        found = cramix.fit(rows, 3, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=1e-6, atol=1e-6)
        assert found.passes == 1


def test_passes_of_a_fit_are_those_over_an_array(client: Any) -> None:
    x = draw(9000)
    expected = in_passes(source(x), sample=1000)
    found = in_passes(da.from_array(x, chunks=(2000, 2)), sample=1000)
    assert found.passes == expected.passes > 2
    torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=1e-6, atol=1e-6)


def test_predictions_stay_on_the_cluster(client: Any) -> None:
    x = draw(900)
    model = cramix.CramerMixture(3, random_state=0).fit(x)
    X = da.from_array(x, chunks=(400, 2))
    labels = model.predict(X)
    assert isinstance(labels, da.Array)
    np.testing.assert_array_equal(labels.compute(), model.predict(x))
    assert model.score(X) == pytest.approx(model.score(x), rel=1e-12)
