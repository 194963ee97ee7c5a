"""Tables of numbers in files: csv and other text, npy, parquet."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.atomic import replacing
from cramix.cli import models
from cramix.cli.refusal import Refusal, check_input
from cramix.cli.sources import SUFFIXES, require_pyarrow, source

if TYPE_CHECKING:
    import pyarrow

WRITABLE = (".csv", ".tsv", ".npy", ".parquet")


class Table(NamedTuple):
    """Rows `(n, d)` in float64, the names of their columns, their weights `(n,)`, and how many rows were dropped."""

    rows: Tensor
    names: tuple[str, ...]
    weights: Tensor | None
    dropped: int


def read(
    path: Path,
    columns: Sequence[str] | None = None,
    weights: str | None = None,
    *,
    prefer: Sequence[str] | None = None,
    drop_missing: bool = False,
) -> Table:
    """Read columns of numbers; a `Refusal` says what is wrong with the file, and where.

    Args:
        path: a file with one of the suffixes `SUFFIXES` of `sources`.
        columns: names of the columns in the order wanted; all but that of the weights if None.
        weights: name of the column of weights.
        prefer: names to use for `columns` if there are none, but only where the file has all of them.
        drop_missing: leave out rows with a number that is missing or not finite, instead of refusing them.
    """
    check_input(path)
    suffix = path.suffix.lower()
    if suffix == models.SUFFIX:
        raise Refusal(f"{path} is a model file; here must be data: {', '.join(SUFFIXES)}.")
    if suffix not in SUFFIXES:
        raise Refusal(f"{path} must end in one of {', '.join(SUFFIXES)}, which says how to read it.")
    names, load, nameless = source(path)
    if columns is None and prefer is not None and set(prefer) <= set(names):
        columns = prefer
    chosen = [name for name in names if name != weights] if columns is None else list(columns)
    if not any(chosen):
        raise Refusal(f"{path} must have a column to fit beside the weights; it has: {_listed(names)}.")
    if twice := next((name for name in chosen if chosen.count(name) > 1 and columns is not None), None):
        raise Refusal(f"--columns must name each column once; {twice!r} is there {chosen.count(twice)} times.")
    asked = [*chosen, *([weights] if weights is not None else [])]
    loaded = np.column_stack(load([_place(path, names, name) for name in asked]))
    if not len(loaded):
        raise Refusal(f"{path} has no rows. Give a file with rows of numbers.")
    if columns is None and nameless and _are_row_numbers(loaded[:, 0]):
        raise Refusal(
            f"{path}: the first column holds row numbers and has no name, as pandas writes them. Choose columns with "
            f"--columns; it has: {_listed(names)}."
        )
    finite = np.isfinite(loaded).all(1)
    if not finite.all():
        if not drop_missing:
            raise Refusal(_missing(path, loaded, asked, finite))
        if not finite.any():
            raise Refusal(f"{path} has no rows left: all {len(loaded)} hold a number that is missing or not finite.")
    kept = torch.from_numpy(loaded[finite] if not finite.all() else loaded)
    return Table(
        kept[:, : len(chosen)].contiguous(),
        tuple(chosen),
        _weights(path, weights, kept[:, -1]) if weights is not None else None,
        int((~finite).sum()),
    )


def split_names(text: str | None) -> list[str] | None:
    """Split names at commas, but for those in quotes."""
    if text is None:
        return None
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def write(rows: Tensor, names: Sequence[str], path: Path) -> None:
    """Write rows `(n, d)` to a file with one of the suffixes `WRITABLE`; it appears whole or not at all."""
    suffix = path.suffix.lower()
    with replacing(path) as file:
        if suffix == ".npy":
            np.save(file, rows.numpy(), allow_pickle=False)
        elif suffix == ".parquet":
            from pyarrow import parquet

            parquet.write_table(_arrow_table(rows, names), file)
        else:
            write_text(rows, names, file, "\t" if suffix == ".tsv" else ",")


def write_text(rows: Tensor, names: Sequence[str], file: BinaryIO, delimiter: str = ",") -> None:
    """Write rows `(n, d)` below a line of names."""
    require_pyarrow()
    from pyarrow import csv as arrow_csv

    header = io.StringIO()
    csv.writer(header, delimiter=delimiter, lineterminator="\n").writerow(names)
    file.write(header.getvalue().encode())
    options = arrow_csv.WriteOptions(include_header=False, delimiter=delimiter)
    arrow_csv.write_csv(_arrow_table(rows, names), file, options)


def _place(path: Path, names: list[str], name: str) -> int:
    if names.count(name) == 1:
        return names.index(name)
    if name in names:
        raise Refusal(f"{path} has {names.count(name)} columns named {name!r}. Give them different names.")
    close = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise Refusal(f"{path} has no column {name!r}.{hint} It has: {_listed(names)}.")


def _are_row_numbers(column: np.ndarray) -> bool:
    steps = np.diff(column)
    return len(steps) > 0 and column[0] in (0, 1) and bool((steps == 1).all())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _missing(path: Path, loaded: np.ndarray, names: list[str], finite: np.ndarray) -> str:
    row = int(np.argmin(finite))
    column = int(np.argmin(np.isfinite(loaded[row])))
    value = "missing" if np.isnan(loaded[row, column]) else f"{loaded[row, column]}"
    count = int((~finite).sum())
    return (
        f"{path}: {count} of {len(loaded)} rows hold a number that is missing or not finite (the first: row {row + 1}, "
        f"column {names[column]!r}, {value}). Add --drop-missing to leave them out."
    )


def _weights(path: Path, name: str, weights: Tensor) -> Tensor:
    if bool((weights < 0).any()):
        row = int((weights < 0).nonzero()[0])
        raise Refusal(f"{path}: weights in column {name!r} must be >= 0; the first that is not: {weights[row]:g}.")
    if not bool(weights.sum() > 0):
        raise Refusal(f"{path}: weights in column {name!r} must not all be 0.")
    return weights.contiguous()


def _arrow_table(rows: Tensor, names: Sequence[str]) -> pyarrow.Table:
    arrow = require_pyarrow()
    return arrow.Table.from_arrays([arrow.array(column) for column in rows.numpy().T], names=list(names))
