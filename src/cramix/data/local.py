"""Sources on this machine: some threads read parts ahead, others compute, and the caller adds up in order."""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, Generic, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from cramix.arrays import to_numpy
from cramix.data.source import BadRowsError, Batch, Function, Progress, S, Source, good, rows_at_a_time

# Seconds to wait for threads after an error. A read that blocks for longer is left to end by itself.
_PATIENCE = 5.0


class Part(Protocol):
    """Some consecutive rows of a source, not yet read."""

    def read(self, rows: int, skip_bad: bool) -> Iterator[Batch]:
        """Yield the rows, at most so many at a time; `good` looks for bad ones later.

        Args:
            rows: of a batch, at most.
            skip_bad: whether rows that cannot even be parsed are counted in `Batch.bad`; otherwise they are an error.
        """
        ...


class LocalSource(Source):
    """A source whose parts are read on this machine; abstract.

    Sums do not depend on the number of threads: each batch is computed by one thread, and results are added in the
    order of the rows. Batches in memory are bounded by the number of threads, however many rows there are.

    Attributes:
        batch_rows: rows that are read at a time; None for a number that suits the columns.
        workers: threads that compute; None for as many as torch has.
        reads_in_caller: whether parts are read in the calling thread, for data that are tied to it.
        tensors: whether `map` returns a tensor; otherwise it returns a NumPy array.
        again: how to make a source repeatable that is read once, for the error.
    """

    batch_rows: int | None = None
    workers: int | None = None
    reads_in_caller: bool = False
    tensors: bool = False
    again: str = ""
    _spent: bool = False

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yield all parts, in order. It is read lazily, by one thread at a time."""

    def sum(self, function: Function[S], progress: Progress | None = None) -> S:
        """Return the sum of a function over all batches of good rows, by threads; see `Source.sum`."""
        return self._total(function, progress, strict=False)

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Return a function of the rows, one entry for each row, as an array; a bad row is always an error."""
        pieces = self._total(lambda batches: _Pieces([function(batch.rows) for batch in batches]), None, strict=True)
        result = torch.cat(pieces.tensors)
        return result if self.tensors else to_numpy(result)

    def batches(self) -> Iterator[Batch]:
        """Yield all batches of good rows in order, in the calling thread: for what depends on the rows before."""
        self._begin()
        for part in self.parts():
            with closing(part.read(self.rows_at_a_time(), self.skip_bad)) as batches:  # type: ignore[type-var]
                yield from good(batches, self)

    def rows_at_a_time(self) -> int:
        """Return the number of rows of a batch."""
        return self.batch_rows or rows_at_a_time(self.dim)

    def _total(self, function: Function[S], progress: Progress | None, strict: bool) -> S:
        self._begin()
        release_memory()  # what a search before this pass has left
        try:
            return _Pass(self, function, progress, strict).run()
        finally:
            release_memory()

    def _begin(self) -> None:
        if self._spent:
            raise ValueError(f"{self.name} can be read only once, and it has been. {self.again}")
        self._spent = not self.repeatable


def release_memory() -> None:
    """Give memory back that Arrow, if it was used, and the C library keep: some hundred megabytes."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)  # glibc keeps what threads have freed in an arena for each of them


class _Pieces:
    """Results of consecutive batches, which are added by placing them one after the other."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors

    def __add__(self, other: Self) -> Self:
        self.tensors += other.tensors  # in place, or many parts take time that grows with the square of their number
        return self


class _Task(NamedTuple):
    """A batch to compute: number `number` of a part."""

    part: int
    number: int
    batch: Batch


class _Result(NamedTuple):
    """What the function returned of a batch."""

    part: int
    number: int
    value: Any
    rows: int
    bad: int


class _Ended(NamedTuple):
    """News that a part has been read and had so many batches."""

    part: int
    batches: int


class _Failed(NamedTuple):
    """An error in a thread: at batch `number` of a part, or elsewhere if both are None."""

    error: BaseException
    part: int | None = None
    number: int | None = None


class _NoMoreParts(NamedTuple):
    """News that all parts have been taken by readers."""


class _PartSum:
    """The sum over the batches of a part, added in order, up to one that has failed."""

    def __init__(self) -> None:
        self.failed: _Failed | None = None  # the first failure
        self.values: list[Any] = []  # at most one: the sum so far
        self.added = 0
        self.waiting: dict[int, Any] = {}
        self.batches: int | None = None  # unknown while the part is read

    def add(self, number: int, value: Any) -> int:
        """Add a value when its turn comes; return how many were added or dropped."""
        if self.failed is not None and number > self.failed.number:  # type: ignore[operator]
            return 1
        self.waiting[number] = value
        before = self.added
        while self.added in self.waiting:
            following = self.waiting.pop(self.added)
            self.values = [self.values[0] + following] if self.values else [following]
            self.added += 1
        return self.added - before

    def fail(self, failed: _Failed) -> int:
        """Note a failure; return how many batches will not be added any more."""
        assert failed.number is not None
        if self.failed is None or failed.number < self.failed.number:  # type: ignore[operator]
            self.failed = failed
        dropped = [number for number in self.waiting if number > failed.number]
        for number in dropped:
            del self.waiting[number]
        return len(dropped)

    def complete(self) -> bool:
        return self.added == self.batches

    def error(self) -> BaseException | None:
        """Return the error of the first failure once all batches before it are added."""
        return self.failed.error if self.failed is not None and self.failed.number == self.added else None


class _Pass(Generic[S]):
    """One pass over a local source.

    Readers take parts in order and put their batches into a queue, workers take them from there and compute, and the
    caller adds up what comes back. Two semaphores bound the memory: one counts batches that are read, computed or
    waiting to be added, the other one parts that are not yet added. The first batch that is missing in a sum is always
    among those counted, so nobody waits for ever.

    An error is raised when everything before it is added, so that it is that of the first bad row, whatever the threads
    do. Batches after it in its part are dropped.
    """

    def __init__(self, source: LocalSource, function: Function[S], progress: Progress | None, strict: bool) -> None:
        self.source, self.function, self.progress, self.strict = source, function, progress, strict
        self.threads = torch.get_num_threads()
        self.workers = source.workers or self.threads
        self.readers = 1 if source.reads_in_caller else max(2, self.workers // 2)
        self.free_batches = threading.Semaphore(self.readers + self.workers + 2)
        self.free_parts = threading.Semaphore(self.readers + self.workers + 2)
        self.unread = source.parts()
        self.parts = enumerate(self.unread)
        self.taking = threading.Lock()
        self.taken = 0
        self.stop = threading.Event()
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.news: queue.SimpleQueue[_Result | _Ended | _Failed | _NoMoreParts] = queue.SimpleQueue()
        self.sums: dict[int, _PartSum] = {}
        self.totals: list[S] = []  # at most one: the sum so far
        self.added = self.rows = self.bad = 0
        self.all_taken = False
        self.grad = torch.is_grad_enabled()  # of this thread only

    def run(self) -> S:
        """Return the sum."""
        threads = [threading.Thread(target=self._compute, daemon=True) for _ in range(self.workers)]
        if not self.source.reads_in_caller:
            threads += [threading.Thread(target=self._read, daemon=True) for _ in range(self.readers)]
        try:
            for thread in threads:
                thread.start()
            if self.source.reads_in_caller:
                for _ in self._batches():
                    pass
            while not self.all_taken or self.added < self.taken:
                self._add(self._next_news())
        finally:
            self._end(threads)
        return self._checked()

    def _checked(self) -> S:
        if not self.rows and not self.bad:
            raise ValueError(f"{self.source.name} must have rows; it has none.")
        if not self.rows:
            raise BadRowsError(f"{self.source.name} has no rows that can be used: all {self.bad} are bad.")
        return self.totals[0]

    def _read(self) -> None:
        try:
            for _ in self._batches():
                if self.stop.is_set():
                    return
        except BaseException as error:
            self.news.put(_Failed(error))

    def _batches(self) -> Iterator[None]:
        """Read parts until there are no more, and queue their batches; yields where it may be stopped."""
        rows, skip_bad = self.source.rows_at_a_time(), self.source.skip_bad and not self.strict
        while True:
            self._acquire(self.free_parts)
            yield
            with self.taking:
                index, part = next(self.parts, (0, None))
                self.taken += part is not None
            if part is None:
                self.news.put(_NoMoreParts())
                return
            number = 0
            with closing(part.read(rows, skip_bad)) as batches:  # type: ignore[type-var]
                while True:
                    self._acquire(self.free_batches)
                    yield
                    try:
                        batch = next(batches, None)
                    except Exception as error:
                        self.news.put(_Failed(error, index, number))
                        return
                    if batch is None:
                        self.free_batches.release()
                        break
                    if not len(batch.rows) and not batch.bad:
                        self.free_batches.release()
                        continue
                    self.tasks.put(_Task(index, number, batch))
                    number += 1
                    del batch  # or it lives while the next one is read
            self.news.put(_Ended(index, number))

    def _acquire(self, free: threading.Semaphore) -> None:
        if self.source.reads_in_caller:  # who releases, too
            while not free.acquire(blocking=False):
                self._add(self._next_news())
        else:
            free.acquire()

    def _compute(self) -> None:
        try:
            torch.set_num_threads(1)
            with torch.set_grad_enabled(self.grad):
                while (task := self.tasks.get()) is not None and not self.stop.is_set():
                    try:
                        self.news.put(self._result(task))
                    except Exception as error:
                        self.news.put(_Failed(error, task.part, task.number))
                    del task
        except BaseException as error:
            self.news.put(_Failed(error))

    def _result(self, task: _Task) -> _Result:
        batches = list(good((task.batch,), self.source, strict=self.strict))
        rows, bad = len(batches[0].rows), batches[0].bad
        return _Result(task.part, task.number, self.function(iter(batches)), rows, bad)

    def _next_news(self) -> _Result | _Ended | _Failed | _NoMoreParts:
        while True:
            try:
                # Without a timeout, some systems do not let an interrupt through.
                return self.news.get(timeout=0.5)
            except queue.Empty:
                continue

    def _add(self, news: _Result | _Ended | _Failed | _NoMoreParts) -> None:
        if isinstance(news, _NoMoreParts):
            self.all_taken = True
            return
        if news.part is None:
            raise news.error
        part = self.sums.setdefault(news.part, _PartSum())
        if isinstance(news, _Ended):
            part.batches = news.batches
        elif isinstance(news, _Failed):
            self._release(1 + part.fail(news))
        else:
            self._release(part.add(news.number, news.value))
            self.rows += news.rows
            self.bad += news.bad
            if self.progress is not None:
                self.progress(news.rows + news.bad)
        while self.added in self.sums and self.sums[self.added].complete():
            for value in self.sums.pop(self.added).values:  # none of a part without rows
                self.totals = [self.totals[0] + value] if self.totals else [value]
            self.added += 1
            self.free_parts.release()
        first = self.sums.get(self.added)
        if first is not None and (error := first.error()) is not None:
            raise error

    def _release(self, batches: int) -> None:
        for _ in range(batches):
            self.free_batches.release()

    def _end(self, threads: list[threading.Thread]) -> None:
        """Stop all threads, wait for them, and restore what they changed."""
        self.stop.set()
        for _ in range(self.readers):
            self.free_parts.release()
            self.free_batches.release()
        for _ in range(self.workers):
            self.tasks.put(None)
        deadline = time.monotonic() + _PATIENCE
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in threads) and isinstance(self.unread, Generator):
            self.unread.close()  # files and results of queries are closed now, not when the error is forgotten
        # Each worker has a number of threads of its own, but threads that are started later take the number set last.
        torch.set_num_threads(self.threads)
