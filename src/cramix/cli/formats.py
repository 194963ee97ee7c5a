"""File formats of the commands: which suffix means which format, and what columns without names are called."""

from __future__ import annotations

from pathlib import Path

MODEL = ".safetensors"
TEXT = (".csv", ".tsv", ".txt")
DATA = (*TEXT, ".npy", ".parquet", ".xlsx")
DATA_OUT = (".csv", ".tsv", ".npy", ".parquet")
PICTURES = (".png", ".pdf", ".svg")
PAGES = (".html",)

# The path that stands for standard input or standard output.
STANDARD = Path("-")


def suffix(path: Path) -> str:
    """Return the suffix that decides the format: in lower case, and that of the content for a gzipped file."""
    if path == STANDARD:
        return ".csv"
    return Path(path.stem).suffix.lower() if is_gzipped(path) else path.suffix.lower()


def is_gzipped(path: Path) -> bool:
    """Whether the name of a file ends in .gz."""
    return path.suffix.lower() == ".gz"


def is_text(path: Path) -> bool:
    """Whether a file holds rows of text, whose fields a delimiter separates."""
    return suffix(path) in TEXT


def input_name(path: Path) -> str:
    """Return what messages call an input."""
    return "standard input" if path == STANDARD else str(path)


def default_names(dim: int) -> tuple[str, ...]:
    """Return names for columns that have none: x1, x2, ..."""
    return tuple(f"x{i}" for i in range(1, dim + 1))
