"""Where rows come from: sources, which are read in parts, and sums over all their rows.

A source knows how to run a function on each of its parts, where the part is, and to add up what comes back. That is all
that a fit to data of any size needs: its passes are such sums. A new kind of source is one small file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

# Rows that are read at a time, and the numbers in them, at most.
BATCH_ROWS, _NUMBERS = 1 << 16, 1 << 22
# Positions in parts whose number of rows is unknown are this far apart.
_PART = 1 << 40


class BadRowsError(ValueError):
    """Rows that cannot be used: missing or infinite numbers, text, a negative weight, a file that cannot be read.

    Example:
        >>> import numpy as np
        >>> from cramix.data import source
        >>> next(iter(source(np.array([[0.0, 1.0], [np.nan, 1.0]])).batches()))
        Traceback (most recent call last):
        cramix.data.source.BadRowsError: ...
    """


class Batch(NamedTuple):
    """Some consecutive rows.

    Args:
        rows: `(n, d)`, floating point, on the CPU.
        weights: `(n,)`, or None.
        position: of the first row: its index in the source where that is known, else `position(part, row)`. Positions
            ascend, which puts rows of all parts in order and seeds the choice of a sample.
        place: of the first row, for errors.
        bad: number of rows that were left out because they could not be used.

    Example:
        >>> Batch(torch.zeros(3, 2), None, 0, "row 1").rows.shape
        torch.Size([3, 2])
    """

    rows: Tensor
    weights: Tensor | None
    position: int
    place: Place
    bad: int = 0


class Place(NamedTuple):
    """Where a batch lies, for people: in a file, for example, and the number of its first row there."""

    name: str
    row: int = 0

    def of(self, i: int) -> str:
        """Return the place of row i of the batch, counted from 1 as people do."""
        return f"{self.name}, row {self.row + i + 1}"

    def after(self, rows: int) -> Place:
        """Return the place so many rows further."""
        return Place(self.name, self.row + rows)


def position(part: int, row: int = 0) -> int:
    """Return the position of a row of a part if the numbers of rows of earlier parts are unknown."""
    return part * _PART + row


def rows_at_a_time(dim: int) -> int:
    """Return the number of rows of a batch: fewer if they have many columns."""
    return max(1, min(BATCH_ROWS, _NUMBERS // dim))


class Sum(Protocol):
    """What a function returns of a part: something that can be added."""

    def __add__(self, other: Self, /) -> Self: ...


S = TypeVar("S", bound=Sum)
Function = Callable[[Iterator[Batch]], S]
Progress = Callable[[int], None]


class Source(ABC):
    """Rows of d numbers, with weights or without, that are read in parts; abstract.

    Attributes:
        dim: d.
        univariate: whether rows are single numbers without an axis of columns, so that a fit is a `NormalMixture`.
        dtype: of the rows, float32 or float64.
        columns: their names; None where there are none.
        weighted: whether rows have weights.
        n_rows: their number, bad ones included; None if it is unknown before a pass.
        repeatable: whether it can be read again and again. Otherwise a second pass raises an error.
        skip_bad: whether rows that cannot be used are left out and counted, instead of raising a `BadRowsError`.
        name: what the source is, for people.

    Example:
        >>> import numpy as np
        >>> from cramix.data import source
        >>> rows = source(np.zeros((100, 3)))  # rows (n, d)
        >>> rows.n_rows, rows.dim, rows.univariate, rows.weighted
        (100, 3, False, False)
    """

    dim: int
    univariate: bool = False
    dtype: torch.dtype = torch.float64
    columns: tuple[str, ...] | None = None
    weighted: bool = False
    n_rows: int | None = None
    repeatable: bool = True
    skip_bad: bool = False
    name: str = "X"

    @abstractmethod
    def sum(self, function: Function[S], progress: Progress | None = None) -> S:
        """Return the sum of a function over all parts, each of which it gets as batches of good rows.

        Args:
            function: called once for each part or piece of it, in any order, perhaps in other threads or processes. It
                must not keep state. Batches without rows may come: they count bad ones.
            progress: called with the number of rows of each batch or part that is done, in the calling thread.
        """

    @abstractmethod
    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Return a function of the rows of all batches, `(n, d)` to `(n, ...)`, as the kind of data the source is."""

    def count(self) -> int | None:
        """Return the number of rows, which may be counted for it where that takes no pass; None if it is unknown.

        Parts then know how few of their rows a sample needs, so that no more of them travel.
        """
        return self.n_rows

    def fingerprint(self) -> str:
        """Return a text that changes if the rows may have changed, for checkpoints."""
        return f"{self.name} {self.n_rows} x {self.dim} {self.dtype} {self.columns}"


def good(batches: Iterable[Batch], source: Source, *, strict: bool = False) -> Iterator[Batch]:
    """Yield batches without their bad rows; unless these are to be skipped, raise a `BadRowsError` for the first.

    A batch without any good row is yielded, too: it counts the bad ones. If `strict`, no row is skipped.
    """
    for batch in batches:
        if _clearly_good(batch):
            yield batch
            continue
        finite = batch.rows.isfinite()
        fine = finite.all(-1)
        if batch.weights is not None:
            fine &= batch.weights.isfinite() & (batch.weights >= 0)
        if bool(fine.all()):
            yield batch
        elif source.skip_bad and not strict:
            weights = None if batch.weights is None else batch.weights[fine]
            yield batch._replace(rows=batch.rows[fine], weights=weights, bad=batch.bad + int((~fine).sum()))
        else:
            raise BadRowsError(f"{_described(batch, finite, fine, source)}. {cure(strict and source.skip_bad)}")


def _clearly_good(batch: Batch) -> bool:
    """Return whether sums, which are finite only if all numbers are, prove that there is no bad row."""
    if not bool(batch.rows.sum().isfinite()):
        return False
    w = batch.weights
    return w is None or not len(w) or (bool(w.sum().isfinite()) and bool(w.amin() >= 0))


def cure(one_for_each: bool = False) -> str:
    """Return what to do about a bad row; it cannot be skipped where the result has one entry for each row."""
    if one_for_each:
        return "Correct it or leave it out of the data: the result has one entry for each row, so none is skipped."
    return "Correct it, or skip such rows with cramix.source(X, skip_bad=True)."


def _described(batch: Batch, finite: Tensor, fine: Tensor, source: Source) -> str:
    i = int((~fine).to(torch.uint8).argmax())
    if bool(finite[i].all()):
        what = f"a weight of {batch.weights[i].item():g}; weights must be >= 0 and finite"  # type: ignore[index]
    else:
        j = int((~finite[i]).to(torch.uint8).argmax())
        value = batch.rows[i, j].item()
        column = f"column {source.columns[j]!r}" if source.columns else f"column {j}"
        what = f"{'a missing number' if value != value else f'{value:g}'} in {column}"
    return f"{batch.place.of(i)} has {what}"
