"""Folders of runs: one program at a time, files that are whole, and what they are called."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from cramix.atomic import replacing

# What a file system says that has no locks; there it is up to the user.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def as_name(env: str) -> str:
    """Return the name of an environment as a part of the names of files.

    Example:
        >>> as_name("my_games:rooms/Maze-v0")
        'my_games-rooms-Maze-v0'
    """
    return env.replace("/", "-").replace(":", "-")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other programs from training in a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(f"{folder} must be free; got one that is trained in now. Wait, or end that program.") from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def remove_halves(folder: Path, *names: str) -> None:
    """Remove what a program that was killed was writing, of files of these names, which may have stars."""
    for name in names:
        for half in folder.glob(f".{name}.*"):
            half.unlink()


def result_of(folder: str | Path) -> dict[str, Any]:
    """Return what a run came to."""
    return read(Path(folder) / "result.json", "returns", "mean", "std", "parameters", "seconds", "curve")


def write(path: Path, words: Any) -> None:
    """Write plain values to a file, whole or not at all."""
    with replacing(path) as stream:
        stream.write(json.dumps(words, indent=1).encode())


def read(path: Path, *names: str) -> Any:
    """Read what `write` has written, a dictionary with these names in it if there are any."""
    try:
        words = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} must be whole JSON; got: {error}. Delete it to make it anew.") from None
    for name in names:
        if not isinstance(words, dict) or name not in words:
            raise ValueError(f"{path} must have {name} in it; got a file without. Delete it to make it anew.")
    return words
