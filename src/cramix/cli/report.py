"""Output of the commands: a table for people, or a JSON object for programs; progress and warnings."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from cramix.atomic import replacing
from cramix.cli.measures import Estimate
from cramix.cli.refusal import with_options
from cramix.mixture import MultivariateNormalMixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Shown to people; JSON has all of them.
_MOST_COMPONENTS, _MOST_COLUMNS = 20, 60
# Characters of a line of a column's name, above its numbers.
_WIDEST_NAME = 24


class Fact(NamedTuple):
    """A result of a command.

    Attributes:
        key: its name in JSON.
        label: its name for people; None leaves it out of the table.
        value: also left out of the table if None.
        words: what the table shows instead of the value.
    """

    key: str
    label: str | None
    value: object
    words: str | None = None


def show(facts: Sequence[Fact], *, as_json: bool, quiet: bool = False, tables: Sequence[Table | str] = ()) -> None:
    """Print facts, with tables and lines for people below them, to standard output."""
    if as_json:
        content = {fact.key: _plain(fact.value) for fact in facts}
        print(json.dumps(content, ensure_ascii=False, allow_nan=False))
        return
    if quiet:
        return
    grid = Table.grid(padding=(0, 3))
    for fact in facts:
        if fact.label is not None and fact.value is not None:
            grid.add_row(fact.label, fact.words or _words(fact.value))
    print_tables([grid, *tables])


def print_tables(tables: Iterable[Table | str]) -> None:
    """Print tables and lines to standard output; what is too wide continues on the next line, so nothing is cut off."""
    screen = console()
    for table in tables:
        for column in table.columns if isinstance(table, Table) else ():
            column.overflow = "fold"
        screen.print(table)


def console() -> Console:
    """Return standard output for text without markup, which names of files and columns might contain."""
    return Console(markup=False, highlight=False)


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show progress on standard error if that is a terminal; yields a function that updates it.

    Warnings of the work are printed at the end, one line each.
    """
    screen = Console(stderr=True)
    text = TextColumn("{task.description}", markup=False, table_column=Column())  # wraps, so that nothing is cut off
    columns = SpinnerColumn(), text, TimeElapsedColumn()
    progress = Progress(*columns, console=screen, transient=True)
    task = progress.add_task(what, total=None)
    with warnings_in_lines(), nullcontext() if quiet or not screen.is_terminal else progress:
        yield lambda now: progress.update(task, description=f"{what}: {now}")


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Collect warnings, print those meant for users on standard error at the end, and drop the others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield
    print_lines("warning", (with_options(str(warning.message)) for warning in caught))


def print_lines(kind: str, messages: Iterable[str]) -> None:
    """Print each message once, on a line of its own on standard error."""
    for message in dict.fromkeys(messages):
        print(f"{kind}: {message}", file=sys.stderr, flush=True)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture in the format of the file's suffix, atomically."""
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150)


def facts_of_returns(returns: Sequence[float]) -> list[Fact]:
    """Summarise the returns of episodes."""
    low, middle, high = np.quantile(returns, [0.25, 0.5, 0.75]).tolist()
    mean, std = float(np.mean(returns)), float(np.std(returns))
    return [
        Fact("mean", "mean return", mean, f"{mean:.2f}"),
        Fact("std", "standard deviation", std, f"{std:.2f}"),
        Fact("min", "minimum", float(min(returns)), f"{min(returns):.2f}"),
        Fact("quartiles", "quartiles", [low, middle, high], f"{low:.2f}, {middle:.2f}, {high:.2f}"),
        Fact("returns", None, list(returns)),
    ]


def facts_of_calibration(figures: Mapping[str, float]) -> list[Fact]:
    """Summarise the calibration of an agent, see `cramix.rl.ReturnCalibration.summary`."""
    names = {
        "return_crps": ("CRPS of returns", "{:.4g}"),
        "empirical_crps": ("CRPS without the state", "{:.4g}"),
        "coverage_50": ("in the 50 % interval", "{:.1%}"),
        "coverage_80": ("in the 80 % interval", "{:.1%}"),
        "coverage_95": ("in the 95 % interval", "{:.1%}"),
        "return_bias": ("bias of the mean", "{:.4g}"),
        "return_error": ("deviation from the mean", "{:.4g}"),
        "return_deviation": ("predicted deviation", "{:.4g}"),
    }
    return [Fact(name, label, figures[name], text.format(figures[name])) for name, (label, text) in names.items()]


def component_tables(mixture: MultivariateNormalMixture, names: tuple[str, ...], width: int) -> list[Table | str]:
    """Return tables at most `width` characters wide: a component in each row, some of the columns in each table."""
    count = min(mixture.n_components, _MOST_COMPONENTS)
    weights, means = mixture.weights[:count].tolist(), mixture.means[:count].tolist()
    scales = mixture.covariances[:count].diagonal(dim1=-2, dim2=-1).sqrt().tolist()
    cells = [[f"{m:.4g} ± {s:.3g}" for m, s in zip(*row, strict=True)] for row in zip(means, scales, strict=True)]
    shown = names[:_MOST_COLUMNS]
    widths = [max(min(len(name), _WIDEST_NAME), *(len(row[i]) for row in cells)) for i, name in enumerate(shown)]
    tables = []
    for block in _blocks(widths, width):
        table = Table("", "weight", *(Column(shown[i], max_width=widths[i]) for i in block))
        for number, (weight, row) in enumerate(zip(weights, cells, strict=True)):
            table.add_row(str(number), f"{weight:.4f}", *(row[i] for i in block))
        tables.append(table)
    tables[0].title = "Components: mean ± standard deviation"
    tables[0].title_justify = "left"
    hidden = []
    if mixture.n_components > count:
        hidden.append(counted(mixture.n_components - count, "lighter component"))
    if len(names) > len(shown):
        hidden.append(counted(len(names) - len(shown), "more column"))
    return [*tables, f"and {' and '.join(hidden)}; --json shows all"] if hidden else [*tables]


def _blocks(widths: list[int], width: int) -> Iterator[list[int]]:
    """Distribute columns over tables that have a number and a weight in front."""
    room = first = width - len("│ 00 ┃ weight │")
    block: list[int] = []
    for i, needed in enumerate(widths):
        if block and needed + 3 > room:
            yield block
            block, room = [], first
        block.append(i)
        room -= needed + 3
    yield block


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as 1 row or 2 rows."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _words(value: object) -> str:
    if isinstance(value, Estimate):
        return f"{value.value:.6g} ± {value.standard_error:.2g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _plain(value: object) -> object:
    """Return what JSON can represent; NaN and infinity become null."""
    if isinstance(value, Estimate):
        return {key: _plain(part) for key, part in value._asdict().items()}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)
