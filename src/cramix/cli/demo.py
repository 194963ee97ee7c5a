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
from cramix.cli.report import working
from cramix.mixture.coordinates import in_coordinates
from cramix.plot import panels, require_matplotlib


def demo(out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png")) -> None:
    """Fit the built-in ring, line and square by every method, print a table and draw the fits."""
    check_output(out, [".png"])
    require_matplotlib()
    with working(f"Fitting {job.COMPONENTS} components to a ring, a line and a square") as say:
        contest = job.run(say=say)
    table = Table("method", "mean log likelihood", "distance C2", "seconds")
    for row in contest.rows():
        table.add_row(*row)
    console = Console()
    console.print(table)
    fits = [
        (f"{name}: {result.log_likelihood:.3f}", in_coordinates(result.mixture))
        for name, result in contest.results.items()
    ]
    figure = panels(contest.x, fits)
    figure.suptitle("mean log likelihood of each fit", fontsize=9, color="0.4")
    with replacing(out) as file:
        figure.savefig(file, format="png", dpi=150)
    console.print(f"Picture: {out}")
