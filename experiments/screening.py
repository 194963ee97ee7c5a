"""Screening: a fractional factorial ablation; `python -m experiments.screening`.

In every group of runs half of the choices are changed, so every run contributes to the estimate of every effect. The
design is a two-level one of resolution IV: no main effect is confounded with an interaction of two choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cramix.checks import check_choice
from cramix.rl.folder import read_result, write_json
from cramix.rl.training import Run
from experiments import report
from experiments.ablation import FIRST_SEED, VARIATIONS
from experiments.command import Command, Device, Env, Episodes, Out, Steps, Workers
from experiments.comparison import run_folder
from experiments.statistics import Interval, difference, summarize

# The default choices, of `VARIATIONS`.
CHOICES = (
    "4 members",
    "2 x 256, batch of 128",
    "memory of 100,000",
    "penalty for scales",
)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Effect(NamedTuple):
    """The effect of a choice: the difference of interquartile means between runs with the change and without.

    Args:
        name: of the choice.
        score: of mean returns.
        failures: of the fraction of episodes below the environment's reward threshold; NaN if it has none.
        successes: of the mean return of the other episodes.
    """

    name: str
    score: Interval
    failures: Interval
    successes: Interval


def screening(env: str, steps: int, seeds: int, choices: Sequence[str] = CHOICES, **options: Any) -> list[Run]:
    """Return the runs of the design; the label of each has a sign for each choice, + where it is changed.

    Example:
        >>> for run in screening("CartPole-v1", 1000, 1, ["1 step", "dueling"]):
        ...     print(run.name, run.settings)
        -- {}
        -+ {'policy_kwargs': {'dueling': True}}
        +- {'n_steps': 1}
        ++ {'n_steps': 1, 'policy_kwargs': {'dueling': True}}
    """
    for choice in choices:
        check_choice("choice", choice, VARIATIONS)
    common = {"interval": steps, "curve_episodes": 0, **options}
    runs = []
    for levels in _design(len(choices)):
        settings = _merged(VARIATIONS[choice] for choice, changed in zip(choices, levels, strict=True) if changed)
        label = "".join("-+"[changed] for changed in levels)
        several = range(FIRST_SEED, FIRST_SEED + seeds)
        runs += [Run(env, "gmdqn", steps, seed, settings=settings, label=label, **common) for seed in several]
    return runs


def effects(runs: Sequence[Run], choices: Sequence[str], folder: str | Path) -> list[Effect]:
    """Return the effect of each choice, from finished runs of a screening."""
    returns = [np.array(read_result(run_folder(run, folder))["returns"]) for run in runs]
    figures = np.array([summarize(own, run.env) for own, run in zip(returns, runs, strict=True)])
    found = []
    for i, choice in enumerate(choices):
        changed = np.array([run.label[i] == "+" for run in runs])
        found.append(Effect(choice, *(difference(column[changed], column[~changed]) for column in figures.T)))
    return found


def _design(choices: int) -> list[list[int]]:
    """Return the levels, 0 or 1, of each choice in each group: columns are parities of odd numbers of row bits."""
    bits = 1
    while 2 ** (bits - 1) < choices:
        bits += 1
    odd = [mask for mask in range(1, 2**bits) if mask.bit_count() % 2]
    columns = sorted(odd, key=lambda mask: (mask.bit_count(), -mask))[:choices]
    return [[(row & mask).bit_count() % 2 for mask in columns] for row in range(2**bits)]


def _merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return several changes of settings as one; nested dictionaries are merged."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = {**whole.get(name, {}), **value} if isinstance(value, dict) else value
    return whole


@app.command(cls=Command)
def main(
    out: Out = Path("screening"),
    choice: Annotated[list[str] | None, typer.Option(help="A variation of the ablation; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each group.", min=1)] = 5,
    env: Env = "LunarLander-v3",
    steps: Steps = 300_000,
    episodes: Episodes = 500,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Run a fractional factorial ablation of GMDQN, and print the effect of each choice (hours)."""
    choices = choice or CHOICES
    runs = screening(env, steps, seeds, choices, episodes=episodes)
    standings = report.train(runs, out, workers, device)
    found = effects(runs, choices, out)
    title = f"{env}: effect of each choice on interquartile means"
    table = Table("choice", "return", "failures, %", "return of the rest", title=title, box=SIMPLE_HEAD, pad_edge=False)
    for effect in found:
        table.add_row(effect.name, _signed(effect.score), _signed(effect.failures, 100), _signed(effect.successes))
    Console().print(table)
    figures = Effect._fields[1:]
    content = {effect.name: {figure: getattr(effect, figure)._asdict() for figure in figures} for effect in found}
    write_json(out / "effects.json", content)
    report.write_standings(standings, out)


def _signed(interval: Interval, factor: float = 1.0) -> str:
    value, low, high = (f"{factor * x:+.1f}" for x in interval)
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    app()
