"""Data of any size: folders, patterns and large files, which are read in parts and never as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cramix.cli import formats, tables
from cramix.cli.readers import NotNumbers
from cramix.cli.refusal import Refusal, refusing
from cramix.data import Batch, Source, source
from cramix.data.files import FORMATS, FileSource, first_file
from cramix.data.source import Function, Progress, S, good
from cramix.data.survey import Survey, Surveying

# Files of so many bytes are read in parts.
LARGE = 256 * 10**6
# Bytes of files whose rows are counted before a fit.
_SMALL = 16 * 10**6
# Rows that are kept for pictures and notes, and those that are computed with at a time.
_KEPT, _AT_A_TIME = 20_000, 1 << 14
# pandas stores its row index as a column of Parquet files.
_INDEX = re.compile(r"__index_level_\d+__")


def in_parts(path: Path, delimiter: str | None = None, *, asked: bool = False) -> bool:
    """Return whether data are read in parts: folders, patterns, Arrow files, large files, and files if that is asked.

    Standard input, workbooks and text with a given delimiter are always read as a whole.
    """
    if path == formats.STANDARD:
        return False
    if path.is_dir() or _is_pattern(path):
        return True
    suffix = formats.suffix(path)
    if suffix not in FORMATS or delimiter is not None:
        return False
    return asked or suffix not in formats.DATA or (path.is_file() and path.stat().st_size >= LARGE)


def read(
    path: Path, choice: tables.Choice | None = None, *, like: Sequence[str] | None = None, strict: bool = True
) -> Streamed:
    """Open data that are read in parts, and look at their first rows; a `Refusal` says what is wrong.

    Args:
        path: a file, a folder or a pattern.
        choice: which columns, and how to read them.
        like: names of a model's columns, as in `tables.read`.
        strict: refuse data that do not have the columns of `like`; if not, read all columns.
    """
    choice = choice or tables.Choice()
    if choice.delimiter is not None:
        raise Refusal(f"--delimiter is for one text file; {path} is none. The delimiter of each file is detected.")
    with refusing():
        first = first_file(str(path))
        columns = {column.name: column for column in first.columns if not _INDEX.fullmatch(column.name)}
        names = [column.name for column in first.columns if column.name in columns]
        chosen = tables.choose(first.path, names, first.named, choice, like, strict)
        asked = [*chosen, *([choice.weights] if choice.weights is not None else [])]
        tables.refuse_text(
            first.path,
            {x: NotNumbers(f"it holds {columns[x].kind}") for x in asked if x in columns and columns[x].dtype is None},
            choice,
        )
        # All columns are those of every file, not only of the first.
        every = choice.columns is None and not choice.exclude and like is None
        files = source(
            str(path), columns=None if every else chosen, sample_weight=choice.weights, skip_bad=choice.skip_bad
        )
        assert isinstance(files, FileSource)
        return Streamed(str(path), files, tuple(chosen), choice.columns is None and like is None)


class Streamed:
    """Rows of files that are read in parts; it has the attributes of a `Table` that commands use.

    Args:
        name: what messages call the data.
        files: the rows.
        names: of the columns.
        suspicious: whether to look for columns that are an index, or constant.

    Attributes:
        name: what messages call the data.
        rows: the source, to fit to; its first pass also tells what a command reports.
        names: of the columns.
        weights: None: the source has them.
    """

    weights: Tensor | None = None

    def __init__(self, name: str, files: FileSource, names: tuple[str, ...], suspicious: bool) -> None:
        self.name, self.names, self._files = name, names, files
        self.rows = Observed(files)
        self._index = self._like_index() if suspicious else []
        self._suspicious, self._skipped = suspicious, 0

    @property
    def n_rows(self) -> int | None:
        """The number of rows that are used; before the first pass that of all rows, None if it is unknown."""
        return self.rows.seen.n_rows if self.rows.seen is not None else self._files.n_rows

    def count_if_small(self) -> None:
        """Count the rows of small text files, which takes no time."""
        if self.n_rows is None and sum(file.size for file in self._files.files) < _SMALL:
            self.rows.survey()

    @property
    def n_files(self) -> int:
        """The number of files."""
        return len(self._files.files)

    @property
    def skipped(self) -> int:
        """The number of rows that were skipped in a pass."""
        return self._skipped if self.rows.seen is None else self.rows.seen.n_bad

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know; constant columns are known after the first pass."""
        constant = []
        if self._suspicious and self.rows.seen is not None and self.rows.seen.extremes.rows is not None:
            ends = self.rows.seen.extremes.rows.rows
            flat = (ends.amin(0) == ends.amax(0)).tolist()
            constant = [name for name, is_flat in zip(self.names, flat, strict=True) if is_flat]
        return tuple(tables.notes(self.name, self.names, self._index, constant))

    def shown(self) -> tuple[Tensor, Tensor | None]:
        """Return a sample of the rows and their weights, for a picture."""
        sample = self.rows.survey().sample.rows
        return sample.rows.double(), sample.weights if self._files.weighted else None

    def in_order(self) -> Iterator[tables.Rows]:
        """Yield all rows, some at a time, in the order of the files: one pass in which memory does not grow.

        Rows that are skipped have a number; those with too many or too few fields have none.
        """
        self._skipped, number, used = 0, 1, 0
        for batch in self._batches():
            self._skipped += batch.bad
            fine = batch.rows.isfinite().all(-1)
            if not bool(fine.all()):
                if not self._files.skip_bad:
                    list(good((batch,), self._files))  # raises the error
                self._skipped += int((~fine).sum())
            numbers = torch.arange(number, number + len(fine))[fine]
            number, used = number + len(fine), used + len(numbers)
            if len(numbers):
                yield tables.Rows(batch.rows[fine].double(), numbers, batch.place.name)
        if not used:
            raise Refusal(f"{self.name} has no rows that can be used; {self._skipped} were skipped.")

    def _batches(self) -> Iterator[Batch]:
        rows = min(_AT_A_TIME, self._files.rows_at_a_time())
        for part in self._files.parts():
            with closing(part.read(rows, self._files.skip_bad)) as batches:  # type: ignore[type-var]
                yield from batches

    def _like_index(self) -> list[str]:
        """Return the columns whose first numbers look like an index."""
        with closing(self._batches()) as batches:  # type: ignore[type-var]
            rows = next((batch.rows for batch in batches if len(batch.rows)), None)
        if rows is None:
            return []
        head = rows[rows.isfinite().all(-1)].double().numpy()
        return [name for i, name in enumerate(self.names) if tables.is_index(head[:, i], name)]


class Observed(Source):
    """A source whose first pass, whatever it is for, also counts the rows and keeps a small sample of them.

    Attributes:
        seen: what the first pass told; None before it.
    """

    seen: Survey | None = None

    def __init__(self, rows: Source) -> None:
        self._rows = rows
        self.dim, self.univariate, self.dtype, self.columns = rows.dim, rows.univariate, rows.dtype, rows.columns
        self.weighted, self.n_rows, self.repeatable = rows.weighted, rows.n_rows, rows.repeatable
        self.skip_bad, self.name = rows.skip_bad, rows.name

    def survey(self) -> Survey:
        """Return what the first pass told; if there was none, the rows are read for it."""
        if self.seen is None:
            self.seen = self._rows.sum(self._surveying())
        return self.seen

    def sum(self, function: Function[S], progress: Progress | None = None) -> S:
        """Return the sum of a function over all parts; see `Source.sum`."""
        if self.seen is not None:
            return self._rows.sum(function, progress)
        both = self._rows.sum(_Both(function, self._surveying()), progress)
        self.seen = both.survey
        return both.value

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Return a function of the rows of all batches; see `Source.map`."""
        return self._rows.map(function)

    def fingerprint(self) -> str:
        """Return that of the source."""
        return self._rows.fingerprint()

    def _surveying(self) -> Surveying:
        return Surveying(_KEPT, 0, self.n_rows)


@dataclass(frozen=True)
class _Pair:
    """The value of a function, and a survey of the same rows."""

    value: Any
    survey: Survey

    def __add__(self, other: _Pair) -> _Pair:
        return _Pair(self.value + other.value, self.survey + other.survey)


@dataclass(frozen=True)
class _Both:
    """A function together with a survey."""

    function: Callable[[Iterator[Batch]], Any]
    surveying: Surveying

    def __call__(self, batches: Iterator[Batch]) -> _Pair:
        held = list(batches)
        return _Pair(self.function(iter(held)), self.surveying(iter(held)))


def _is_pattern(path: Path) -> bool:
    return has_magic(str(path)) and not path.exists()
