"""Files in Arrow's own format, which is Feather's, too: each file is a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cramix.data.arrow import columns_of, read, require_arrow
from cramix.data.columns import Choice
from cramix.data.files import File
from cramix.data.source import Batch, Place


def inspect(file: File) -> File:
    """Return the file with its columns and its number of rows."""
    arrow = require_arrow()
    from pyarrow import dataset, ipc

    try:
        with arrow.OSFile(file.path) as opened, ipc.open_file(opened) as reader:
            columns = tuple(columns_of(reader.schema))
        count = dataset.dataset(file.path, format="ipc").count_rows()  # without the data
    except (arrow.ArrowException, OSError) as error:
        raise file.unreadable(error) from None
    return file._replace(columns=columns, n_rows=count)


def parts(file: File, choice: Choice, first: int) -> Iterator[_Whole]:
    """Yield the file as one part."""
    yield _Whole(file, choice, first)


class _Whole(NamedTuple):
    """All record batches of a file."""

    file: File
    choice: Choice
    first: int

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        arrow = require_arrow()
        from pyarrow import ipc

        self.file.check()
        try:
            # Not mapped to memory: a mapped file that becomes shorter ends the process.
            with arrow.OSFile(self.file.path) as opened, ipc.open_file(opened) as reader:
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
                yield from read(batches, rows, self.choice, self.first, Place(self.file.path))
        except (arrow.ArrowException, OSError) as error:
            raise self.file.unreadable(error) from None
        self.file.check()
