"""Rows in files: paths, folders and patterns, and a source for files of one format."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from cramix.data.columns import Choice, Column, Options, choose
from cramix.data.local import LocalSource, Part
from cramix.data.source import BadRowsError, position

# The module of each format, which has `inspect` and `parts`. A new format is one file and its line.
FORMATS = {
    ".parquet": "cramix.data.parquet",
    ".pq": "cramix.data.parquet",
    ".csv": "cramix.data.text",
    ".tsv": "cramix.data.text",
    ".txt": "cramix.data.text",
    ".arrow": "cramix.data.ipc",
    ".feather": "cramix.data.ipc",
    ".ipc": "cramix.data.ipc",
    ".npy": "cramix.data.npy",
}


class File(NamedTuple):
    """A file as it was when the source was made.

    Args:
        path: of the file.
        size: in bytes.
        mtime_ns: time of its last change.
        columns: that it has.
        n_rows: that it has, None if that is unknown before it is read.
        layout: what its format needs to know to read it.
        univariate: whether its rows are single numbers without an axis of columns.
        named: whether its columns have names; otherwise they are called x1, x2, ...
    """

    path: str
    size: int
    mtime_ns: int
    columns: tuple[Column, ...] = ()
    n_rows: int | None = None
    layout: Any = None
    univariate: bool = False
    named: bool = True

    def check(self) -> None:
        """Raise an error if the file is gone or has changed."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path} does not exist any more. Restore the file.") from None
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            sizes = f"{self.size} bytes before, {now.st_size} now" if now.st_size != self.size else "same size"
            raise BadRowsError(f"{self.path} has changed since the source was made ({sizes}). Open the source again.")

    def unreadable(self, error: Exception, where: str = "") -> Exception:
        """Return the error for a file that cannot be read, perhaps because it is gone or has changed."""
        try:
            self.check()
        except (OSError, BadRowsError) as reason:
            return reason
        return BadRowsError(f"{self.path}{where} cannot be read: {str(error).splitlines()[0]}")


def accepts(X: Any) -> bool:
    """Return whether X is a path or a list of paths."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and all(isinstance(x, str | os.PathLike) for x in X)
    return isinstance(X, str | os.PathLike)


def is_large(X: Any) -> bool:
    """Return True: files need not fit into memory."""
    return True


def open_source(X: Any, options: Options) -> FileSource:
    """Return a source of the rows in files: X is a path, a folder, a pattern with * or a list of them."""
    return FileSource(find(X), options)


class FileSource(LocalSource):
    """Rows of files of one format, in the order of the files."""

    def __init__(self, paths: Sequence[str], options: Options) -> None:
        self._format = _one_format(paths)  # by name, as modules cannot be sent to other processes
        self.name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more files"
        self.skip_bad, self.batch_rows = options.skip_bad, options.batch_rows
        self.files = [_inspected(path, import_module(self._format)) for path in paths]
        first = self.files[0]
        self._choice = choice = self._chosen(options)
        self.columns = choice.names if first.named or options.columns is not None else None
        self.dim, self.dtype = len(choice.names), choice.dtype
        self.weighted, self.univariate = choice.weights is not None, choice.univariate or first.univariate
        counts = [file.n_rows for file in self.files]
        self.n_rows = None if None in counts else sum(x for x in counts if x is not None)
        if self.n_rows == 0:
            raise ValueError(f"{self.name} must have rows; it has none.")

    def _chosen(self, options: Options) -> Choice:
        # Files without rows may not even have columns.
        files = [x for x in self.files if x.columns]
        if not files:
            raise ValueError(f"{self.name} must have rows; it has none.")
        first = files[0]
        choice = choose(first.path, first.columns, options)
        for file in files[1:]:
            if not first.named and (len(file.columns), file.univariate) != (len(first.columns), first.univariate):
                raise ValueError(
                    f"{file.path} must have as many columns as {first.path}; "
                    f"got {len(file.columns)} and {len(first.columns)}."
                )
            choice.check(file.path, file.columns)
            dtypes = [column.dtype for column in file.columns if column.name in choice.names]
            choice = choice._replace(dtype=max([choice.dtype, *(x for x in dtypes if x)], key=lambda x: x.itemsize))
        return choice

    def parts(self) -> Iterator[Part]:
        """Yield the parts of all files."""
        first, file_format = 0, import_module(self._format)
        for number, file in enumerate(self.files):
            yield from file_format.parts(file, self._choice, position(number) if self.n_rows is None else first)
            first += file.n_rows or 0

    def fingerprint(self) -> str:
        """Return a text that changes with the paths, sizes and times of the files."""
        listed = "\n".join(f"{os.path.abspath(x.path)} {x.size} {x.mtime_ns}" for x in self.files)
        digest = hashlib.sha256(f"{listed}\n{self._choice}".encode()).hexdigest()
        return f"{len(self.files)} files {digest}"


def find(X: Any) -> list[str]:
    """Return the data files that a path, a folder, a pattern or a list of them stands for, those of each in order.

    A folder stands for its files and those in folders named like `year=2024`. Names that start with . or _ are ignored.
    """
    return [path for x in (X if isinstance(X, list | tuple) else [X]) for path in _of_path(os.fspath(x))]


def first_file(X: Any) -> File:
    """Return the first data file that has columns; only it and empty ones before it are opened."""
    paths = find(X)
    for path in paths:
        file = _inspected(path, import_module(_one_format([path])))
        if file.columns:
            return file
    raise ValueError(f"{paths[0]} must have rows; it has none.")


def _of_path(path: str) -> list[str]:
    if "://" in path:
        raise ValueError(f"X must be a local path; got {path!r}. Open it with pyarrow.dataset.dataset and pass that.")
    if os.path.isdir(path):
        found = list(_in_folder(path))
        if not found:
            raise FileNotFoundError(f"{path} must hold data files; it holds none. Known suffixes: {_suffixes()}.")
        return found
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        found = sorted(x for x in glob.glob(path, recursive=True) if os.path.isfile(x) and not _is_hidden(x))
        if found:
            return found
        raise FileNotFoundError(f"{path} matches no file.")
    raise FileNotFoundError(f"{path} does not exist.")


def _in_folder(folder: str) -> Iterator[str]:
    entries = sorted(os.scandir(folder), key=lambda x: x.name)
    if any(x.name == "_delta_log" for x in entries):
        raise ValueError(f"{folder} is a Delta table, some of whose files may be outdated. Pass an Arrow stream of it.")
    for entry in entries:
        if _is_hidden(entry.name):
            continue
        if not entry.is_dir():
            yield entry.path
        elif "=" in entry.name:
            yield from _in_folder(entry.path)
        else:
            pattern = os.path.join(folder, "**", "*.parquet")
            raise ValueError(f"{folder} must hold files only; it holds the folder {entry.name!r}. Pass {pattern!r}.")


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith((".", "_"))


def suffix(path: str) -> str:
    """Return the suffix that decides the format, in lower case; that of the content for a gzipped file."""
    inner = Path(path[:-3]) if path.lower().endswith(".gz") else Path(path)
    return inner.suffix.lower()


def _one_format(paths: Sequence[str]) -> str:
    """Return the module of the format that all files have."""
    found: dict[str, str] = {}
    for path in paths:
        kind = suffix(path)
        gzipped = path.lower().endswith(".gz")
        if kind not in FORMATS or (gzipped and FORMATS[kind] != FORMATS[".csv"]):
            raise ValueError(f"{path} must end in one of {_suffixes()}; text may be gzipped, as in .csv.gz.")
        found.setdefault(FORMATS[kind], path)
    if len(found) > 1:
        first, second, *_ = found.values()
        raise ValueError(f"files must have one format; got {first} and {second}. Pass one kind, as with '*.parquet'.")
    return next(iter(found))


def _suffixes() -> str:
    return ", ".join(FORMATS)


def _inspected(path: str, file_format: Any) -> File:
    before = os.stat(path)
    file = File(path, before.st_size, before.st_mtime_ns)
    return file_format.inspect(file)
