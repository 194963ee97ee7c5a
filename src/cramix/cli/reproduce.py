"""`cramix reproduce`: the experiments of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cramix import reproduction as job
from cramix.atomic import replacing
from cramix.cli import tables
from cramix.cli.refusal import Refusal
from cramix.cli.report import working
from cramix.data import ring_line_square
from cramix.directions import equispaced
from cramix.plot import require_matplotlib

# Environments of the comparison of Q-learners, and how long agents learn in each.
_GAMES = {"LunarLander-v3": 300_000, "CartPole-v1": 50_000, "Acrobot-v1": 50_000}

_Runs = Annotated[Path, typer.Option(help="The folder for runs and table; goes on with what is there.")]
_Env = Annotated[str, typer.Option(help="The environment.")]
_Steps = Annotated[int, typer.Option(help="Environment steps of a run.", min=1)]
_Episodes = Annotated[int, typer.Option(help="Episodes that the last agent of a run plays.", min=1)]
_Workers = Annotated[int | None, typer.Option(help="Processes at a time; all cores by default.", min=1)]
_Device = Annotated[str | None, typer.Option(help="cuda trains runs that differ in their seeds only together.")]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def about(context: typer.Context) -> None:
    """Repeat the experiments of the paper."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def figures(
    data: Annotated[
        Path | None, typer.Option(help="The paper's 850 points; the built-in look-alike if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("."),
) -> None:
    """Draw Figures 1, 3 and 4: how slicing works, the fits for three seeds, both losses over steps."""
    require_matplotlib()
    from cramix.plot import paper

    if not out.is_dir():
        raise Refusal(f"{out} is not a folder. Make it first.")
    x = ring_line_square() if data is None else tables.read(data).rows.double()
    if x.shape[1] != 2:
        raise Refusal(f"{data} must have two columns; it has {x.shape[1]}.")
    with working("Fitting as the paper does") as say:
        runs = job.run(x, say=say)
    table = Table("seed", "method", "sliced Cramér loss", "mean log likelihood", "seconds")
    for run in runs:
        loss, likelihood = f"{run.end.cramer:.2e}", f"{-run.end.negative_log_likelihood:.4f}"
        table.add_row(str(run.seed), run.method, loss, likelihood, f"{run.seconds:.2f}")
    console = Console()
    console.print(table)
    first = next(run for run in runs if run.method == job.INIT)
    pictures = {
        "slicing": paper.slicing(x, first.mixture, equispaced(3, dtype=x.dtype)),
        "fits": paper.fits(x, runs),
        "losses": paper.losses(runs),
    }
    for name, figure in pictures.items():
        with replacing(out / f"{name}.png") as file:
            figure.savefig(file, format="png", dpi=150)
    console.print(f"Pictures: {', '.join(str(out / f'{name}.png') for name in pictures)}")


@app.command()
def lunarlander(
    out: Annotated[
        Path, typer.Option(help="The folder for runs, table and pictures; goes on with what is there.")
    ] = Path("lunarlander"),
    seeds: Annotated[int, typer.Option(help="Seeds of GMDQN.", min=1)] = 10,
    rival_seeds: Annotated[int, typer.Option(help="Seeds of each rival; 0 for none.", min=0)] = 5,
    algo: Annotated[list[str] | None, typer.Option(help="Only this algorithm; may be repeated.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Only this environment; may be repeated.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Environment steps of a run; its own for each by default.", min=1)
    ] = None,
    episodes: _Episodes = 100,
    workers: _Workers = None,
    device: _Device = None,
) -> None:
    """Train GMDQN and its rivals over seeds, and compare their last agents: hours, in parts as you like."""
    from cramix.cli.games import contest

    games = {name: steps or _GAMES.get(name, 300_000) for name in env or _GAMES}
    contest(games, out, algo, seeds, rival_seeds, episodes, workers, device)


@app.command()
def ablation(
    out: _Runs = Path("ablation"),
    seeds: Annotated[int, typer.Option(help="Seeds of each variation.", min=1)] = 5,
    env: _Env = "LunarLander-v3",
    steps: _Steps = 300_000,
    episodes: _Episodes = 100,
    workers: _Workers = None,
    device: _Device = None,
) -> None:
    """Train GMDQN with each choice of its defaults made otherwise, and compare the last agents: hours."""
    from cramix.cli.games import vary

    vary(env, steps, out, seeds, episodes, workers, device)


@app.command()
def screening(
    out: _Runs = Path("screening"),
    choice: Annotated[list[str] | None, typer.Option(help="One of the ablation; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each group.", min=1)] = 5,
    env: _Env = "LunarLander-v3",
    steps: _Steps = 300_000,
    episodes: _Episodes = 500,
    workers: _Workers = None,
    device: _Device = None,
) -> None:
    """Train GMDQN in groups with half of some choices made otherwise, and say what each is worth: hours."""
    from cramix.cli.games import screen
    from cramix.rl.runs.screening import CHOICES

    screen(env, steps, out, choice or CHOICES, seeds, episodes, workers, device)
