"""`cramix sample`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from cramix.cli import models, tables
from cramix.cli.options import Json, ModelFile, Seed
from cramix.cli.refusal import Refusal, check_output
from cramix.cli.report import Fact, show


def sample(
    model: ModelFile,
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="How many rows to draw.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="csv, tsv, npy or parquet; - prints csv.")],
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Draw rows from a model into a data file."""
    to_stdout = str(out) == "-"
    if to_stdout and json:
        raise Refusal("--json and --out - would both print to the standard output. Give --out a file.")
    if not to_stdout:
        check_output(out, tables.WRITABLE)
    mixture, _ = source = models.read(model)
    rows = mixture.sample((n,), generator=torch.Generator().manual_seed(seed)).reshape(n, -1)
    if to_stdout:
        tables.write_text(rows, source.columns, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    tables.write(rows, source.columns, out)
    facts = [
        Fact("model", "model", model),
        Fact("n", "rows", n),
        Fact("columns", "columns", list(source.columns)),
        Fact("seed", "seed", seed),
        Fact("out", "data", out),
    ]
    show(facts, as_json=json)
