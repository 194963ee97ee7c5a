"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yield a file to write to, which replaces `path` when the block succeeds; until then the old file stays.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(f"{folder}/x") as file:
        ...         _ = file.write(b"all of it")
        ...     Path(f"{folder}/x").read_bytes()
        b'all of it'
    """
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None  # without the temporary name
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the permissions that new files do not get, which can only be read by setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
