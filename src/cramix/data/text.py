"""Text files of rows whose fields a delimiter separates, such as csv: each file is a part, read as a stream."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import torch

from cramix.data import arrow
from cramix.data.columns import Choice, Column
from cramix.data.files import File, suffix
from cramix.data.source import BadRowsError, Batch, Place, cure

if TYPE_CHECKING:
    import pyarrow

# Bytes that are parsed at a time; no line may be longer.
_BLOCK = 1 << 23
# Fields that stand for a missing number; Arrow has the same list.
_MISSING = {"", "na", "n/a", "#n/a", "nan", "-nan", "null"}
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_NOT_FINITE = r"^[+-]?(inf|infinity|nan)$"


class Layout(NamedTuple):
    """How to read the rows of a text file.

    Args:
        names: of all columns; x1, x2, ... where the file has none.
        delimiter: between fields; None for any white space.
        skip: number of lines before the rows.
        named: whether the file has a line of names.
    """

    names: tuple[str, ...]
    delimiter: str | None
    skip: int
    named: bool


def inspect(file: File) -> File:
    """Return the file with the columns of its first line; a file without any line has none."""
    arrow.require_arrow()
    layout = _layout(file)
    if layout is None:
        return file._replace(n_rows=0)
    columns = tuple(Column(name, torch.float64, "text") for name in layout.names)
    return file._replace(columns=columns, layout=layout)


def parts(file: File, choice: Choice, first: int) -> Iterator[_Text]:
    """Yield the file as one part."""
    if file.layout is not None:
        yield _Text(file, choice, first)


class _Text(NamedTuple):
    """All rows of a file."""

    file: File
    choice: Choice
    first: int

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        self.file.check()
        stream = _Stream(self.file, self.choice, skip_bad)
        row = bad = 0
        for records in stream.batches():
            bad += stream.rejected()  # those of a block without good rows are reported with the next one
            for batch in arrow.read([records], rows, self.choice, self.first + row, Place(self.file.path, row)):
                yield batch._replace(bad=bad)
                bad = 0
                row += len(batch.rows)
        if bad := bad + stream.rejected():
            none = torch.empty(0, len(self.choice.names), dtype=self.choice.dtype)
            weights = None if self.choice.weights is None else none[:, 0]
            yield Batch(none, weights, self.first + row, Place(self.file.path, row), bad)
        self.file.check()


class _Stream:
    """Record batches of numbers from a text file.

    Fields are parsed as numbers. Where one is none, the file is parsed once more, as text, from there on, which is
    slower, to find those that are not numbers.
    """

    def __init__(self, file: File, choice: Choice, skip_bad: bool) -> None:
        self.file, self.choice, self.skip_bad = file, choice, skip_bad
        self.layout: Layout = file.layout
        self.ragged: Any = None
        self._rejected = self._reported = 0
        names = list(self.layout.names)
        self.columns = [str(names.index(x)) for x in choice.all()]

    def rejected(self) -> int:
        """Return how many rows with too many or too few fields were left out since the last call."""
        new = max(0, self._rejected - self._reported)
        self._reported += new
        return new

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield record batches with the columns chosen, in float64."""
        import pyarrow

        row = 0
        try:
            try:
                for batch in self._parsed(pyarrow.float64()):
                    row += batch.num_rows
                    yield batch.rename_columns(self.choice.all())
                return
            except pyarrow.ArrowInvalid as error:
                if self.ragged is not None or "conversion error" not in str(error):
                    raise
            self._rejected = 0  # they are counted again
            yield from self._of_text(row)
        except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
            if "Empty CSV" in str(error):  # names without rows
                return
            if self.ragged is not None:
                raise BadRowsError(self._ragged_text()) from None
            raise self.file.unreadable(error) from None

    def _of_text(self, skip: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows after the first `skip`, parsed as text and then converted."""
        import pyarrow

        row = 0
        for batch in self._parsed(pyarrow.string()):
            start, row = row, row + batch.num_rows
            if row > skip:
                some = batch.slice(max(0, skip - start))
                columns = [numbers_in_text(x) for x in some.columns]
                if not self.skip_bad:
                    self._check_text(some.columns, [x[1] for x in columns], max(start, skip))
                yield pyarrow.RecordBatch.from_arrays([x[0] for x in columns], names=self.choice.all())

    def _check_text(self, fields: list[pyarrow.Array], text: list[pyarrow.Array], start: int) -> None:
        """Raise an error that names the first field that is not a number."""
        import pyarrow

        found = [(x.index(pyarrow.scalar(True)).as_py(), j) for j, x in enumerate(text)]
        if places := [x for x in found if x[0] >= 0]:
            i, j = min(places)
            value, name = fields[j][i].as_py()[:40], self.choice.all()[j]
            place = Place(self.file.path, start).of(i)
            raise BadRowsError(
                f"{place} has {value!r} in column {name!r}, which must hold numbers. Correct it, leave the column out "
                "with cramix.source(X, columns=[...]), or skip such rows with skip_bad=True."
            )

    def _parsed(self, kind: pyarrow.DataType) -> Iterator[pyarrow.RecordBatch]:
        from pyarrow import csv as parser

        names = [str(i) for i in range(len(self.layout.names))]  # unique, which those in the file need not be
        with _opened(self.file.path, self.layout.delimiter) as content:
            reader = parser.open_csv(
                content,
                # With several threads, rows have no numbers.
                parser.ReadOptions(
                    column_names=names, skip_rows=self.layout.skip, block_size=_BLOCK, use_threads=False
                ),
                parser.ParseOptions(delimiter=self.layout.delimiter or ",", invalid_row_handler=self._reject),
                parser.ConvertOptions(
                    include_columns=self.columns,
                    column_types=dict.fromkeys(self.columns, kind),
                    strings_can_be_null=True,
                ),
            )
            with reader:
                yield from reader

    def _reject(self, row: Any) -> str:
        self._rejected += 1
        if self.skip_bad:
            return "skip"
        self.ragged = self.ragged or row
        return "error"

    def _ragged_text(self) -> str:
        row = self.ragged
        place = Place(self.file.path, row.number - self.layout.skip - 1).of(0)
        return (
            f"{place} must have {row.expected_columns} fields, as the first line; it has {row.actual_columns}. {cure()}"
        )


def numbers_in_text(column: pyarrow.Array) -> tuple[pyarrow.Array, pyarrow.Array]:
    """Return a column of text as numbers, null where it has none, and where it has text that is no number."""
    import pyarrow
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(column)
    finite = compute.match_substring_regex(trimmed, _NUMBER)
    number = compute.or_(finite, compute.match_substring_regex(trimmed, _NOT_FINITE, ignore_case=True))
    none = pyarrow.scalar(None, pyarrow.string())
    return compute.if_else(number, trimmed, none).cast(pyarrow.float64()), compute.invert(number)


@contextmanager
def _opened(path: str, delimiter: str | None) -> Iterator[Any]:
    """Yield what Arrow reads: the path, or a file whose fields are separated by commas instead of white space."""
    if delimiter is not None:
        yield path
        return
    with _binary(path) as file:
        yield _Commas(file)


def _binary(path: str) -> BinaryIO:
    return gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb")  # type: ignore[return-value]


class _Commas(io.RawIOBase):
    """A text file whose fields are separated by white space, read as if by commas."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.converted = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most so many bytes, none at the end."""
        if not self.converted and (lines := self.file.readlines(_BLOCK)):
            self.converted = b"".join(b",".join(line.split()) + b"\n" for line in lines)
        size = len(self.converted) if size < 0 else size
        result, self.converted = self.converted[:size], self.converted[size:]
        return result


def _layout(file: File) -> Layout | None:
    try:
        with io.TextIOWrapper(_binary(file.path), encoding="utf-8-sig", newline="") as lines:
            return layout_of(lines, suffix(file.path))
    except UnicodeDecodeError:
        raise BadRowsError(f"{file.path} must be UTF-8 text. Save it with that encoding.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise file.unreadable(error) from None
    except ValueError as error:
        raise BadRowsError(f"{file.path} {error}") from None


def layout_of(lines: io.TextIOBase, suffix: str, delimiter: str | None = None) -> Layout | None:
    r"""Find the layout from the first line that is neither empty nor a comment (#); None if there is no such line.

    The line holds names unless all its fields are numbers. Without a delimiter, it is found in that line. A space
    stands for any white space.

    Example:
        >>> layout_of(io.StringIO("a;b\n1;2\n"), ".csv")
        Layout(names=('a', 'b'), delimiter=';', skip=1, named=True)
    """
    skip = 0
    while (line := lines.readline(_BLOCK)) and (not line.strip() or line.lstrip().startswith("#")):
        skip += 1
    if not line:
        return None
    if "\0" in line:
        raise ValueError("must be a text file; it holds binary data. Check its suffix.")
    delimiter = _delimiter(line, suffix) if delimiter is None else delimiter
    delimiter = None if delimiter == " " else delimiter
    fields = line.split() if delimiter is None else next(csv.reader([line], delimiter=delimiter))
    fields = [field.strip() for field in fields]
    defaults = tuple(f"x{i}" for i in range(1, len(fields) + 1))
    if any(map(_is_number, fields)) and all(_is_number(f) or f.lower() in _MISSING for f in fields):
        return Layout(defaults, delimiter, skip, named=False)
    names = tuple(field or default for field, default in zip(fields, defaults, strict=True))
    return Layout(names, delimiter, skip + 1, named=True)


def _delimiter(line: str, suffix: str) -> str | None:
    if suffix == ".tsv":
        return "\t"
    found = max(",;\t", key=line.count)
    spaced = suffix == ".txt" and not re.search("[,;]", line)
    # A single tab may stand beside an empty field further down; runs of white space only align columns.
    if spaced and ("\t" not in line or re.search(r"\s\s", line.strip())):
        return None
    return found if found in line else ","


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return field.lower() not in _MISSING
