"""The comparison of GMDQN with other algorithms over seeds; `python -m experiments.lunarlander`."""

from __future__ import annotations

import sys
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
    names = _algorithms(algo, device)
    envs = {name: steps or _STEPS.get(name, 300_000) for name in env or _STEPS}
    counts = {name: seeds if name == report.OURS else rival_seeds for name in names}
    runs = plan(envs, {name: count for name, count in counts.items() if count}, episodes=episodes)
    report.standings(report.train(runs, out, workers, device), out, "algorithm")


def _algorithms(chosen: list[str] | None, device: str | None) -> list[str]:
    """Return the names of the algorithms; joint training on a device leaves out those that it does not support."""
    for name in chosen or ():
        check_choice("algo", name, ALGORITHMS)
    names = list(chosen or ALGORITHMS)
    if device is None:
        return names
    # Their networks draw random numbers in training, which all agents of a population would share.
    alone = [name for name in names if getattr(ALGORITHMS[name].returns_class, "has_modes", False)]
    if chosen and alone:
        raise ValueError(f"algo must be one that can be trained jointly; got {alone[0]}. Train it without --device.")
    if alone:
        print(f"Left out, because joint training does not support it: {', '.join(alone)}.", file=sys.stderr)
    return [name for name in names if name not in alone]


if __name__ == "__main__":
    app()
