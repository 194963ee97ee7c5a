"""Tables of numbers into files, or onto standard output."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from cramix.atomic import replacing
from cramix.cli import formats
from cramix.cli.readers import require_pyarrow
from cramix.cli.refusal import Refusal, check_output

if TYPE_CHECKING:
    import pyarrow

Columns = Mapping[str, np.ndarray]
# Rows of a row group of Parquet.
_GROUP_ROWS = 1 << 17


def check_rows_output(path: Path, *, as_json: bool) -> None:
    """Require an output for rows that can be written to, and that JSON does not go to as well."""
    if path != formats.STANDARD:
        check_output(path, formats.DATA_OUT)
    elif as_json:
        raise Refusal("--json and --out - would both print to standard output. Write the rows to a file with --out.")


def write(columns: Columns, path: Path) -> None:
    """Write columns `(n,)` by their names; see `writing`."""
    with writing(path) as add:
        add(columns)


@contextmanager
def writing(path: Path) -> Iterator[Callable[[Columns], None]]:
    """Yield a function that adds rows, as columns `(n,)` by their names, to a file or as csv to `-`.

    The format is one of `formats.DATA_OUT`. A file appears complete, when the block succeeds, or not at all. An npy
    file holds no names, and all numbers in one dtype. Rows are written at once, so that memory does not grow.
    """
    if path == formats.STANDARD:
        with closing(_Text(sys.stdout.buffer, ",")) as text:
            yield text.add
        return
    suffix = formats.suffix(path)
    with replacing(path) as file:
        writer: _Npy | _Parquet | _Text
        if suffix == ".npy":
            writer = _Npy(file)
        elif suffix == ".parquet":
            writer = _Parquet(file)
        else:
            writer = _Text(file, "\t" if suffix == ".tsv" else ",")
        with closing(writer):
            yield writer.add


class _Npy:
    """An array whose number of rows is written when it is known: headers leave room for it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.n_rows = file, 0

    def add(self, columns: Columns) -> None:
        rows = np.column_stack(list(columns.values()))
        if not self.n_rows:
            self.width, self.dtype = rows.shape[1], rows.dtype
            self._write_header()
        self.n_rows += len(rows)
        self.file.write(rows.astype(self.dtype, copy=False).tobytes())

    def close(self) -> None:
        if self.n_rows:
            self.file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.n_rows, self.width)}
        np.lib.format.write_array_header_1_0(self.file, header)


class _Parquet:
    """A Parquet file, whose row groups gather the rows of several calls."""

    def __init__(self, file: BinaryIO) -> None:
        require_pyarrow()
        self.file, self.waiting = file, list[Any]()
        self.writer: Any = None

    def add(self, columns: Columns) -> None:
        self.waiting.append(_arrow_table(columns))
        if sum(table.num_rows for table in self.waiting) >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self.writer is not None:
            self.writer.close()

    def _flush(self) -> None:
        from pyarrow import concat_tables, parquet

        if not self.waiting:
            return
        table, self.waiting = concat_tables(self.waiting), []
        self.writer = self.writer or parquet.ParquetWriter(self.file, table.schema)
        self.writer.write_table(table)


class _Text:
    """Lines of fields, the names first."""

    def __init__(self, file: BinaryIO, delimiter: str) -> None:
        require_pyarrow()
        self.file, self.delimiter, self.begun = file, delimiter, False

    def add(self, columns: Columns) -> None:
        from pyarrow import csv as arrow_csv

        if not self.begun:
            header = io.StringIO()
            csv.writer(header, delimiter=self.delimiter, lineterminator="\n").writerow(columns)
            self.file.write(header.getvalue().encode())
            self.begun = True
        options = arrow_csv.WriteOptions(include_header=False, delimiter=self.delimiter)
        arrow_csv.write_csv(_arrow_table(columns), self.file, options)

    def close(self) -> None:
        self.file.flush()


def _arrow_table(columns: Columns) -> pyarrow.Table:
    arrow = require_pyarrow()
    return arrow.Table.from_arrays([arrow.array(column) for column in columns.values()], names=list(columns))
