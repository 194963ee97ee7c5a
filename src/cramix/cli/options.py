"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cramix.cli.text import parse_delimiter

DATA_FORMATS = (
    "a csv, tsv, txt (each also .gz), npy, parquet, arrow or xlsx file, a folder of such files, or a quoted pattern; "
    "- reads csv from standard input"
)

Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of the random numbers; the same seed gives the same result.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B,...", help="Columns of the data to use, in this order; default: all."),
]
Exclude = Annotated[str | None, typer.Option("--exclude", metavar="A,B,...", help="Columns to leave out.")]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        metavar="CHAR",
        callback=lambda text: None if text is None else parse_delimiter(text),
        help="Separator of a text file's fields: a character, comma, semicolon, tab, pipe or space; default: detected.",
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out and count rows that lack a number: missing, infinite, or text.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
DataFile = Annotated[Path, typer.Argument(metavar="DATA", help=f"Data: {DATA_FORMATS}.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file, .safetensors.")]
ModelOut = typer.Option("--out", metavar="FILE", help="Write the model to this file, .safetensors.")
Risk = Annotated[
    str | None,
    typer.Option("--risk", metavar="MEASURE", help="Choose actions by cvar:0.1, expectile:0.3, quantile:0.5 or mean."),
]
