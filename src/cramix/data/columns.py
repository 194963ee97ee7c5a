"""Columns by name: which are read, as what, and errors that name those that cannot be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_MOST_LISTED = 20
# pandas stores its row index as a column of Parquet files.
_INDEX = re.compile(r"__index_level_\d+__")


class Options(NamedTuple):
    """What the caller asked for; see `cramix.data.source`."""

    columns: Any = None
    sample_weight: Any = None
    skip_bad: bool = False
    batch_rows: int | None = None


class Column(NamedTuple):
    """A column as its data describe it.

    Args:
        name: of the column.
        dtype: the floating-point dtype that its numbers need, None if it holds no numbers.
        kind: what it holds, for errors.
    """

    name: str
    dtype: torch.dtype | None
    kind: str


class Choice(NamedTuple):
    """The columns to read.

    Args:
        names: of the d columns of rows.
        weights: name of the column of weights, or None.
        dtype: of rows and weights.
        univariate: whether one column was asked for by its name alone, not in a list.
        exact: whether all columns are read, so that others would be missed.
    """

    names: tuple[str, ...]
    weights: str | None
    dtype: torch.dtype
    univariate: bool
    exact: bool

    def all(self) -> list[str]:
        """Return the names of all columns that are read, weights last."""
        return [*self.names, *([] if self.weights is None else [self.weights])]

    def check(self, name: str, columns: Sequence[Column]) -> None:
        """Raise a ValueError unless data called `name`, such as a file, have these columns, in any order."""
        self._check_numbers(name, [_find(name, columns, wanted) for wanted in self.all()])
        if self.exact and (others := [x.name for x in columns if x.name not in self.all()]):
            raise ValueError(
                f"{name} must have the columns of what comes before; it also has {_listed(others)}. "
                "Choose those that all have with cramix.source(X, columns=[...])."
            )

    def _check_numbers(self, name: str, columns: Sequence[Column]) -> None:
        if bad := [f"{x.name!r} ({x.kind})" for x in columns if x.dtype is None]:
            raise ValueError(
                f"{name} must hold numbers in every column; got {', '.join(bad)}. "
                "Choose others with cramix.source(X, columns=[...]), or convert them."
            )


def choose(name: str, columns: Sequence[Column], options: Options) -> Choice:
    """Return which columns of data called `name` are read: those asked for, or all but the weights.

    Example:
        >>> columns = [Column("a", torch.float32, "float"), Column("b", torch.float64, "int64")]
        >>> choose("X", columns, Options(sample_weight="b")).names
        ('a',)
    """
    weights = options.sample_weight
    if weights is not None and not isinstance(weights, str):
        raise ValueError(
            f"sample_weight must be the name of a column of {name}; got {type(weights).__name__}. "
            f"It has: {_listed([x.name for x in columns])}."
        )
    asked = options.columns
    univariate, exact = isinstance(asked, str), asked is None
    if asked is None:
        asked = [x.name for x in columns if x.name != weights and not _INDEX.fullmatch(x.name)]
    elif isinstance(asked, str):
        asked = [asked]
    names = tuple(asked)
    if not names or not all(isinstance(x, str) for x in names):
        raise ValueError(f"columns must be the names of at least one column of {name}; got {names!r}.")
    found = [_find(name, columns, x) for x in names]
    if repeated := [x for x in names if names.count(x) > 1 or x == weights]:
        raise ValueError(f"columns must name each column once, and none of weights; got {repeated[0]!r} again.")
    small = all(x.dtype in (None, torch.float32) for x in found)
    choice = Choice(names, weights, torch.float32 if small else torch.float64, univariate, exact)
    choice._check_numbers(name, [*found, *([] if weights is None else [_find(name, columns, weights)])])
    return choice


def _find(name: str, columns: Sequence[Column], wanted: str) -> Column:
    found = [x for x in columns if x.name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name} has {len(found)} columns named {wanted!r}. Give them different names.")
    names = [x.name for x in columns]
    close = difflib.get_close_matches(wanted, names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"{name} has no column {wanted!r}.{hint} It has: {_listed(names)}.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
