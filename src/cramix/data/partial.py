"""A part of a source in a task on a cluster: its sum, and how sums are added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add
from threading import Lock
from typing import Any, NamedTuple

import torch

from cramix.data.source import BadRowsError, Batch, Function, Source, good

_lock = Lock()
_running, _before = 0, 1


class Partial(NamedTuple):
    """The sum of a function over some parts.

    Args:
        value: the sum, or None if the parts have no rows.
        rows: their number, without bad ones.
        bad: number of bad rows.
    """

    value: Any = None
    rows: int = 0
    bad: int = 0

    @classmethod
    def of(cls, function: Function[Any], batches: Iterable[Batch], source: Source) -> Partial:
        """Run a function on the good rows of a part, by one thread; it is not called for a part without rows."""
        rows = bad = 0

        def counted(batches: Iterable[Batch]) -> Iterator[Batch]:
            nonlocal rows, bad
            for batch in batches:
                rows, bad = rows + len(batch.rows), bad + batch.bad
                yield batch

        some = (batch for batch in batches if len(batch.rows) or batch.bad)
        with one_thread(), torch.no_grad():
            first = next(some, None)
            if first is None:
                return cls()
            value = function(counted(good(_chain(first, some), source)))
        return cls(value, rows, bad)

    @classmethod
    def total(cls, partials: Iterable[Partial]) -> Partial:
        """Add sums in the given order, on which rounding depends."""
        values, rows, bad = zip(*partials, strict=True)
        present = [value for value in values if value is not None]
        return cls(reduce(add, present) if present else None, sum(rows), sum(bad))

    def checked(self, source: Source) -> Any:
        """Return the sum over all parts, or raise an error if no row could be used."""
        if not self.rows and not self.bad:
            raise ValueError(f"{source.name} must have rows; it has none.")
        if not self.rows:
            raise BadRowsError(f"{source.name} has no rows that can be used: all {self.bad} are bad.")
        return self.value


def _chain(first: Batch, others: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    del first  # or it lives while the others are read
    yield from others


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of torch in the block: a cluster keeps all cores busy with tasks.

    Tasks may run in threads of one process, perhaps that of the user, so the last one to end restores the number.
    """
    global _running, _before
    with _lock:
        if not _running:
            _before = torch.get_num_threads()
        _running += 1
        torch.set_num_threads(1)  # in each task: the number belongs to its thread
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                torch.set_num_threads(_before)
