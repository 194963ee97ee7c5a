"""The columns of a file: csv and other text, npy, parquet, each read in its own way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cramix.cli import text
from cramix.cli.refusal import Refusal

if TYPE_CHECKING:
    import pyarrow


class Source(NamedTuple):
    """The columns a file has, and a function that reads some of them, NaN where there is nothing.

    The first is nameless where it alone has no name in the file.
    """

    names: list[str]
    load: Callable[[list[int]], list[np.ndarray]]
    nameless: bool = False


def source(path: Path) -> Source:
    """Return the columns of a file with one of the suffixes `SUFFIXES`."""
    return _READERS[path.suffix.lower()](path)


def default_names(dim: int) -> tuple[str, ...]:
    """Return names for columns that have none: x1, x2, ..."""
    return tuple(f"x{i}" for i in range(1, dim + 1))


def _text(path: Path) -> Source:
    arrow = require_pyarrow()
    found = text.layout(path)

    def load(columns: list[int]) -> list[np.ndarray]:
        try:
            table = text.read(path, found, columns, arrow.float64())
        except arrow.ArrowInvalid:
            # As text everything can be read, and what is not a number be found.
            try:
                table = text.read(path, found, columns, arrow.string())
            except arrow.ArrowInvalid as error:
                raise Refusal(f"{path} cannot be read: {error}") from None
        return [_floats(path, found.names[i], column) for i, column in zip(columns, table.columns, strict=True)]

    return Source(found.names, load, found.nameless)


def _npy(path: Path) -> Source:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Refusal(f"{path} is not a whole npy file of numbers: {str(error).splitlines()[0]}") from None
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        held = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        raise Refusal(f"{path} must hold numbers (n,) or (n, d); it holds {held}.")
    array = array.reshape(len(array), -1) if array.size else array.reshape(0, array.shape[-1])
    return Source(list(default_names(array.shape[1])), lambda columns: [array[:, i].astype(float) for i in columns])


def _parquet(path: Path) -> Source:
    arrow = require_pyarrow()
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (arrow.ArrowInvalid, OSError) as error:
        raise Refusal(f"{path} is not a whole parquet file: {str(error).splitlines()[0]}") from None
    # pandas writes its row numbers as a column.
    names = [name for name in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]

    def load(columns: list[int]) -> list[np.ndarray]:
        table = file.read([names[i] for i in columns])
        return [_floats(path, names[i], table.column(names[i])) for i in columns]

    return Source(names, load)


def _floats(path: Path, name: str, column: pyarrow.ChunkedArray) -> np.ndarray:
    """Convert a column to float64; text that says numbers is taken for them."""
    from pyarrow import ArrowInvalid, compute, float64, types

    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        trimmed = compute.utf8_trim_whitespace(column)
        try:
            return compute.cast(trimmed, float64()).to_numpy()
        except ArrowInvalid:
            row = _first_text(trimmed)
            value = column[row].as_py()
            comma = re.fullmatch(r"\s*[+-]?\d+,\d+\s*", value)
            cure = "Write decimals with a point." if comma else "Choose columns with --columns."
            raise Refusal(f"{path}: column {name!r} must hold numbers; row {row + 1} is {value!r}. {cure}") from None
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)):
        raise Refusal(f"{path}: column {name!r} must hold numbers; it holds {kind}. Choose columns with --columns.")
    return compute.cast(column, float64(), safe=False).to_numpy()


def _first_text(column: pyarrow.ChunkedArray) -> int:
    """Find the first value that is no number, by halves."""
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


def require_pyarrow():
    """Return the package, or say how to get it."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError("Tables in csv and parquet need pyarrow. Use: pip install 'cramix[io]'") from None
    return pyarrow


_READERS = {".csv": _text, ".tsv": _text, ".txt": _text, ".npy": _npy, ".parquet": _parquet}
SUFFIXES = tuple(_READERS)
