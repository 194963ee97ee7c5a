"""What a command has to say: a table for a person, or a JSON object for a program."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cramix.cli.measures import Estimate
from cramix.mixture import MultivariateNormalMixture

# Components in the table of a person; a program gets them all.
_MOST_COMPONENTS = 20


class Fact(NamedTuple):
    """A value, its name for programs and for people (None: it is none of theirs), and other words for people."""

    key: str
    label: str | None
    value: object
    words: str | None = None


def show(
    facts: list[Fact],
    *,
    as_json: bool,
    quiet: bool = False,
    model: tuple[MultivariateNormalMixture, tuple[str, ...]] | None = None,
) -> None:
    """Print facts, and the components of a model with its column names, to the standard output."""
    if as_json:
        content = {fact.key: _plain(fact.value) for fact in facts}
        if model is not None:
            content["components"] = [_plain(c._asdict()) for c in _components(model[0])]
        print(json.dumps(content, ensure_ascii=False, allow_nan=False))
        return
    if quiet:
        return
    console = Console(markup=False, highlight=False)  # names of files and columns may look like markup
    grid = Table.grid(padding=(0, 3))
    for fact in facts:
        if fact.label is not None and fact.value is not None:
            grid.add_row(fact.label, fact.words or _words(fact.value))
    console.print(grid)
    if model is not None:
        console.print(_table(*model, width=console.width))


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on a terminal's standard error that work is going on; gives a function that says where it is.

    Warnings of the work become one line each.
    """
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(what, total=None)
    with warnings_in_lines(), nullcontext() if quiet or not console.is_terminal else progress:
        yield lambda now: progress.update(task, description=f"{what}: {now}")


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Print the warnings for users on the standard error at the end, one line each; drop the others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"warning: {message}", file=sys.stderr, flush=True)


def facts_of_returns(returns: Sequence[float]) -> list[Fact]:
    """Return what there is to say about the returns of episodes."""
    low, middle, high = np.quantile(returns, [0.25, 0.5, 0.75]).tolist()
    mean, std = float(np.mean(returns)), float(np.std(returns))
    return [
        Fact("mean", "mean return", mean, f"{mean:.2f}"),
        Fact("std", "standard deviation", std, f"{std:.2f}"),
        Fact("min", "least", float(min(returns)), f"{min(returns):.2f}"),
        Fact("quartiles", "quartiles", [low, middle, high], f"{low:.2f}, {middle:.2f}, {high:.2f}"),
        Fact("returns", None, list(returns)),
    ]


def counted(count: int, noun: str) -> str:
    """Return a number of things in words, as 1 row or 2 rows."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class _Component(NamedTuple):
    weight: float
    mean: list[float]
    scales: list[float]


def _components(mixture: MultivariateNormalMixture) -> list[_Component]:
    """Components by falling weight; scales are the standard deviations of the coordinates."""
    scales = mixture.covariances.diagonal(dim1=-2, dim2=-1).sqrt().tolist()
    rows = map(_Component, mixture.weights.tolist(), mixture.means.tolist(), scales)
    return sorted(rows, key=lambda component: -component.weight)


def _table(mixture: MultivariateNormalMixture, names: tuple[str, ...], width: int) -> Table:
    shown = max(1, min(len(names), (width - 16) // 22))
    components = _components(mixture)
    table = Table("weight", *(f"{name}: mean ± scale" for name in names[:shown]))
    for component in components[:_MOST_COMPONENTS]:
        pairs = zip(component.mean[:shown], component.scales[:shown], strict=True)
        table.add_row(f"{component.weight:.4f}", *(f"{mean:.4g} ± {scale:.3g}" for mean, scale in pairs))
    left_out = []
    if len(names) > shown:
        left_out.append(counted(len(names) - shown, "more column"))
    if len(components) > _MOST_COMPONENTS:
        left_out.append(counted(len(components) - _MOST_COMPONENTS, "lighter component"))
    table.caption = f"and {' and '.join(left_out)}" if left_out else None
    return table


def _words(value: object) -> str:
    if isinstance(value, Estimate):
        return f"{value.value:.6g} ± {value.standard_error:.2g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _plain(value: object) -> object:
    """What JSON can hold: no NaN and no infinity."""
    if isinstance(value, Estimate):
        return {key: _plain(part) for key, part in value._asdict().items()}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)
