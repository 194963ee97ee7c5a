"""Tables of numbers into files, or onto standard output."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from cramix.atomic import replacing
from cramix.cli import formats
from cramix.cli.readers import require_pyarrow
from cramix.cli.refusal import Refusal, check_output

if TYPE_CHECKING:
    import pyarrow


def check_rows_output(path: Path, *, as_json: bool) -> None:
    """Require an output for rows that can be written to, and that JSON does not go to as well."""
    if path != formats.STANDARD:
        check_output(path, formats.DATA_OUT)
    elif as_json:
        raise Refusal("--json and --out - would both print to standard output. Write the rows to a file with --out.")


def write(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Write columns `(n,)` by their names to a file in one of the formats `formats.DATA_OUT`, or as csv to `-`.

    A file appears complete or not at all. An npy file holds no names, and all numbers in one dtype.
    """
    if path == formats.STANDARD:
        _write_text(columns, sys.stdout.buffer, ",")
        sys.stdout.buffer.flush()
        return
    suffix = formats.suffix(path)
    with replacing(path) as file:
        if suffix == ".npy":
            np.save(file, np.column_stack(list(columns.values())), allow_pickle=False)
        elif suffix == ".parquet":
            from pyarrow import parquet

            parquet.write_table(_arrow_table(columns), file)
        else:
            _write_text(columns, file, "\t" if suffix == ".tsv" else ",")


def _write_text(columns: Mapping[str, np.ndarray], file: BinaryIO, delimiter: str) -> None:
    require_pyarrow()
    from pyarrow import csv as arrow_csv

    header = io.StringIO()
    csv.writer(header, delimiter=delimiter, lineterminator="\n").writerow(columns)
    file.write(header.getvalue().encode())
    options = arrow_csv.WriteOptions(include_header=False, delimiter=delimiter)
    arrow_csv.write_csv(_arrow_table(columns), file, options)


def _arrow_table(columns: Mapping[str, np.ndarray]) -> pyarrow.Table:
    arrow = require_pyarrow()
    return arrow.Table.from_arrays([arrow.array(column) for column in columns.values()], names=list(columns))
