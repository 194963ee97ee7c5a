"""The paper's figures 1, 3 and 4; `python -m experiments.figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from cramix.atomic import replacing
from cramix.data import ring_line_square
from cramix.directions import equispaced
from experiments import paper, paper_plots
from experiments.command import Command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    data: Annotated[
        Path | None, typer.Option(help="The paper's 850 points, in two columns; by default, similar points.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("."),
) -> None:
    """Draw the paper's figures 1, 3 and 4: slicing, the fits for three seeds, both losses over steps."""
    if not out.is_dir():
        raise ValueError(f"{out} is not a folder. Create it first.")
    x = ring_line_square() if data is None else torch.from_numpy(np.loadtxt(data, ndmin=2))
    if x.shape[1] != 2:
        raise ValueError(f"{data} must have two columns; got {x.shape[1]}.")
    progress = Console(stderr=True)
    with progress.status("Fitting") as spinner:
        runs = paper.run(x, status=lambda text: spinner.update(f"Fitting {text}"))
    table = Table("seed", "method", "sliced Cramér loss", "mean log likelihood", "seconds")
    for run in runs:
        loss, likelihood = f"{run.end.cramer:.2e}", f"{-run.end.negative_log_likelihood:.4f}"
        table.add_row(str(run.seed), run.method, loss, likelihood, f"{run.seconds:.2f}")
    console = Console()
    console.print(table)
    initial = next(run for run in runs if run.method == paper.INIT)
    figures = {
        "slicing": paper_plots.slicing(x, initial.mixture, equispaced(3, dtype=x.dtype)),
        "fits": paper_plots.fits(x, runs),
        "losses": paper_plots.losses(runs),
    }
    for name, figure in figures.items():
        with replacing(out / f"{name}.png") as file:
            figure.savefig(file, format="png", dpi=150)
    console.print(f"Figures: {', '.join(str(out / f'{name}.png') for name in figures)}")


if __name__ == "__main__":
    app()
