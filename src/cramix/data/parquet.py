"""Parquet files: parts are row groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from cramix.data.arrow import columns_of, read, require_arrow
from cramix.data.columns import Choice
from cramix.data.files import File
from cramix.data.source import Batch, Place

# Small row groups are read together until a part has so many rows.
_PART_ROWS = 1 << 17
# Bytes of a column that are read at a time, so that huge row groups are never in memory as a whole.
_BUFFER = 1 << 18


def inspect(file: File) -> File:
    """Return the file with its columns and the numbers of rows of its row groups."""
    arrow = require_arrow()
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path) as opened:
            metadata = opened.metadata
            groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            columns = tuple(columns_of(opened.schema_arrow))
    except (arrow.ArrowException, OSError) as error:
        raise file.unreadable(error) from None
    return file._replace(columns=columns, n_rows=sum(groups), layout=groups)


def parts(file: File, choice: Choice, first: int) -> Iterator[_Groups]:
    """Yield parts of one or more row groups."""
    starts = (0, *accumulate(file.layout))
    begin = 0
    for end in range(1, len(file.layout) + 1):
        if starts[end] - starts[begin] >= _PART_ROWS or end == len(file.layout):
            ends = tuple(x - starts[begin] for x in starts[begin + 1 : end + 1])
            yield _Groups(file, choice, begin, ends, first + starts[begin])
            begin = end


class _Groups(NamedTuple):
    """Consecutive row groups.

    Args:
        file: that they are in.
        choice: the columns.
        group: number of the first.
        ends: where they end, in rows from the beginning of the first.
        first: position of the first row.
    """

    file: File
    choice: Choice
    group: int
    ends: tuple[int, ...]
    first: int

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        arrow = require_arrow()
        from pyarrow import parquet

        self.file.check()
        place = _GroupPlace(self.file.path, 0, self.group, self.ends)
        try:
            with parquet.ParquetFile(self.file.path, buffer_size=_BUFFER, pre_buffer=False) as opened:
                groups = range(self.group, self.group + len(self.ends))
                batches = opened.iter_batches(rows, groups, self.choice.all(), use_threads=False)
                yield from read(batches, rows, self.choice, self.first, place)
        except (arrow.ArrowException, OSError) as error:
            last = self.group + len(self.ends) - 1
            where = f"row group {self.group}" if last == self.group else f"row groups {self.group} to {last}"
            raise self.file.unreadable(error, f", {where},") from None
        self.file.check()


class _GroupPlace(Place):
    """The place of a row in one of several row groups."""

    group: int
    ends: tuple[int, ...]

    def __new__(cls, name: str, row: int, group: int = 0, ends: tuple[int, ...] = ()) -> _GroupPlace:
        place = super().__new__(cls, name, row)
        place.group, place.ends = group, ends
        return place

    def of(self, i: int) -> str:
        """Return the row group, counted from 0 as Parquet tools do, and the row in it, counted from 1."""
        row = self.row + i
        k = min(bisect_right(self.ends, row), len(self.ends) - 1)
        return f"{self.name}, row group {self.group + k}, row {row - (self.ends[k - 1] if k else 0) + 1}"

    def after(self, rows: int) -> _GroupPlace:
        """Return the place so many rows further."""
        return _GroupPlace(self.name, self.row + rows, self.group, self.ends)
