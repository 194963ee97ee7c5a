"""`cramix demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cramix import demo as job
from cramix.atomic import replacing
from cramix.cli.refusal import check_output
from cramix.cli.report import print_tables, working
from cramix.plot import require_matplotlib


def demo(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Draw a picture of all fits: png.")] = None,
) -> None:
    """Show what cramix does: find groups that EM misses, and compare all methods, in two tables."""
    if out is not None:
        check_output(out, [".png"])
        require_matplotlib()
    with working("Fitting four groups of measurements") as update:
        recoveries = job.recover_groups(update)
    with working(f"Fitting {job.COMPONENTS} components to a ring, a line and a square") as update:
        contest = job.compare_methods(update)
    title = f"Four groups in five dimensions, {len(job.SEEDS)} seeds"
    groups = Table("method", "adjusted Rand index", "mean log likelihood", "seconds", title=title)
    for recovery in recoveries:
        groups.add_row(*recovery.row())
    methods = Table("method", "mean log likelihood", "distance C2", "seconds", title="A ring, a line and a square")
    for row in contest.rows():
        methods.add_row(*row)
    print_tables([groups, methods])
    if out is not None:
        with replacing(out) as file:
            job.picture(recoveries, contest).savefig(file, format="png", dpi=120)
        print_tables([f"Picture: {out}"])
