"""Tables in files: what is read, and what is refused and how."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from cramix.cli import tables
from cramix.cli.refusal import Refusal

NUMBERS = np.array([[0.1, -2.0, 1e22], [1 / 3, 5e-324, -1e-300], [1e308, -0.0, 123456789.125]])


def table_file(folder: Path, suffix: str, content: str | bytes) -> Path:
    path = folder / f"data{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("suffix", tables.WRITABLE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_written_is_read_bit_by_bit(suffix: str, dtype: type, tmp_path: Path) -> None:
    path, names = tmp_path / f"x{suffix.upper()}", ["größe", 'a "b", c', "x"]
    numbers = NUMBERS.clip(-1e38, 1e38).astype(dtype)
    tables.write(torch.from_numpy(numbers), names, path)
    table = tables.read(path)
    assert table.rows.dtype == torch.float64
    np.testing.assert_array_equal(table.rows.numpy().astype(dtype), numbers)
    assert list(table.names) == (["x1", "x2", "x3"] if suffix == ".npy" else names)
    assert table.weights is None
    assert table.dropped == 0


@pytest.mark.parametrize(
    ("suffix", "content", "names", "rows"),
    [
        (".csv", "a,b\n1,2\n3,4\n", "a b", [[1, 2], [3, 4]]),
        (".csv", "1,2\n3,4", "x1 x2", [[1, 2], [3, 4]]),
        (".csv", "1\n3\n", "x1", [[1], [3]]),
        (".csv", "\ufeffa,b\r\n1, +2 \r\n\r\n 3e0,4.\r\n", "a b", [[1, 2], [3, 4]]),
        (".csv", "\ufeff1,2\n3,4\n", "x1 x2", [[1, 2], [3, 4]]),
        (".csv", '"a","b"\n"1","2"\n', "a b", [[1, 2]]),
        (".csv", "a;b\n1;2\n", "a b", [[1, 2]]),
        (".csv", ",b\n1,2\n", "x1 b", [[1, 2]]),  # as pandas writes row numbers
        (".csv", "# by hand\n\n# twice\na,b\n1,2\n", "a b", [[1, 2]]),
        (".csv", "-inf-,b\n1,2\n", "-inf- b", [[1, 2]]),
        (".tsv", "a b\tc\n1\t2\n", "a b|c", [[1, 2]]),
        (".txt", "1 2\n3   4\n", "x1 x2", [[1, 2], [3, 4]]),
        (".txt", "\ufeff  1\t 2\r\n3   4  \r\n", "x1 x2", [[1, 2], [3, 4]]),
        (".txt", "a b\n1 2\n", "a b", [[1, 2]]),
        (".txt", "a b\tc\n1\t2\n", "a b|c", [[1, 2]]),
        (".txt", "a,b\n1,2\n", "a b", [[1, 2]]),
    ],
)
def test_text_is_read_as_people_write_it(
    suffix: str, content: str, names: str, rows: list[list[float]], tmp_path: Path
) -> None:
    table = tables.read(table_file(tmp_path, suffix, content))
    assert list(table.names) == names.split("|" if "|" in names else " ")
    assert table.rows.tolist() == rows


def test_many_rows_of_integers_may_end_in_a_fraction(tmp_path: Path) -> None:
    """Types guessed from the first block of a file would be wrong here."""
    path = table_file(tmp_path, ".csv", "a\n" + "1\n" * 3_000_000 + "2.5\n")
    rows = tables.read(path).rows
    assert rows.shape == (3_000_001, 1)
    assert rows.sum().item() == 3_000_002.5


def test_columns_come_in_the_order_asked_for_and_weights_apart(tmp_path: Path) -> None:
    path = table_file(tmp_path, ".csv", "a,text,w,b\n1,x,0.5,2\n3,y,2,4\n")
    table = tables.read(path, ["b", "a"], "w")
    assert table.names == ("b", "a")
    assert table.rows.tolist() == [[2, 1], [4, 3]]
    assert table.weights is not None
    assert table.weights.tolist() == [0.5, 2]
    numbers = table_file(tmp_path, ".csv", "a,w,b\n1,0.5,2\n3,2,4\n")
    assert tables.read(numbers, weights="w").names == ("a", "b")
    assert tables.read(numbers, prefer=["b"]).names == ("b",)
    assert tables.read(numbers, ["w"], prefer=["b"]).names == ("w",)
    assert tables.read(numbers, prefer=["b", "c"]).names == ("a", "w", "b")


def test_names_are_split_at_commas_outside_of_quotes() -> None:
    assert tables.split_names('a, b c,"d, e"') == ["a", "b c", "d, e"]
    assert tables.split_names(None) is None


def test_npy_may_hold_any_real_numbers(tmp_path: Path) -> None:
    for array in (np.arange(6, dtype=np.int16).reshape(3, 2), np.arange(3, dtype=np.float16), np.array([True, False])):
        np.save(tmp_path / "x.npy", array)
        rows = tables.read(tmp_path / "x.npy").rows.numpy()
        np.testing.assert_array_equal(rows, array.reshape(len(array), -1).astype(float))


def test_parquet_columns_of_every_number_type(tmp_path: Path) -> None:
    from decimal import Decimal

    columns = {
        "int": pa.array([1, 2], pa.int8()),
        "large": pa.array([2**60 + 1, 1], pa.int64()),
        "float": pa.array([0.5, 1.5], pa.float32()),
        "decimal": pa.array([Decimal("1.25"), Decimal("-3.50")]),
        "text": pa.array([" 1e3", "-7"]),
        "__index_level_0__": pa.array([0, 1]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    table = tables.read(tmp_path / "x.parquet")
    assert table.names == ("int", "large", "float", "decimal", "text")
    assert table.rows.tolist() == [[1, 2**60, 0.5, 1.25, 1000], [2, 1, 1.5, -3.5, -7]]


def test_rows_without_a_number_are_counted_refused_or_dropped(tmp_path: Path) -> None:
    path = table_file(tmp_path, ".csv", "a,b,w\n1,2,1\nNA,3,1\n4,inf,1\n5,6,\n,nan,null\n7,8,2\n")
    with pytest.raises(Refusal) as caught:
        tables.read(path)
    for words in ("4 of 6 rows", "row 2", "'a'", "missing", "--drop-missing"):
        assert words in str(caught.value)
    with pytest.raises(Refusal, match=r"1 of 6 rows.*row 3, column 'b', inf"):
        tables.read(table_file(tmp_path, ".txt", "a,b\n1,2\n3,3\n4,inf\n5,6\n5,6\n7,8\n"))
    table = tables.read(path, weights="w", drop_missing=True)
    assert table.dropped == 4
    assert table.rows.tolist() == [[1, 2], [7, 8]]
    assert table.weights is not None
    assert table.weights.tolist() == [1, 2]
    assert tables.read(path, ["b"], drop_missing=True).dropped == 2  # other columns do not matter


NO = [
    (".csv", "", {}, ["is empty"]),
    (".csv", "\n\n# nothing\n", {}, ["is empty"]),
    (".csv", "a,b\n", {}, ["no rows"]),
    (".txt", "a b\n", {}, ["no rows"]),
    (".csv", "a,b\n,\n", {"drop_missing": True}, ["no rows left", "all 1"]),
    (".csv", "a,b\n1,2\n3,x y\n", {}, ["'b'", "row 2", "'x y'", "--columns"]),
    (".csv", "a,b\n" + "1, 2\n" * 1000 + "3, 4O\n5,6\n", {}, ["'b'", "row 1001", "4O"]),
    (".txt", "a b\n1 2\n3 x\n", {}, ["'b'", "row 2", "'x'"]),
    (".csv", "height,width\n1,2\n", {"columns": ["heigth"]}, ["no column 'heigth'", "mean 'height'", "height, width"]),
    (".csv", "a,b\n1,2\n", {"weights": "zzz"}, ["no column 'zzz'", "It has: a, b."]),
    (".csv", "a,b\n1,2\n", {"columns": ["a", "a"]}, ["'a' is there 2 times"]),
    (".csv", "a,b\n1,2\n", {"columns": []}, ["must have a column"]),
    (".csv", "w\n1\n", {"weights": "w"}, ["beside the weights"]),
    (".csv", "a,a\n1,2\n", {}, ["2 columns named 'a'"]),
    (".csv", "a,w\n1,2\n1,-3\n", {"weights": "w"}, ["'w' must be >= 0", "-3"]),
    (".csv", "a,w\n1,0\n1,0\n", {"weights": "w"}, ["'w' must not all be 0"]),
    (".csv", "a,b\n1,2\n\n1,2,3\n", {}, ["2 fields in each row", "row 2 has 3: 1,2,3"]),
    (".csv", "# x\na,b\n1,2\n4\n", {}, ["2 fields in each row", "row 2 has 1: 4"]),
    (".txt", "1 2\n3 4 5\n", {}, ["2 fields in each row", "row 2 has 3: 3,4,5"]),
    (".csv", b"gr\xf6\xdfe,b\n1,2\n", {}, ["UTF-8"]),
    (".csv", b"PK\x03\x04\0\0\0\0", {}, ["not a text file"]),
    (".xlsx", "x", {}, ["must end in one of .csv, .tsv, .txt, .npy, .parquet"]),
    (".safetensors", "x", {}, ["is a model file", ".csv"]),
    (".npy", b"not numbers", {}, ["not a whole npy file"]),
    (".npy", b"", {}, ["not a whole npy file"]),
    (".parquet", b"PAR1", {}, ["not a whole parquet file"]),
    (".parquet", b"", {}, ["not a whole parquet file"]),
]


@pytest.mark.parametrize(("suffix", "content", "options", "words"), NO)
def test_refusals_say_what_is_wrong_and_where(
    suffix: str, content: str | bytes, options: dict, words: list[str], tmp_path: Path
) -> None:
    path = table_file(tmp_path, suffix, content)
    with pytest.raises(Refusal) as caught:
        tables.read(path, **options)
    message = str(caught.value)
    assert str(path) in message or "--columns" in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="is not there"):
        tables.read(tmp_path / "nothing.csv")
    with pytest.raises(Refusal, match="is a folder"):
        tables.read(tmp_path)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    for suffix in (".npy", ".parquet"):
        path = tmp_path / f"x{suffix}"
        tables.write(torch.randn(1000, 2), ["a", "b"], path)
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(Refusal, match="not a whole"):
            tables.read(path)


def test_row_numbers_of_pandas_are_no_data(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [5.0, 1.0, 4.0], "b": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "x.csv")
    with pytest.raises(Refusal, match=r"first column holds row numbers and has no name.* it has: x1, a, b"):
        tables.read(tmp_path / "x.csv")
    assert tables.read(tmp_path / "x.csv", ["x1", "a"]).rows.tolist() == [[0, 5], [1, 1], [2, 4]]
    frame.set_index("a").to_csv(tmp_path / "x.csv", index_label="")  # nameless, but data
    assert tables.read(tmp_path / "x.csv").names == ("x1", "b")


def test_decimal_commas_are_told_from_text(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"row 1 is '1,5'\. Write decimals with a point"):
        tables.read(table_file(tmp_path, ".csv", "a;b\n1,5;2,5\n"))
    with pytest.raises(Refusal, match=r"row 1 is 'x,5'\. Choose columns"):
        tables.read(table_file(tmp_path, ".csv", "a;b\nx,5;2\n"))


def test_arrays_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    for array in (np.zeros((2, 2, 2)), np.zeros(3, complex), np.array(1.0), np.array(["1"]), np.zeros(2, "f8,f8")):
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(Refusal, match="must hold numbers"):
            tables.read(tmp_path / "x.npy")
    for empty in (np.zeros((0, 2)), np.zeros(0), np.zeros((2, 0))):
        np.save(tmp_path / "x.npy", empty)
        with pytest.raises(Refusal, match=r"no rows|must have a column"):
            tables.read(tmp_path / "x.npy")


def test_no_file_executes_code(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "boom"),)

    np.save(tmp_path / "x.npy", np.array([Bomb()], object), allow_pickle=True)
    table_file(tmp_path, ".npy", pickle.dumps(Bomb()))
    for name in ("x.npy", "data.npy"):
        with pytest.raises(Refusal, match="not a whole npy file"):
            tables.read(tmp_path / name)
    assert not (tmp_path / "boom").exists()


def test_parquet_text_and_dates_are_refused(tmp_path: Path) -> None:
    import datetime

    parquet.write_table(
        pa.table({"t": [datetime.date(2020, 1, 1)], "s": ["1"], "x": [["1"]], "w": ["a"]}), tmp_path / "x.parquet"
    )
    for column, word in (("t", "date32"), ("x", "list"), ("w", "row 1 is 'a'")):
        with pytest.raises(Refusal, match=f"column '{column}' must hold numbers.*{word}"):
            tables.read(tmp_path / "x.parquet", [column])


@pytest.mark.parametrize("suffix", tables.WRITABLE)
def test_a_failed_write_leaves_the_old_table_and_no_litter(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x{suffix}"
    tables.write(torch.ones(2, 1), ["a"], path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        tables.write(torch.zeros(2, 1), ["a"], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
