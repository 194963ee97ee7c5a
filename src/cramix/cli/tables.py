"""Tables of numbers: the columns and rows that a command works on, and what looks wrong with them."""

from __future__ import annotations

import csv
import difflib
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.cli import formats
from cramix.cli.readers import NotNumbers, Source, source
from cramix.cli.refusal import Refusal, check_input

_MOST_LISTED = 20
_INDEX_NAME = re.compile(r"unnamed: \d+|row[_. ]?(names?|id|numbers?|no)?|index|id", re.IGNORECASE)


class Rows(NamedTuple):
    """Some consecutive rows of data.

    Attributes:
        rows: `(n, d)` in float64.
        numbers: of the rows in the data, from 1, `(n,)`.
        file: that they are in.
    """

    rows: Tensor
    numbers: Tensor
    file: str = ""


class Table(NamedTuple):
    """Rows of numbers from a file.

    Attributes:
        name: what messages call the file.
        rows: `(n, d)` in float64.
        names: of the d columns.
        weights: of the rows, `(n,)`, or None.
        numbers: of the rows in the file, from 1, `(n,)`.
        skipped: how many rows were left out because they were bad.
        notes: what the user should know: columns that look like an index, constant columns.
    """

    name: str
    rows: Tensor
    names: tuple[str, ...]
    weights: Tensor | None
    numbers: Tensor
    skipped: int
    notes: tuple[str, ...]

    @property
    def n_files(self) -> int:
        """The number of files: 1."""
        return 1

    @property
    def n_rows(self) -> int:
        """The number n of rows."""
        return len(self.rows)

    def shown(self) -> tuple[Tensor, Tensor | None]:
        """Return rows and their weights for a picture."""
        return self.rows, self.weights

    def in_order(self) -> Iterator[Rows]:
        """Yield all rows."""
        yield Rows(self.rows, self.numbers)


class Choice(NamedTuple):
    """Which columns to read, and how.

    Attributes:
        columns: names in the order wanted; all but those of `exclude` and `weights` if None.
        exclude: names to leave out.
        weights: name of the column of weights.
        skip_bad: leave out rows with a missing or infinite number, text, too many or too few fields or a negative
            weight, instead of refusing the file.
        delimiter: between the fields of a text file; found from its first line if None.
    """

    columns: list[str] | None = None
    exclude: list[str] | None = None
    weights: str | None = None
    skip_bad: bool = False
    delimiter: str | None = None


def read(
    path: Path,
    choice: Choice | None = None,
    *,
    like: Sequence[str] | None = None,
    strict: bool = True,
) -> Table:
    """Read columns of numbers; a `Refusal` says what is wrong with the file, and where.

    Args:
        path: a file in one of the formats `formats.DATA`, or `-` for csv from standard input.
        choice: which columns, and how to read them.
        like: names of a model's columns, which are read in this order if no others are chosen. Columns without names,
            in the file or in the model, are matched by position.
        strict: refuse a file that does not have the columns of `like`; if not, read all its columns.
    """
    name, choice = formats.input_name(path), choice or Choice()
    _check_format(path, choice.delimiter)
    found = source(path, choice.delimiter)
    names = choose(name, found.names, found.named, choice, like, strict)
    asked = [*names, *([choice.weights] if choice.weights is not None else [])]
    ragged = list[int]()
    loaded = np.column_stack(_load(name, found, asked, choice, ragged))
    if not len(loaded) and not ragged:
        raise Refusal(f"{name} has no rows.")
    finite = np.isfinite(loaded).all(1)
    if choice.skip_bad and choice.weights is not None:
        finite &= loaded[:, -1] >= 0
    if not finite.all() and not choice.skip_bad:
        raise Refusal(_missing(name, loaded, asked, finite))
    if not finite.any():
        raise Refusal(f"{name} has no rows that can be used: all {len(loaded) + len(ragged)} are bad.")
    kept = torch.from_numpy(loaded[finite] if not finite.all() else loaded)
    remarks = [*found.notes]
    if choice.columns is None and like is None:
        remarks += _suspects(name, kept[:, : len(names)].numpy(), names)
    return Table(
        name,
        kept[:, : len(names)].contiguous(),
        tuple(names),
        _weights(name, choice.weights, kept[:, -1]) if choice.weights is not None else None,
        _numbers(finite, ragged),
        int((~finite).sum()) + len(ragged),
        tuple(remarks),
    )


def split_names(text: str | None) -> list[str] | None:
    """Split names at commas, except for commas in quotes."""
    if text is None:
        return None
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def exclude_option(names: Sequence[str]) -> str:
    """Return the option that leaves out columns, as a shell takes it."""
    joined = io.StringIO()
    csv.writer(joined, lineterminator="").writerow(names)
    return f"--exclude {shlex.quote(joined.getvalue())}"


def _check_format(path: Path, delimiter: str | None) -> None:
    if path != formats.STANDARD:
        check_input(path)
    name, suffix = formats.input_name(path), formats.suffix(path)
    if suffix == formats.MODEL:
        raise Refusal(f"{name} is a model; this must be data: {', '.join(formats.DATA)}.")
    if suffix not in formats.DATA or (formats.is_gzipped(path) and suffix not in formats.TEXT):
        raise Refusal(f"{name} must end in one of {', '.join(formats.DATA)}, or in .gz after csv, tsv or txt.")
    if delimiter is not None and not formats.is_text(path):
        raise Refusal(f"--delimiter is for text files; {name} is not one.")


def choose(
    file: str, names: list[str], named: bool, choice: Choice, like: Sequence[str] | None, strict: bool
) -> list[str]:
    """Return the columns to read of those that a file has, which are named or called x1, x2, ...; see `read`."""
    exclude = choice.exclude or []
    for name in exclude:
        _position(file, names, name)
    chosen = [name for name in names if name != choice.weights and name not in exclude]
    if choice.columns is not None:
        chosen = [name for name in choice.columns if name not in exclude]
        if twice := next((name for name in chosen if chosen.count(name) > 1), None):
            raise Refusal(f"--columns must name each column once; {twice!r} is there {chosen.count(twice)} times.")
    elif like is not None and set(like) <= set(names):
        chosen = list(like)
    elif like is not None and strict:
        unnamed = not named or tuple(like) == formats.default_names(len(like))
        if not unnamed or len(chosen) != len(like):
            missing = [name for name in like if name not in names] or list(like)
            raise Refusal(
                f"{file} must have the {len(like)} columns of the model; it lacks {_listed(missing)}. "
                f"It has: {_listed(names)}. Choose as many with --columns, in the model's order."
            )
    if not any(chosen):
        without = " besides the weights" if choice.weights else ""
        raise Refusal(f"{file} must have a column of numbers{without}; it has: {_listed(names)}.")
    return chosen


def _numbers(good: np.ndarray, ragged: Sequence[int]) -> Tensor:
    """Return the numbers of good rows in the file, from 1, where ragged ones are not among those that were read."""
    every = np.arange(1, len(good) + len(ragged) + 1)
    return torch.from_numpy(np.delete(every, np.array(ragged, int) - 1)[good])


def _load(file: str, found: Source, asked: list[str], choice: Choice, ragged: list[int]) -> list[np.ndarray]:
    positions = [_position(file, found.names, name) for name in asked]
    columns = found.load(positions, ragged if choice.skip_bad else None)
    if choice.skip_bad:
        columns = [x if isinstance(x, np.ndarray) or x.numbers is None else x.numbers for x in columns]
    bad = {name: x for name, x in zip(asked, columns, strict=True) if isinstance(x, NotNumbers)}
    refuse_text(file, bad, choice)
    return columns  # type: ignore[return-value]


def refuse_text(file: str, bad: Mapping[str, NotNumbers], choice: Choice) -> None:
    """Raise a `Refusal` if there are columns without numbers, with how to leave them out."""
    if not bad:
        return
    several, first = len(bad) > 1, next(iter(bad))
    what = f"columns {', '.join(map(repr, bad))}" if several else f"column {first!r}"
    at = re.sub(r"^(row \d+)", rf"\1 of {first!r}" if several else r"\1", bad[first].found)
    remedy = bad[first].remedy
    if remedy is None and choice.columns is None and choice.weights not in bad:
        everything = [*(choice.exclude or []), *bad]  # the option is given once
        remedy = f"Leave {'them' if several else 'it'} out with: {exclude_option(everything)}"
    raise Refusal(f"{file}: {what} must hold numbers; {at}.{f' {remedy}' if remedy else ''}")


def _position(file: str, names: list[str], name: str) -> int:
    if names.count(name) == 1:
        return names.index(name)
    if name in names:
        raise Refusal(f"{file} has {names.count(name)} columns named {name!r}. Give them different names.")
    close = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise Refusal(f"{file} has no column {name!r}.{hint} It has: {_listed(names)}.")


def _suspects(file: str, rows: np.ndarray, names: list[str]) -> list[str]:
    index = [name for i, name in enumerate(names) if is_index(rows[:, i], name)]
    constant = [name for i, name in enumerate(names) if len(rows) > 1 and np.ptp(rows[:, i]) == 0]
    return notes(file, names, index, constant)


def notes(file: str, names: Sequence[str], index: list[str], constant: list[str]) -> list[str]:
    """Return notes on columns that look like an index of the rows, and on constant ones."""
    return [
        f"{file}: {', '.join(map(repr, suspects))} {what}. To leave out: {exclude_option(suspects)}"
        for suspects, what in (
            (index, "may be row numbers or identifiers, not measurements"),
            (constant, "never varies"),
        )
        if suspects and len(suspects) < len(names)
    ]


def is_index(column: np.ndarray, name: str) -> bool:
    """Return whether a column looks like an index of the rows, by its name and its numbers."""
    if len(column) < 3 or (column != np.floor(column)).any():
        return False
    return bool(_INDEX_NAME.fullmatch(name)) or (column[0] in (0, 1) and bool((np.diff(column) == 1).all()))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _missing(file: str, loaded: np.ndarray, names: list[str], finite: np.ndarray) -> str:
    row = int(np.argmin(finite))
    column = int(np.argmin(np.isfinite(loaded[row])))
    value = "missing" if np.isnan(loaded[row, column]) else f"{loaded[row, column]}"
    count = int((~finite).sum())
    return (
        f"{file}: {count} of {len(loaded)} rows hold a missing or infinite number (the first: row {row + 1}, "
        f"column {names[column]!r}, {value}). Add --skip-bad to leave them out."
    )


def _weights(file: str, name: str, weights: Tensor) -> Tensor:
    if bool((weights < 0).any()):
        row = int((weights < 0).nonzero()[0])
        raise Refusal(f"{file}: weights in column {name!r} must be >= 0; the first that is not: {weights[row]:g}.")
    if not bool(weights.sum() > 0):
        raise Refusal(f"{file}: weights in column {name!r} must not all be 0.")
    return weights.contiguous()
