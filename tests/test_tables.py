"""Tables in files: what is read, and what is refused and how."""

from __future__ import annotations

import datetime
import gzip
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from cramix.cli import formats, tables, writers
from cramix.cli.refusal import Refusal
from cramix.cli.tables import Choice
from cramix.cli.text import parse_delimiter

NUMBERS = np.array([[0.1, -2.0, 1e22], [1 / 3, 5e-324, -1e-300], [1e308, -0.0, 123456789.125]])


def write(x: np.ndarray, names: list[str], path: Path) -> None:
    writers.write(dict(zip(names, x.T, strict=True)), path)


def table_file(folder: Path, suffix: str, content: str | bytes) -> Path:
    path = folder / f"data{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("suffix", formats.DATA_OUT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_written_is_read_bit_by_bit(suffix: str, dtype: type, tmp_path: Path) -> None:
    path, names = tmp_path / f"x{suffix.upper()}", ["größe", 'a "b", c', "x"]
    numbers = NUMBERS.clip(-1e38, 1e38).astype(dtype)
    write(numbers, names, path)
    table = tables.read(path)
    assert table.rows.dtype == torch.float64
    np.testing.assert_array_equal(table.rows.numpy().astype(dtype), numbers)
    assert list(table.names) == (["x1", "x2", "x3"] if suffix == ".npy" else names)
    assert table.weights is None
    assert table.skipped == 0


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
    table = tables.read(path, Choice(["b", "a"], weights="w"))
    assert table.names == ("b", "a")
    assert table.rows.tolist() == [[2, 1], [4, 3]]
    assert table.weights is not None
    assert table.weights.tolist() == [0.5, 2]
    numbers = table_file(tmp_path, ".csv", "a,w,b\n1,0.5,2\n3,2,4\n")
    assert tables.read(numbers, Choice(weights="w")).names == ("a", "b")
    assert tables.read(numbers, Choice(exclude=["a"])).names == ("w", "b")
    assert tables.read(numbers, Choice(exclude=["a"], weights="w")).names == ("b",)


def test_columns_are_matched_to_those_of_a_model(tmp_path: Path) -> None:
    path = table_file(tmp_path, ".csv", "a,text,w,b\n1,x,0.5,2\n3,y,2,4\n")
    assert tables.read(path, like=["b", "a"]).rows.tolist() == [[2, 1], [4, 3]]
    assert tables.read(path, Choice(["w"]), like=["b"]).names == ("w",)
    with pytest.raises(Refusal, match=r"columns of the model; it lacks c\. It has: a, text, w, b"):
        tables.read(path, like=["b", "c"])
    numbers = table_file(tmp_path, ".csv", "a,b\n1,2\n3,4\n")
    assert tables.read(numbers, like=["b", "c"], strict=False).names == ("a", "b")
    # By position where one of them has no names.
    assert tables.read(numbers, like=["x1", "x2"]).names == ("a", "b")
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    assert tables.read(tmp_path / "x.npy", like=["b", "c"]).rows.shape == (3, 2)
    with pytest.raises(Refusal, match="3 columns of the model"):
        tables.read(tmp_path / "x.npy", like=["b", "c", "d"])


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


def test_rows_without_a_number_are_counted_refused_or_skipped(tmp_path: Path) -> None:
    path = table_file(tmp_path, ".csv", "a,b,w\n1,2,1\nNA,3,1\n4,inf,1\n5,6,\n,nan,null\n7,8,2\n")
    with pytest.raises(Refusal) as caught:
        tables.read(path)
    for words in ("4 of 6 rows", "row 2", "'a'", "missing", "--skip-bad"):
        assert words in str(caught.value)
    with pytest.raises(Refusal, match=r"1 of 6 rows.*row 3, column 'b', inf"):
        tables.read(table_file(tmp_path, ".txt", "a,b\n1,2\n3,3\n4,inf\n5,6\n5,6\n7,8\n"))
    table = tables.read(path, Choice(weights="w", skip_bad=True))
    assert table.skipped == 4
    assert table.numbers.tolist() == [1, 6]
    assert table.rows.tolist() == [[1, 2], [7, 8]]
    assert table.weights is not None
    assert table.weights.tolist() == [1, 2]
    assert tables.read(path, Choice(["b"], skip_bad=True)).skipped == 2  # other columns do not matter


def test_text_ragged_rows_and_negative_weights_are_skipped_too(tmp_path: Path) -> None:
    path = table_file(tmp_path, ".csv", "a,w\n1,1\nx,1\n2\n3,-1\n\n4,5\n1,2,3\n 6 ,7\n")
    table = tables.read(path, Choice(weights="w", skip_bad=True))
    assert (table.rows.tolist(), table.skipped) == ([[1], [4], [6]], 4)
    assert table.numbers.tolist() == [1, 5, 7]
    text = table_file(tmp_path, ".txt", "name,a\nBob,1\nEve,2\n")
    with pytest.raises(Refusal, match=r"column 'name' must hold numbers; row 1 is 'Bob'. Leave it out with: --exclude"):
        tables.read(text, Choice(skip_bad=True))  # a column without any number is not a matter of bad rows


NO = [
    (".csv", "", {}, ["is empty"]),
    (".csv", "\n\n# nothing\n", {}, ["is empty"]),
    (".csv", "a,b\n", {}, ["no rows"]),
    (".txt", "a b\n", {}, ["no rows"]),
    (".csv", "a,b\n,\n", {"skip_bad": True}, ["no rows that can be used", "all 1 are bad"]),
    (".csv", "a,b\n1,2\n3,x y\n", {}, ["'b'", "row 2", "'x y'", "--exclude b"]),
    (".csv", "a,b\n" + "1, 2\n" * 1000 + "3, 4O\n5,6\n", {}, ["'b'", "row 1001", "4O"]),
    (".txt", "a b\n1 2\n3 x\n", {}, ["'b'", "row 2", "'x'"]),
    (".csv", "height,width\n1,2\n", {"columns": ["heigth"]}, ["no column 'heigth'", "mean 'height'", "height, width"]),
    (".csv", "a,b\n1,2\n", {"weights": "zzz"}, ["no column 'zzz'", "It has: a, b."]),
    (".csv", "a,b\n1,2\n", {"columns": ["a", "a"]}, ["'a' is there 2 times"]),
    (".csv", "a,b\n1,2\n", {"columns": []}, ["must have a column"]),
    (".csv", "w\n1\n", {"weights": "w"}, ["besides the weights"]),
    (".csv", "a,a\n1,2\n", {}, ["2 columns named 'a'"]),
    (".csv", "a,w\n1,2\n1,-3\n", {"weights": "w"}, ["'w' must be >= 0", "-3"]),
    (".csv", "a,w\n1,0\n1,0\n", {"weights": "w"}, ["'w' must not all be 0"]),
    (".csv", "a,b\n1,2\n\n1,2,3\n", {}, ["2 fields in each row", "row 2 has 3: 1,2,3"]),
    (".csv", "# x\na,b\n1,2\n4\n", {}, ["2 fields in each row", "row 2 has 1: 4"]),
    (".txt", "1 2\n3 4 5\n", {}, ["2 fields in each row", "row 2 has 3: 3,4,5"]),
    (".csv", b"gr\xf6\xdfe,b\n1,2\n", {}, ["UTF-8"]),
    (".csv", b"PK\x03\x04\0\0\0\0", {}, ["text file", "binary"]),
    (".xls", "x", {}, ["must end in one of .csv, .tsv, .txt, .npy, .parquet, .xlsx"]),
    (".npy.gz", "x", {}, ["must end in one of"]),
    (".safetensors", "x", {}, ["is a model", ".csv"]),
    (".npy", b"not numbers", {}, ["not a complete npy file"]),
    (".npy", b"", {}, ["not a complete npy file"]),
    (".parquet", b"PAR1", {}, ["not a complete parquet file"]),
    (".parquet", b"", {}, ["not a complete parquet file"]),
]


@pytest.mark.parametrize(("suffix", "content", "options", "words"), NO)
def test_refusals_say_what_is_wrong_and_where(
    suffix: str, content: str | bytes, options: dict, words: list[str], tmp_path: Path
) -> None:
    path = table_file(tmp_path, suffix, content)
    with pytest.raises(Refusal) as caught:
        tables.read(path, Choice(**options))
    message = str(caught.value)
    assert str(path) in message or "--columns" in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="does not exist"):
        tables.read(tmp_path / "nothing.csv")
    with pytest.raises(Refusal, match="is a folder"):
        tables.read(tmp_path)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    for suffix in (".npy", ".parquet"):
        path = tmp_path / f"x{suffix}"
        write(np.random.default_rng(0).normal(size=(1000, 2)), ["a", "b"], path)
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(Refusal, match="not a complete"):
            tables.read(path)


def test_columns_that_look_like_an_index_are_pointed_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [5.0, 1.0, 4.0], "b": [1.5, 2.0, 3.0]})
    frame.to_csv(tmp_path / "x.csv")
    table = tables.read(tmp_path / "x.csv")
    assert table.names == ("x1", "a", "b")
    (note,) = table.notes
    assert "'x1' may be row numbers" in note
    assert note.endswith("--exclude x1")
    assert tables.read(tmp_path / "x.csv", Choice(["x1", "a"])).notes == ()  # asked for by name
    assert tables.read(tmp_path / "x.csv", Choice(exclude=["x1"])).notes == ()
    for names, column in (("rownames", [1, 2, 3]), ("Unnamed: 0", [0, 1, 2]), ("any", [1, 2, 3]), ("id", [7, 9, 3])):
        path = table_file(tmp_path, ".csv", f'"{names}",b\n' + "".join(f'"{i}",{i * i}.5\n' for i in column))
        assert names in tables.read(path).notes[0]
    for names, column in (("year", [1990, 1991, 1992]), ("any", [1, 2, 4]), ("index", [0.5, 1.0, 2.0])):
        path = table_file(tmp_path, ".csv", f"{names},b\n" + "".join(f"{i},{i * i + 0.25}\n" for i in column))
        assert tables.read(path).notes == ()


def test_constant_columns_are_pointed_out(tmp_path: Path) -> None:
    (note,) = tables.read(table_file(tmp_path, ".csv", 'a,"b, c",d\n1,7,3\n2,7,1\n5,7,2\n')).notes
    assert "'b, c' never varies" in note
    assert note.endswith("""--exclude '"b, c"'""")  # as a shell and --exclude take it


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a;b\n1,5;2,5\n", r"'a', 'b' must hold numbers; row 1 of 'a' is '1,5'\. Write it with a decimal point"),
        ("a;b\n1.234,5;2\n", "decimal point and without thousands separators"),
        ("a;b\n1,234;2\n", r"without a thousands separator, or as 1\.234 if the comma is a decimal separator"),
        ('a,b\n"1,234,567.5",2\n', r"row 1 is '1,234,567\.5'\. Write it without thousands separators"),
        ("a,b\n1 234,2\n", "without thousands separators"),
        ("a;b\nx,5;2\n", r"row 1 is 'x,5'\. Leave it out with: --exclude a"),
        ("a|b\n1|2\n", r"row 1 is '1\|2'\. If '\|' separates the columns, add --delimiter '\|'"),
        ("a b\n1 2\n", r"add --delimiter space"),
        (
            "a,sp,sex\n1,B,M\n2,B,F\n",
            r"columns 'sp', 'sex' must hold numbers; row 1 of 'sp' is 'B'\..*--exclude sp,sex",
        ),
    ],
)
def test_other_ways_to_write_numbers_get_their_own_hint(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=words):
        tables.read(table_file(tmp_path, ".csv", content))


@pytest.mark.parametrize(
    ("suffix", "delimiter", "content"),
    [
        (".csv", "|", "a|b\n1|2\n3|4\n"),
        (".txt", ":", "a:b\n1:2\n3:4\n"),
        (".csv", " ", "a  b\n1 2\n 3   4\n"),
        (".csv", "\t", "a\tb\n1\t2\n3\t4"),
    ],
)
def test_delimiters_may_be_given(suffix: str, delimiter: str, content: str, tmp_path: Path) -> None:
    table = tables.read(table_file(tmp_path, suffix, content), Choice(delimiter=delimiter))
    assert table.names == ("a", "b")
    assert table.rows.tolist() == [[1, 2], [3, 4]]


def test_delimiters_by_name_and_bad_ones() -> None:
    assert [parse_delimiter(text) for text in ("tab", "\\t", "Pipe", "space", "comma", ";")] == list("\t\t| ,;")
    for text in ("||", "", "a", "5", "é", ".", "\n"):
        with pytest.raises(Refusal, match="--delimiter must be one character, or one of comma"):
            parse_delimiter(text)


def test_delimiters_are_for_text(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    with pytest.raises(Refusal, match="--delimiter is for text files"):
        tables.read(tmp_path / "x.npy", Choice(delimiter=","))


@pytest.mark.parametrize("suffix", [".csv.gz", ".tsv.gz", ".txt.gz", ".CSV.GZ"])
def test_gzipped_text_is_read(suffix: str, tmp_path: Path) -> None:
    mark = {".tsv": "\t", ".txt": "  "}.get(suffix[:4], ",")
    table = tables.read(table_file(tmp_path, suffix, gzip.compress(f"a{mark}b\n1{mark}2\n3{mark}4\n".encode())))
    assert table.names == ("a", "b")
    assert table.rows.tolist() == [[1, 2], [3, 4]]


def test_damaged_gzip_files_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n1,2\n")
    for content in (b"a,b\n1,2\n", whole[:-9], whole[:12] + b"\xff\xff" + whole[14:]):
        with pytest.raises(Refusal, match="not a complete gzip file"):
            tables.read(table_file(tmp_path, ".csv.gz", content))


def test_workbooks_are_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["a", "b", "when"], [1.5, "2", datetime.date(2020, 1, 1)], [None, None, None], [3, None, None]):
        book.active.append(row)
    book.create_sheet("more")
    book.save(tmp_path / "x.xlsx")
    table = tables.read(tmp_path / "x.xlsx", Choice(exclude=["when"], skip_bad=True))
    assert (table.names, table.skipped) == (("a", "b"), 1)
    assert table.rows.tolist() == [[1.5, 2]]
    assert "2 sheets; only the first" in table.notes[0]
    with pytest.raises(Refusal, match="column 'when' must hold numbers; row 1 is 2020-01-01"):
        tables.read(tmp_path / "x.xlsx")
    numbers = openpyxl.Workbook()
    numbers.active.append([1, 2])
    numbers.save(tmp_path / "x.xlsx")
    assert tables.read(tmp_path / "x.xlsx").names == ("x1", "x2")
    openpyxl.Workbook().save(tmp_path / "x.xlsx")
    with pytest.raises(Refusal, match="first sheet, 'Sheet', is empty"):
        tables.read(tmp_path / "x.xlsx")
    with pytest.raises(Refusal, match="not a complete xlsx workbook"):
        tables.read(table_file(tmp_path, ".xlsx", b"PK nothing"))


def test_workbooks_need_openpyxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r"pip install 'cramix\[excel\]'"):
        tables.read(table_file(tmp_path, ".xlsx", b""))


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
        with pytest.raises(Refusal, match="not a complete npy file"):
            tables.read(tmp_path / name)
    assert not (tmp_path / "boom").exists()


def test_parquet_text_and_dates_are_refused(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"t": [datetime.date(2020, 1, 1)], "s": ["1"], "x": [["1"]], "w": ["a"]}), tmp_path / "x.parquet"
    )
    for column, word in (("t", "date32"), ("x", "list"), ("w", "row 1 is 'a'")):
        with pytest.raises(Refusal, match=f"column '{column}' must hold numbers.*{word}"):
            tables.read(tmp_path / "x.parquet", Choice([column]))


@pytest.mark.parametrize("suffix", formats.DATA_OUT)
def test_a_failed_write_leaves_the_old_table_and_no_litter(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x{suffix}"
    write(np.ones((2, 1)), ["a"], path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write(np.zeros((2, 1)), ["a"], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
