"""NumPy's files of one array `(n, d)` or `(n,)`: parts are slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from cramix.arrays import as_tensor
from cramix.data.columns import Choice, Column
from cramix.data.files import File
from cramix.data.source import BadRowsError, Batch, Place

# Rows of a part.
_PART_ROWS = 1 << 18


class _Layout(NamedTuple):
    """How the array lies in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    by_columns: bool


def inspect(file: File) -> File:
    """Return the file with its shape."""
    try:
        mapped = np.load(file.path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise file.unreadable(error) from None
    if not isinstance(mapped, np.ndarray) or mapped.ndim not in (1, 2) or mapped.dtype.kind not in "biuf":
        held = f"{mapped.dtype} of shape {mapped.shape}" if isinstance(mapped, np.ndarray) else "several arrays"
        raise ValueError(f"{file.path} must hold numbers of shape (n,) or (n, d); it holds {held}.")
    by_columns = not mapped.flags.c_contiguous
    layout = _Layout(mapped.dtype, mapped.shape, getattr(mapped, "offset", 0), by_columns)
    dtype = torch.float32 if mapped.dtype.kind == "f" and mapped.dtype.itemsize <= 4 else torch.float64
    univariate = mapped.ndim == 1
    count = 1 if univariate else mapped.shape[1]
    columns = tuple(Column(f"x{i}", dtype, str(mapped.dtype)) for i in range(1, count + 1))
    return file._replace(columns=columns, n_rows=len(mapped), layout=layout, univariate=univariate, named=False)


def parts(file: File, choice: Choice, first: int) -> Iterator[_Rows]:
    """Yield slices of the rows."""
    count, names = file.layout.shape[0], [column.name for column in file.columns]
    columns = [names.index(name) for name in choice.all()]
    some = None if columns == list(range(len(names))) else columns
    for start in range(0, count, _PART_ROWS):
        yield _Rows(file, start, min(start + _PART_ROWS, count), first, choice, some)


class _Rows(NamedTuple):
    """Rows start to end of a file whose first row has the position `first`, or some columns of them."""

    file: File
    start: int
    end: int
    first: int
    choice: Choice
    columns: list[int] | None

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows; see `Part.read`."""
        self.file.check()
        for start in range(self.start, self.end, rows):
            try:
                x = as_tensor("X", self._some(start, min(start + rows, self.end))).to(self.choice.dtype)
            except (OSError, ValueError) as error:
                raise self.file.unreadable(error) from None
            x = x if x.ndim == 2 else x.unsqueeze(-1)
            x = x if self.columns is None else x[:, self.columns]
            weights = None
            if self.choice.weights is not None:
                x, weights = x[:, :-1].contiguous(), x[:, -1].contiguous()
            yield Batch(x, weights, self.first + start, Place(self.file.path, start))
        self.file.check()

    def _some(self, start: int, end: int) -> np.ndarray:
        layout: _Layout = self.file.layout
        if layout.by_columns:
            order = np.memmap(self.file.path, layout.dtype, "r", layout.offset, layout.shape, "F")
            return np.array(order[start:end])
        width = int(np.prod(layout.shape[1:]))
        with open(self.file.path, "rb") as opened:  # not mapped: a mapped file that becomes shorter ends the process
            opened.seek(layout.offset + start * width * layout.dtype.itemsize)
            found = np.fromfile(opened, layout.dtype, (end - start) * width)
        if found.size != (end - start) * width:
            raise BadRowsError(f"{self.file.path} ends before row {end}. Restore the file.")
        return found.reshape(end - start, *layout.shape[1:])
