"""Tables in text files of the commands, read as a whole."""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cramix.cli import formats
from cramix.cli.refusal import Refusal
from cramix.data.text import Layout, layout_of

if TYPE_CHECKING:
    import pyarrow

_LONGEST_LINE = 1 << 24
_WORDS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}


class TextFile(NamedTuple):
    """A text file: its path, or its content where it came compressed or through a pipe."""

    name: str
    suffix: str
    content: Path | bytes

    @classmethod
    def open(cls, path: Path) -> TextFile:
        """Return a file; a gzipped one and standard input are read into memory."""
        name, suffix = formats.input_name(path), formats.suffix(path)
        if path == formats.STANDARD:
            return cls(name, suffix, sys.stdin.buffer.read())
        if not formats.is_gzipped(path):
            return cls(name, suffix, path)
        try:
            return cls(name, suffix, gzip.decompress(path.read_bytes()))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Refusal(f"{path} is not a complete gzip file: {error}") from None

    def text(self) -> io.TextIOBase:
        """Return the lines, decoded."""
        binary = self.content.open("rb") if isinstance(self.content, Path) else io.BytesIO(self.content)
        return io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")

    def bytes(self) -> bytes:
        """Return the whole content."""
        return self.content.read_bytes() if isinstance(self.content, Path) else self.content


def parse_delimiter(text: str) -> str:
    """Return the character that `--delimiter` asks for: itself, or its name."""
    found = _WORDS.get(text.lower(), text)
    if len(found) != 1 or not found.isascii() or found in '"\r\n.+-' or found.isalnum():
        words = ", ".join(word for word in _WORDS if word.isalpha())
        raise Refusal(f"--delimiter must be one character, or one of {words}; got {text!r}.")
    return found


def layout(file: TextFile, delimiter: str | None = None) -> Layout:
    """Find the layout from the first line that is neither empty nor a comment (#)."""
    try:
        with file.text() as lines:
            found = layout_of(lines, file.suffix, delimiter)
    except UnicodeDecodeError:
        raise Refusal(f"{file.name} must be UTF-8 text. Save it with that encoding.") from None
    except ValueError as error:
        raise Refusal(f"{file.name} {error}") from None
    if found is None:
        raise Refusal(f"{file.name} is empty.")
    return found


def read(
    file: TextFile, layout: Layout, columns: list[int], kind: pyarrow.DataType, skipped: list[int] | None = None
) -> pyarrow.Table:
    """Return some columns, all of one Arrow type; raises pyarrow's ArrowInvalid for fields that are not.

    Rows with too many or too few fields are refused, or, if there is a list `skipped`, left out and their numbers, from
    1, put there.
    """
    from pyarrow import ArrowInvalid, BufferReader, csv

    names = [str(i) for i in range(len(layout.names))]  # unique, which those in the file need not be
    wanted = [names[i] for i in columns]
    ragged = list[csv.InvalidRow]()

    def remember(row: csv.InvalidRow) -> str:
        if skipped is not None:
            skipped.append(row.number - layout.skip)
            return "skip"
        ragged.append(row)
        return "error"

    if skipped is not None:
        skipped.clear()

    content: Path | BufferReader
    if layout.delimiter is None:
        content = BufferReader(_with_commas(file.bytes()))
    else:
        content = BufferReader(file.content) if isinstance(file.content, bytes) else file.content
    try:
        return csv.read_csv(
            content,
            # With several threads, rows have no numbers.
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
        f"{file.name} must have {row.expected_columns} fields in each row, as in its first line; "
        f"row {row.number - layout.skip} has {row.actual_columns}: {row.text[:40]}"
    )


def _with_commas(content: bytes) -> bytes:
    text = content.removeprefix(codecs.BOM_UTF8)
    return b"\n".join(b",".join(line.split()) for line in text.split(b"\n"))
