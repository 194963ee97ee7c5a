"""Tables in text files: how the numbers are set apart, and what the columns are called."""

from __future__ import annotations

import codecs
import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cramix.cli.refusal import Refusal

if TYPE_CHECKING:
    import pyarrow

# What stands for no number; Arrow knows the same words.
_MISSING = {"", "na", "n/a", "#n/a", "nan", "-nan", "null"}
_LONGEST_LINE = 1 << 24


class Layout(NamedTuple):
    """Names of the columns, what stands between them (None: any white space), and the lines to skip before the rows.

    The first column is nameless where the others have names, as row numbers are that pandas writes.
    """

    names: list[str]
    delimiter: str | None
    skip: int
    nameless: bool = False


def layout(path: Path) -> Layout:
    """Look at the first line that is neither empty nor a comment (#): names, if it is not all numbers."""
    skip = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            while (line := file.readline(_LONGEST_LINE)) and (not line.strip() or line.lstrip().startswith("#")):
                skip += 1
    except UnicodeDecodeError:
        raise Refusal(f"{path} is not text in UTF-8. Save it again as UTF-8.") from None
    if not line:
        raise Refusal(f"{path} is empty. Give a file with rows of numbers.")
    if "\0" in line:
        raise Refusal(f"{path} is not a text file. Is its suffix right?")
    delimiter = _delimiter(line, path.suffix.lower())
    fields = line.split() if delimiter is None else next(csv.reader([line], delimiter=delimiter))
    fields = [field.strip() for field in fields]
    numbers = [f"x{i}" for i in range(1, len(fields) + 1)]
    if any(map(_is_number, fields)) and all(_is_number(f) or f.lower() in _MISSING for f in fields):
        return Layout(numbers, delimiter, skip)
    names = [field or number for field, number in zip(fields, numbers, strict=True)]
    return Layout(names, delimiter, skip + 1, not fields[0] and all(fields[1:]) and len(fields) > 1)


def read(path: Path, layout: Layout, columns: list[int], kind: pyarrow.DataType) -> pyarrow.Table:
    """Return some columns, each of one kind; pyarrow's ArrowInvalid for what is not of it."""
    from pyarrow import ArrowInvalid, BufferReader, csv

    names = [str(i) for i in range(len(layout.names))]  # those in the file need not be different
    wanted = [names[i] for i in columns]
    ragged = list[csv.InvalidRow]()

    def remember(row: csv.InvalidRow) -> str:
        ragged.append(row)
        return "error"

    try:
        return csv.read_csv(
            path if layout.delimiter is not None else BufferReader(_with_commas(path)),
            # More threads would not know the number of a row.
            csv.ReadOptions(column_names=names, skip_rows=layout.skip, block_size=_LONGEST_LINE, use_threads=False),
            csv.ParseOptions(delimiter=layout.delimiter or ",", invalid_row_handler=remember),
            csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, kind), strings_can_be_null=True
            ),
        )
    except ArrowInvalid:
        if not ragged:
            raise
    row = ragged[0]
    raise Refusal(
        f"{path} must have {row.expected_columns} fields in each row; "
        f"row {row.number - layout.skip} has {row.actual_columns}: {row.text[:40]}"
    )


def _delimiter(line: str, suffix: str) -> str | None:
    if suffix == ".tsv":
        return "\t"
    found = max(",;\t", key=line.count)
    spaced = suffix == ".txt" and not re.search("[,;]", line)
    # A single tab between words may have an empty cell beside it further down; two white spaces are there for the eye.
    if spaced and ("\t" not in line or re.search(r"\s\s", line.strip())):
        return None
    return found if found in line else ","


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return field.lower() not in _MISSING


def _with_commas(path: Path) -> bytes:
    text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    return b"\n".join(b",".join(line.split()) for line in text.split(b"\n"))
