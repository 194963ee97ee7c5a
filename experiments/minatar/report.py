"""The page of the comparison on MinAtar, written from the CSV files."""

from __future__ import annotations

from pathlib import Path


def write_page(results: Path, page: Path) -> None:
    """Write the page and its figures."""
    raise NotImplementedError
