"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="For the random numbers; the same seed gives the same result.")
]
Components = Annotated[int, typer.Option("-k", "--components", min=1, help="How many components.")]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B,...", help="Columns of the data, in this order; all if left out."),
]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with missing or infinite numbers instead of refusing.")
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, .safetensors.")]
ModelOut = typer.Option("--out", metavar="FILE", help="Where the model goes, .safetensors.")
Risk = Annotated[
    str | None,
    typer.Option("--risk", metavar="MEASURE", help="Judge actions by cvar:0.1, expectile:0.3, quantile:0.5 or mean."),
]
