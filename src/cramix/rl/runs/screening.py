"""What several choices are worth: groups of runs in each of which half of the choices are made otherwise.

Every run tells of every choice then, so that few runs tell as much as many that differ in one thing each. The groups
are those of a two-level design in which no effect is mixed up with what any two choices do to each other (resolution
IV).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cramix.checks import check_choice
from cramix.rl.runs.ablation import FIRST_SEED, VARIATIONS
from cramix.rl.runs.comparison import place
from cramix.rl.runs.folder import result_of
from cramix.rl.runs.statistics import Interval, difference, judged
from cramix.rl.runs.training import Run

# What is screened if nothing else is asked for, of `VARIATIONS`.
CHOICES = (
    "2 members",
    "2 x 256, batch of 128",
    "memory of 100,000",
    "penalty for scales",
)


class Effect(NamedTuple):
    """What runs with a choice made otherwise have more than the others, in interquartile means.

    Args:
        name: of the choice.
        score: the mean return.
        failures: the share of episodes below the threshold that the environment names; NaN if it names none.
        successes: the mean return of the other episodes.
    """

    name: str
    score: Interval
    failures: Interval
    successes: Interval


def screening(env: str, steps: int, seeds: int, choices: Sequence[str] = CHOICES, **options: Any) -> list[Run]:
    """Return runs; the label of each has a sign for each choice, + where it is made otherwise.

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
    asked = {"interval": steps, "curve_episodes": 0, **options}
    runs = []
    for levels in _design(len(choices)):
        settings = _joined(VARIATIONS[choice] for choice, other in zip(choices, levels, strict=True) if other)
        label = "".join("-+"[other] for other in levels)
        several = range(FIRST_SEED, FIRST_SEED + seeds)
        runs += [Run(env, "gmdqn", steps, seed, settings=settings, label=label, **asked) for seed in several]
    return runs


def effects(runs: Sequence[Run], choices: Sequence[str], folder: str | Path) -> list[Effect]:
    """Return what each choice is worth after runs of a screening that are done."""
    returns = [np.array(result_of(place(run, folder))["returns"]) for run in runs]
    figures = np.array([judged(own, run.env) for own, run in zip(returns, runs, strict=True)])
    found = []
    for i, choice in enumerate(choices):
        other = np.array([run.label[i] == "+" for run in runs])
        found.append(Effect(choice, *(difference(column[other], column[~other]) for column in figures.T)))
    return found


def _design(choices: int) -> list[list[int]]:
    """Return levels, 0 or 1, of each choice in each group: columns are parities of an odd number of a row's bits."""
    bits = 1
    while 2 ** (bits - 1) < choices:
        bits += 1
    odd = [mask for mask in range(1, 2**bits) if mask.bit_count() % 2]
    columns = sorted(odd, key=lambda mask: (mask.bit_count(), -mask))[:choices]
    return [[(row & mask).bit_count() % 2 for mask in columns] for row in range(2**bits)]


def _joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return changes of settings together; what is inside of one is joined too."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = {**whole.get(name, {}), **value} if isinstance(value, dict) else value
    return whole
