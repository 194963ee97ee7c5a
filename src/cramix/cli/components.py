"""The components of a mixture as tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from cramix.cli.report import counted
from cramix.mixture import MultivariateNormalMixture

# Shown to people; JSON has all of them.
_MOST_COMPONENTS, _MOST_COLUMNS = 20, 60


def component_tables(mixture: MultivariateNormalMixture, names: tuple[str, ...], width: int) -> list[Table | str]:
    """Return tables at most `width` characters wide: a component in each row, some of the columns in each table."""
    count = min(mixture.n_components, _MOST_COMPONENTS)
    weights, means = mixture.weights[:count].tolist(), mixture.means[:count].tolist()
    scales = mixture.covariances[:count].diagonal(dim1=-2, dim2=-1).sqrt().tolist()
    cells = [[f"{m:.4g} ± {s:.3g}" for m, s in zip(*row, strict=True)] for row in zip(means, scales, strict=True)]
    shown = names[:_MOST_COLUMNS]
    tables = []
    for block in _blocks([max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(shown)], width):
        table = Table("", "weight", *(shown[i] for i in block))
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
