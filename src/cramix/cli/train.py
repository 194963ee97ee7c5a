"""`cramix train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from cramix.cli.agents import in_environments
from cramix.cli.changes import changes
from cramix.cli.options import Json, Risk, Seed
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, facts_of_returns, show, warnings_in_lines

Tell = Callable[[int, dict[str, Any]], None]


def train(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Name of a Gymnasium environment, as LunarLander-v3.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the run goes; also to go on with it.")],
    algo: Annotated[
        str, typer.Option("--algo", metavar="NAME", help="gmdqn, c51, qrdqn, crdqn, fqf, jt, nll or ddqn.")
    ] = "gmdqn",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of the environment.")] = 300_000,
    seed: Seed = 0,
    preset: Annotated[str, typer.Option("--preset", help="Settings to start from: default, or paper.")] = "default",
    risk: Risk = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=JSON", help="Change a setting, as gamma=0.999 or returns.components=5."),
    ] = None,
    interval: Annotated[
        int, typer.Option("--interval", min=1, help="Steps between checkpoints, the most that an interrupt loses.")
    ] = 25_000,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes that the last agent plays.")] = 100,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Of the computations; small networks are fastest with 1.")
    ] = 1,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")] = False,
) -> None:
    """Train an agent in a folder, or go on with the run that is there."""
    from cramix.rl.runs import training

    torch.set_num_threads(threads)
    if out.exists() and not out.is_dir():
        raise Refusal(f"{out} is not a folder. Give another one.")
    given = changes(settings or [])
    if risk is not None:
        given["risk"] = risk
    with refusing():
        run = training.Run(
            env,
            algo=algo,
            steps=steps,
            seed=seed,
            preset=preset,
            settings=given,
            interval=interval,
            episodes=episodes,
        )
        training.check_folder(run, out)
        begun = training.checkpoint(out)
    done = (out / "result.json").exists()
    if begun and not quiet:
        last = "This run is done" if done else f"Going on from step {begun}"
        print(f"{last}: {out}", file=sys.stderr, flush=True)
    try:
        seen = _steps(steps, begun, quiet=quiet or done)
        with warnings_in_lines(), seen as tell, refusing(), in_environments(env):
            result = training.train(run, out, tell)
    except KeyboardInterrupt:
        print(_how_to_go_on(training.checkpoint(out)), file=sys.stderr, flush=True)
        raise
    facts = [
        Fact("env", "environment", env),
        Fact("algo", "algorithm", algo),
        Fact("steps", "steps", steps),
        Fact("seed", "seed", seed),
        Fact("episodes", "episodes played", episodes),
        *facts_of_returns(result["returns"]),
        Fact("parameters", "parameters", result["parameters"]),
        Fact("seconds", "time", round(result["seconds"], 3), str(timedelta(seconds=round(result["seconds"])))),
        Fact("out", "folder", out),
    ]
    show(facts, as_json=json, quiet=quiet)


def _how_to_go_on(step: int) -> str:
    where = f"Go on from step {step}" if step else "No checkpoint was reached; begin anew"
    return f"{where} with: {shlex.join(['cramix', *sys.argv[1:]])}"


@contextmanager
def _steps(total: int, begun: int, *, quiet: bool) -> Iterator[Tell | None]:
    """Show how far a run is: a bar on a terminal, elsewhere a line for every evaluation."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:
        yield _lines()
    else:
        figures = TextColumn("{task.fields[figures]}", markup=False)
        columns = BarColumn(bar_width=10), MofNCompleteColumn(), _Speed(), figures  # all in 80 letters
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task = progress.add_task("", total=total, completed=begun, figures="")

            def tell(step: int, now: dict[str, Any]) -> None:
                progress.update(task, completed=step, figures=_words(now))

            yield tell


class _Speed(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f} steps/s")


def _lines() -> Tell:
    last: int | None = None

    def tell(step: int, now: dict[str, Any]) -> None:
        nonlocal last
        if step == now.get("evaluated") != last:
            last = step
            print(f"step {step}, {_words(now)}", file=sys.stderr, flush=True)

    return tell


def _words(now: dict[str, Any]) -> str:
    return ", ".join(f"{name} {now[name]:.0f}" for name in ("return", "evaluation") if now.get(name) is not None)
