"""Errors that the user can correct: invalid options and invalid input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# What messages of the library name, and what it is on the command line.
_OPTIONS = {
    "cramix.source(X, skip_bad=True)": "--skip-bad",
    "skip_bad=True": "--skip-bad",
    "cramix.source(X, columns=[...])": "--columns",
    "max_passes": "--max-passes",
    "Open the source again.": "Run the command again.",
}


class Refusal(Exception):
    """Invalid input; the command prints the message and exits with code 2."""


class Interrupted(Exception):
    """Ctrl-C, with a message that says what was kept; the command prints it and exits with code 130."""


def with_options(message: str) -> str:
    """Return a message of the library in the words of the command line.

    Example:
        >>> with_options("Correct it, or skip such rows with cramix.source(X, skip_bad=True).")
        'Correct it, or skip such rows with --skip-bad.'
    """
    for argument, option in _OPTIONS.items():
        message = message.replace(argument, option)
    return message


@contextmanager
def refusing() -> Iterator[None]:
    """Turn the library's errors about what the user passed into refusals."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        if isinstance(error, FileNotFoundError) and error.filename is not None:  # the system's, not the library's
            raise
        raise Refusal(with_options(str(error))) from None


def check_input(path: Path) -> None:
    """Require an existing file."""
    if path.is_dir():
        raise Refusal(f"{path} is a folder, not a file.")
    if not path.exists():
        raise Refusal(f"{path} does not exist.")


def check_output(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Require a path that can be written to, with a known suffix if any, before a long computation starts."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise Refusal(f"{path} must end in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise Refusal(f"{path.parent} is not a folder. Create it first.")
    if path.is_dir():
        raise Refusal(f"{path} is a folder, not a file.")
    if not os.access(path.parent, os.W_OK):
        raise Refusal(f"{path.parent} is not writable.")
