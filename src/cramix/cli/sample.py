"""`cramix sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from cramix.cli import formats, models, writers
from cramix.cli.options import Json, ModelFile, Seed
from cramix.cli.report import Fact, show

# Rows that are drawn and written at a time.
_AT_A_TIME = 1 << 17


def sample(
    model: ModelFile,
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of rows to draw.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="csv, tsv, npy or parquet; - prints csv.")
    ] = formats.STANDARD,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Draw random rows from a model."""
    writers.check_rows_output(out, as_json=json)
    source = models.read(model)
    generator = torch.Generator().manual_seed(seed)
    with writers.writing(out) as add:
        for start in range(0, n, _AT_A_TIME):
            count = min(_AT_A_TIME, n - start)
            rows = source.mixture.sample((count,), generator=generator).reshape(count, -1)
            add(dict(zip(source.columns, rows.numpy().T, strict=True)))
    if out == formats.STANDARD:
        return
    facts = [
        Fact("model", "model", model),
        Fact("n_rows", "rows", n),
        Fact("columns", "columns", list(source.columns)),
        Fact("seed", "seed", seed),
        Fact("out", "data", out),
    ]
    show(facts, as_json=json)
