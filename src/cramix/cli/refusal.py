"""Errors that the user can correct: invalid options and invalid input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Refusal(Exception):
    """Invalid input; the command prints the message and exits with code 2."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn the library's ValueErrors, which are about what the user passed, into refusals."""
    try:
        yield
    except ValueError as error:
        raise Refusal(str(error)) from None


def check_input(path: Path) -> None:
    """Require an existing file."""
    if path.is_dir():
        raise Refusal(f"{path} is a folder, not a file.")
    if not path.exists():
        raise Refusal(f"{path} does not exist.")


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Require a path that can be written to, with a known suffix, before a long computation starts."""
    if path.suffix.lower() not in suffixes:
        raise Refusal(f"{path} must end in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise Refusal(f"{path.parent} is not a folder. Create it first.")
    if path.is_dir():
        raise Refusal(f"{path} is a folder, not a file.")
    if not os.access(path.parent, os.W_OK):
        raise Refusal(f"{path.parent} is not writable.")
