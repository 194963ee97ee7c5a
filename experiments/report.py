"""Reports of comparisons: progress, tables, learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cramix.atomic import replacing
from cramix.rl.folder import slug, write_json
from cramix.rl.training import Run
from experiments.comparison import Standing, compare, curve_intervals
from experiments.curves import Curve, learning_curves

OURS = "gmdqn"


def standings(found: list[Standing], out: Path, kind: str) -> None:
    """Print a table per environment, draw the learning curves if there are any, and write all to files."""
    console = Console()
    for env in dict.fromkeys(standing.env for standing in found):
        rows = [standing for standing in found if standing.env == env]
        console.print(table(env, rows, kind))
        if not all(len(standing.steps) for standing in rows):
            continue
        picture = out / f"{slug(env)}.png"
        with replacing(picture) as file:
            _curves(env, rows).savefig(file, format="png", dpi=150)
        console.print(f"Learning curves: {picture}")
    write_standings(found, out)


def write_standings(found: list[Standing], out: Path) -> None:
    """Write standings to `standings.json`."""
    write_json(out / "standings.json", [_as_dict(standing) for standing in found])


def train(runs: list[Run], out: Path, workers: int | None, device: str | None) -> list[Standing]:
    """Train the runs that are not finished, show the progress, and return the standings."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(runs))

        def report(run: Run, result: dict[str, Any]) -> None:
            progress.advance(task)
            console.print(f"{run.env}  {run.name}  seed {run.seed}: {result['mean']:.1f} ± {result['std']:.1f}")

        try:
            return compare(runs, out, workers, report, device)
        except KeyboardInterrupt:
            console.print(f"Stopped. The same command resumes from {out}.")
            raise


def table(env: str, standings: list[Standing], kind: str) -> Table:
    """Return the table of standings in one environment, the best first."""
    columns = kind, "seeds", "IQM", "95 %", "worst", "fail", "params", "min"
    title = f"{env}: interquartile mean (IQM) of the final agents"
    rows = Table(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        rows.add_column(column, no_wrap=True)
    for s in sorted(standings, key=lambda standing: -standing.summary.value):
        value, low, high = (f"{x:.1f}" for x in s.summary)
        failed = "" if np.isnan(s.episodes.failures) else f"{s.episodes.failures:.1%}"
        cost = str(s.parameters), f"{s.seconds / 60:.1f}"
        rows.add_row(s.name, str(len(s.scores)), value, f"{low} to {high}", f"{s.scores.min():.1f}", failed, *cost)
    return rows


def _curves(env: str, standings: list[Standing]) -> Figure:
    curves, middles = {}, []
    for standing in sorted(standings, key=lambda s: s.name != OURS):
        # The final agents play more episodes than those at checkpoints.
        before = list(curve_intervals(standing))[:-1]
        middle, low, high = np.array([*before, standing.summary]).T
        curves[standing.name] = Curve(standing.steps, middle, low, high)
        middles.append(middle)
    least, most = np.min(middles), np.max(middles)
    return learning_curves(
        curves,
        title=f"{env}, interquartile mean over seeds",
        ylabel="return of a few episodes; at the end, of all",
        bottom=least - 0.1 * (most - least),  # intervals may extend much lower
    )


def _as_dict(standing: Standing) -> dict[str, Any]:
    return {
        "env": standing.env,
        "name": standing.name,
        "scores": standing.scores.tolist(),
        "interquartile_mean": standing.summary._asdict(),
        "episodes": standing.episodes._asdict(),
        "parameters": standing.parameters,
        "seconds": standing.seconds,
    }
