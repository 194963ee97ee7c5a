"""Folders of runs: one process at a time, atomic files, and their names."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from cramix.atomic import replacing

# Errors of file systems without locks; there, nothing protects a folder from a second process.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def slug(env: str) -> str:
    """Return the name of an environment in a form that file names can contain.

    Example:
        >>> slug("my_games:rooms/Maze-v0")
        'my_games-rooms-Maze-v0'
    """
    return env.replace("/", "-").replace(":", "-")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; it is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(f"{folder} must not be in use; got one locked by another process. Wait for it.") from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def remove_partial_files(folder: Path, *patterns: str) -> None:
    """Remove the temporary files of a killed process, for files with names of these patterns."""
    for pattern in patterns:
        for partial in folder.glob(f".{pattern}.*"):
            partial.unlink()


def read_result(folder: str | Path) -> dict[str, Any]:
    """Return the result of a run."""
    return read_json(Path(folder) / "result.json", "returns", "mean", "std", "parameters", "seconds", "curve")


def write_json(path: Path, content: Any) -> None:
    """Write plain values to a file, atomically."""
    with replacing(path) as stream:
        stream.write(json.dumps(content, indent=1).encode())


def read_json(path: Path, *keys: str) -> Any:
    """Return the content of a file; if keys are given, a dictionary that has them."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} must be valid JSON; got: {error}. Delete it to create it again.") from None
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise ValueError(f"{path} must have the key {key}; got a file without it. Delete it to create it again.")
    return content
