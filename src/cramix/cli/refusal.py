"""What the command line says no to, in a line that a person understands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Refusal(Exception):
    """Wrong usage or bad input: something the caller can mend."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a ValueError of the library, which is written for its caller, into a refusal."""
    try:
        yield
    except ValueError as error:
        raise Refusal(str(error)) from None


def check_input(path: Path) -> None:
    """Require a file that is there."""
    if path.is_dir():
        raise Refusal(f"{path} is a folder. Give a file.")
    if not path.exists():
        raise Refusal(f"{path} is not there. Check its name and folder.")


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Require a place that can be written to, of a kind that is known, before anything takes long."""
    if path.suffix.lower() not in suffixes:
        raise Refusal(f"{path} must end in {' or '.join(suffixes)}, which says what to write.")
    if not path.parent.is_dir():
        raise Refusal(f"{path.parent} is not a folder. Make it first.")
    if path.is_dir():
        raise Refusal(f"{path} is a folder. Give a file.")
    if not os.access(path.parent, os.W_OK):
        raise Refusal(f"{path.parent} cannot be written to. Choose another folder.")
