"""`cramix demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cramix import demo as job
from cramix.atomic import replacing
from cramix.cli.refusal import check_output
from cramix.plot import densities_and_cdfs


def demo(out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png")) -> None:
    """Fit a built-in sample of five modes, print a table and draw densities and distribution functions."""
    check_output(out, [".png"])
    console = Console()
    with console.status("Fitting seven components to 5000 points by gradient descent on the Cramér loss"):
        x, truth, fits = job.run()
    table = Table("method", "loss C2² to the sample", "C2 to the truth", "evaluations", "seconds")
    for row in job.rows(x, truth, fits):
        table.add_row(*row)
    console.print(table)
    with replacing(out) as file:
        densities_and_cdfs({f.method: f.mixture for f in fits}, x, truth).savefig(file, format="png", dpi=150)
    console.print(f"Picture: {out}")
