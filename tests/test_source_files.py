"""Sources of rows in files: formats, folders, and files that are wrong, cut off or gone."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from cramix.data import BadRowsError, source
from cramix.data.files import find
from cramix.data.source import position
from tests.test_sources import NAMES, TABLE, N, Seen, X, count_and_sum


def parquet_files(folder: Path, parts: int, table: pa.Table = TABLE) -> Path:
    folder.mkdir(exist_ok=True)
    for i, rows in enumerate(np.array_split(np.arange(len(table)), parts)):
        pq.write_table(table.take(rows), folder / f"part-{i:03}.parquet")
    return folder


def parquet_groups(path: Path, rows: int, table: pa.Table = TABLE) -> Path:
    pq.write_table(table, path, row_group_size=rows)
    return path


def csv_file(path: Path, table: pa.Table = TABLE) -> Path:
    table.to_pandas().to_csv(path, index=False)  # compressed if the name says so
    return path


def spaced(path: Path, header: str = "a  b\tc\n") -> Path:
    path.write_text(header + "\n".join("  ".join(map(str, row)) for row in X.tolist()))
    return path


def npy(path: Path, x: np.ndarray = X) -> Path:
    np.save(path, x)
    return path


def feather(path: Path, table: pa.Table = TABLE) -> Path:
    pyarrow.feather.write_feather(table, path, chunksize=300)
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    **{f"{n} parquet files": lambda path, n=n: parquet_files(path / "many", n) for n in (1, 7, 100)},
    "row groups of 50": lambda path: parquet_groups(path / "x.parquet", 50),
    "row groups of 3000": lambda path: parquet_groups(path / "x.parquet", 3000),
    "pattern": lambda path: parquet_files(path / "many", 7) / "*.parquet",
    "csv": lambda path: csv_file(path / "x.csv"),
    "csv.gz": lambda path: csv_file(path / "x.csv.gz"),
    "txt": lambda path: spaced(path / "x.txt"),
    "npy": lambda path: npy(path / "x.npy"),
    "npy by columns": lambda path: npy(path / "x.npy", np.asfortranarray(X)),
    "feather": lambda path: feather(path / "x.feather"),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_format_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    path = FILES[kind](tmp_path)
    rows = source(path, batch_rows=999)
    rows.workers = 3
    text = kind in ("csv", "csv.gz", "txt")
    assert rows.n_rows == (None if text else N)
    assert (rows.dim, rows.dtype, rows.repeatable) == (3, torch.float64, True)
    assert rows.columns == (None if "npy" in kind else ("a", "b", "c"))
    for _ in range(2):
        seen = rows.sum(Seen)
        assert np.array_equal(torch.cat(seen.rows), X)
        assert seen.positions == list(range(N))
        assert max(map(len, seen.rows)) <= 999
    assert np.array_equal(rows.map(lambda x: x), X)
    assert np.array_equal(pickle.loads(pickle.dumps(rows)).sum(count_and_sum), [N, *X.sum(0)])
    if "npy" not in kind:
        weighted = source(str(path), columns=["c", "a"], sample_weight="b", skip_bad=True).sum(Seen)
        kept = X[:, 1] >= 0
        assert np.array_equal(torch.cat(weighted.rows), X[kept][:, [2, 0]])
        assert np.array_equal(torch.cat(weighted.weights), X[kept, 1])
        assert weighted.bad == (~kept).sum()


def test_several_text_files_have_positions_in_order(tmp_path: Path) -> None:
    paths = [csv_file(tmp_path / "a.csv", TABLE.slice(0, 100)), csv_file(tmp_path / "b.csv", TABLE.slice(100))]
    seen = source(paths).sum(Seen)
    assert seen.positions == [*range(100), *(position(1, row) for row in range(N - 100))]
    assert np.array_equal(torch.cat(seen.rows), X)
    reverse = source(paths[::-1]).sum(Seen)
    assert np.array_equal(torch.cat(reverse.rows), np.concatenate((X[100:], X[:100])))


def test_small_numbers_stay_small(tmp_path: Path) -> None:
    small = TABLE.cast(pa.schema([(name, pa.float32()) for name in NAMES]))
    pq.write_table(small, tmp_path / "a.parquet")
    assert source(tmp_path).dtype == torch.float32
    pq.write_table(TABLE, tmp_path / "b.parquet")
    assert source(tmp_path).dtype == torch.float64
    assert np.array_equal(source(tmp_path).sum(count_and_sum), [2 * N, *(2 * X.sum(0))])
    npy(tmp_path / "x.npy", X.astype(np.float32))
    assert source(tmp_path / "x.npy").dtype == torch.float32


def test_single_numbers_in_files(tmp_path: Path) -> None:
    rows = source(npy(tmp_path / "x.npy", X[:, 0]))
    assert (rows.univariate, rows.dim) == (True, 1)
    assert np.array_equal(rows.sum(count_and_sum), [N, X[:, 0].sum()])
    assert source(parquet_groups(tmp_path / "x.parquet", 100), columns="b").univariate


def test_folders(tmp_path: Path) -> None:
    for name in ("year=2023", "year=2024"):
        parquet_files(tmp_path / name, 2)
    for name in ("_SUCCESS", "_metadata", ".part.parquet.crc"):
        (tmp_path / name).write_text("not data")
    assert [str(Path(x).relative_to(tmp_path)) for x in find(tmp_path)] == [
        f"year={year}/part-00{i}.parquet" for year in (2023, 2024) for i in (0, 1)
    ]
    assert source(tmp_path).n_rows == 2 * N
    (tmp_path / "more").mkdir()
    with pytest.raises(ValueError, match=r"it holds the folder 'more'. Pass '.*parquet'"):
        source(tmp_path)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ValueError, match="is a Delta table"):
        source(tmp_path)


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.csv does not exist\."):
        source(tmp_path / "none.csv")
    with pytest.raises(FileNotFoundError, match="matches no file"):
        source(tmp_path / "*.csv")
    with pytest.raises(FileNotFoundError, match="must hold data files; it holds none"):
        source(tmp_path)
    with pytest.raises(ValueError, match=r"must be a local path; got 's3://.* pyarrow.dataset.dataset"):
        source("s3://bucket/x.parquet")
    (tmp_path / "x.xls").write_text("1")
    with pytest.raises(ValueError, match=r"x.xls must end in one of .parquet"):
        source(tmp_path / "x.xls")
    (tmp_path / "x.xls").unlink()
    csv_file(tmp_path / "x.csv")
    parquet_groups(tmp_path / "x.parquet", 100)
    with pytest.raises(ValueError, match=r"one format; got .*x.csv and .*x.parquet"):
        source(tmp_path)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather"])
def test_columns_of_other_files(suffix: str, tmp_path: Path) -> None:
    write = {"parquet": lambda p, t: pq.write_table(t, p), "csv": csv_file, "feather": feather}[suffix]
    first, second = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
    write(first, TABLE)
    write(second, TABLE.select(["c", "a", "b"]))
    assert np.array_equal(torch.cat(source([first, second]).sum(Seen).rows), np.concatenate((X, X)))
    write(second, TABLE.select(["a", "b"]))
    with pytest.raises(ValueError, match=rf"2.{suffix} has no column 'c'.* It has: a, b"):
        source(tmp_path)
    assert source(tmp_path, columns=["a"]).dim == 1
    write(second, TABLE.append_column("d", TABLE["a"]))
    with pytest.raises(ValueError, match=rf"2.{suffix} must have the columns of what comes before; it also has d"):
        source(tmp_path)
    if suffix != "csv":
        write(second, TABLE.set_column(1, "b", pa.array(["text"] * N)))
        with pytest.raises(ValueError, match=rf"2.{suffix} must hold numbers in every column; got 'b' \(string\)"):
            source(tmp_path)


def test_other_widths_of_arrays(tmp_path: Path) -> None:
    npy(tmp_path / "1.npy")
    npy(tmp_path / "2.npy", X[:, :2])
    with pytest.raises(ValueError, match=r"2.npy must have as many columns as .*1.npy; got 2 and 3"):
        source(tmp_path)
    npy(tmp_path / "2.npy", np.array(["a"]))
    with pytest.raises(ValueError, match=r"2.npy must hold numbers of shape"):
        source(tmp_path)
    with pytest.raises(ValueError, match=r"1.npy has no column 'a'\. It has: x1, x2, x3"):
        source(tmp_path / "1.npy", columns=["a"])
    some = source(tmp_path / "1.npy", columns=["x3", "x1"], sample_weight="x2")
    assert (some.columns, some.weighted) == (("x3", "x1"), True)
    assert torch.equal(next(next(some.parts()).read(5, False)).rows, torch.from_numpy(X[:5, [2, 0]]))


def test_the_index_of_pandas_is_no_column(tmp_path: Path) -> None:
    pd.DataFrame(X, columns=NAMES, index=np.arange(N)[::-1].copy()).to_parquet(tmp_path / "x.parquet", index=True)
    assert source(tmp_path / "x.parquet").columns == ("a", "b", "c")


def test_empty_files_and_row_groups(tmp_path: Path) -> None:
    none = TABLE.slice(0, 0)
    folder = parquet_files(tmp_path / "parquet", 3)
    pq.write_table(none, folder / "part-0005.parquet")
    with pq.ParquetWriter(folder / "part-004.parquet", TABLE.schema) as writer:
        for table in (none, TABLE, none):
            writer.write_table(table)
    assert np.array_equal(source(folder).sum(count_and_sum), [2 * N, *(2 * X.sum(0))])
    texts = tmp_path / "csv"
    texts.mkdir()
    csv_file(texts / "a.csv", none)
    csv_file(texts / "b.csv")
    (texts / "c.csv").write_text("")
    assert np.array_equal(source(texts).sum(count_and_sum), [N, *X.sum(0)])
    for empty in (folder / "part-0005.parquet", texts / "a.csv", texts / "c.csv", npy(tmp_path / "x.npy", X[:0])):
        with pytest.raises(ValueError, match="must have rows; it has none"):
            source(empty).sum(count_and_sum)


def test_bad_rows_name_file_row_group_and_row(tmp_path: Path) -> None:
    bad = X.copy()
    bad[1234, 1] = np.nan
    table = pa.table({name: pa.array(bad[:, j], from_pandas=True) for j, name in enumerate(NAMES)})
    assert table["b"].null_count == 1
    places = {
        parquet_groups(tmp_path / "x.parquet", 500, table): "x.parquet, row group 2, row 235 has",
        parquet_files(tmp_path / "many", 10, table): "part-002.parquet, row group 0, row 235 has",
        csv_file(tmp_path / "x.csv", table): "x.csv, row 1235 has",
        feather(tmp_path / "x.feather", table): "x.feather, row 1235 has",
    }
    for path, place in places.items():
        with pytest.raises(BadRowsError, match=f"{place} a missing number in column 'b'. Correct it, or skip"):
            source(path, batch_rows=100).sum(Seen)
        seen = source(path, skip_bad=True, batch_rows=100).sum(Seen)
        assert seen.bad == 1
        assert np.array_equal(torch.cat(seen.rows), np.delete(bad, 1234, 0))
    with pytest.raises(BadRowsError, match=r"x.npy, row 1235 has a missing number in column 1"):
        source(npy(tmp_path / "x.npy", bad)).sum(Seen)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_among_numbers(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cramix.data.text._BLOCK", 20_000)
    lines = csv_file(tmp_path / "x.csv").read_text().splitlines()
    path = tmp_path / f"bad{suffix}"

    def write(changed: dict[int, str]) -> None:
        content = "\n".join(changed.get(i, line) for i, line in enumerate(lines)).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)

    write({3001: "1.5,oops,2"})
    with pytest.raises(
        BadRowsError, match=r"row 3001 has 'oops' in column 'b', which must hold numbers. Correct it, leave"
    ):
        source(path).sum(Seen)
    write({2001: "1,2", 2501: "1,2,3,4"})
    with pytest.raises(BadRowsError, match="row 2001 must have 3 fields, as the first line; it has 2"):
        source(path).sum(Seen)
    write(
        {2001: "1,2", 2501: "1,2,3,4", 3001: "1.5,oops,2", 3005: "4,inf,2", 4001: "1,,2", 4999: "1", 17: " 1.5, 2 ,3"}
    )
    seen = source(path, skip_bad=True, batch_rows=100).sum(Seen)
    wanted = X.copy()
    wanted[16] = [1.5, 2, 3]
    gone = [2000, 2500, 3000, 3004, 4000, 4998]
    assert np.array_equal(torch.cat(seen.rows), np.delete(wanted, gone, 0))
    assert seen.bad == len(gone)
    with pytest.raises(BadRowsError):
        source(path, skip_bad=True).map(lambda x: x)
    # Blocks without any good row.
    write(dict.fromkeys(range(500, 4500), "1,2"))
    seen = source(path, skip_bad=True).sum(Seen)
    assert (sum(map(len, seen.rows)), seen.bad) == (1000, 4000)
    write(dict.fromkeys(range(1, 5001), "1,2"))
    with pytest.raises(BadRowsError, match="no rows that can be used: all 5000 are bad"):
        source(path, skip_bad=True).sum(Seen)
    # A bad field in a column that is not read does no harm.
    write({3001: "1.5,oops,2"})
    assert np.array_equal(source(path, columns=["a"]).map(lambda x: x[:, 0])[3002:], X[3002:, 0])


def test_layouts_of_text(tmp_path: Path) -> None:
    cases = {
        "semicolons.csv": "# a comment\n\na;b\n1;2\n3;4\n",
        "tabs.tsv": "a\tb\n1\t2\n3\t4\n",
        "spaces.txt": "  a    b\n 1.0  2\n  3   4\n",
        "signed.csv": "\ufeffa,b\n1,2\n\n3,4",
        "quoted.csv": '"a","b"\r\n"1",2\r\n3,4\r\n',
    }
    for name, content in cases.items():
        (tmp_path / name).write_text(content, encoding="utf-8", newline="")
        rows = source(tmp_path / name)
        assert rows.columns == ("a", "b"), name
        assert rows.map(lambda x: x).tolist() == [[1, 2], [3, 4]], name
    (tmp_path / "numbers.csv").write_text("1,2\n3,4\n")
    assert source(tmp_path / "numbers.csv").columns == ("x1", "x2")
    assert source(tmp_path / "numbers.csv", columns=["x2"]).map(lambda x: x).tolist() == [[2], [4]]
    (tmp_path / "binary.csv").write_bytes(b"a,\0b\n")
    with pytest.raises(BadRowsError, match=r"binary.csv must be a text file; it holds binary data"):
        source(tmp_path / "binary.csv")
    (tmp_path / "latin.csv").write_bytes("größe\n1\n".encode("latin-1"))
    with pytest.raises(BadRowsError, match=r"latin.csv must be UTF-8 text"):
        source(tmp_path / "latin.csv")


WRITERS = {
    "parquet": lambda path: parquet_groups(path / "x.parquet", 500),
    "csv": lambda path: csv_file(path / "x.csv"),
    "csv.gz": lambda path: csv_file(path / "x.csv.gz"),
    "feather": lambda path: feather(path / "x.feather"),
    "npy": lambda path: npy(path / "x.npy"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_files_that_change_between_passes(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    for skip_bad in (False, True):
        rows = source(path, skip_bad=skip_bad)
        before, total = rows.fingerprint(), rows.sum(count_and_sum)
        assert torch.equal(rows.sum(count_and_sum), total)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(
            BadRowsError, match=rf"x.{kind} has changed .* bytes before, .* now\). Open the source again"
        ):
            rows.sum(count_and_sum)
        path.unlink()
        with pytest.raises(FileNotFoundError, match=rf"x.{kind} does not exist any more"):
            rows.sum(count_and_sum)
        path.write_bytes(content)
        assert source(path).fingerprint() != before
        assert source(path).fingerprint() == source(path).fingerprint()


@pytest.mark.parametrize("kind", WRITERS)
def test_files_that_change_during_a_pass(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    rows = source(path, batch_rows=100)
    rows.workers, done = 1, []

    def progress(n: int) -> None:
        if not done:
            os.truncate(path, 100)
        done.append(n)

    with pytest.raises(BadRowsError, match=rf"x.{kind} has changed"):
        rows.sum(count_and_sum, progress)


@pytest.mark.parametrize("kind", ["parquet", "csv.gz", "feather", "npy"])
def test_files_that_are_cut_off(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    os.truncate(path, os.path.getsize(path) // 2)
    for skip_bad in (False, True):
        with pytest.raises(BadRowsError, match=rf"x.{kind} cannot be read: "):
            source(path, skip_bad=skip_bad).sum(count_and_sum)


def test_pages_that_are_damaged(tmp_path: Path) -> None:
    """Everything is in place, but the bytes of one row group are not what they should be."""
    path = parquet_groups(tmp_path / "x.parquet", 3000)
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    for skip_bad in (False, True):
        with pytest.raises(BadRowsError, match=r"x.parquet, row groups? .* cannot be read: "):
            source(path, skip_bad=skip_bad).sum(count_and_sum)
