"""Comparisons of Q-learners and of their choices: runs in processes, tables, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cramix.atomic import replacing
from cramix.checks import check_choice
from cramix.cli.agents import in_environments
from cramix.cli.refusal import refusing
from cramix.plot import require_matplotlib
from cramix.plot.learning import Curve, learning_curves
from cramix.rl import ALGORITHMS
from cramix.rl.runs.ablation import ablation
from cramix.rl.runs.comparison import Standing, compare, curve_intervals, plan
from cramix.rl.runs.folder import as_name, write
from cramix.rl.runs.screening import Effect, effects, screening
from cramix.rl.runs.statistics import Interval
from cramix.rl.runs.training import Run

_OURS = "gmdqn"
# What a choice of a screening is judged by.
_FIGURES = Effect._fields[1:]


def contest(
    games: dict[str, int],
    out: Path,
    algos: list[str] | None,
    seeds: int,
    rival_seeds: int,
    episodes: int,
    workers: int | None,
    device: str | None,
) -> None:
    """Train what is missing, print how the algorithms stand, and draw their curves."""
    require_matplotlib()
    with refusing():
        for algo in algos or ():
            check_choice("algo", algo, ALGORITHMS)
        counts = {algo: seeds if algo == _OURS else rival_seeds for algo in algos or ALGORITHMS}
        runs = plan(games, {algo: count for algo, count in counts.items() if count}, episodes=episodes)
    _report(_trained(runs, out, workers, device), out, "algorithm")


def vary(game: str, steps: int, out: Path, seeds: int, episodes: int, workers: int | None, device: str | None) -> None:
    """Train GMDQN with each of its choices made otherwise, and print how these stand."""
    with refusing():
        runs = ablation(game, steps, seeds, episodes=episodes)
    _report(_trained(runs, out, workers, device), out, "variation")


def screen(
    game: str,
    steps: int,
    out: Path,
    choices: Sequence[str],
    seeds: int,
    episodes: int,
    workers: int | None,
    device: str | None,
) -> None:
    """Train GMDQN with half of some choices made otherwise in every group of runs, and print what each is worth."""
    with refusing():
        runs = screening(game, steps, seeds, choices, episodes=episodes)
    standings = _trained(runs, out, workers, device)
    found = effects(runs, choices, out)
    title = f"{game}: interquartile means with a choice less those without"
    table = Table("choice", "return", "failures, %", "return of the rest", title=title, box=SIMPLE_HEAD, pad_edge=False)
    for effect in found:
        table.add_row(effect.name, _signed(effect.score), _signed(effect.failures, 100), _signed(effect.successes))
    Console().print(table)
    words = {effect.name: {figure: getattr(effect, figure)._asdict() for figure in _FIGURES} for effect in found}
    write(out / "effects.json", words)
    write(out / "standings.json", [_words(standing) for standing in standings])


def _signed(interval: Interval, factor: float = 1.0) -> str:
    value, low, high = (f"{factor * x:+.1f}" for x in interval)
    return f"{value} ({low} to {high})"


def _report(standings: list[Standing], out: Path, kind: str) -> None:
    """Print tables, draw curves where there are some, and write the figures to a file."""
    console = Console()
    for game in dict.fromkeys(standing.env for standing in standings):
        rows = [standing for standing in standings if standing.env == game]
        console.print(_table(game, rows, kind))
        if not all(len(standing.steps) for standing in rows):
            continue
        picture = out / f"{as_name(game)}.png"
        with replacing(picture) as file:
            _curves(game, rows).savefig(file, format="png", dpi=150)
        console.print(f"Picture: {picture}")
    write(out / "standings.json", [_words(standing) for standing in standings])


def _trained(runs: list[Run], out: Path, workers: int | None, device: str | None) -> list[Standing]:
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

        def tell(run: Run, result: dict[str, Any]) -> None:
            progress.advance(task)
            console.print(f"{run.env}  {run.name}  seed {run.seed}: {result['mean']:.1f} ± {result['std']:.1f}")

        try:
            with refusing(), in_environments(runs[0].env):
                return compare(runs, out, workers, tell, device)
        except KeyboardInterrupt:
            console.print(f"stopped; the same command goes on from what is in {out}")
            raise


def _table(game: str, standings: list[Standing], kind: str) -> Table:
    columns = kind, "seeds", "IQM", "95 %", "worst", "fail", "numbers", "min"
    title = f"{game}: interquartile mean (IQM) of the last agents"
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for s in sorted(standings, key=lambda standing: -standing.summary.value):
        value, low, high = (f"{x:.1f}" for x in s.summary)
        failed = "" if np.isnan(s.episodes.failures) else f"{s.episodes.failures:.1%}"
        cost = str(s.parameters), f"{s.seconds / 60:.1f}"
        table.add_row(s.name, str(len(s.scores)), value, f"{low} to {high}", f"{s.scores.min():.1f}", failed, *cost)
    return table


def _curves(game: str, standings: list[Standing]) -> Figure:
    curves, middles = {}, []
    for standing in sorted(standings, key=lambda s: s.name != _OURS):
        # The last agents have played more episodes than those on the way.
        on_the_way = list(curve_intervals(standing))[:-1]
        middle, low, high = np.array([*on_the_way, standing.summary]).T
        curves[standing.name] = Curve(standing.steps, middle, low, high)
        middles.append(middle)
    least, most = np.min(middles), np.max(middles)
    return learning_curves(
        curves,
        title=f"{game}, interquartile mean over seeds",
        ylabel="return of a few episodes, of all at the end",
        bottom=least - 0.1 * (most - least),  # an interval may reach much lower
    )


def _words(standing: Standing) -> dict[str, Any]:
    return {
        "env": standing.env,
        "name": standing.name,
        "scores": standing.scores.tolist(),
        "interquartile_mean": standing.summary._asdict(),
        "episodes": standing.episodes._asdict(),
        "parameters": standing.parameters,
        "seconds": standing.seconds,
    }
