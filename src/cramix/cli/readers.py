"""Columns of numbers in files: one reader for each format."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cramix.cli import formats, text
from cramix.cli.refusal import Refusal
from cramix.data.text import numbers_in_text
from cramix.extras import require

if TYPE_CHECKING:
    import pyarrow


class NotNumbers(NamedTuple):
    """What a column without numbers holds, and a remedy if its values suggest one.

    Attributes:
        found: in words.
        remedy: in words.
        numbers: NaN but for rows that hold one; None if no row does.
    """

    found: str
    remedy: str | None = None
    numbers: np.ndarray | None = None


class Source(NamedTuple):
    """The columns of a file, before they are read.

    Attributes:
        names: of the columns; x1, x2, ... where the file has none.
        load: reads columns by their positions, as float64 with NaN for missing; and given a list, leaves out rows with
            too many or too few fields, whose numbers, from 1, it puts there.
        named: whether the names are those of the file.
        notes: what the user should know about how the file was read.
    """

    names: list[str]
    load: Callable[[list[int], list[int] | None], list[np.ndarray | NotNumbers]]
    named: bool = True
    notes: tuple[str, ...] = ()


def source(path: Path, delimiter: str | None = None) -> Source:
    """Return the columns of a file in one of the formats `formats.DATA`; the delimiter is for text."""
    if formats.is_text(path):
        return _text(path, delimiter)
    return {".npy": _npy, ".parquet": _parquet, ".xlsx": _xlsx}[formats.suffix(path)](path)


def _text(path: Path, delimiter: str | None) -> Source:
    arrow = require_pyarrow()
    file = text.TextFile.open(path)
    found = text.layout(file, delimiter)

    def load(columns: list[int], skipped: list[int] | None) -> list[np.ndarray | NotNumbers]:
        try:
            table = text.read(file, found, columns, arrow.float64(), skipped)
        except arrow.ArrowInvalid:
            # Read as strings, to find which fields are not numbers.
            try:
                table = text.read(file, found, columns, arrow.string(), skipped)
            except arrow.ArrowInvalid as error:
                raise Refusal(f"{file.name} cannot be read: {error}") from None
        return [_floats(column, single=len(found.names) == 1) for column in table.columns]

    return Source(list(found.names), load, found.named)


def _npy(path: Path) -> Source:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Refusal(f"{path} is not a complete npy file of numbers: {str(error).splitlines()[0]}") from None
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        held = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        raise Refusal(f"{path} must hold numbers of shape (n,) or (n, d); it holds {held}.")
    array = array.reshape(len(array), -1) if array.size else array.reshape(0, array.shape[-1])
    names = list(formats.default_names(array.shape[1]))
    return Source(names, lambda columns, _: [array[:, i].astype(float) for i in columns], named=False)


def _parquet(path: Path) -> Source:
    arrow = require_pyarrow()
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (arrow.ArrowInvalid, OSError) as error:
        raise Refusal(f"{path} is not a complete parquet file: {str(error).splitlines()[0]}") from None
    # pandas stores its row index as a column.
    names = [name for name in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]

    def load(columns: list[int], _: list[int] | None) -> list[np.ndarray | NotNumbers]:
        table = file.read([names[i] for i in columns])
        return [_floats(table.column(names[i])) for i in columns]

    return Source(names, load)


def _xlsx(path: Path) -> Source:
    openpyxl = require("openpyxl", "xlsx files need openpyxl. Install it with: pip install 'cramix[excel]'")
    from zipfile import BadZipFile

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheet = book.worksheets[0]
        rows = [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]
    except (BadZipFile, KeyError, ValueError, OSError, IndexError) as error:
        raise Refusal(f"{path} is not a complete xlsx workbook: {str(error).splitlines()[0]}") from None
    if not rows:
        raise Refusal(f"{path}: the first sheet, {sheet.title!r}, is empty.")
    named = not all(cell is None or _is_real(cell) for cell in rows[0])
    defaults = formats.default_names(max(map(len, rows)))
    header = [*rows[0], *[None] * (len(defaults) - len(rows[0]))] if named else defaults
    names = [default if cell is None else str(cell) for cell, default in zip(header, defaults, strict=True)]
    body = rows[1:] if named else rows
    ignored = f"{path} has {len(book.sheetnames)} sheets; only the first, {sheet.title!r}, is read."
    notes = (ignored,) if len(book.sheetnames) > 1 else ()

    return Source(names, lambda columns, _: [_cells(body, i) for i in columns], named, notes)


def _floats(column: pyarrow.ChunkedArray, single: bool = False) -> np.ndarray | NotNumbers:
    """Convert a column of a table, perhaps its single one, to float64; strings of numbers count as numbers."""
    from pyarrow import ArrowInvalid, compute, float64, types

    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        trimmed = compute.utf8_trim_whitespace(column)
        try:
            return compute.cast(trimmed, float64()).to_numpy()
        except ArrowInvalid:
            row = _first_text(trimmed)
            value = column[row].as_py()
            return NotNumbers(
                f"row {row + 1} is {value!r}",
                _remedy(value.strip(), single),
                _some(numbers_in_text(trimmed)[0].to_numpy()),
            )
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)):
        return NotNumbers(f"it holds {kind}")
    return compute.cast(column, float64(), safe=False).to_numpy()


def _cells(rows: list[tuple], column: int) -> np.ndarray | NotNumbers:
    """Convert the cells of a worksheet's column; strings of numbers count as numbers."""
    result, first = np.full(len(rows), np.nan), None
    for row, cells in enumerate(rows):
        value = cells[column] if column < len(cells) else None
        if value is None or value == "":
            continue
        try:
            result[row] = float(value if _is_real(value) or isinstance(value, str) else "not a number")
        except ValueError:
            shown = repr(value) if isinstance(value, str) else str(value)
            first = first or NotNumbers(f"row {row + 1} is {shown}", _remedy(str(value), False))
    return result if first is None else first._replace(numbers=_some(result))


def _some(numbers: np.ndarray) -> np.ndarray | None:
    return numbers if np.isfinite(numbers).any() else None


def _is_real(value: object) -> bool:
    return isinstance(value, int | float)


def _remedy(value: str, single: bool) -> str | None:
    """What to do about a number that is written in another way, or about fields that were not separated."""
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", value):
        if value.count(",") == 1 and "." not in value:
            point = value.replace(",", ".")
            return f"Write it without a thousands separator, or as {point} if the comma is a decimal separator."
        return "Write it without thousands separators."
    if re.fullmatch(r"[+-]?\d*,\d+|[+-]?\d{1,3}(\.\d{3})+(,\d*)?", value):
        return "Write it with a decimal point and without thousands separators."
    if re.fullmatch(r"[+-]?\d{1,3}([ '_\u00a0\u202f]\d{3})+([.,]\d*)?", value):
        return "Write it without thousands separators."
    separators = [mark for mark in "|;:\t" if mark in value] or ([" "] if re.fullmatch(r"[-+.\deE ]+", value) else [])
    if single and separators:
        mark = {"\t": "tab", " ": "space"}.get(separators[0], f"'{separators[0]}'")
        return f"If {mark} separates the columns, add --delimiter {mark}."
    return None


def _first_text(column: pyarrow.ChunkedArray) -> int:
    """Find the first value that is not a number, by bisection."""
    from pyarrow import ArrowInvalid, compute, float64

    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            compute.cast(column.slice(low, middle - low), float64())
            low = middle
        except ArrowInvalid:
            high = middle
    return low


def require_pyarrow() -> Any:
    """Return pyarrow, or raise an ImportError that says how to install it."""
    return require("pyarrow", "csv and parquet files need pyarrow. Install it with: pip install 'cramix[io]'")
