"""The comparison of GMDQN with other algorithms over seeds; `python -m experiments.lunarlander`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cramix.checks import check_choice
from cramix.rl import ALGORITHMS
from experiments import report
from experiments.command import Command, Device, Episodes, Out, Workers
from experiments.comparison import plan

# Steps of a run in each environment.
_STEPS = {"LunarLander-v3": 300_000, "CartPole-v1": 50_000, "Acrobot-v1": 50_000}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    out: Out = Path("lunarlander"),
    seeds: Annotated[int, typer.Option(help="Seeds of GMDQN.", min=1)] = 10,
    rival_seeds: Annotated[int, typer.Option(help="Seeds of each other algorithm.", min=0)] = 5,
    algo: Annotated[list[str] | None, typer.Option(help="Only this algorithm; may be repeated.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Only this environment; may be repeated.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a run; depends on env by default.", min=1)] = None,
    episodes: Episodes = 100,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Train GMDQN and the other algorithms over seeds, and compare their final agents (hours)."""
    for name in algo or ():
        check_choice("algo", name, ALGORITHMS)
    envs = {name: steps or _STEPS.get(name, 300_000) for name in env or _STEPS}
    counts = {name: seeds if name == report.OURS else rival_seeds for name in algo or ALGORITHMS}
    runs = plan(envs, {name: count for name, count in counts.items() if count}, episodes=episodes)
    report.standings(report.train(runs, out, workers, device), out, "algorithm")


if __name__ == "__main__":
    app()
