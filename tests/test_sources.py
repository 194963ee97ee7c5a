"""Sources: the same rows give the same sums, however they come and whatever goes wrong on the way."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import cramix
from cramix.data import BadRowsError, Batch, is_source_like, source
from cramix.data.local import LocalSource
from cramix.data.source import Place, good, position

N, NAMES = 5000, ["a", "b", "c"]
X = np.random.default_rng(0).integers(-1000, 1000, (N, 3)) / 8.0  # sums of these are exact in any order
TABLE = pa.table({name: X[:, j] for j, name in enumerate(NAMES)})


class Seen:
    """Rows with their positions and weights, added by placing them in order; and the numbers of good and bad rows."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.rows: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.positions: list[int] = []
        self.bad = 0
        for batch in batches:
            self.rows.append(batch.rows)
            self.weights += [] if batch.weights is None else [batch.weights]
            self.positions += range(batch.position, batch.position + len(batch.rows))
            self.bad += batch.bad

    def __add__(self, other: Seen) -> Seen:
        result = copy.copy(self)
        result.rows, result.weights = self.rows + other.rows, self.weights + other.weights
        result.positions, result.bad = self.positions + other.positions, self.bad + other.bad
        return result


def count_and_sum(batches: Iterator[Batch]) -> Tensor:
    return sum(
        (torch.cat((torch.tensor([float(len(b.rows))]).double(), b.rows.double().sum(0))) for b in batches),
        torch.zeros(1, dtype=torch.float64),
    )


def frame_of_polars() -> pl.DataFrame:
    return pl.DataFrame({name: X[:, j] for j, name in enumerate(NAMES)})


def mapped(tmp_path: Path) -> np.memmap:
    array = np.memmap(tmp_path / "rows.bin", np.float64, "w+", shape=X.shape)
    array[:] = X
    array.flush()
    return array


def batches(rows: int = 77) -> Iterator[np.ndarray]:
    return (X[i : i + rows] for i in range(0, N, rows))


KINDS: dict[str, Callable[[Path], Any]] = {
    "array": lambda _: X,
    "tensor": lambda _: torch.tensor(X),
    "list": lambda _: X.tolist(),
    "pandas": lambda _: pd.DataFrame(X, columns=NAMES),
    "memmap": mapped,
    "memmap slice": lambda path: np.concatenate([X[:7], X]) if path is None else _sliced(path),
    "by columns": lambda _: np.asfortranarray(X),
    "table": lambda _: TABLE,
    "record batch": lambda _: TABLE.combine_chunks().to_batches()[0],
    "chunks": lambda _: pa.Table.from_batches(TABLE.to_batches(max_chunksize=13)),
    "dataset": lambda _: pyarrow.dataset.dataset(TABLE),
    "reader": lambda _: TABLE.to_reader(100),
    "polars": lambda _: frame_of_polars(),
    "duckdb": lambda _: duckdb.connect().from_arrow(TABLE),
    "loader": lambda _: DataLoader(TensorDataset(torch.tensor(X)), batch_size=50),
    "arrays": lambda _: [X[:1], X[1:10], X[10:10], X[10:]],
    "generator": lambda _: batches(),
}
ONCE = {"reader", "generator"}
LARGE = {"memmap", "memmap slice", "table", "record batch", "chunks", "dataset", "reader", "duckdb", "loader"} | {
    "arrays",
    "generator",
}


def _sliced(path: Path) -> np.memmap:
    array = np.memmap(path / "more.bin", np.float64, "w+", offset=24, shape=(N + 7, 3))
    array[7:] = X
    return array[7:]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind](tmp_path)
    assert is_source_like(data) == (kind in LARGE)
    rows = source(data, batch_rows=999)
    rows.workers = 3
    assert (rows.dim, rows.dtype, rows.univariate, rows.weighted) == (3, torch.float64, False, False)
    assert rows.n_rows in (N, None)
    assert rows.repeatable == (kind not in ONCE)
    seen = rows.sum(Seen)
    assert np.array_equal(torch.cat(seen.rows), X)
    assert seen.positions == list(range(N))
    assert max(map(len, seen.rows)) <= 999
    if rows.repeatable:
        assert np.array_equal(rows.sum(count_and_sum), [N, *X.sum(0)])
        again = rows.map(lambda x: x[:, 1])
        assert isinstance(again, Tensor) == (kind in ("tensor", "loader"))
        assert np.array_equal(again, X[:, 1])
    else:
        with pytest.raises(ValueError, match=r"read only once, and it has been\. Pass a"):
            rows.sum(Seen)


@pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result")
def test_the_result_of_a_connection_is_read_once() -> None:
    connection = duckdb.connect().execute("select range::double as a from range(5000)")
    rows = source(connection)
    assert np.array_equal(rows.sum(count_and_sum), [5000, 5000 * 4999 / 2])
    with pytest.raises(ValueError, match="only once"):
        rows.sum(count_and_sum)


def test_a_query_runs_again_after_an_error() -> None:
    rows = source(duckdb.connect().from_arrow(TABLE), batch_rows=100)

    def fail(batches: Iterator[Batch]) -> Tensor:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        rows.sum(fail)
    assert np.array_equal(torch.cat(rows.sum(Seen).rows), X)


def test_single_numbers() -> None:
    for data in (X[:, 0], torch.tensor(X[:, 0]), pd.Series(X[:, 0]), X[:, 0].tolist()):
        rows = source(data)
        assert (rows.univariate, rows.dim) == (True, 1)
        assert np.array_equal(rows.sum(count_and_sum), [N, X[:, 0].sum()])
    assert source(TABLE, columns="b").univariate
    assert not source(TABLE, columns=["b"]).univariate


def test_columns_and_weights_by_name() -> None:
    for data in (TABLE, pd.DataFrame(X, columns=NAMES), frame_of_polars(), pyarrow.dataset.dataset(TABLE)):
        rows = source(data, columns=["c", "a"], sample_weight="b", skip_bad=True)
        assert rows.columns == ("c", "a")
        assert rows.weighted
        seen = rows.sum(Seen)
        kept = X[:, 1] >= 0
        assert np.array_equal(torch.cat(seen.rows), X[kept][:, [2, 0]])
        assert np.array_equal(torch.cat(seen.weights), X[kept, 1])
        assert seen.bad == (~kept).sum()
        assert source(data, sample_weight="b").columns == ("a", "c")


def test_weights_of_arrays(tmp_path: Path) -> None:
    weights = np.arange(N) / 4
    for data in (X, torch.tensor(X), pd.DataFrame(X, columns=NAMES), mapped(tmp_path)):
        for w in (weights, torch.tensor(weights), weights.tolist()):
            assert np.array_equal(torch.cat(source(data, sample_weight=w).sum(Seen).weights), weights)
    with pytest.raises(ValueError, match=r"one entry per row, shape \(5000,\); got shape \(4999,\)"):
        source(X, sample_weight=weights[1:])
    with pytest.raises(BadRowsError, match="X, row 18 has a weight of -1; weights must be >= 0 and finite"):
        source(X, sample_weight=np.where(np.arange(N) == 17, -1, weights)).sum(Seen)


def test_second_entries_of_batches_are_not_taken_for_weights() -> None:
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.arange(N)), batch_size=600)
    with pytest.raises(ValueError, match=r"batch 0 of DataLoader must be rows .* sample_weight=True; to ignore it"):
        source(loader)
    weighted = source(loader, sample_weight=True)
    assert weighted.weighted
    assert np.array_equal(torch.cat(weighted.sum(Seen).weights), np.arange(N))
    ignored = source(loader, sample_weight=False)
    assert not ignored.weighted
    assert np.array_equal(torch.cat(ignored.sum(Seen).rows), X)


def test_dtypes() -> None:
    small = X.astype(np.float32)
    for data in (small, torch.tensor(small), pd.DataFrame(small), [small], pa.table({"a": small[:, 0]})):
        assert source(data).dtype == torch.float32
    for kind in (np.int64, np.uint8, np.bool_):
        assert source(X.astype(kind)).dtype == torch.float64
    large = 2**24 + 1  # which float32 does not hold
    for data in (torch.tensor([[large]]), [torch.tensor([[large]])], np.array([[large]])):
        assert source(data).map(lambda x: x[:, 0])[0] == large
    kinds = {
        "decimal": pa.array([1, 2, None], pa.decimal128(12, 2)),
        "boolean": pa.array([True, False, None]),
        "integer": pa.array([1, 2, None], pa.int8()),
        "half": pa.array(np.array([1, 2, np.nan], np.float16)),
        "dictionary": pa.array([1.0, 2.0, None]).dictionary_encode(),
    }
    for name, column in kinds.items():
        seen = source(pa.table({name: column}), skip_bad=True).sum(Seen)
        assert (sum(map(len, seen.rows)), seen.bad) == (2, 1)
        with pytest.raises(BadRowsError, match=f"Table, row 3 has a missing number in column '{name}'"):
            source(pa.table({name: column})).sum(Seen)


def test_text_and_wrong_names_are_refused_before_reading() -> None:
    table = TABLE.append_column("name", pa.array(["x"] * N)).append_column("day", pa.array([None] * N, pa.date32()))
    for data in (table, table.to_reader(), pyarrow.dataset.dataset(table)):
        with pytest.raises(ValueError, match=r"in every column; got 'name' \(string\), 'day' \(date32\[day\]\)"):
            source(data)
        with pytest.raises(ValueError, match=r"has no column 'nam'\. Did you mean 'name'\?"):
            source(data, columns=["a", "nam"])
    with pytest.raises(ValueError, match=r"numbers in every column; got 'name' \((object|str)\)"):
        source(table.to_pandas(), columns=["a", "name"])
    with pytest.raises(ValueError, match="each column once"):
        source(TABLE, columns=["a", "a"])
    with pytest.raises(ValueError, match="has 2 columns named 'a'"):
        source(pa.Table.from_arrays([TABLE["a"], TABLE["b"]], ["a", "a"]))
    with pytest.raises(ValueError, match="must be the name of a column"):
        source(TABLE, sample_weight=np.ones(N))
    with pytest.raises(ValueError, match="columns must be None"):
        source(X, columns=["a"])


def test_bad_rows_name_their_place() -> None:
    for value, shown in ((np.nan, "a missing number"), (np.inf, "inf"), (-np.inf, "-inf")):
        bad = X.copy()
        bad[4321, 2] = value
        bad[2, 0] = np.finfo(float).max  # sums overflow, but this row is good
        bad[3, 0] = np.finfo(float).max
        table = pa.table({name: bad[:, j] for j, name in enumerate(NAMES)})
        for data in (bad, table, [bad[:4000], bad[4000:]], iter([bad])):
            rows = source(data, batch_rows=100)
            column = "column 'c'" if rows.columns else "column 2"
            with pytest.raises(BadRowsError, match=f", row 4322 has {shown} in {column}. Correct it, or skip"):
                rows.sum(count_and_sum)
            if not rows.repeatable:
                continue
            skipping = source(data, skip_bad=True, batch_rows=100)
            seen = skipping.sum(Seen)
            assert seen.bad == 1
            assert np.array_equal(torch.cat(seen.rows), np.delete(bad, 4321, 0))
            with pytest.raises(BadRowsError, match=r"row 4322 .* one entry for each row, so none is skipped"):
                skipping.map(lambda x: x)


def test_wrong_batches() -> None:
    with pytest.raises(ValueError, match="batch 2 of list has 2, the first one 3"):
        source([X[:5], X[5:8], X[8:, :2]]).sum(Seen)
    with pytest.raises(ValueError, match=r"batch 0 of list_iterator must have shape \(n, d\); got \(3,\)"):
        source(iter(X.tolist()))
    with pytest.raises(ValueError, match="at least one batch"):
        source(iter([]))
    with pytest.raises(ValueError, match="must have rows; it has none"):
        source([X[:0], X[:0]]).sum(Seen)
    with pytest.raises(ValueError, match="must have rows; it has none"):
        source(TABLE.slice(0, 0)).sum(Seen)
    with pytest.raises(BadRowsError, match="all 2 are bad"):
        source(np.full((2, 2), np.nan), skip_bad=True).sum(Seen)
    with pytest.raises(ValueError, match="got dict"):
        source({"a": 1})


def test_what_is_no_source() -> None:
    mixture = cramix.NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
    for data in (
        X,
        torch.tensor(X),
        X.tolist(),
        [1.0],
        (1, 2),
        range(3),
        mixture,
        None,
        3.0,
        {"a": 1},
        pl.Series([1]),
    ):
        assert not is_source_like(data), type(data)
    for data in ("x.parquet", Path("x"), ["a.csv", "b.csv"], source(X), iter([X])):
        assert is_source_like(data), type(data)
    same = source(X)
    assert source(same) is same
    with pytest.raises(ValueError, match="pass them when it is made"):
        source(same, skip_bad=True)


class Parts(LocalSource):
    """Rows in parts of chosen sizes, which counts the batches that are alive."""

    dim, name = 3, "parts"

    def __init__(self, sizes: list[int], workers: int = 2, batch_rows: int = 10, rows: np.ndarray = X) -> None:
        self.sizes, self.workers, self.batch_rows, self.x = sizes, workers, batch_rows, torch.from_numpy(rows)
        self.alive = self.most = self.started = 0
        self.lock = threading.Lock()

    def parts(self) -> Iterator[_Part]:
        start = 0
        for number, size in enumerate(self.sizes):
            self.started += 1
            yield _Part(self, number, start, start + size)
            start += size

    def count(self, change: int) -> None:
        with self.lock:
            self.alive += change
            self.most = max(self.most, self.alive)


class _Part:
    def __init__(self, rows: Parts, number: int, start: int, end: int) -> None:
        self.source, self.number, self.start, self.end = rows, number, start, end

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        for start in range(self.start, self.end, rows):
            x = Counted(self.source.x[start : min(start + rows, self.end)].clone(), self.source)
            yield Batch(x, None, position(self.number, start - self.start), Place("parts", start))


class Counted(Tensor):
    """A tensor that is counted while it lives."""

    def __new__(cls, x: Tensor, rows: Parts) -> Counted:
        return x.as_subclass(cls)

    def __init__(self, x: Tensor, rows: Parts) -> None:
        self.owner = rows
        rows.count(1)

    def __del__(self) -> None:
        if hasattr(self, "owner"):
            self.owner.count(-1)


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 5), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_parts_do_not_change_sums(sizes: list[int], workers: int, batch_rows: int) -> None:
    sizes.append(2500 - sum(sizes))
    rows = Parts(sizes, workers, batch_rows)
    assert torch.equal(rows.sum(count_and_sum), torch.tensor([2500.0, *X[:2500].sum(0)]).double())
    assert np.array_equal(rows.map(lambda x: x.as_subclass(Tensor)), X[:2500])


def test_sums_have_the_same_bits_with_any_number_of_threads() -> None:
    x = np.random.default_rng(1).normal(size=(20_000, 3)) ** 5
    sizes = [7, 0, 5000, 1, 992, 14_000]
    results = [
        Parts(sizes, workers, 128, x).sum(lambda batches: sum((b.rows.T @ b.rows).exp().log1p() for b in batches))
        for workers in (1, 2, 5, 5)
    ]
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_batches_in_memory_are_bounded() -> None:
    def slow_first(batches: Iterator[Batch]) -> Tensor:
        batch = next(batches)
        if batch.place.row == 0:
            time.sleep(0.3)  # the others wait for it rather than pile up
        return batch.rows.as_subclass(Tensor).sum(0)

    for sizes in ([5000], [10] * 500):
        rows = Parts(sizes, workers=2)
        assert torch.equal(rows.sum(slow_first), torch.from_numpy(X).sum(0))
        assert rows.most <= 2 + 2 + 2
        assert rows.alive == 0


def test_iterators_are_not_read_far_ahead() -> None:
    read = 0

    def counting() -> Iterator[np.ndarray]:
        nonlocal read
        for batch in batches(10):
            read += 1
            yield batch

    ahead = []

    def behind(rows: int) -> None:
        ahead.append(10 * read - rows)

    rows = source(counting(), batch_rows=10)
    rows.workers, done = 2, 0

    def progress(n: int) -> None:
        nonlocal done
        done += n
        behind(done)

    rows.sum(count_and_sum, progress)
    assert done == N
    assert max(ahead) <= 10 * 7


def test_progress_is_called_in_the_calling_thread() -> None:
    calls: list[tuple[int, int]] = []
    bad = X.copy()
    bad[::2] = np.nan
    rows = source(bad, skip_bad=True, batch_rows=100)
    rows.sum(Seen, lambda n: calls.append((n, threading.get_ident())))
    assert sum(n for n, _ in calls) == N
    assert {thread for _, thread in calls} == {threading.get_ident()}


def test_generators_run_in_the_calling_thread() -> None:
    """As connections to a database may ask for."""
    threads = set()

    def generate() -> Iterator[np.ndarray]:
        for batch in batches():
            threads.add(threading.get_ident())
            yield batch

    source(generate(), batch_rows=100).sum(count_and_sum)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), StopIteration()])
@pytest.mark.parametrize("where", ["function", "progress", "reading", "parts"])
def test_errors_end_all_threads(error: BaseException, where: str) -> None:
    if isinstance(error, StopIteration) and where in ("reading", "parts"):
        pytest.skip("Python makes it a RuntimeError")
    before, threads = threading.active_count(), torch.get_num_threads()
    rows = Parts([100] * 50, workers=3)

    def fail(at: str) -> None:
        if at == where:
            raise error

    def function(batches: Iterator[Batch]) -> Tensor:
        batch = next(batches)
        if batch.place.row > 500:
            fail("function")
        return batch.rows.sum(0)

    class Failing(Parts):
        def parts(self) -> Iterator[Any]:
            for i, part in enumerate(super().parts()):
                yield part
                if i == 5:
                    fail("parts")

    class FailingPart(_Part):
        def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
            yield from super().read(rows, skip_bad)
            if self.number == 5:
                fail("reading")

    rows = Failing([100] * 50, workers=3)
    original = rows.parts
    rows.parts = lambda: (FailingPart(rows, p.number, p.start, p.end) for p in original())  # type: ignore[method-assign]
    with pytest.raises(type(error)) as caught:
        rows.sum(function, lambda n: fail("progress"))
    assert caught.value is error
    assert threading.active_count() == before
    assert torch.get_num_threads() == threads
    assert rows.started < 50


@pytest.mark.parametrize("first", ["reading", "computing"])
@pytest.mark.parametrize("in_caller", [False, True])
def test_the_error_is_that_of_the_first_bad_row_whatever_is_slow(first: str, in_caller: bool) -> None:
    """Part 0 fails late, at its second batch, and all others at once."""

    class SlowPart(_Part):
        def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
            for number, batch in enumerate(super().read(rows, skip_bad)):
                if (self.number, number) == (0, 1) and first == "reading":
                    time.sleep(0.2)
                    raise ValueError("part 0")
                yield batch

    def function(batches: Iterator[Batch]) -> Tensor:
        batch = next(batches)
        part = batch.position // position(1)
        if batch.position == position(0, 10):
            time.sleep(0.2)
            raise ValueError("part 0")
        if part > 0:
            raise ValueError(f"part {part}")
        return batch.rows.sum(0)

    rows = Parts([100] * 20, workers=3)
    rows.reads_in_caller = in_caller
    original = rows.parts
    rows.parts = lambda: (SlowPart(rows, p.number, p.start, p.end) for p in original())  # type: ignore[method-assign]
    before = threading.active_count()
    with pytest.raises(ValueError, match=r"^part 0$"):
        rows.sum(function)
    assert threading.active_count() == before
    assert rows.started < 20  # it did not read on to the end


def test_an_interrupt_ends_a_pass() -> None:
    """A signal, as Ctrl-C sends it, while threads compute and the caller waits for them."""
    code = """
import os, signal, threading, time, numpy as np
from cramix.data import source
def slow(batches):
    time.sleep(0.2)
    return 1
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    source(np.ones((1000, 2)), batch_rows=1).sum(slow)
except KeyboardInterrupt:
    print(time.monotonic() - start < 3, threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.split() == ["True", "1"], done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(cramix.__file__).parents[1])}


def test_threads_of_torch_are_those_of_the_caller() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        inside: set[int] = set()
        with torch.no_grad():
            modes = Parts([100]).sum(lambda b: [inside.add(torch.get_num_threads()) or torch.is_grad_enabled()])
        assert inside == {1}
        assert set(modes) == {False}
        assert torch.get_num_threads() == 3
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]
    finally:
        torch.set_num_threads(before)


def test_mapped_parts_are_sent_without_their_data(tmp_path: Path) -> None:
    for array in (mapped(tmp_path), _sliced(tmp_path), mapped(tmp_path)[100:4000:2]):
        (part,) = source(array).parts()
        sent = pickle.dumps(part)
        if array.flags.c_contiguous:
            assert len(sent) < 1000
        rows = torch.cat([batch.rows for batch in pickle.loads(sent).read(1000, False)])
        assert np.array_equal(rows, array)


def test_a_mapped_file_that_becomes_shorter(tmp_path: Path) -> None:
    rows = source(mapped(tmp_path))
    assert rows.name == str(tmp_path / "rows.bin")
    rows.sum(count_and_sum)
    os.truncate(tmp_path / "rows.bin", 1000)
    with pytest.raises(BadRowsError, match=r"rows.bin has become shorter"):
        rows.sum(count_and_sum)


def test_fingerprints_change_with_rows() -> None:
    prints = [source(x).fingerprint() for x in (X, X.copy(), X + 1, X[:-1], X.astype(np.float32))]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4
    tables = [source(t).fingerprint() for t in (TABLE, TABLE.select(["a"]), TABLE.slice(1))]
    assert len(set(tables)) == 3


def test_good_batches_pass_unchanged() -> None:
    rows = source(X)
    batch = Batch(torch.zeros(0, 3), torch.zeros(0), 0, Place("x"))
    assert next(good([batch], rows)) is batch
